//! The kernels: tiles of channels x steps in the compute type, vectors along whichever axis the plan chose.
//!
//! | axis | element (channel c, position i) | lines | taps |
//! |---|---|---|---|
//! | time | `c * pitch + i` | one for each channel | shifted loads |
//! | channels | `i * pitch + c` | one for each vector of channels | neighbouring rows |
//!
//! Position 0 of a tile is the first of the W-1 steps before a piece, so that a sum at step `m` takes positions `m .. m + W`.

mod backward;
mod forward;
mod update;

use super::plan::{Axis, Plan};
use super::{MAX_WIDTH, Problem};
use crate::cpu::math;
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{self, MAX_LANES, Plane, STEPS};
use crate::tensor::{RawViewMut, View};

pub(crate) use backward::backward;
pub(crate) use forward::forward;
pub(crate) use update::{UpdateProblem, update};

pub(crate) struct Targets {
    pub y: Option<RawViewMut>,
    pub final_states: Option<RawViewMut>,
}

pub(crate) struct Sources<'a> {
    pub y: Option<View<'a>>,
    pub final_states: Option<View<'a>>,
}

pub(crate) struct GradientTargets {
    pub x: Option<RawViewMut>,
    pub weight: Option<RawViewMut>,
    pub bias: Option<RawViewMut>,
    pub initial_states: Option<RawViewMut>,
}

/// Room for the taps of one channel.
const TAPS: usize = MAX_WIDTH;

/// How tiles of one plan lie in memory.
#[derive(Debug, Clone, Copy)]
struct Tiling {
    axis: Axis,
    /// Elements between channels (time) or steps (channels).
    pitch: usize,
    /// Elements of a whole tile: a piece, W-1 steps on both sides, and what the last vector reaches over.
    len: usize,
}

impl Tiling {
    fn new(axis: Axis, channels: usize, steps: usize) -> Self {
        let steps = steps + 2 * TAPS;
        match axis {
            Axis::Time => {
                let pitch = steps + 2 * MAX_LANES;
                Tiling { axis, pitch, len: channels * pitch }
            }
            Axis::Channels => {
                let pitch = channels.next_multiple_of(MAX_LANES);
                Tiling { axis, pitch, len: steps * pitch }
            }
        }
    }

    fn of(plan: &Plan) -> Self {
        Self::new(plan.axis, plan.tile_channels, plan.piece_steps)
    }

    /// Place of a position of channel 0.
    #[inline(always)]
    fn at(self, position: usize) -> usize {
        match self.axis {
            Axis::Time => position,
            Axis::Channels => position * self.pitch,
        }
    }

    /// Place of one element.
    #[inline(always)]
    fn element(self, channel: usize, position: usize) -> usize {
        match self.axis {
            Axis::Time => channel * self.pitch + position,
            Axis::Channels => position * self.pitch + channel,
        }
    }

    /// A tile of taps or states: the same axes, as many positions as taps.
    fn taps(self) -> Self {
        match self.axis {
            Axis::Time => Tiling { pitch: TAPS, ..self },
            Axis::Channels => self,
        }
    }

    /// Elements of a tile of taps.
    fn taps_len(self, channels: usize) -> usize {
        TAPS * channels.next_multiple_of(MAX_LANES)
    }

    /// How vectors walk over `channels` x `count` of a tile.
    #[inline(always)]
    fn walk(self, channels: usize, count: usize, lanes: usize) -> Walk {
        match self.axis {
            Axis::Time => Walk { lines: channels, line_step: self.pitch, positions: count.div_ceil(lanes), step: lanes, tap: 1 },
            Axis::Channels => {
                let lines = channels.div_ceil(lanes);
                Walk { lines, line_step: lanes, positions: count, step: self.pitch, tap: self.pitch }
            }
        }
    }

