//! The kernels: tiles of channels x steps in the compute type, vectors along whichever axis the plan chose.
//!
//! | axis | element (channel c, position i) | lines | taps |
//! |---|---|---|---|
//! | time | `c * pitch + i` | one for each channel | shifted loads |
//! | channels | `i * pitch + c` | one for each vector of channels | neighbouring rows |
//!
//! Position 0 of a tile is the first of the W-1 steps before a slice, so that a sum at step `m` takes positions `m .. m + W`.

mod backward;
mod follow;
mod forward;
pub(super) mod plan;
mod rows;
mod tiling;

use super::{GradientTargets, MAX_WIDTH, Problem, Sources, Targets};
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{self, MAX_LANES, Plane, PlaneMut, TileMut};
use crate::cpu::{Arena, Array, ArrayMut, ArrayOf, Divided, Kernel, Room, add_up};
use crate::ops::sequences::Segment;
use crate::tensor::{RawViewMut, View};
use plan::{Axis, Plan, Slice};

pub(crate) use backward::backward;
pub(crate) use forward::forward;
pub(super) use tiling::Tiling;

/// Room for the taps of one channel.
const TAPS: usize = MAX_WIDTH;

/// The steps x channels of one batch row, lanes along channels; the view is (B, D, L).
pub(super) fn plane<'v>(view: &View<'v>, batch: usize) -> Plane<'v> {
    Plane::of(view, 1, 2).along(batch, view.strides()[0])
}

pub(super) fn plane_mut(view: &RawViewMut, batch: usize) -> PlaneMut {
    PlaneMut::of(view, 1, 2).along(batch, view.strides()[0])
}

/// One state, lanes along channels; the view is (rows, sequences, D, W-1).
fn state_plane<'v>(view: &View<'v>, (row, sequence): (usize, usize)) -> Plane<'v> {
    Plane::of(view, 2, 3).along(row, view.strides()[0]).along(sequence, view.strides()[1])
}

fn state_plane_mut(view: &RawViewMut, at: (usize, usize)) -> PlaneMut {
    let strides = view.strides();
    PlaneMut::of(view, 2, 3).along(at.0, strides[0]).along(at.1, strides[1])
}

/// The filters of a tile of channels, in the tile's own axes.
#[derive(Clone, Copy)]
pub(super) struct FiltersOf<A> {
    pub weight: A,
    pub bias: A,
    pub width: usize,
    /// Elements from tap to tap, with vectors along channels.
    pub pitch: usize,
}

/// Filters that are loaded.
pub(super) type Filters<'m, T> = FiltersOf<Array<'m, T>>;
/// Filters to be loaded.
pub(super) type FiltersMut<'m, T> = FiltersOf<ArrayMut<'m, T>>;

impl<T: Real> FiltersMut<'_, T> {
    /// Returns these filters for reading.
    #[inline(always)]
    pub(super) fn read(&self) -> Filters<'_, T> {
        let &FiltersOf { ref weight, ref bias, width, pitch } = self;
        FiltersOf { weight: weight.read(), bias: bias.read(), width, pitch }
    }

    /// Loads the filters of channels from `first` on; no bias is a bias of zero.
    #[inline(always)]
    pub(super) fn load<S: Isa>(
        &mut self,
        simd: S,
        tiling: Tiling,
        weight: &View<'_>,
        bias: Option<&View<'_>>,
        (first, channels): (usize, usize),
    ) {
        let source = Plane::of(weight, 0, 1).at(first, 0).area(channels, self.width);
        tiling.taps().load(simd, source, self.weight.reborrow());
        self.bias.clear(channels.next_multiple_of(T::lanes::<S>()));
        if let Some(bias) = bias {
            // a plane needs a second axis, and there is one step along it
            let source = Plane::of(&bias.expand(1, 1), 0, 1).at(first, 0).area(channels, 1);
            tile::load(simd, source, channels, TileMut::new(self.bias.reborrow(), channels));
        }
    }
}

impl<T: Real> Filters<'_, T> {
    /// The filter of a channel spread over vectors in `room`, for [`line`].
    #[inline(always)]
    fn along_time<'r, S: Isa>(
        &self,
        simd: S,
        channel: usize,
        adjoint: bool,
        silu: bool,
        room: &'r mut [T; TAPS * MAX_LANES],
    ) -> Taps<'r, T, S> {
        let lanes = T::lanes::<S>();
        let (weight, bias) = (self.weight.shared(channel * TAPS, self.width), self.bias.get(channel));
        for k in 0..self.width {
            let from = if adjoint { self.width - 1 - k } else { k };
            room[k * lanes..][..lanes].fill(weight[from]);
        }
        let bias = V::splat(simd, if adjoint { T::default() } else { bias });
        Taps { array: Array::of(room), pitch: lanes as isize, width: self.width, step: 1, bias, silu }
    }
}

