//! Backward: gradients by the rows, and sums over rows for weight and bias.

use super::*;
use crate::cpu::math::silu_and_derivative;
use crate::cpu::{Arena, Kernel, add_up};
use crate::exec::Exec;
use std::sync::{Mutex, PoisonError};

/// Jobs at most: each leaves sums of its own.
const MOST_JOBS: usize = 128;
/// Rows whose terms are added in the compute type, before they go to sums in `f64`.
const TOGETHER: usize = 32;

pub(in crate::ops::norm) fn backward(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    match problem.double {
        true => run::<f64>(exec, problem, sources, targets),
        false => run::<f32>(exec, problem, sources, targets),
    }
}

fn run<T: Real>(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    let (plan, dim) = (Plan::new(problem, MOST_JOBS), problem.dim());
    let summed = targets.weight.is_some() || targets.bias.is_some();
    let mut partial = vec![0.0f64; if summed { plan.jobs() * 2 * dim } else { 0 }];
    // each job has its own part, so that no lock is ever waited for
    let parts: Vec<_> = partial.chunks_mut((2 * dim).max(1)).map(Mutex::new).collect();
    exec.for_work(problem.count().saturating_mul(dim)).for_each(plan.jobs(), Arena::<T>::default, |arena, job| {
        let mut part = parts.get(job).map(|part| part.lock().unwrap_or_else(PoisonError::into_inner));
        let sums = part.as_mut().map(|part| &mut part[..]);
        arena.lend(
            |room| Scratch::lay_out(room, problem),
            |scratch| exec.level().dispatch(Job { problem, sources, targets, scratch, sums, rows: plan.rows_of(job) }),
        );
    });
    drop(parts);
    let mut totals = vec![0.0; 2 * dim];
    add_up(&mut totals, partial.chunks((2 * dim).max(1)));
    let (of_weight, of_bias) = totals.split_at(dim);
    for (target, sums) in [(&targets.weight, of_weight), (&targets.bias, of_bias)] {
        if let Some(target) = target {
            let stride = target.strides()[0];
            sums.iter().enumerate().for_each(|(channel, &sum)| target.write(channel as isize * stride, sum.into()));
        }
    }
}

struct Scratch<'m, T> {
    sum: ArrayMut<'m, T>,
    normed: ArrayMut<'m, T>,
    gate: ArrayMut<'m, T>,
    slope: ArrayMut<'m, T>,
    by_out: ArrayMut<'m, T>,
    other: ArrayMut<'m, T>,
    weights: Weights<'m, T>,
    /// Sums of some rows, as the weights.
    sums: Weights<'m, T>,
}

impl<'m, T: Real> Scratch<'m, T> {
    fn lay_out(room: &mut Room<'m, T>, problem: &Problem<'_>) -> Self {
        let [sum, normed, gate, slope, by_out, other] = [padded(problem); 6].map(|len| room.array(len));
        let weights = Weights::lay_out(room, problem);
        Scratch { sum, normed, gate, slope, by_out, other, weights, sums: Weights::lay_out(room, problem) }
    }
}

struct Job<'j, 'a, T> {
    problem: &'j Problem<'a>,
    sources: &'j Sources<'a>,
    targets: &'j GradientTargets,
    scratch: Scratch<'j, T>,
    /// Sums for every channel: the gradient by the weight, then by the bias.
    sums: Option<&'j mut [f64]>,
    rows: Range<usize>,
}

impl<T: Real> Kernel for Job<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let (problem, rows) = (self.problem, self.rows.clone());
        self.scratch.weights.load(simd, problem);
        self.clear();
        for first in rows.clone().step_by(TOGETHER) {
            for group in Group::of_rows(problem, first..rows.end.min(first + TOGETHER)) {
                self.group(simd, group);
            }
            self.flush();
        }
    }
}

impl<T: Real> Job<'_, '_, T> {
    /// Whether the gate multiplies the normed row, and whether it multiplies what is normed.
    fn gates(&self) -> (bool, bool) {
        let there = self.problem.z.is_some();
        (there && self.problem.norm_before_gate, there && !self.problem.norm_before_gate)
    }

    #[inline(always)]
    fn clear(&mut self) {
        let len = self.problem.groups * padded(self.problem);
        for sums in [&mut self.scratch.sums.weight, &mut self.scratch.sums.bias] {
            sums.clear(len);
        }
    }

