//! Forward: y and the sum.

use super::*;
use crate::cpu::math::silu;
use crate::cpu::{Arena, Kernel};
use crate::exec::Exec;

/// Jobs at most, which is enough for any number of threads.
const MOST_JOBS: usize = 4096;

pub(in crate::ops::norm) fn forward(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    match problem.double {
        true => run::<f64>(exec, problem, targets),
        false => run::<f32>(exec, problem, targets),
    }
}

fn run<T: Real>(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    let plan = Plan::new(problem, MOST_JOBS);
    exec.for_work(problem.count().saturating_mul(problem.dim())).for_each(plan.jobs(), Arena::<T>::default, |arena, job| {
        arena.lend(
            |room| Scratch::lay_out(room, problem),
            |scratch| exec.level().dispatch(Job { problem, targets, scratch, rows: plan.rows_of(job) }),
        );
    });
}

struct Scratch<'m, T> {
    values: ArrayMut<'m, T>,
    gate: ArrayMut<'m, T>,
    weights: Weights<'m, T>,
}

impl<'m, T: Real> Scratch<'m, T> {
    fn lay_out(room: &mut Room<'m, T>, problem: &Problem<'_>) -> Self {
        let [values, gate] = [padded(problem); 2].map(|len| room.array(len));
        Scratch { values, gate, weights: Weights::lay_out(room, problem) }
    }
}

struct Job<'j, 'a, T> {
    problem: &'j Problem<'a>,
    targets: &'j Targets,
    scratch: Scratch<'j, T>,
    rows: Range<usize>,
}

impl<T: Real> Kernel for Job<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Job { problem, targets, scratch, rows } = self;
        let Scratch { mut values, mut gate, mut weights } = scratch;
        weights.load(simd, problem);
        for group in Group::of_rows(problem, rows) {
            group.load_sum(simd, values.reborrow(), gate.reborrow());
            if let Some(sum) = &targets.sum {
                group.store(simd, values.read(), sum);
            }
            let Some(y) = &targets.y else { continue };
            if let Some(z) = &problem.z {
                group.load(simd, z, gate.reborrow());
                for at in vectors::<T, S>(problem) {
                    gate.store(at, silu(gate.load(simd, at)));
                    if !problem.norm_before_gate {
                        values.store(at, values.load(simd, at) * gate.load(simd, at));
                    }
                }
            }
            group.norm(simd, values.reborrow());
            let [weight, bias] = weights.of(group);
            for at in vectors::<T, S>(problem) {
                let mut out = values.load(simd, at).mul_add(weight.load(simd, at), bias.load(simd, at));
                if problem.norm_before_gate && problem.z.is_some() {
                    out = out * gate.load(simd, at);
                }
                values.store(at, out);
            }
            group.store(simd, values.read(), y);
        }
    }
}