    /// Loads `channels` x `steps` from a plane with lanes along channels (see [`plane`]). Vectors that reach over are zero along channels.
    ///
    /// # Safety
    /// The plane is readable there, and the tile writable from `tile` on.
    #[inline(always)]
    unsafe fn load<T: Real, S: Isa>(self, simd: S, source: Plane, channels: usize, steps: usize, tile: *mut T) {
        // SAFETY: the caller's contract; at most STEPS rows at a time.
        unsafe {
            match self.axis {
                Axis::Time => tile::load(simd, source.transposed(), steps, steps, channels, tile, self.pitch),
                Axis::Channels => {
                    let padded = channels.next_multiple_of(T::lanes::<S>());
                    for start in (0..steps).step_by(STEPS) {
                        let count = STEPS.min(steps - start);
                        tile::load(simd, source.at(0, start), channels, padded, count, tile.add(start * self.pitch), self.pitch);
                    }
                }
            }
        }
    }

    /// The inverse of [`Tiling::load`].
    ///
    /// # Safety
    /// The plane is writable there, and the tile readable from `tile` on.
    #[inline(always)]
    unsafe fn store<T: Real, S: Isa>(self, simd: S, tile: *const T, target: Plane, channels: usize, steps: usize) {
        // SAFETY: the caller's contract; at most STEPS rows at a time.
        unsafe {
            match self.axis {
                Axis::Time => tile::store(simd, tile, self.pitch, target.transposed(), steps, channels),
                Axis::Channels => {
                    for start in (0..steps).step_by(STEPS) {
                        let count = STEPS.min(steps - start);
                        tile::store(simd, tile.add(start * self.pitch), self.pitch, target.at(0, start), channels, count);
                    }
                }
            }
        }
    }

    /// Zeros `channels` x `count` from a position on.
    ///
    /// # Safety
    /// The tile is writable there.
    #[inline(always)]
    unsafe fn zero<T: Real>(self, tile: *mut T, channels: usize, position: usize, count: usize) {
        let (lines, length) = match self.axis {
            Axis::Time => (channels, count),
            Axis::Channels => (count, self.pitch),
        };
        for line in 0..lines {
            // SAFETY: the caller's contract.
            unsafe {
                core::slice::from_raw_parts_mut(tile.add(self.at(position) + line * self.pitch), length).fill(T::default())
            };
        }
    }
}

/// Vectors of a tile: `lines` of `positions` each.
#[derive(Debug, Clone, Copy)]
struct Walk {
    lines: usize,
    line_step: usize,
    positions: usize,
    step: usize,
    tap: usize,
}

/// The steps x channels of one batch row, lanes along channels; the view is (B, D, L).
fn plane(view: &View<'_>, batch: usize) -> Plane {
    Plane::of(view, 1, 2).along(batch, view.strides()[0])
}

fn plane_mut(view: &RawViewMut, batch: usize) -> Plane {
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
struct Filters<'s, T> {
    weight: &'s mut [T],
    bias: &'s mut [T],
    width: usize,
}

impl<T: Real> Filters<'_, T> {
    /// Loads the filters of channels `first ..`; no bias is a bias of zero.
    #[inline(always)]
    fn load<S: Isa>(
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

    /// The taps of a line, each in every lane along time; the other way round for the adjoint.
    #[inline(always)]
    fn taps<S: Isa>(&self, simd: S, axis: Axis, line: usize, adjoint: bool) -> [V<T, S>; TAPS] {
        let mut taps = [V::splat(simd, T::default()); TAPS];
        for k in 0..self.width {
            let from = if adjoint { self.width - 1 - k } else { k };
            taps[k] = match axis {
                Axis::Time => V::splat(simd, self.weight[line * TAPS + from]),
                Axis::Channels => {
                    let row = &self.weight[from * (self.weight.len() / TAPS) + line * V::<T, S>::lanes()..][..V::<T, S>::lanes()];
                    // SAFETY: the slice is one vector long.
                    unsafe { V::load(simd, row.as_ptr()) }
                }
            };
        }
        taps
    }

    #[inline(always)]
    fn bias<S: Isa>(&self, simd: S, axis: Axis, line: usize) -> V<T, S> {
        match axis {
            Axis::Time => V::splat(simd, self.bias[line]),
            Axis::Channels => {
                let row = &self.bias[line * V::<T, S>::lanes()..][..V::<T, S>::lanes()];
                // SAFETY: the slice is one vector long.
                unsafe { V::load(simd, row.as_ptr()) }
            }
        }
    }
}

