//! Tiles of one vector of channels: the step size through bias, softplus and clamp, the input, the gate.

use super::super::{Problem, Projection};
use super::{Types, Variant};
use crate::cpu::math::{silu, silu_and_derivative, softplus, softplus_derivative};
use crate::cpu::simd::{Field, Isa, Real, V};
use crate::cpu::tile::{self, Plane, STEPS};
use crate::cpu::{Kernel, outline};
use crate::ops::discretization::Discretization;
use crate::ops::rules::FieldKind;
use crate::ops::sequences::Segment;
use crate::tensor::View;

/// Memory of one thread, cut into named arrays.
pub(super) struct Scratch<T> {
    data: Vec<T>,
}

impl<T: Real> Scratch<T> {
    pub(super) fn new() -> Self {
        Scratch { data: Vec::new() }
    }

    /// Pointers to consecutive arrays of these lengths; contents are arbitrary.
    pub(super) fn carve<const N: usize>(&mut self, lens: [usize; N]) -> [*mut T; N] {
        // each array starts on a cache line of its own
        let line = 64 / core::mem::size_of::<T>();
        let total: usize = lens.iter().map(|n| n.next_multiple_of(line)).sum::<usize>() + line;
        if self.data.len() < total {
            self.data.resize(total, T::default());
        }
        let base = self.data.as_mut_ptr();
        let mut at = base.align_offset(64).min(line);
        lens.map(|n| {
            let ptr = base.wrapping_add(at);
            at += n.next_multiple_of(line);
            ptr
        })
    }
}

/// The tiles of a vector of channels, all (step, lane).
#[derive(Clone, Copy)]
pub(super) struct Tiles<T> {
    /// The input.
    pub x: *mut T,
    /// The step, processed.
    pub dt: *mut T,
    /// The decay's step: `dt` itself unless it has its own.
    pub dt_a: *mut T,
    /// `dt x` (`x` for `dirac`): what B is multiplied with.
    pub u: *mut T,
    /// The derivative of the processed step by the raw one.
    pub slope: *mut T,
}

/// A vector of channels: `count` of them from `first`.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub first: usize,
    pub count: usize,
}

/// The blocks of a range of channels.
pub(super) fn blocks(channels: core::ops::Range<usize>, lanes: usize) -> impl Iterator<Item = Block> + Clone {
    let end = channels.end;
    channels.step_by(lanes).map(move |first| Block { first, count: lanes.min(end - first) })
}

/// The plane of a (B, D, L) tensor at a block of channels and a step.
#[inline(always)]
pub(super) fn timed(view: &View<'_>, batch: usize, block: Block, step: usize) -> Plane {
    Plane::of(view, 1, 2).along(batch, view.strides()[0]).at(block.first, step)
}

/// Loads a per-channel vector, (D,); absent ones are 0.
///
/// # Safety
/// The block lies inside the view.
#[inline(always)]
pub(super) unsafe fn channel_vector<T: Real, S: Isa>(simd: S, view: &Option<View<'_>>, block: Block) -> V<T, S> {
    let mut lanes = [T::default(); tile::MAX_LANES];
    if let Some(view) = view {
        for i in 0..block.count {
            // SAFETY: the channel is inside the view.
            let value = unsafe { view.read((block.first + i) as isize * view.strides()[0]) };
            lanes[i] = T::from_f64(value.re);
        }
    }
    // SAFETY: the array is as wide as the widest vector.
    unsafe { V::load(simd, lanes.as_ptr()) }
}

/// Loads a (D, N) parameter as (N, parts, lane).
///
/// # Safety
/// The block lies inside the view; `to` has room for N field vectors.
#[inline(always)]
pub(super) unsafe fn parameter<E: Types, S: Isa>(simd: S, view: &View<'_>, block: Block, to: *mut E::T) {
    let width = E::T::lanes::<S>();
    // SAFETY: the caller's contract.
    unsafe {
        tile::load_parts(simd, Plane::of(view, 0, 1).at(block.first, 0), E::K::PARTS, block.count, width, view.shape()[1], to)
    }
}