/// Memory that vectors walk over: a tile, or a tensor that lies as a tile does.
#[derive(Clone, Copy)]
pub(super) struct SpanOf<A> {
    array: A,
    pitch: isize,
}

/// A span that is read.
pub(super) type Span<'m, T> = SpanOf<Array<'m, T>>;
/// A span that is written.
pub(super) type SpanMut<'m, T> = SpanOf<ArrayMut<'m, T>>;

impl<'m, T: Real> Span<'m, T> {
    /// One batch row of a (B, D, L) tensor from a channel and a position on, if it lies as a tile of channels side by side does.
    fn of(view: &View<'m>, batch: usize, channel: usize, position: usize) -> Option<Self> {
        let (offset, pitch) = side_by_side(&view.strides(), batch, channel, position)?;
        (view.dtype() == T::DTYPE).then(|| SpanOf { array: Array::of_view(view).moved(offset), pitch })
    }
}

impl<T: Real> SpanMut<'_, T> {
    /// Returns the span of a tensor that is written.
    ///
    /// # Safety
    /// As for [`Divided::part`].
    unsafe fn of_mut(view: &RawViewMut, batch: usize, channel: usize, position: usize) -> Option<Self> {
        let (offset, pitch) = side_by_side(&view.strides(), batch, channel, position)?;
        // SAFETY: the contract above.
        (view.dtype() == T::DTYPE).then(|| SpanOf { array: unsafe { Divided::of_view(view).moved(offset).part(0) }, pitch })
    }

    /// The elements from a channel and a position on, to be written.
    #[inline(always)]
    fn at_mut(&mut self, axis: Axis, channel: usize, position: usize) -> ArrayMut<'_, T> {
        SpanOf { array: self.array.reborrow(), pitch: self.pitch }.at(axis, channel, position)
    }
}

impl<'m, T, A> SpanOf<ArrayOf<'m, T, A>> {
    /// The elements from a channel and a position on.
    #[inline(always)]
    fn at(self, axis: Axis, channel: usize, position: usize) -> ArrayOf<'m, T, A> {
        let (line, along) = match axis {
            Axis::Time => (channel, position),
            Axis::Channels => (position, channel),
        };
        self.array.moved(line as isize * self.pitch + along as isize)
    }
}

/// Returns the offset of a channel and a position of a (B, D, L) tensor, and the elements from position to position, if channels
/// lie side by side.
fn side_by_side(strides: &[isize], batch: usize, channel: usize, position: usize) -> Option<(isize, isize)> {
    let offset = batch as isize * strides[0] + channel as isize + position as isize * strides[2];
    (strides[1] == 1).then_some((offset, strides[2]))
}

/// `out[i] = sum_k tap[k] source[i + k]` over `channels` x `count`, with bias and silu, or the adjoint (taps reversed, nothing else).
/// The last vector along the axis may reach over.
#[derive(Clone, Copy)]
pub(super) struct Convolution<'m, T> {
    pub axis: Axis,
    pub filters: Filters<'m, T>,
    pub channels: usize,
    pub count: usize,
    pub silu: bool,
    pub adjoint: bool,
}

