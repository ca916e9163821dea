//! The part that forward and backward share between the products: one vector of states, its step sizes and its states at the
//! edges of segments.

use super::Context;
use super::plan::{CHUNK, Tile, padded};
use super::rule::Deltas;
use crate::cpu::recurrence::Steps;
use crate::cpu::simd::{Cx, Field, Isa, Real, V};
use crate::cpu::tile::{self, Area, AreaMut, Plane, PlaneMut};
use crate::cpu::{ArrayMut, Divided};
use crate::ops::sequences::StateRow;
use crate::ops::simplified_scan::Step;
use crate::tensor::{RawViewMut, View};
use core::ops::Range;

/// States in the lanes of one vector.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    pub first: usize,
    pub count: usize,
    /// The column of their vector in a row of states.
    pub column: usize,
}

/// The vectors of a chunk of states.
pub(super) fn vectors(dstate: usize, chunk: usize, width: usize) -> impl Iterator<Item = Lanes> {
    let end = dstate.min((chunk + 1) * CHUNK);
    (chunk * CHUNK..end).step_by(width).map(move |first| Lanes { first, count: width.min(end - first), column: 2 * first })
}

/// The step sizes of one vector of states in one tile.
#[inline(always)]
pub(super) fn load_deltas<'m, T: Real, S: Isa>(
    simd: S,
    context: &Context<'_, '_, T>,
    tile: &Tile,
    lanes: Lanes,
    [d, da]: [&'m mut ArrayMut<'_, T>; 2],
) -> Deltas<'m, T> {
    let width = T::lanes::<S>();
    debug_assert!(lanes.count <= width, "at most a vector of states");
    let load = |step: &Step<'_>, to: &'m mut ArrayMut<'_, T>| {
        debug_assert!(step.is_constant() || to.has(0, tile.len() * width), "room for the steps");
        tile::load_parts(simd, step_area(step, tile, lanes), 1, width, to.reborrow());
        Steps::new(to.read(), if step.is_constant() { 0 } else { width })
    };
    let problem = context.problem;
    let d = load(&problem.delta, d);
    let constant = problem.delta.is_constant() && problem.delta_a.as_ref().is_none_or(Step::is_constant);
    match &problem.delta_a {
        None => Deltas { d, da: d, shared: true, constant },
        Some(step) => Deltas { d, da: load(step, da), shared: false, constant },
    }
}

/// Returns the area of a tile's step sizes.
fn step_area<'v>(step: &Step<'v>, tile: &Tile, lanes: Lanes) -> Area<'v> {
    match step {
        Step::Constant(view) => Plane::of(view, 0, 0).at(lanes.first, 0).area(lanes.count, 1),
        Step::Varying(view) => {
            let plane = Plane::of(view, 1, 2).along(tile.batch, view.strides()[0]);
            plane.at(lanes.first, tile.start).area(lanes.count, tile.len())
        }
    }
}

/// Returns the target of a tile's gradients by step sizes that depend on time.
pub(super) fn step_target(view: &RawViewMut, tile: &Tile, lanes: Lanes) -> AreaMut {
    let plane = PlaneMut::of(view, 1, 2).along(tile.batch, view.strides()[0]);
    plane.at(lanes.first, tile.start).area(lanes.count, tile.len())
}

/// One vector of `a`.
#[inline(always)]
pub(super) fn load_a<T: Real, S: Isa>(simd: S, context: &Context<'_, '_, T>, lanes: Lanes, vector: ArrayMut<'_, T>) -> Cx<T, S> {
    let plane = Plane::of(&context.problem.a, 0, 0).at(lanes.first, 0);
    load_vector(simd, plane, lanes, vector)
}