/// Loads the (states, steps) plane of B or C that a channel's group sees, as (step, part, state).
///
/// # Safety
/// The steps lie inside the view; `to` has room for them.
#[inline(always)]
pub(super) unsafe fn map_tile<E: Types, S: Isa>(
    simd: S,
    problem: &Problem<'_>,
    map: &Projection<View<'_>>,
    segment: &Segment,
    channel: usize,
    start: usize,
    steps: usize,
    to: *mut E::T,
) {
    let Projection::Varying(view) = map else { return };
    let group = channel / (problem.dim / view.shape()[1]);
    let strides = view.strides();
    let plane = Plane::of(view, 2, 3).along(segment.batch, strides[0]).along(group, strides[1]).at(0, start);
    // SAFETY: the caller's contract.
    unsafe { tile::load_parts(simd, plane, E::K::PARTS, problem.dstate, problem.dstate, steps, to) }
}

/// Loads x and dt of a block and a tile of time and derives what the recurrence reads. The slope is written only if `with_slope`.
///
/// # Safety
/// Block and steps lie inside the problem; every tile has room for STEPS vectors.
#[inline(always)]
pub(super) unsafe fn load_tiles<T: Real, S: Isa>(
    simd: S,
    problem: &Problem<'_>,
    segment: &Segment,
    block: Block,
    start: usize,
    steps: usize,
    tiles: &Tiles<T>,
    with_slope: bool,
) {
    outline(simd, LoadTiles { problem, segment, block, start, steps, tiles, with_slope });
}

struct LoadTiles<'l, 'a, T> {
    problem: &'l Problem<'a>,
    segment: &'l Segment,
    block: Block,
    start: usize,
    steps: usize,
    tiles: &'l Tiles<T>,
    with_slope: bool,
}

impl<T: Real> Kernel for LoadTiles<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let LoadTiles { problem, segment, block, start, steps, tiles, with_slope } = self;
        // SAFETY: the contract of `load_tiles`, the only maker of this.
        unsafe { process_tiles(simd, problem, segment, block, start, steps, tiles, with_slope) }
    }
}

/// # Safety
/// As [`load_tiles`].
#[inline(always)]
unsafe fn process_tiles<T: Real, S: Isa>(
    simd: S,
    problem: &Problem<'_>,
    segment: &Segment,
    block: Block,
    start: usize,
    steps: usize,
    tiles: &Tiles<T>,
    with_slope: bool,
) {
    let width = T::lanes::<S>();
    let (zero, one) = (V::constant(simd, 0.0), V::constant(simd, 1.0));
    let sources = [(Some(&problem.x), tiles.x), (Some(&problem.dt), tiles.dt), (problem.dt_a.as_ref(), tiles.dt_a)];
    for (view, to) in sources {
        let Some(view) = view else { continue };
        // SAFETY: the caller's contract.
        unsafe { tile::load(simd, timed(view, segment.batch, block, start), block.count, width, steps, to, width) };
    }
    let dirac = problem.discretization == Discretization::Dirac;
    let (low, high) = problem.dt_limit;
    let limited = low > f64::NEG_INFINITY || high < f64::INFINITY;
    // SAFETY: the tiles have room for the steps; the block lies inside dt_bias.
    unsafe {
        let bias = channel_vector(simd, &problem.dt_bias, block);
        for t in 0..steps {
            let at = t * width;
            let mut dt = V::load(simd, tiles.dt.add(at)) + bias;
            let mut slope = one;
            if problem.dt_softplus {
                if with_slope {
                    slope = softplus_derivative(dt);
                }
                dt = softplus(dt);
            }
            if limited {
                let (low, high) = (V::constant(simd, low), V::constant(simd, high));
                slope = V::select_less(dt, low, zero, V::select_less(high, dt, zero, slope));
                dt = dt.max(low).min(high);
            }
            dt.store(tiles.dt.add(at));
            if with_slope {
                slope.store(tiles.slope.add(at));
            }
            let x = V::load(simd, tiles.x.add(at));
            let u = if dirac { x } else { x * dt };
            u.store(tiles.u.add(at));
        }
    }
}

