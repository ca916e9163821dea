//! One step on the CPU: outputs of a map in the lanes of a vector, its inputs as time.
//!
//! Both products are the same loop: a tile of a map (64 inputs x a vector of outputs, transposed on the way in) is applied to every row,
//! whose inputs are broadcast. A first set of jobs computes `B u` for a block of states and moves those on; a second one applies C.

mod plan;

use super::{Problem, Targets};
use crate::cpu::Kernel;
use crate::cpu::Shared;
use crate::cpu::simd::{Cx, Field, Isa, Real, V};
use crate::cpu::tile::{self, MAX_LANES, Plane, STEPS};
use crate::exec::Exec;
use crate::ops::simplified_scan::cpu::rule::{self, Deltas};
use crate::tensor::{RawViewMut, View};
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
    level.dispatch(LoadInputs { view: &problem.u, inputs: &mut inputs });
    let mut states = vec![T::default(); 2 * problem.batch * problem.dstate];
    let step = Step { problem, targets, plan, rows: &rows, inputs: &inputs, states: Shared::new(states.as_mut_ptr()) };
    let scratch = || vec![T::default(); 2 * (STEPS + ROWS + 4) * MAX_LANES];
    exec.for_each(plan.state_blocks(), scratch, |scratch, block| {
        level.dispatch(StateJob { step: &step, block, scratch });
    });
    exec.for_each(plan.output_blocks(), scratch, |scratch, block| {
        level.dispatch(OutputJob { step: &step, block, scratch });
    });
}

/// What all jobs share.
struct Step<'s, 'a, T> {
    problem: &'s Problem<'a>,
    targets: &'s Targets,
    plan: Plan,
    /// Rows that use a state, and that state.
    rows: &'s [(usize, usize)],
    /// (row, part, channel)
    inputs: &'s [T],
    states: Shared<T>,
}

struct LoadInputs<'j, 'a, T> {
    view: &'j View<'a>,
    inputs: &'j mut [T],
}

impl<T: Real> Kernel for LoadInputs<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let [batch, dim] = [self.view.shape()[0], self.view.shape()[1]];
        debug_assert_eq!(self.inputs.len(), 2 * batch * dim);
        // SAFETY: the plane is the whole view, and the inputs have room for it.
        unsafe { tile::load_parts(simd, Plane::of(self.view, 1, 0), 2, dim, dim, batch, self.inputs.as_mut_ptr()) }
    }
}

/// `sums[i] = M inputs[row of i]` for one vector of outputs; inputs are (row, part, input).
///
/// # Safety
/// The map's plane (outputs x inputs) starts at the vector and has `count` lanes and `len` steps; `tile` has room for a tile, `sums` for a
/// complex vector for each row.
#[inline(always)]
unsafe fn apply<T: Real, S: Isa>(
    simd: S,
    map: Plane,
    count: usize,
    len: usize,
    inputs: *const T,
    rows: &[(usize, usize)],
    tile: *mut T,
    sums: *mut T,
) {
    let (width, zero) = (T::lanes::<S>(), Cx::<T, S>::zero(simd));
    let step = 2 * width;
    // SAFETY: the caller's contract.
    unsafe {
        for i in 0..rows.len() {
            zero.store(sums.add(i * step));
        }
        for start in (0..len).step_by(STEPS) {
            let steps = STEPS.min(len - start);
            tile::load_parts(simd, map.at(0, start), 2, count, width, steps, tile);
            for (i, &(b, _)) in rows.iter().enumerate() {
                let input = inputs.add(2 * b * len + start);
                // two sums, since one would wait for itself
                let (mut even, mut odd) = (Cx::load(simd, sums.add(i * step)), zero);
                for t in (0..steps).step_by(2) {
                    even = Cx::load(simd, tile.add(t * step)).mul_add(Cx::broadcast(simd, input.add(t), len), even);
                    if t + 1 < steps {
                        let next = Cx::load(simd, tile.add((t + 1) * step));
                        odd = next.mul_add(Cx::broadcast(simd, input.add(t + 1), len), odd);
                    }
                }
                (even + odd).store(sums.add(i * step));
            }
        }
    }
}

/// Moves a block of states on, in all rows.
struct StateJob<'j, 's, 'a, T> {
    step: &'j Step<'s, 'a, T>,
    block: usize,
    scratch: &'j mut [T],
}