/// One vector of a state tensor (rows, sequences, P); zero where there is none.
#[inline(always)]
pub(super) fn load_state<T: Real, S: Isa>(
    simd: S,
    view: &Option<View<'_>>,
    at: Option<StateRow>,
    lanes: Lanes,
    vector: ArrayMut<'_, T>,
) -> Cx<T, S> {
    let (Some(view), Some((row, sequence))) = (view, at) else { return Cx::zero(simd) };
    let strides = view.strides();
    let plane = Plane::of(view, 2, 2).along(row, strides[0]).along(sequence, strides[1]).at(lanes.first, 0);
    load_vector(simd, plane, lanes, vector)
}

/// One complex vector of the lanes of a plane.
#[inline(always)]
fn load_vector<T: Real, S: Isa>(simd: S, plane: Plane<'_>, lanes: Lanes, mut vector: ArrayMut<'_, T>) -> Cx<T, S> {
    debug_assert!(vector.has(0, 2 * T::lanes::<S>()), "room for a complex vector");
    debug_assert!(lanes.count <= T::lanes::<S>(), "at most a vector of states");
    tile::load_parts(simd, plane.area(lanes.count, 1), 2, T::lanes::<S>(), vector.reborrow());
    vector.load_field(simd, 0)
}

/// Writes one vector of a state tensor.
#[inline(always)]
pub(super) fn store_state<T: Real, S: Isa>(
    simd: S,
    view: &Option<RawViewMut>,
    at: Option<StateRow>,
    lanes: Lanes,
    state: Cx<T, S>,
    vector: &mut ArrayMut<'_, T>,
) {
    let (Some(view), Some((row, sequence))) = (view, at) else { return };
    let strides = view.strides();
    let plane = PlaneMut::of(view, 2, 2).along(row, strides[0]).along(sequence, strides[1]).at(lanes.first, 0);
    vector.store_field(0, state);
    tile::store_parts(simd, vector.read(), 2, T::lanes::<S>(), plane.area(lanes.count, 1));
}

/// Returns both offsets of one vector of a saved state, which is the real parts of all states and then the imaginary parts.
fn saved_at(state: usize, dstate: usize, lanes: Lanes) -> [usize; 2] {
    [state + lanes.first, state + padded(dstate) + lanes.first]
}

/// Reads one vector of the saved state that begins at `state`. It may reach into the padding, for the widths of vectors divide its length.
#[inline(always)]
pub(super) fn read_saved<T: Real, S: Isa>(simd: S, saved: &[T], state: usize, dstate: usize, lanes: Lanes) -> Cx<T, S> {
    let [re, im] = saved_at(state, dstate, lanes).map(|at| V::first(simd, &saved[at..]));
    Cx { re, im }
}

/// Writes one, likewise.
#[inline(always)]
pub(super) fn write_saved<T: Real, S: Isa>(saved: Divided<'_, T>, state: usize, dstate: usize, lanes: Lanes, value: Cx<T, S>) {
    for (at, part) in saved_at(state, dstate, lanes).into_iter().zip([value.re, value.im]) {
        // SAFETY: a tile of a vector of states has one job, which nobody reads from before the pass ends.
        unsafe { saved.part(at) }.store(0, part);
    }
}

/// Zeroes the lanes behind the last state, where a product with a padding of zeros may have left NaN.
#[inline(always)]
pub(super) fn clear_padding<T: Real, S: Isa>(mut rows: ArrayMut<'_, T>, step: usize, steps: usize, count: usize) {
    let width = T::lanes::<S>();
    debug_assert!(count <= width, "at most a vector of states");
    debug_assert!(steps <= 1 || step >= 2 * width, "rows do not overlap");
    if count == width {
        return;
    }
    for t in 0..steps {
        for part in 0..2 {
            rows.slice(t * step + part * width + count, width - count).fill(T::default());
        }
    }
}

/// The rows of a job of the scan: a row of the batch and a chunk of states.
pub(super) fn split(index: usize, rows: &Range<usize>, chunks: usize) -> (usize, usize) {
    (rows.start + index / chunks, index % chunks)
}

/// Number of chunks of states.
pub(super) fn chunks(dstate: usize) -> usize {
    dstate.div_ceil(CHUNK)
}