    /// Adds the sums of some rows to those of the job.
    #[inline(always)]
    fn flush(&mut self) {
        let (problem, padded) = (self.problem, padded(self.problem));
        let Some(sums) = &mut self.sums else { return };
        let (by_weight, by_bias) = sums.split_at_mut(problem.dim());
        for (totals, sums) in [(by_weight, &self.scratch.sums.weight), (by_bias, &self.scratch.sums.bias)] {
            for (number, totals) in totals.chunks_mut(problem.group).enumerate() {
                let sums = sums.shared(number * padded, problem.group);
                totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum.to_f64());
            }
        }
        self.clear();
    }

    #[inline(always)]
    fn group<S: Isa>(&mut self, simd: S, group: Group<'_, '_>) {
        let (problem, (after, before)) = (self.problem, self.gates());
        let Scratch { sum, normed, gate, slope, by_out, other, .. } = &mut self.scratch;
        group.load_sum(simd, sum.reborrow(), other.reborrow());
        if let Some(z) = &problem.z {
            group.load(simd, z, gate.reborrow());
        }
        match &self.sources.y {
            Some(by_y) => group.load(simd, by_y, by_out.reborrow()),
            None => by_out.clear(padded(problem)),
        }
        for at in vectors::<T, S>(problem) {
            let mut value = sum.load(simd, at);
            if problem.z.is_some() {
                let (of_z, derivative) = silu_and_derivative(gate.load(simd, at));
                gate.store(at, of_z);
                slope.store(at, derivative);
                value = if before { value * of_z } else { value };
            }
            normed.store(at, value);
        }
        let factor = group.norm(simd, normed.reborrow());
        if after {
            self.through_gate(simd, group);
        }
        self.add(simd, group);
        self.rows(simd, group, factor);
    }

    /// The gradient by the gate behind the norm, and by what it multiplies.
    #[inline(always)]
    fn through_gate<S: Isa>(&mut self, simd: S, group: Group<'_, '_>) {
        let Scratch { normed, gate, slope, by_out, other, weights, .. } = &mut self.scratch;
        let [weight, bias] = weights.of(group);
        for at in vectors::<T, S>(self.problem) {
            let by_y = by_out.load(simd, at);
            let out = normed.load(simd, at).mul_add(weight.load(simd, at), bias.load(simd, at));
            other.store(at, by_y * out * slope.load(simd, at));
            by_out.store(at, by_y * gate.load(simd, at));
        }
        if let Some(z) = &self.targets.z {
            group.store(simd, other.read(), z);
        }
    }

    /// Adds to the sums over rows; `by_out` becomes the gradient by the normed row.
    #[inline(always)]
    fn add<S: Isa>(&mut self, simd: S, group: Group<'_, '_>) {
        let Scratch { normed, by_out, sums, weights, .. } = &mut self.scratch;
        let [mut by_weight, mut by_bias] = sums.of_mut(group);
        let [weight, _] = weights.of(group);
        for at in vectors::<T, S>(self.problem) {
            let by = by_out.load(simd, at);
            by_weight.store(at, by.mul_add(normed.load(simd, at), by_weight.load(simd, at)));
            by_bias.store(at, by + by_bias.load(simd, at));
            by_out.store(at, by * weight.load(simd, at));
        }
    }

    /// The gradients by the row, and by the gate before the norm.
    #[inline(always)]
    fn rows<S: Isa>(&mut self, simd: S, group: Group<'_, '_>, factor: T) {
        let (problem, (_, before)) = (self.problem, self.gates());
        let Scratch { sum, normed, gate, slope, by_out, other, .. } = &mut self.scratch;
        let mean = |sum: T| V::constant(simd, sum.to_f64() / problem.group as f64);
        let along = match problem.normed {
            true => mean(total(simd, problem, |at| by_out.load(simd, at) * normed.load(simd, at))),
            false => V::splat(simd, T::default()),
        };
        let level = match problem.layer {
            true => mean(total(simd, problem, |at| by_out.load(simd, at))),
            false => V::splat(simd, T::default()),
        };
        let factor = V::splat(simd, factor);
        for at in vectors::<T, S>(problem) {
            let by = (normed.load(simd, at).neg_mul_add(along, by_out.load(simd, at)) - level) * factor;
            if before {
                slope.store(at, by * sum.load(simd, at) * slope.load(simd, at));
            }
            by_out.store(at, if before { by * gate.load(simd, at) } else { by });
        }
        if let Some(z) = self.targets.z.as_ref().filter(|_| before) {
            group.store(simd, slope.read(), z);
        }
        if let Some(by_sum) = &self.sources.sum {
            group.load(simd, by_sum, other.reborrow());
            for at in vectors::<T, S>(problem) {
                by_out.store(at, by_out.load(simd, at) + other.load(simd, at));
            }
        }
        self.store(simd, group);
    }

    /// The gradients by the row, by its residual and by the residual's scale.
    #[inline(always)]
    fn store<S: Isa>(&mut self, simd: S, group: Group<'_, '_>) {
        let (problem, targets) = (self.problem, self.targets);
        let Scratch { by_out, other, .. } = &mut self.scratch;
        if let Some(target) = &targets.x {
            group.store(simd, by_out.read(), target);
        }
        if let (Some(target), Some(residual)) = (&targets.residual_scale, &problem.residual) {
            group.load(simd, residual, other.reborrow());
            let sum = total(simd, problem, |at| by_out.load(simd, at) * other.load(simd, at)).to_f64();
            let strides = target.strides();
            let place: isize = group.row.iter().zip(strides.iter()).map(|(&at, &stride)| at as isize * stride).sum();
            target.write(place, sum.into());
        }
        if let Some(target) = &targets.residual {
            if problem.residual_scale.is_some() {
                group.scale(simd, by_out.reborrow());
            }
            group.store(simd, by_out.read(), target);
        }
    }
}
