//! The kernels: tiles of channels x steps in the compute type, vectors along whichever axis the plan chose.
//!
//! | axis | element (channel c, position i) | lines | taps |
//! |---|---|---|---|
//! | time | `c * pitch + i` | one for each channel | shifted loads |
//! | channels | `i * pitch + c` | one for each vector of channels | neighbouring rows |
//!
//! Position 0 of a tile is the first of the W-1 steps before a piece, so that a sum at step `m` takes positions `m .. m + W`.

mod backward;
mod follow;
mod forward;
pub(super) mod plan;
mod rows;
mod tiling;

use super::{GradientTargets, MAX_WIDTH, Problem, Sources, Targets};
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{self, MAX_LANES, Plane};
use crate::ops::sequences::Segment;
use crate::tensor::{RawViewMut, View};
use plan::{Axis, Piece, Plan};

pub(crate) use backward::backward;
pub(crate) use forward::forward;
pub(super) use tiling::Tiling;

/// Room for the taps of one channel.
const TAPS: usize = MAX_WIDTH;

/// The steps x channels of one batch row, lanes along channels; the view is (B, D, L).
pub(super) fn plane(view: &View<'_>, batch: usize) -> Plane {
    Plane::of(view, 1, 2).along(batch, view.strides()[0])
}

pub(super) fn plane_mut(view: &RawViewMut, batch: usize) -> Plane {
    Plane::of_mut(view, 1, 2).along(batch, view.strides()[0])
}

/// One state, lanes along channels; the view is (rows, sequences, D, W-1).
fn state_plane(view: &View<'_>, (row, sequence): (usize, usize)) -> Plane {
    Plane::of(view, 2, 3).along(row, view.strides()[0]).along(sequence, view.strides()[1])
}

fn state_plane_mut(view: &RawViewMut, at: (usize, usize)) -> Plane {
    let strides = view.strides();
    Plane::of_mut(view, 2, 3).along(at.0, strides[0]).along(at.1, strides[1])
}

/// The filters of a tile of channels, in the tile's own axes.
pub(super) struct Filters<'s, T> {
    pub weight: &'s mut [T],
    pub bias: &'s mut [T],
    pub width: usize,
}

impl<T: Real> Filters<'_, T> {
    /// Loads the filters of channels `first ..`; no bias is a bias of zero.
    #[inline(always)]
    pub(super) fn load<S: Isa>(
        &mut self,
        simd: S,
        tiling: Tiling,
        weight: &View<'_>,
        bias: Option<&View<'_>>,
        first: usize,
        channels: usize,
    ) {
        // SAFETY: the tiles have room for TAPS x channels and for channels, rounded up to whole vectors.
        unsafe {
            let source = Plane::of(weight, 0, 1).at(first, 0);
            tiling.taps().load(simd, source, channels, self.width, self.weight.as_mut_ptr());
            self.bias.fill(T::default());
            if let Some(bias) = bias {
                // a plane needs a second axis, and there is one step along it
                let source = Plane::of(&bias.expand(1, 1), 0, 1).at(first, 0);
                tile::load(simd, source, channels, channels, 1, self.bias.as_mut_ptr(), channels);
            }
        }
    }

    /// The filter of a channel spread over vectors in `room`, for [`line`].
    #[inline(always)]
    fn along_time<S: Isa>(
        &self,
        simd: S,
        channel: usize,
        adjoint: bool,
        silu: bool,
        room: &mut [T; TAPS * MAX_LANES],
    ) -> Taps<T, S> {
        let lanes = T::lanes::<S>();
        for k in 0..self.width {
            let from = if adjoint { self.width - 1 - k } else { k };
            room[k * lanes..][..lanes].fill(self.weight[channel * TAPS + from]);
        }
        let bias = V::splat(simd, if adjoint { T::default() } else { self.bias[channel] });
        Taps { ptr: room.as_ptr(), pitch: lanes as isize, width: self.width, step: 1, bias, silu }
    }
}

/// Memory that vectors walk over: a tile, or a tensor that lies as a tile does.
#[derive(Clone, Copy)]
pub(super) struct Span<T> {
    ptr: *mut T,
    pitch: isize,
}

impl<T: Real> Span<T> {
    /// One batch row of a (B, D, L) tensor, if it lies as a tile of channels side by side does.
    fn of(view: &View<'_>, batch: usize) -> Option<Self> {
        let [row, channel, step] = [view.strides()[0], view.strides()[1], view.strides()[2]];
        let ptr = view.as_ptr().cast::<T>().cast_mut().wrapping_offset(batch as isize * row);
        (channel == 1 && view.dtype() == T::DTYPE).then_some(Span { ptr, pitch: step })
    }

    /// The same from a channel and a position on.
    #[inline(always)]
    fn from(self, axis: Axis, channel: usize, position: usize) -> Self {
        Span { ptr: self.at(axis, channel, position), ..self }
    }