impl<T: Real> Kernel for StateJob<'_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Step { problem, targets, plan, rows, inputs, states } = self.step;
        let width = T::lanes::<S>();
        let (tile, rest) = self.scratch.split_at_mut(2 * STEPS * MAX_LANES);
        let (sums, vectors) = rest.split_at_mut(2 * ROWS * MAX_LANES);
        let base = vectors.as_mut_ptr();
        let vector = |i: usize| base.wrapping_add(i * 2 * width);
        let block = plan.states(self.block);
        for first in block.clone().step_by(width) {
            let count = width.min(block.end - first);
            // SAFETY: the block's states of every row are this job's; the scratch has room for a tile, the sums and four vectors.
            unsafe {
                let a = load_vector::<T, S>(simd, Plane::of(&problem.a, 0, 0).at(first, 0), count, vector(0));
                for rows in rows.chunks(ROWS) {
                    let map = Plane::of(&problem.b, 0, 1).at(first, 0);
                    apply::<T, S>(simd, map, count, problem.dim, inputs.as_ptr(), rows, tile.as_mut_ptr(), sums.as_mut_ptr());
                    for (i, &(b, row)) in rows.iter().enumerate() {
                        let (d, da) = (vector(0), vector(1));
                        let load = |view: &View<'_>, to| {
                            tile::load_parts(simd, Plane::of(view, 1, 0).at(first, b), 1, count, width, 1, to);
                        };
                        load(&problem.delta, d);
                        if let Some(view) = &problem.delta_a {
                            load(view, da);
                        }
                        let shared = problem.delta_a.is_none();
                        let deltas = Deltas { d, d_step: 0, da: if shared { d } else { da }, da_step: 0, shared };
                        let (decay, input) = (vector(2), vector(3));
                        rule::values(simd, problem.discretization, a, deltas, 1, decay, input);
                        let view = targets.state.as_read();
                        let x = load_vector::<T, S>(simd, Plane::of(&view, 1, 0).at(first, row), count, d);
                        let driven =
                            Cx::load(simd, input).mul_add(Cx::load(simd, sums.as_ptr().add(2 * i * width)), Cx::zero(simd));
                        let x = Cx::load(simd, decay).mul_add(x, driven);
                        x.store(d);
                        for part in 0..2 {
                            let to = states.get().add((2 * b + part) * problem.dstate + first);
                            to.copy_from_nonoverlapping(d.add(part * width), count);
                        }
                        tile::store_parts(simd, d, 2, width, Plane::of_mut(&targets.state, 1, 0).at(first, row), count, 1);
                    }
                }
            }
        }
    }
}

/// # Safety
/// The plane has `count` lanes; `vector` has room for a complex vector.
#[inline(always)]
unsafe fn load_vector<T: Real, S: Isa>(simd: S, plane: Plane, count: usize, vector: *mut T) -> Cx<T, S> {
    // SAFETY: the caller's contract.
    unsafe {
        tile::load_parts(simd, plane, 2, count, T::lanes::<S>(), 1, vector);
        Cx::load(simd, vector)
    }
}

/// Computes a block of outputs, in all rows.
struct OutputJob<'j, 's, 'a, T> {
    step: &'j Step<'s, 'a, T>,
    block: usize,
    scratch: &'j mut [T],
}

impl<T: Real> Kernel for OutputJob<'_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Step { problem, targets, plan, rows, inputs, states } = self.step;
        let width = T::lanes::<S>();
        let (tile, rest) = self.scratch.split_at_mut(2 * STEPS * MAX_LANES);
        let (sums, vectors) = rest.split_at_mut(2 * ROWS * MAX_LANES);
        let vector = vectors.as_mut_ptr();
        let parts = if problem.real_factor.is_some() { 1 } else { 2 };
        let block = plan.outputs(self.block);
        for first in block.clone().step_by(width) {
            let count = width.min(block.end - first);
            // SAFETY: the block's outputs of every row are this job's; the scratch has room for a tile, the sums and two vectors.
            unsafe {
                let store = |y: Cx<T, S>, b: usize| {
                    y.store(vector);
                    tile::store_parts(simd, vector, parts, width, target(&targets.y, first, b), count, 1);
                };
                for (b, _) in problem.rows.iter().enumerate().filter(|(_, row)| row.is_none()) {
                    store(Cx::zero(simd), b);
                }
                let d = match &problem.d {
                    Some(view) => load_vector::<T, S>(simd, Plane::of(view, 0, 0).at(first, 0), count, vector).re,
                    None => V::constant(simd, 0.0),
                };
                for rows in rows.chunks(ROWS) {
                    let map = Plane::of(&problem.c, 0, 1).at(first, 0);
                    apply::<T, S>(simd, map, count, problem.dstate, states.get(), rows, tile.as_mut_ptr(), sums.as_mut_ptr());
                    for (i, &(b, _)) in rows.iter().enumerate() {
                        let mut y = Cx::load(simd, sums.as_ptr().add(2 * i * width));
                        if let Some(factor) = problem.real_factor {
                            y = y.scale(V::constant(simd, factor));
                        }
                        if problem.d.is_some() {
                            vector.copy_from_nonoverlapping(inputs.as_ptr().add(2 * b * problem.dim + first), count);
                            y.re = d.mul_add(V::load(simd, vector), y.re);
                        }
                        store(y, b);
                    }
                }
            }
        }
    }
}

/// Where one row's outputs start.
fn target(y: &RawViewMut, first: usize, row: usize) -> Plane {
    Plane::of_mut(y, 1, 0).at(first, row)
}
