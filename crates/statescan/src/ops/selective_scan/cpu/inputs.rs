//! What a job works on: its memory, blocks of channels, constants, maps, and what is asked for ahead of time.

use super::super::{Problem, Projection};
use super::lanes::Lanes;
use super::plan::Block;
use super::{Types, Variant};
use crate::cpu::simd::{Field, Isa, Real, V};
use crate::cpu::tile::{self, Area, Plane, STEPS};
use crate::cpu::{in_lines, kept};
use crate::ops::rules::{BOUND, FieldKind};
use crate::ops::sequences::Segment;
use crate::tensor::View;
use core::marker::PhantomData;
use core::ops::Range;

/// Memory cut into named arrays.
pub(super) struct Scratch<T> {
    data: Vec<u64>,
    element: PhantomData<T>,
}

impl<T> Default for Scratch<T> {
    fn default() -> Self {
        Scratch { data: kept::take(), element: PhantomData }
    }
}

impl<T> Drop for Scratch<T> {
    fn drop(&mut self) {
        kept::give_back(core::mem::take(&mut self.data));
    }
}

impl<T: Real> Scratch<T> {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Pointers to consecutive arrays of these lengths; contents are arbitrary.
    pub(super) fn carve<const N: usize>(&mut self, lens: [usize; N]) -> [*mut T; N] {
        // each array starts on a cache line of its own
        let line = 64 / core::mem::size_of::<T>();
        let words = (in_lines::<T>(&lens) * core::mem::size_of::<T>()).div_ceil(core::mem::size_of::<u64>());
        if self.data.len() < words {
            self.data = vec![0; words];
        }
        let base = self.data.as_mut_ptr().cast::<T>();
        let mut at = base.align_offset(64).min(line);
        lens.map(|n| {
            let ptr = base.wrapping_add(at);
            at += n.next_multiple_of(line);
            ptr
        })
    }
}

/// The tiles of a vector of channels, in the order of [`Lanes`]; for the recurrence (step, lane).
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
    /// The derivative of the processed step by the raw one; written only by a backward pass.
    pub slope: *mut T,
    /// The skip `D x`, where the output starts.
    pub y: *mut T,
    /// The largest step of the decay in magnitude, (lane).
    pub longest: *mut T,
}

/// Per-channel vectors of a block, one after the other: the largest real part of A in magnitude, the bias, the skip, each repeated over
/// the channels' lanes.
pub(super) struct Constants<T>(*mut T);

impl<T> Clone for Constants<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Constants<T> {}

impl<T: Real> Constants<T> {
    /// Vectors in one.
    pub(super) const COUNT: usize = 3;

    /// Those of a block, whose index is `i`, in an array for all blocks of a job.
    #[inline(always)]
    pub(super) fn at<S: Isa>(array: *mut T, i: usize) -> Self {
        Constants(array.wrapping_add(i * Self::COUNT * T::lanes::<S>()))
    }

    /// # Safety
    /// The memory was carved for them; `a` has the block's states; the block lies inside the problem.
    #[inline(always)]
    pub(super) unsafe fn load<E: Types<T = T>, S: Isa>(
        self,
        simd: S,
        lanes: Lanes<T>,
        problem: &Problem<'_>,
        block: Block,
        a: *const T,
    ) {
        let width = T::lanes::<S>();
        // SAFETY: the caller's contract.
        unsafe {
            let mut largest = V::constant(simd, 0.0);
            for n in 0..problem.dstate / lanes.per_channel {
                largest = largest.max(V::load(simd, a.add(n * E::K::PARTS * width)).abs());
            }
            lanes.largest(largest).store(self.0);
            channel_vector(simd, lanes, &problem.dt_bias, block).store(self.0.add(width));
            channel_vector(simd, lanes, &problem.d, block).store(self.0.add(2 * width));
        }
    }

    /// # Safety
    /// They are loaded; so for the others.
    #[inline(always)]
    unsafe fn largest<S: Isa>(self, simd: S) -> V<T, S> {
        // SAFETY: the caller's contract.
        unsafe { V::load(simd, self.0) }
    }

    /// # Safety
    /// As [`Constants::largest`].
    #[inline(always)]
    pub(super) unsafe fn bias<S: Isa>(self, simd: S) -> V<T, S> {
        // SAFETY: the caller's contract.
        unsafe { V::load(simd, self.0.add(T::lanes::<S>())) }
    }

