//! One step on the CPU: outputs of a map in the lanes of a vector, its inputs as time.
//!
//! Both products are the same loop: a tile of a map (64 inputs x a vector of outputs, transposed on the way in) is applied to every row,
//! whose inputs are broadcast. A first set of jobs computes `B u` for a block of states and moves those on; a second one applies C.

mod plan;

use super::{Problem, Targets};
use crate::cpu::recurrence::Steps;
use crate::cpu::simd::{Cx, Field, Isa, Real, V};
use crate::cpu::tile::{self, Area, Plane, PlaneMut, STEPS};
use crate::cpu::{Arena, Array, ArrayMut, Divided, Kernel, Room};
use crate::exec::Exec;
use crate::ops::simplified_scan::cpu::rule::{self, Deltas, Values};
use crate::tensor::View;
use plan::{Plan, ROWS};

pub(crate) fn update(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    match problem.double {
        false => run::<f32>(exec, problem, targets),
        true => run::<f64>(exec, problem, targets),
    }
}

fn run<T: Real>(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    let (plan, level) = (Plan::new(problem), exec.level());
    // complex products with both maps
    let exec = exec.for_work(problem.batch.saturating_mul(problem.dim).saturating_mul(8 * problem.dstate));
    // rows that use a state, and that state
    let rows: Vec<(usize, usize)> = problem.rows.iter().enumerate().filter_map(|(b, row)| row.map(|row| (b, row))).collect();
    let mut inputs = vec![T::default(); 2 * problem.batch * problem.dim];
    let area = Plane::of(&problem.u, 1, 0).area(problem.dim, problem.batch);
    tile::load_parts_on(level, area, 2, problem.dim, ArrayMut::of(&mut inputs));
    let mut states = vec![T::default(); 2 * problem.batch * problem.dstate];
    let (width, step) = (level.lanes(problem.double), &Step { problem, targets, plan, rows: &rows, inputs: &inputs });
    let next = Divided::of(&mut states);
    exec.for_each(plan.state_blocks(), Arena::<T>::default, |arena, block| {
        arena.lend(
            |room| Scratch::lay_out(room, width),
            |scratch| level.dispatch(StateJob { step, block, states: next, scratch }),
        );
    });
    exec.for_each(plan.output_blocks(), Arena::<T>::default, |arena, block| {
        arena.lend(
            |room| Scratch::lay_out(room, width),
            |scratch| level.dispatch(OutputJob { step, block, states: &states, scratch }),
        );
    });
}

/// The values that all jobs share.
struct Step<'s, 'a, T> {
    problem: &'s Problem<'a>,
    targets: &'s Targets,
    plan: Plan,
    /// Rows that use a state, and that state.
    rows: &'s [(usize, usize)],
    /// (row, part, channel)
    inputs: &'s [T],
}

/// The arrays of a thread.
struct Scratch<'m, T> {
    /// A tile of a map, and a sum for each row.
    tile: ArrayMut<'m, T>,
    sums: ArrayMut<'m, T>,
    /// A vector each: step sizes, also of the decay, and what they become. The first also serves other vectors on their way.
    d: ArrayMut<'m, T>,
    da: ArrayMut<'m, T>,
    values: Values<'m, T>,
}

impl<'m, T: Real> Scratch<'m, T> {
    fn lay_out(room: &mut Room<'m, T>, width: usize) -> Self {
        let (tile, sums) = (room.array(2 * STEPS * width), room.array(2 * ROWS * width));
        let [d, da, decay, input] = [2 * width; 4].map(|len| room.array(len));
        Scratch { tile, sums, d, da, values: Values { decay, input } }
    }

    /// `sums[i] = M inputs[row of i]` for one vector of outputs, in as many lanes as the map's area has; its steps are the inputs, which are
    /// (row, part, input).
    #[inline(always)]
    fn apply<S: Isa>(&mut self, simd: S, map: Area<'_>, inputs: Array<'_, T>, rows: &[(usize, usize)]) {
        let Scratch { tile, sums, .. } = self;
        let (width, zero, len) = (T::lanes::<S>(), Cx::<T, S>::zero(simd), map.steps);
        let step = 2 * width;
        for i in 0..rows.len() {
            sums.store_field(i * step, zero);
        }
        for start in (0..len).step_by(STEPS) {
            let steps = STEPS.min(len - start);
            tile::load_parts(simd, map.plane.at(0, start).area(map.lanes, steps), 2, width, tile.reborrow());
            for (i, &(b, _)) in rows.iter().enumerate() {
                let input = inputs.from(2 * b * len + start);
                // two sums, since one would wait for itself
                let (mut even, mut odd): (Cx<T, S>, _) = (sums.load_field(simd, i * step), zero);
                for t in (0..steps).step_by(2) {
                    let factor: Cx<T, S> = tile.load_field(simd, t * step);
                    even = factor.mul_add(input.broadcast_field(simd, t, len), even);
                    if t + 1 < steps {
                        let factor: Cx<T, S> = tile.load_field(simd, (t + 1) * step);
                        odd = factor.mul_add(input.broadcast_field(simd, t + 1, len), odd);
                    }
                }
                sums.store_field(i * step, even + odd);
            }
        }
    }
}

/// Moves a block of states on, in all rows.
struct StateJob<'j, 's, 'a, T> {
    step: &'j Step<'s, 'a, T>,
    block: usize,
    /// (row, part, state) after the step.
    states: Divided<'j, T>,
    scratch: Scratch<'j, T>,
}