impl<T: Real> Convolution<'_, T> {
    #[inline(always)]
    pub(super) fn run<S: Isa>(self, simd: S, source: Span<'_, T>, mut target: SpanMut<'_, T>) {
        let Convolution { axis, filters, channels, count, silu, adjoint } = self;
        match axis {
            Axis::Time => {
                for channel in 0..channels {
                    let mut room = [T::default(); TAPS * MAX_LANES];
                    let taps = filters.along_time(simd, channel, adjoint, silu, &mut room);
                    line(taps, source.at(axis, channel, 0), target.at_mut(axis, channel, 0), count, false);
                }
            }
            Axis::Channels => self.along_channels(simd, source, target),
        }
    }

    #[inline(always)]
    fn along_channels<S: Isa>(self, simd: S, source: Span<'_, T>, mut target: SpanMut<'_, T>) {
        let Convolution { axis, filters, channels, count, silu, adjoint } = self;
        let (lanes, width) = (T::lanes::<S>(), filters.width);
        let row = filters.pitch as isize;
        let (last, pitch) = if adjoint { ((width - 1) as isize * row, -row) } else { (0, row) };
        let mut i = 0;
        while i < count {
            let four = i + 4 <= count;
            for line in (0..channels).step_by(lanes) {
                let none = V::splat(simd, T::default());
                let bias = if adjoint { none } else { filters.bias.load(simd, line) };
                let array = filters.weight.moved(last).from(line);
                let taps = Taps { array, pitch, width, step: source.pitch, bias, silu };
                let from = (source.at(axis, line, i), source.pitch);
                let pitch = target.pitch;
                let to = (target.at_mut(axis, line, i), pitch);
                if four { store(sums::<T, S, 4>(taps, from), to) } else { store(sums::<T, S, 1>(taps, from), to) }
            }
            i += if four { 4 } else { 1 };
        }
    }
}

/// The filters of one line of vectors.
#[derive(Clone, Copy)]
struct Taps<'m, T: Real, S: Isa> {
    /// A vector for each tap, `pitch` apart.
    array: Array<'m, T>,
    pitch: isize,
    width: usize,
    /// From the input of one tap to that of the next.
    step: isize,
    bias: V<T, S>,
    silu: bool,
}

/// One channel of a [`Convolution`] along time; `exact`ly those elements if there is at least a vector of them, else the last may reach over.
#[inline(always)]
fn line<T: Real, S: Isa>(taps: Taps<'_, T, S>, source: Array<'_, T>, mut target: ArrayMut<'_, T>, count: usize, exact: bool) {
    let lanes = T::lanes::<S>();
    let mut i = 0;
    while i + 4 * lanes <= count {
        let sums = sums::<T, S, 4>(taps, (source.from(i), lanes as isize));
        store(sums, (target.from(i), lanes as isize));
        i += 4 * lanes;
    }
    while i < count {
        // the last vector of exactly these elements overlaps the one before it
        let at = if exact { i.min(count - lanes) } else { i };
        store(sums::<T, S, 1>(taps, (source.from(at), 0)), (target.from(at), 0));
        i += lanes;
    }
}

/// `R` neighbouring vectors of a [`Convolution`], which start `step` after each other.
#[inline(always)]
fn sums<T: Real, S: Isa, const R: usize>(taps: Taps<'_, T, S>, (source, step): (Array<'_, T>, isize)) -> [V<T, S>; R] {
    let simd = taps.bias.simd();
    let mut sum = [taps.bias; R];
    for k in 0..taps.width as isize {
        let tap = taps.array.moved(k * taps.pitch).load(simd, 0);
        for r in 0..R {
            sum[r] = source.moved(r as isize * step + k * taps.step).load(simd, 0).mul_add(tap, sum[r]);
        }
    }
    if taps.silu {
        sum = silu_each(sum);
    }
    sum
}