    /// # Safety
    /// As [`Constants::largest`].
    #[inline(always)]
    pub(super) unsafe fn skip<S: Isa>(self, simd: S) -> V<T, S> {
        // SAFETY: the caller's contract.
        unsafe { V::load(simd, self.0.add(2 * T::lanes::<S>())) }
    }
}

impl<T: Real> Tiles<T> {
    /// Repeats what the recurrence reads over each channel's lanes.
    ///
    /// # Safety
    /// As [`Lanes::repeat`].
    #[inline(always)]
    pub(super) unsafe fn repeat<S: Isa>(&self, simd: S, lanes: Lanes<T>, steps: usize, to: &Tiles<T>) {
        // SAFETY: the caller's contract.
        unsafe {
            lanes.repeat(simd, self.u, steps, to.u);
            lanes.repeat(simd, self.dt, steps, to.dt);
            if self.dt_a != self.dt {
                lanes.repeat(simd, self.dt_a, steps, to.dt_a);
            }
        }
    }

    /// Whether no exponent `dt A` of the tile is near the ends of the range.
    ///
    /// # Safety
    /// The tile is loaded.
    #[inline(always)]
    pub(super) unsafe fn bounded<S: Isa>(&self, simd: S, constants: Constants<T>) -> bool {
        let limit = V::constant(simd, BOUND * core::f64::consts::LN_2);
        let (zero, one) = (V::constant(simd, 0.0), V::constant(simd, 1.0));
        // SAFETY: the caller's contract.
        let exponent = unsafe { V::load(simd, self.longest) * constants.largest(simd) };
        // a NaN, zero times infinity, is no bound
        !zero.any_less(V::select_less(exponent, limit, zero, one))
    }
}

/// A block of channels and the steps of a tile, which are asked for before they are needed.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    batch: usize,
    pub block: Block,
    start: usize,
    steps: usize,
}

impl Ahead {
    /// The next block of so many channels of the tile at `start`, or the first one of the tile that is walked after it.
    #[inline(always)]
    pub(super) fn new(
        segment: &Segment,
        channels: &Range<usize>,
        block: Block,
        width: usize,
        start: usize,
        following: Option<usize>,
    ) -> Option<Self> {
        let (first, start) = match block.first + width {
            first if first < channels.end => (first, start),
            _ => (channels.start, following?),
        };
        let block = Block { first, count: width.min(channels.end - first) };
        Some(Self::at(segment, block, start))
    }

    /// The block itself, from a step on.
    #[inline(always)]
    pub(super) fn at(segment: &Segment, block: Block, start: usize) -> Self {
        Ahead { batch: segment.batch, block, start, steps: STEPS.min(segment.end - start) }
    }

    /// Its part of a (B, D, L) tensor.
    #[inline(always)]
    pub(super) fn area(self, view: &View<'_>) -> Area {
        let plane = timed(view, self.batch, self.block, self.start);
        Area { plane, lanes: self.block.count, steps: self.steps }
    }
}

/// The plane of a (B, D, L) tensor at a block of channels and a step.
#[inline(always)]
pub(super) fn timed(view: &View<'_>, batch: usize, block: Block, step: usize) -> Plane {
    Plane::of(view, 1, 2).along(batch, view.strides()[0]).at(block.first, step)
}

/// Loads a per-channel vector, (D,), repeated over the channels' lanes; absent ones are 0.
///
/// # Safety
/// The block lies inside the view.
#[inline(always)]
unsafe fn channel_vector<T: Real, S: Isa>(simd: S, lanes: Lanes<T>, view: &Option<View<'_>>, block: Block) -> V<T, S> {
    let mut values = [T::default(); tile::MAX_LANES];
    if let Some(view) = view {
        for i in 0..block.count {
            // SAFETY: the channel is inside the view.
            let value = unsafe { view.read((block.first + i) as isize * view.strides()[0]) };
            values[i] = T::from_f64(value.re);
        }
    }
    lanes.repeated(simd, values)
}

/// Loads a (D, N) parameter as (state, part, lane).
///
/// # Safety
/// The block lies inside the view; `to` has room for its states.
#[inline(always)]
pub(super) unsafe fn parameter<E: Types, S: Isa>(simd: S, lanes: Lanes<E::T>, view: &View<'_>, block: Block, to: *mut E::T) {
    let sizes = [view.shape()[1], E::K::PARTS];
    // SAFETY: the caller's contract.
    unsafe { lanes.load_states(simd, Plane::of(view, 0, 1).at(block.first, 0), block, sizes, to) }
}