impl<T: Real> Kernel for StateJob<'_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let Step { problem, plan, rows, inputs, .. } = self.step;
        let width = T::lanes::<S>();
        let block = plan.states(self.block);
        for first in block.clone().step_by(width) {
            let count = width.min(block.end - first);
            let map = Plane::of(&problem.b, 0, 1).at(first, 0).area(count, problem.dim);
            let a = load_vector::<T, S>(simd, Plane::of(&problem.a, 0, 0).at(first, 0), count, self.scratch.d.reborrow());
            for rows in rows.chunks(ROWS) {
                self.scratch.apply(simd, map, Array::of(inputs), rows);
                for i in 0..rows.len() {
                    self.advance(simd, (first, count), a, rows, i);
                }
            }
        }
    }
}

impl<T: Real> StateJob<'_, '_, '_, T> {
    /// Moves a vector of states of the `i`-th of some rows on, for which the input is in the sums.
    #[inline(always)]
    fn advance<S: Isa>(&mut self, simd: S, (first, count): (usize, usize), a: Cx<T, S>, rows: &[(usize, usize)], i: usize) {
        let Step { problem, targets, .. } = self.step;
        let Scratch { sums, d, da, values, .. } = &mut self.scratch;
        let (width, (b, row), zero) = (T::lanes::<S>(), rows[i], Cx::zero(simd));
        let load = |view: &View<'_>, to: &mut ArrayMut<'_, T>| {
            tile::load_parts(simd, Plane::of(view, 1, 0).at(first, b).area(count, 1), 1, width, to.reborrow());
        };
        problem.delta_a.iter().for_each(|view| load(view, da));
        load(&problem.delta, d);
        let (shared, step) = (problem.delta_a.is_none(), Steps::new(d.read(), 0));
        let deltas = Deltas { d: step, da: if shared { step } else { Steps::new(da.read(), 0) }, shared, constant: true };
        rule::values(simd, problem.discretization, a, deltas, 1, values);
        let state = PlaneMut::of(&targets.state, 1, 0).at(first, row);
        let x = load_vector::<T, S>(simd, state.read(), count, d.reborrow());
        let driven = values.input.load_field::<S, Cx<T, S>>(simd, 0).mul_add(sums.load_field(simd, 2 * i * width), zero);
        let x = values.decay.load_field::<S, Cx<T, S>>(simd, 0).mul_add(x, driven);
        d.store_field(0, x);
        for part in 0..2 {
            // SAFETY: no other job has these states.
            let mut to = unsafe { self.states.part((2 * b + part) * problem.dstate + first) };
            to.slice(0, count).copy_from_slice(d.shared(part * width, count));
        }
        tile::store_parts(simd, d.read(), 2, width, state.area(count, 1));
    }
}

#[inline(always)]
fn load_vector<T: Real, S: Isa>(simd: S, plane: Plane<'_>, count: usize, mut vector: ArrayMut<'_, T>) -> Cx<T, S> {
    tile::load_parts(simd, plane.area(count, 1), 2, T::lanes::<S>(), vector.reborrow());
    vector.load_field(simd, 0)
}

/// Computes a block of outputs, in all rows.
struct OutputJob<'j, 's, 'a, T> {
    step: &'j Step<'s, 'a, T>,
    block: usize,
    /// (row, part, state) after the step.
    states: &'j [T],
    scratch: Scratch<'j, T>,
}

impl<T: Real> Kernel for OutputJob<'_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let Step { problem, plan, rows, .. } = self.step;
        let width = T::lanes::<S>();
        let block = plan.outputs(self.block);
        for first in block.clone().step_by(width) {
            let count = width.min(block.end - first);
            let map = Plane::of(&problem.c, 0, 1).at(first, 0).area(count, problem.dstate);
            for (b, _) in problem.rows.iter().enumerate().filter(|(_, row)| row.is_none()) {
                self.store(simd, (first, count), b, Cx::<T, S>::zero(simd));
            }
            let d = match &problem.d {
                Some(view) => load_vector(simd, Plane::of(view, 0, 0).at(first, 0), count, self.scratch.d.reborrow()).re,
                None => V::constant(simd, 0.0),
            };
            for rows in rows.chunks(ROWS) {
                self.scratch.apply(simd, map, Array::of(self.states), rows);
                for (i, &(b, _)) in rows.iter().enumerate() {
                    self.output(simd, (first, count), d, i, b);
                }
            }
        }
    }
}

impl<T: Real> OutputJob<'_, '_, '_, T> {
    /// A vector of outputs of row `b`, whose sum is the `i`-th.
    #[inline(always)]
    fn output<S: Isa>(&mut self, simd: S, place: (usize, usize), d: V<T, S>, i: usize, b: usize) {
        let Step { problem, inputs, .. } = self.step;
        let Scratch { sums, d: vector, .. } = &mut self.scratch;
        let mut y: Cx<T, S> = sums.load_field(simd, 2 * i * T::lanes::<S>());
        if let Some(factor) = problem.real_factor {
            y = y.scale(V::constant(simd, factor));
        }
        if problem.d.is_some() {
            let (first, count) = place;
            vector.slice(0, count).copy_from_slice(&inputs[2 * b * problem.dim + first..][..count]);
            y.re = d.mul_add(vector.load(simd, 0), y.re);
        }
        self.store(simd, place, b, y);
    }

    #[inline(always)]
    fn store<S: Isa>(&mut self, simd: S, (first, count): (usize, usize), b: usize, y: Cx<T, S>) {
        let parts = if self.step.problem.real_factor.is_some() { 1 } else { 2 };
        let to = PlaneMut::of(&self.step.targets.y, 1, 0).at(first, b).area(count, 1);
        self.scratch.d.store_field(0, y);
        tile::store_parts(simd, self.scratch.d.read(), parts, T::lanes::<S>(), to);
    }
}
