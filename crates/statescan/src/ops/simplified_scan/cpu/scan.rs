//! What forward and backward share between the products: one vector of states, its step sizes and its states at the edges of segments.

use super::Context;
use super::plan::{CHUNK, Tile, padded};
use super::rule::Deltas;
use crate::cpu::simd::{Cx, Field, Isa, Real};
use crate::cpu::tile::{self, Plane};
use crate::ops::sequences::StateRow;
use crate::ops::simplified_scan::Step;
use crate::tensor::{RawViewMut, View};
use core::ops::Range;

/// States in the lanes of one vector.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    pub first: usize,
    pub count: usize,
    /// Where their vector lies in a row of states.
    pub column: usize,
}

/// The vectors of a chunk of states.
pub(super) fn vectors(dstate: usize, chunk: usize, width: usize) -> impl Iterator<Item = Lanes> {
    let end = dstate.min((chunk + 1) * CHUNK);
    (chunk * CHUNK..end).step_by(width).map(move |first| Lanes { first, count: width.min(end - first), column: 2 * first })
}

/// The step sizes of one vector of states in one tile.
///
/// # Safety
/// The tile lies inside the problem; `d` and `da` have room for a tile of real vectors.
#[inline(always)]
pub(super) unsafe fn load_deltas<T: Real, S: Isa>(
    simd: S,
    context: &Context<'_, '_, T>,
    tile: &Tile,
    lanes: Lanes,
    d: *mut T,
    da: *mut T,
) -> Deltas<T> {
    let width = T::lanes::<S>();
    let load = |step: &Step<'_>, to: *mut T| {
        let (plane, steps) = step_plane(step, tile, lanes);
        // SAFETY: the caller's contract.
        unsafe { tile::load_parts(simd, plane, 1, lanes.count, width, steps, to) };
        if step.is_constant() { 0 } else { width }
    };
    let problem = context.problem;
    let d_step = load(&problem.delta, d);
    match &problem.delta_a {
        None => Deltas { d, d_step, da: d, da_step: d_step, shared: true },
        Some(step) => Deltas { d, d_step, da, da_step: load(step, da), shared: false },
    }
}

/// Where the step sizes of a tile are read, and for how many steps.
fn step_plane(step: &Step<'_>, tile: &Tile, lanes: Lanes) -> (Plane, usize) {
    match step {
        Step::Constant(view) => (Plane::of(view, 0, 0).at(lanes.first, 0), 1),
        Step::Varying(view) => {
            (Plane::of(view, 1, 2).along(tile.batch, view.strides()[0]).at(lanes.first, tile.start), tile.len())
        }
    }
}

/// Where the gradients of step sizes that depend on time are written.
pub(super) fn step_target(view: &RawViewMut, tile: &Tile, lanes: Lanes) -> Plane {
    Plane::of_mut(view, 1, 2).along(tile.batch, view.strides()[0]).at(lanes.first, tile.start)
}

/// One vector of `a`.
///
/// # Safety
/// `vector` has room for a complex vector.
#[inline(always)]
pub(super) unsafe fn load_a<T: Real, S: Isa>(simd: S, context: &Context<'_, '_, T>, lanes: Lanes, vector: *mut T) -> Cx<T, S> {
    let plane = Plane::of(&context.problem.a, 0, 0).at(lanes.first, 0);
    // SAFETY: the lanes are states of the problem.
    unsafe { load_vector(simd, plane, lanes, vector) }
}

/// One vector of a state tensor (rows, sequences, P); zero where there is none.
///
/// # Safety
/// `at` lies inside the tensor; `vector` has room for a complex vector.
#[inline(always)]
pub(super) unsafe fn load_state<T: Real, S: Isa>(
    simd: S,
    view: &Option<View<'_>>,
    at: Option<StateRow>,
    lanes: Lanes,
    vector: *mut T,
) -> Cx<T, S> {
    let (Some(view), Some((row, sequence))) = (view, at) else { return Cx::zero(simd) };
    let strides = view.strides();
    let plane = Plane::of(view, 2, 2).along(row, strides[0]).along(sequence, strides[1]).at(lanes.first, 0);
    // SAFETY: the caller's contract.
    unsafe { load_vector(simd, plane, lanes, vector) }
}

#[inline(always)]
unsafe fn load_vector<T: Real, S: Isa>(simd: S, plane: Plane, lanes: Lanes, vector: *mut T) -> Cx<T, S> {
    // SAFETY: the callers' contracts.
    unsafe {
        tile::load_parts(simd, plane, 2, lanes.count, T::lanes::<S>(), 1, vector);
        Cx::load(simd, vector)
    }
}

/// Writes one vector of a state tensor.
///
/// # Safety
/// As [`load_state`], and the elements are this thread's.
#[inline(always)]
pub(super) unsafe fn store_state<T: Real, S: Isa>(
    simd: S,
    view: &Option<RawViewMut>,
    at: Option<StateRow>,
    lanes: Lanes,
    state: Cx<T, S>,
    vector: *mut T,
) {
    let (Some(view), Some((row, sequence))) = (view, at) else { return };
    let strides = view.strides();
    let plane = Plane::of_mut(view, 2, 2).along(row, strides[0]).along(sequence, strides[1]).at(lanes.first, 0);
    // SAFETY: the caller's contract.
    unsafe {
        state.store(vector);
        tile::store_parts(simd, vector, 2, T::lanes::<S>(), plane, lanes.count, 1);
    }
}

/// Reads one vector of a saved state, or writes it: real parts of all states, then imaginary parts.
///
/// # Safety
/// The saved state has twice [`padded`] elements, this thread's if they are written; a vector may reach into the padding only.
#[inline(always)]
pub(super) unsafe fn saved<T: Real, S: Isa>(
    simd: S,
    state: *mut T,
    dstate: usize,
    lanes: Lanes,
    write: Option<Cx<T, S>>,
) -> Cx<T, S> {
    use crate::cpu::simd::V;
    // SAFETY: the widths of vectors divide the padded length.
    unsafe {
        let (re, im) = (state.add(lanes.first), state.add(padded(dstate) + lanes.first));
        if let Some(value) = write {
            value.re.store(re);
            value.im.store(im);
        }
        Cx { re: V::load(simd, re), im: V::load(simd, im) }
    }
}

/// Zeroes the lanes behind the last state, where a product with a padding of zeros may have left NaN.
///
/// # Safety
/// `rows` has `steps` complex vectors that lie `step` apart.
#[inline(always)]
pub(super) unsafe fn clear_padding<T: Real, S: Isa>(rows: *mut T, step: usize, steps: usize, count: usize) {
    let width = T::lanes::<S>();
    if count == width {
        return;
    }
    for t in 0..steps {
        for part in 0..2 {
            // SAFETY: the caller's contract.
            unsafe {
                core::slice::from_raw_parts_mut(rows.add(t * step + part * width + count), width - count).fill(T::default());
            }
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