/// Stores what [`sums`] gives, `step` after each other.
#[inline(always)]
fn store<T: Real, S: Isa, const R: usize>(sums: [V<T, S>; R], (mut target, step): (ArrayMut<'_, T>, isize)) {
    for r in 0..R {
        target.reborrow().moved(r as isize * step).store(0, sums[r]);
    }
}

/// `v sigmoid(v)`, one half of the chain for all vectors before the other, as in `softplus_each`. Where `e^-v` is infinite
/// (v < -88.7 in f32) the sigmoid is 0; that of -infinity is NaN, as by the formula.
#[inline(always)]
fn silu_each<T: Real, S: Isa, const R: usize>(v: [V<T, S>; R]) -> [V<T, S>; R] {
    let mut y = exp_minus_each(v);
    for r in 0..R {
        y[r] = y[r] + V::constant(v[r].simd(), 1.0);
    }
    for r in 0..R {
        y[r] = v[r] * y[r].short_recip();
    }
    y
}

/// `e^-v`. Whether arguments are bounded is asked for all of them at once: a sum of sizes below the bound is one of numbers below it.
#[inline(always)]
fn exp_minus_each<T: Real, S: Isa, const R: usize>(v: [V<T, S>; R]) -> [V<T, S>; R] {
    let constant = |x| V::constant(v[0].simd(), x);
    let factor = constant(-core::f64::consts::LOG2_E);
    let mut power = v;
    if S::BOUNDS_PAY && !T::DOUBLE {
        let mut size = v[0].abs();
        for r in 1..R {
            size = size + v[r].abs();
        }
        // a NaN may hide a number beyond the bound
        let beyond = V::select_less(size, constant(BOUNDED), constant(0.0), constant(1.0));
        if !constant(0.0).any_less(beyond) {
            for r in 0..R {
                power[r] = V::exp2_product::<true>(v[r], factor);
            }
            return power;
        }
    }
    for r in 0..R {
        power[r] = V::exp2_product::<false>(v[r], factor);
    }
    power
}

/// Below, a power of e, as one of 2, is one that [`V::exp2_product`] calls bounded.
const BOUNDED: f64 = 86.0;

/// The sigmoid has long reached its smallest value here: below, `v` times that would grow again.
const LOWEST: f64 = -1000.0;

/// The derivative of [`silu`]: `s (1 + v s e^-v)` with `s = sigmoid(v)`. The smallest `s` is a normal number, and far below 0 the derivative
/// is within 1e-34 of 0, also at -infinity.
#[inline(always)]
fn silu_derivative_each<T: Real, S: Isa, const R: usize>(mut v: [V<T, S>; R]) -> [V<T, S>; R] {
    let simd = v[0].simd();
    let constant = |x| V::constant(simd, x);
    for r in 0..R {
        v[r] = v[r].max(constant(LOWEST));
    }
    let mut slope = exp_minus_each(v);
    for r in 0..R {
        let e = slope[r].min(constant(T::LARGEST / 4.0));
        let s = (e + constant(1.0)).short_recip();
        slope[r] = s * v[r].mul_add(e * s, constant(1.0));
    }
    slope
}

/// The scratch memory of one thread's jobs, with so many tiles of their own.
pub(super) struct Scratch<'m, T, const TILES: usize> {
    pub tiles: [ArrayMut<'m, T>; TILES],
    pub filters: FiltersMut<'m, T>,
    states: ArrayMut<'m, T>,
}

impl<'m, T: Real, const TILES: usize> Scratch<'m, T, TILES> {
    pub(super) fn lay_out(room: &mut Room<'m, T>, tiling: Tiling, channels: usize, width: usize) -> Self {
        let (taps, pitch) = (tiling.taps_len(channels), channels.next_multiple_of(MAX_LANES));
        Scratch {
            tiles: [tiling.len; TILES].map(|len| room.array(len)),
            filters: FiltersOf { weight: room.array(taps), bias: room.array(pitch), width, pitch },
            states: room.array(taps),
        }
    }
}

/// The channels of a segment that a job is at.
#[derive(Clone, Copy)]
struct Window<'w, 'a> {
    tiling: Tiling,
    problem: &'w Problem<'a>,
    segment: &'w Segment,
    first: usize,
    channels: usize,
}

impl Window<'_, '_> {
    /// `steps` from `start` with what lies before them: the W-1 steps before, of the segment or its initial state.
    #[inline(always)]
    fn load<T: Real, S: Isa>(&self, simd: S, start: usize, steps: usize, mut tile: ArrayMut<'_, T>) {
        let Window { tiling, problem, segment, first, channels } = *self;
        let (before, x) = (problem.width - 1, plane(&problem.x, segment.batch));
        if start > segment.start {
            return tiling.load(simd, x.at(first, start - before).area(channels, steps + before), tile);
        }
        self.load_before(simd, tiling, tile.reborrow());
        tiling.load(simd, x.at(first, start).area(channels, steps), tile.from(tiling.at(before)));
    }

    /// The W-1 inputs before the segment: its initial state, or zeros.
    #[inline(always)]
    fn load_before<T: Real, S: Isa>(&self, simd: S, tiling: Tiling, mut tile: ArrayMut<'_, T>) {
        let Window { problem, segment, first, channels, .. } = *self;
        let before = problem.width - 1;
        match (&problem.initial_states, segment.initial) {
            (Some(states), Some(at)) => {
                tiling.load(simd, state_plane(states, at).at(first, 0).area(channels, before), tile);
            }
            _ => tiling.zero(&mut tile, channels, 0, before),
        }
    }
}

/// The channel tiles of a block, as (first channel, channels).
fn tiles(plan: &Plan, dim: usize, block: usize) -> impl Iterator<Item = (usize, usize)> {
    let (start, end) = (block * plan.block_channels, dim.min((block + 1) * plan.block_channels));
    let step = plan.tile_channels;
    (start..end).step_by(step).map(move |first| (first, step.min(end - first)))
}