/// Loads z as `silu(z)`, and its derivative if asked.
///
/// # Safety
/// As [`load_tiles`].
#[inline(always)]
pub(super) unsafe fn load_gate<T: Real, S: Isa>(
    simd: S,
    z: &View<'_>,
    segment: &Segment,
    block: Block,
    start: usize,
    steps: usize,
    gate: *mut T,
    derivative: Option<*mut T>,
) {
    outline(simd, LoadGate { z, segment, block, start, steps, gate, derivative });
}

struct LoadGate<'l, 'a, T> {
    z: &'l View<'a>,
    segment: &'l Segment,
    block: Block,
    start: usize,
    steps: usize,
    gate: *mut T,
    derivative: Option<*mut T>,
}

impl<T: Real> Kernel for LoadGate<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let LoadGate { z, segment, block, start, steps, gate, derivative } = self;
        // SAFETY: the contract of `load_gate`, the only maker of this.
        unsafe { process_gate(simd, z, segment, block, start, steps, gate, derivative) }
    }
}

/// # Safety
/// As [`load_gate`].
#[inline(always)]
unsafe fn process_gate<T: Real, S: Isa>(
    simd: S,
    z: &View<'_>,
    segment: &Segment,
    block: Block,
    start: usize,
    steps: usize,
    gate: *mut T,
    derivative: Option<*mut T>,
) {
    let width = T::lanes::<S>();
    // SAFETY: the caller's contract.
    unsafe {
        tile::load(simd, timed(z, segment.batch, block, start), block.count, width, steps, gate, width);
        for t in 0..steps {
            let at = t * width;
            let z = V::load(simd, gate.add(at));
            match derivative {
                Some(slope) => {
                    let (value, by_z) = silu_and_derivative(z);
                    value.store(gate.add(at));
                    by_z.store(slope.add(at));
                }
                None => silu(z).store(gate.add(at)),
            }
        }
    }
}

/// Reads one state's map at a step: a scalar of the group broadcast, or the channels' own constants.
#[derive(Clone, Copy)]
pub(super) struct Map<T> {
    /// The tile (step, part, state), or the constants (state, part, lane).
    pub from: *const T,
    pub varying: bool,
}

impl<T: Real> Map<T> {
    /// # Safety
    /// Step and state lie inside.
    #[inline(always)]
    pub(super) unsafe fn at<E: Variant<T = T>, S: Isa>(
        self,
        simd: S,
        t: usize,
        n: usize,
        dstate: usize,
    ) -> <E::K as FieldKind>::Of<T, S> {
        let parts = E::K::PARTS;
        // SAFETY: the caller's contract.
        unsafe {
            if E::VARYING || self.varying {
                Field::broadcast(simd, self.from.add(t * parts * dstate + n), dstate)
            } else {
                Field::load(simd, self.from.add(n * parts * T::lanes::<S>()))
            }
        }
    }
}

/// Doubles a tile of C for complex states, whose output is `2 Re(C h)`.
///
/// # Safety
/// `len` elements can be written.
#[inline(always)]
pub(super) unsafe fn double<T: Real>(tile: *mut T, len: usize) {
    // SAFETY: the caller's contract.
    for value in unsafe { core::slice::from_raw_parts_mut(tile, len) } {
        *value = *value + *value;
    }
}

/// Number of elements of a tile of one real quantity.
pub(super) fn tile_len(lanes: usize) -> usize {
    STEPS * lanes
}

/// Copies `rows` rows of `count` elements between arrays whose rows lie `from_pitch` and `to_pitch` apart. Lanes past a block's channels
/// belong to other jobs, so they are left alone.
///
/// # Safety
/// Both sides have room.
#[inline(always)]
pub(super) unsafe fn copy_rows<T: Copy>(
    from: *const T,
    from_pitch: usize,
    to: *mut T,
    to_pitch: usize,
    rows: usize,
    count: usize,
) {
    for row in 0..rows {
        // SAFETY: the caller's contract.
        unsafe { core::ptr::copy_nonoverlapping(from.add(row * from_pitch), to.add(row * to_pitch), count) };
    }
}
