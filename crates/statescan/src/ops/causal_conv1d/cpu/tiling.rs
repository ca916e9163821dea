//! How tiles lie in memory, and how vectors walk over them.

use super::plan::{Axis, Plan};
use super::{SpanOf, TAPS};
use crate::cpu::simd::{Isa, Real};
use crate::cpu::tile::{self, Area, AreaMut, AreaOf, MAX_LANES, STEPS, Tile, TileMut};
use crate::cpu::{Array, ArrayMut, ArrayOf};

/// How tiles of one plan lie in memory.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops::causal_conv1d) struct Tiling {
    pub axis: Axis,
    /// Elements between channels (time) or steps (channels).
    pub pitch: usize,
    /// Elements of a whole tile: a slice, W-1 steps on both sides, and what the last vector reaches over.
    pub len: usize,
}

impl Tiling {
    pub fn new(axis: Axis, channels: usize, steps: usize) -> Self {
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

    pub fn of(plan: &Plan) -> Self {
        Self::new(plan.axis, plan.tile_channels, plan.slice_steps)
    }

    /// Place of a position of channel 0.
    #[inline(always)]
    pub fn at(self, position: usize) -> usize {
        match self.axis {
            Axis::Time => position,
            Axis::Channels => position * self.pitch,
        }
    }

    /// Place of one element.
    #[inline(always)]
    pub fn element(self, channel: usize, position: usize) -> usize {
        match self.axis {
            Axis::Time => channel * self.pitch + position,
            Axis::Channels => position * self.pitch + channel,
        }
    }

    /// A tile of taps or states: the same axes, as many positions as taps.
    pub fn taps(self) -> Self {
        match self.axis {
            Axis::Time => Tiling { pitch: TAPS, ..self },
            Axis::Channels => self,
        }
    }

    /// Elements of a tile of taps.
    pub fn taps_len(self, channels: usize) -> usize {
        TAPS * channels.next_multiple_of(MAX_LANES)
    }

    /// A tile as memory to walk over, from a position on.
    #[inline(always)]
    pub fn span<'m, T, A>(self, tile: ArrayOf<'m, T, A>, position: usize) -> SpanOf<ArrayOf<'m, T, A>> {
        SpanOf { array: tile.starting(self.at(position)), pitch: self.pitch as isize }
    }

    /// How vectors walk over `channels` x `count` of a tile.
    #[inline(always)]
    pub fn walk(self, channels: usize, count: usize, lanes: usize) -> Walk {
        match self.axis {
            Axis::Time => Walk { lines: channels, line_step: self.pitch, positions: count.div_ceil(lanes), step: lanes, tap: 1 },
            Axis::Channels => {
                let lines = channels.div_ceil(lanes);
                Walk { lines, line_step: lanes, positions: count, step: self.pitch, tap: self.pitch }
            }
        }
    }

    /// Loads an area with lanes along channels (see [`plane`]). Vectors that reach over are zero along channels.
    #[inline(always)]
    pub fn load<T: Real, S: Isa>(self, simd: S, from: Area<'_>, mut tile: ArrayMut<'_, T>) {
        let AreaOf { plane, lanes: channels, steps } = from;
        match self.axis {
            Axis::Time => {
                tile::load(simd, plane.transposed().area(steps, channels), steps, TileMut::new(tile, self.pitch));
            }
            Axis::Channels => {
                let padded = channels.next_multiple_of(T::lanes::<S>());
                for start in (0..steps).step_by(STEPS) {
                    let area = plane.at(0, start).area(channels, STEPS.min(steps - start));
                    tile::load(simd, area, padded, TileMut::new(tile.from(start * self.pitch), self.pitch));
                }
            }
        }
    }

    /// The inverse of [`Tiling::load`].
    #[inline(always)]
    pub fn store<T: Real, S: Isa>(self, simd: S, tile: Array<'_, T>, to: AreaMut) {
        let AreaOf { plane, lanes: channels, steps } = to;
        match self.axis {
            Axis::Time => tile::store(simd, Tile::new(tile, self.pitch), plane.transposed().area(steps, channels)),
            Axis::Channels => {
                for start in (0..steps).step_by(STEPS) {
                    let area = plane.at(0, start).area(channels, STEPS.min(steps - start));
                    tile::store(simd, Tile::new(tile.from(start * self.pitch), self.pitch), area);
                }
            }
        }
    }

    /// Zeros `channels` x `count` from a position on.
    #[inline(always)]
    pub fn zero<T: Real>(self, tile: &mut ArrayMut<'_, T>, channels: usize, position: usize, count: usize) {
        let (lines, length) = match self.axis {
            Axis::Time => (channels, count),
            Axis::Channels => (count, self.pitch),
        };
        for line in 0..lines {
            tile.slice(self.at(position) + line * self.pitch, length).fill(T::default());
        }
    }
}

/// Vectors of a tile: `lines` of `positions` each.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops::causal_conv1d) struct Walk {
    pub lines: usize,
    pub line_step: usize,
    pub positions: usize,
    pub step: usize,
    pub tap: usize,
}