    /// Where a channel and a position lie.
    #[inline(always)]
    fn at(self, axis: Axis, channel: usize, position: usize) -> *mut T {
        let (line, along) = match axis {
            Axis::Time => (channel, position),
            Axis::Channels => (position, channel),
        };
        self.ptr.wrapping_offset(line as isize * self.pitch).wrapping_add(along)
    }
}

/// `out[i] = sum_k tap[k] source[i + k]` over `channels` x `count`, with bias and silu, or the adjoint (taps reversed, nothing else).
/// The last vector along the axis may reach over.
///
/// # Safety
/// Source and target are readable and writable there, up to whole vectors along the axis, and the source W-1 positions further.
#[inline(always)]
pub(super) unsafe fn convolve<T: Real, S: Isa>(
    simd: S,
    axis: Axis,
    filters: &Filters<'_, T>,
    (channels, count): (usize, usize),
    source: Span<T>,
    target: Span<T>,
    (silu, adjoint): (bool, bool),
) {
    let (lanes, width) = (T::lanes::<S>(), filters.width);
    // SAFETY: the caller's contract; filters hold TAPS taps for every channel and whole vectors of them.
    unsafe {
        match axis {
            Axis::Time => {
                for channel in 0..channels {
                    let mut room = [T::default(); TAPS * MAX_LANES];
                    let taps = filters.along_time(simd, channel, adjoint, silu, &mut room);
                    line(taps, source.at(axis, channel, 0), target.at(axis, channel, 0), count, false);
                }
            }
            Axis::Channels => {
                let row = (filters.weight.len() / TAPS) as isize;
                let (last, pitch) = if adjoint { ((width - 1) as isize * row, -row) } else { (0, row) };
                let mut i = 0;
                while i < count {
                    let four = i + 4 <= count;
                    for line in (0..channels).step_by(lanes) {
                        let none = V::splat(simd, T::default());
                        let bias = if adjoint { none } else { V::load(simd, filters.bias.as_ptr().add(line)) };
                        let ptr = filters.weight.as_ptr().offset(last).add(line);
                        let taps = Taps { ptr, pitch, width, step: source.pitch, bias, silu };
                        let from = (source.at(axis, line, i), source.pitch);
                        let to = (target.at(axis, line, i), target.pitch);
                        if four { store(sums::<T, S, 4>(taps, from), to) } else { store(sums::<T, S, 1>(taps, from), to) }
                    }
                    i += if four { 4 } else { 1 };
                }
            }
        }
    }
}

/// The filters of one line of vectors.
#[derive(Clone, Copy)]
struct Taps<T: Real, S: Isa> {
    /// A vector for each tap, `pitch` apart.
    ptr: *const T,
    pitch: isize,
    width: usize,
    /// From the input of one tap to that of the next.
    step: isize,
    bias: V<T, S>,
    silu: bool,
}

/// One channel of [`convolve`] along time; `exact`ly those elements if there is at least a vector of them, else the last may reach over.
///
/// # Safety
/// As [`convolve`], or no further than the elements and W-1 positions of the source if `exact`.
#[inline(always)]
unsafe fn line<T: Real, S: Isa>(taps: Taps<T, S>, source: *mut T, target: *mut T, count: usize, exact: bool) {
    let lanes = T::lanes::<S>();
    // SAFETY: the caller's contract.
    unsafe {
        let mut i = 0;
        while i + 4 * lanes <= count {
            let sums = sums::<T, S, 4>(taps, (source.add(i), lanes as isize));
            store(sums, (target.add(i), lanes as isize));
            i += 4 * lanes;
        }
        while i < count {
            // the last vector of exactly these elements overlaps the one before it
            let at = if exact { i.min(count - lanes) } else { i };
            store(sums::<T, S, 1>(taps, (source.add(at), 0)), (target.add(at), 0));
            i += lanes;
        }
    }
}

/// `R` neighbouring vectors of [`convolve`], which start `step` after each other.
///
/// # Safety
/// As [`convolve`].
#[inline(always)]
unsafe fn sums<T: Real, S: Isa, const R: usize>(taps: Taps<T, S>, (source, step): (*mut T, isize)) -> [V<T, S>; R] {
    let simd = taps.bias.simd();
    let mut sum = [taps.bias; R];
    // SAFETY: the caller's contract.
    unsafe {
        for k in 0..taps.width as isize {
            let tap = V::load(simd, taps.ptr.offset(k * taps.pitch));
            for r in 0..R {
                sum[r] = V::load(simd, source.offset(r as isize * step + k * taps.step)).mul_add(tap, sum[r]);
            }
        }
    }
    if taps.silu {
        sum = silu_each(sum);
    }
    sum
}