/// `out[i] = sum_k tap[k] source[i + k]` over `channels` x `count`, with bias and silu, or the adjoint (taps reversed, nothing else).
///
/// # Safety
/// Source and target are readable and writable over whole vectors, the source W-1 positions further.
#[inline(always)]
unsafe fn convolve<T: Real, S: Isa>(
    simd: S,
    tiling: Tiling,
    filters: &Filters<'_, T>,
    (channels, count): (usize, usize),
    source: *const T,
    target: *mut T,
    silu: bool,
    adjoint: bool,
) {
    let walk = tiling.walk(channels, count, T::lanes::<S>());
    for line in 0..walk.lines {
        let taps = filters.taps(simd, tiling.axis, line, adjoint);
        let bias = if adjoint { V::splat(simd, T::default()) } else { filters.bias(simd, tiling.axis, line) };
        // SAFETY: the caller's contract.
        unsafe {
            let (source, target) = (source.add(line * walk.line_step), target.add(line * walk.line_step));
            let mut position = 0;
            while position + 4 <= walk.positions {
                let at = position * walk.step;
                sums::<T, S, 4>(walk, &taps[..filters.width], bias, silu, source.add(at), target.add(at));
                position += 4;
            }
            while position < walk.positions {
                let at = position * walk.step;
                sums::<T, S, 1>(walk, &taps[..filters.width], bias, silu, source.add(at), target.add(at));
                position += 1;
            }
        }
    }
}

/// `R` neighbouring vectors of [`convolve`].
#[inline(always)]
unsafe fn sums<T: Real, S: Isa, const R: usize>(
    walk: Walk,
    taps: &[V<T, S>],
    bias: V<T, S>,
    silu: bool,
    source: *const T,
    target: *mut T,
) {
    let mut sum = [bias; R];
    // SAFETY: the contract of `convolve`.
    unsafe {
        for (k, &tap) in taps.iter().enumerate() {
            for r in 0..R {
                sum[r] = V::load(bias.simd(), source.add(r * walk.step + k * walk.tap)).mul_add(tap, sum[r]);
            }
        }
        for r in 0..R {
            let value = if silu { math::silu(sum[r]) } else { sum[r] };
            value.store(target.add(r * walk.step));
        }
    }
}

/// What the jobs of one thread work in.
struct Scratch<T> {
    tiles: Vec<T>,
    weight: Vec<T>,
    bias: Vec<T>,
    states: Vec<T>,
}

impl<T: Real> Scratch<T> {
    fn new(tiling: Tiling, channels: usize, tiles: usize) -> Self {
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
        match (&problem.initial_states, segment.initial) {
            (Some(states), Some(at)) => tiling.load(simd, state_plane(states, at).at(first, 0), channels, before, tile),
            _ => tiling.zero(tile, channels, 0, before),
        }
        tiling.load(simd, x.at(first, start), channels, steps, tile.add(tiling.at(before)));
    }
}

/// The channel tiles of a block, as (first channel, channels).
fn tiles(plan: &Plan, dim: usize, block: usize) -> impl Iterator<Item = (usize, usize)> {
    let (start, end) = (block * plan.block_channels, dim.min((block + 1) * plan.block_channels));
    let step = plan.tile_channels;
    (start..end).step_by(step).map(move |first| (first, step.min(end - first)))
}