/// Whether a tile of B or C is (state, step): the loops walk the steps of a few real states, whose scalars then share lines. Otherwise it
/// is (step, part, state): lanes that hold states of one channel read neighbouring ones.
#[inline(always)]
fn by_state<E: Types>(per_channel: usize) -> bool {
    E::K::PARTS == 1 && per_channel == 1
}

/// Loads the (states, steps) plane of B or C that a channel's group sees, in the order that [`Map`] reads.
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
    per_channel: usize,
    to: *mut E::T,
) {
    let Some(area) = map_area(problem, map, segment, channel, start) else { return };
    let dstate = problem.dstate;
    // SAFETY: the caller's contract.
    unsafe {
        match by_state::<E>(per_channel) {
            true => tile::load_parts(simd, area.plane.transposed(), 1, steps, STEPS, dstate, to),
            false => tile::load_parts(simd, area.plane, E::K::PARTS, dstate, dstate, steps, to),
        }
    }
}

/// The (states, steps) plane of B or C that a channel's group sees, the tile from `start` on.
#[inline(always)]
pub(super) fn map_area(
    problem: &Problem<'_>,
    map: &Projection<View<'_>>,
    segment: &Segment,
    channel: usize,
    start: usize,
) -> Option<Area> {
    let Projection::Varying(view) = map else { return None };
    let group = channel / (problem.dim / view.shape()[1]);
    let strides = view.strides();
    let plane = Plane::of(view, 2, 3).along(segment.batch, strides[0]).along(group, strides[1]).at(0, start);
    Some(Area { plane, lanes: problem.dstate, steps: STEPS.min(segment.end - start) })
}

/// Reads the map of a vector of states at a step: the group's states over and over, or the channels' own constants.
#[derive(Clone, Copy)]
pub(super) struct Map<T> {
    /// The tile, or the constants (state, part, lane).
    from: *const T,
    pub varying: bool,
    per_channel: usize,
    /// Elements of the tile from step to step and from one vector of states to the next.
    strides: [usize; 2],
}

impl<T: Real> Map<T> {
    /// The map of a job's tile or of a block's constants.
    pub(super) fn new<E: Types<T = T>, V>(
        of: &Projection<V>,
        tile: *const T,
        own: *const T,
        lanes: Lanes<T>,
        dstate: usize,
    ) -> Self {
        let (varying, per_channel) = (matches!(of, Projection::Varying(_)), lanes.per_channel);
        let strides = if by_state::<E>(per_channel) { [1, STEPS] } else { [E::K::PARTS * dstate, per_channel] };
        Map { from: if varying { tile } else { own }, varying, per_channel, strides }
    }

    /// `n` counts vectors of states; `dstate` is the number of states.
    ///
    /// # Safety
    /// Step and states lie inside.
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
                let [step, state] = match E::LANES {
                    1 if parts == 1 => [1, STEPS],
                    0 => self.strides,
                    per_channel => [parts * dstate, per_channel],
                };
                let per_channel = if E::LANES > 0 { E::LANES } else { self.per_channel };
                Field::cycle(simd, self.from.add(t * step + n * state), dstate, per_channel)
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

/// Rows to be copied between arrays. Lanes past a block's channels belong to other jobs, so they are left alone.
#[derive(Clone, Copy)]
pub(super) struct CopyRows<T> {
    pub from: *const T,
    pub from_pitch: usize,
    pub to: *mut T,
    pub to_pitch: usize,
    pub rows: usize,
    /// Elements of a row.
    pub count: usize,
}

impl<T: Real> CopyRows<T> {
    /// # Safety
    /// Both sides have room.
    #[inline(always)]
    pub(super) unsafe fn run<S: Isa>(self, simd: S) {
        for row in 0..self.rows {
            // SAFETY: the caller's contract.
            unsafe {
                let (from, to) = (self.from.add(row * self.from_pitch), self.to.add(row * self.to_pitch));
                // a copy of unknown length is a call, which takes longer than a vector
                match self.count == T::lanes::<S>() {
                    true => V::load(simd, from).store(to),
                    false => core::ptr::copy_nonoverlapping(from, to, self.count),
                }
            }
        }
    }
}