/// Stores what [`sums`] gives, `step` after each other.
///
/// # Safety
/// As [`convolve`].
#[inline(always)]
unsafe fn store<T: Real, S: Isa, const R: usize>(sums: [V<T, S>; R], (target, step): (*mut T, isize)) {
    for r in 0..R {
        // SAFETY: the caller's contract.
        unsafe { sums[r].store(target.offset(r as isize * step)) };
    }
}

/// `v sigmoid(v)`, one half of the chain for all vectors before the other, as in `softplus_each`. Where `e^-v` is infinite
/// (v < -88.7 in f32) the sigmoid is 0; that of -infinity is NaN, as by the formula.
#[inline(always)]
fn silu_each<T: Real, S: Isa, const R: usize>(v: [V<T, S>; R]) -> [V<T, S>; R] {
    let mut y = v;
    for r in 0..R {
        y[r] = exp_minus(v[r]) + V::constant(v[r].simd(), 1.0);
    }
    for r in 0..R {
        y[r] = v[r] * y[r].short_recip();
    }
    y
}

/// `e^-v`.
#[inline(always)]
fn exp_minus<T: Real, S: Isa>(v: V<T, S>) -> V<T, S> {
    V::exp2_product::<false>(v, V::constant(v.simd(), -core::f64::consts::LOG2_E))
}

/// Where the sigmoid has long reached its smallest value: below, `v` times that would grow again.
const LOWEST: f64 = -1000.0;

/// The derivative of [`silu`]: `s (1 + v s e^-v)` with `s = sigmoid(v)`. The smallest `s` is a normal number, and far below 0 the derivative
/// is within 1e-34 of 0, also at -infinity.
#[inline(always)]
fn silu_derivative<T: Real, S: Isa>(v: V<T, S>) -> V<T, S> {
    let constant = |x| V::constant(v.simd(), x);
    let v = v.max(constant(LOWEST));
    let e = exp_minus(v).min(constant(T::LARGEST / 4.0));
    let s = (e + constant(1.0)).short_recip();
    s * v.mul_add(e * s, constant(1.0))
}

/// What the jobs of one thread work in.
pub(super) struct Scratch<T> {
    pub tiles: Vec<T>,
    pub weight: Vec<T>,
    pub bias: Vec<T>,
    states: Vec<T>,
}

impl<T: Real> Scratch<T> {
    pub(super) fn new(tiling: Tiling, channels: usize, tiles: usize) -> Self {
        Scratch {
            tiles: vec![T::default(); tiling.len * tiles],
            weight: vec![T::default(); tiling.taps_len(channels)],
            bias: vec![T::default(); channels.next_multiple_of(MAX_LANES)],
            states: vec![T::default(); tiling.taps_len(channels)],
        }
    }
}

/// The steps of a piece with what lies before it: the W-1 steps before (of the segment or its initial state) and `steps` from its start.
///
/// # Safety
/// The tile has room for them.
#[inline(always)]
unsafe fn load_window<T: Real, S: Isa>(
    simd: S,
    tiling: Tiling,
    problem: &Problem<'_>,
    segment: usize,
    (start, steps): (usize, usize),
    (first, channels): (usize, usize),
    tile: *mut T,
) {
    let before = problem.width - 1;
    let segment = &problem.segments.list[segment];
    let x = plane(&problem.x, segment.batch);
    // SAFETY: pieces after the first start more than W-1 steps into their segment; the rest is the caller's contract.
    unsafe {
        if start > segment.start {
            return tiling.load(simd, x.at(first, start - before), channels, steps + before, tile);
        }
        load_before(simd, tiling, problem, segment, (first, channels), tile);
        tiling.load(simd, x.at(first, start), channels, steps, tile.add(tiling.at(before)));
    }
}

/// The W-1 inputs before a segment: its initial state, or zeros.
///
/// # Safety
/// The tile has room for them.
#[inline(always)]
unsafe fn load_before<T: Real, S: Isa>(
    simd: S,
    tiling: Tiling,
    problem: &Problem<'_>,
    segment: &Segment,
    (first, channels): (usize, usize),
    tile: *mut T,
) {
    let before = problem.width - 1;
    // SAFETY: the caller's contract.
    unsafe {
        match (&problem.initial_states, segment.initial) {
            (Some(states), Some(at)) => tiling.load(simd, state_plane(states, at).at(first, 0), channels, before, tile),
            _ => tiling.zero(tile, channels, 0, before),
        }
    }
}

/// The channel tiles of a block, as (first channel, channels).
fn tiles(plan: &Plan, dim: usize, block: usize) -> impl Iterator<Item = (usize, usize)> {
    let (start, end) = (block * plan.block_channels, dim.min((block + 1) * plan.block_channels));
    let step = plan.tile_channels;
    (start..end).step_by(step).map(move |first| (first, step.min(end - first)))
}
