//! The place of a job's work, a tile of time of a block of channels, and its part of each tensor.

use super::super::{Problem, Projection};
use super::Types;
use super::lanes::Lanes;
use super::plan::{Block, blocks};
use crate::cpu::ArrayMut;
use crate::cpu::simd::{Isa, Real};
use crate::cpu::tile::{self, Area, AreaMut, Plane, PlaneMut, STEPS};
use crate::ops::rules::FieldKind;
use crate::ops::sequences::Segment;
use crate::tensor::{RawViewMut, View};
use core::ops::Range;

/// A tile of time of a block of channels.
#[derive(Clone, Copy)]
pub(super) struct Here<'h, 'a> {
    pub problem: &'h Problem<'a>,
    pub segment: &'h Segment,
    /// The channels of the job, which share B and C.
    pub channels: &'h Range<usize>,
    /// The block of them.
    pub block: Block,
    /// The first step of the tile, and how many there are.
    pub start: usize,
    pub steps: usize,
    pub lanes: Lanes,
}

impl<'h, 'a> Here<'h, 'a> {
    /// The first block of a job's channels in the tile that begins at `start`.
    #[inline(always)]
    pub(super) fn new(
        problem: &'h Problem<'a>,
        segment: &'h Segment,
        channels: &'h Range<usize>,
        lanes: Lanes,
        start: usize,
    ) -> Self {
        debug_assert!((segment.start..=segment.end).contains(&start), "the tile lies in the segment");
        debug_assert!(channels.end <= problem.dim, "the channels are the problem's");
        let block = Block { first: channels.start, count: lanes.channels.min(channels.len()) };
        Here { problem, segment, channels, block, start, steps: STEPS.min(segment.end - start), lanes }
    }

    /// The tile of all blocks, in their order.
    #[inline(always)]
    pub(super) fn each_block(self) -> impl Iterator<Item = Self> {
        blocks(self.channels.clone(), self.lanes.channels).map(move |block| Here { block, ..self })
    }

    /// Whether this is the last block of the tile.
    #[inline(always)]
    pub(super) fn is_last_block(&self) -> bool {
        self.block.first + self.lanes.channels >= self.channels.end
    }

    /// The next block of the tile, or the first one of the tile that is walked after it.
    #[inline(always)]
    pub(super) fn next(&self, following: Option<usize>) -> Option<Self> {
        if self.is_last_block() {
            return Some(Self::new(self.problem, self.segment, self.channels, self.lanes, following?));
        }
        let first = self.block.first + self.lanes.channels;
        Some(Here { block: Block { first, count: self.lanes.channels.min(self.channels.end - first) }, ..*self })
    }

    /// Returns the part of a (B, D, L) tensor that lies here.
    #[inline(always)]
    pub(super) fn area<'v>(&self, view: &View<'v>) -> Area<'v> {
        let plane = Plane::of(view, 1, 2).along(self.segment.batch, view.strides()[0]);
        plane.at(self.block.first, self.start).area(self.block.count, self.steps)
    }

    /// Returns the part of a written tensor that lies here.
    #[inline(always)]
    pub(super) fn area_mut(&self, view: &RawViewMut) -> AreaMut {
        let plane = PlaneMut::of(view, 1, 2).along(self.segment.batch, view.strides()[0]);
        plane.at(self.block.first, self.start).area(self.block.count, self.steps)
    }

    /// The (states, steps) plane of B or C that the channels' group sees; none of a constant map.
    #[inline(always)]
    pub(super) fn map_area<'v>(&self, map: &Projection<View<'v>>) -> Option<Area<'v>> {
        let Projection::Varying(view) = map else { return None };
        let group = self.block.first / (self.problem.dim / view.shape()[1]);
        let strides = view.strides();
        let plane = Plane::of(view, 2, 3).along(self.segment.batch, strides[0]).along(group, strides[1]).at(0, self.start);
        Some(plane.area(self.problem.dstate, self.steps))
    }

    /// Loads that plane, if there is one, in the order that [`Map`](super::inputs::Map) reads.
    #[inline(always)]
    pub(super) fn load_map<E: Types, S: Isa>(&self, simd: S, map: &Projection<View<'_>>, to: ArrayMut<'_, E::T>) {
        let Some(area) = self.map_area(map) else { return };
        let dstate = self.problem.dstate;
        debug_assert!(to.has(0, STEPS * dstate * E::K::PARTS), "room for a tile of the map");
        match by_state::<E>(self.lanes.per_channel) {
            true => tile::load_parts(simd, area.plane.transposed().area(area.steps, dstate), 1, STEPS, to),
            false => tile::load_parts(simd, area, E::K::PARTS, dstate, to),
        }
    }

    /// Doubles a tile of C for complex states, whose output is `2 Re(C h)`.
    #[inline(always)]
    pub(super) fn double_map<E: Types>(&self, tile: &mut ArrayMut<'_, E::T>) {
        if E::K::PARTS == 2 {
            double(tile.slice(0, self.steps * E::K::PARTS * self.problem.dstate));
        }
    }

    /// Loads the state before the segment's first step, zero where there is none.
    #[inline(always)]
    pub(super) fn load_initial_state<E: Types, S: Isa>(&self, simd: S, h: ArrayMut<'_, E::T>, staging: &mut ArrayMut<'_, E::T>) {
        self.load_state::<E, S>(simd, (&self.problem.initial_state, self.segment.initial), h, staging)
    }

    /// Loads the state of a sequence, at (row, sequence) of a (B, sequences, D, N) tensor; zero where either is absent.
    #[inline(always)]
    pub(super) fn load_state<E: Types, S: Isa>(
        &self,
        simd: S,
        (view, place): (&Option<View<'_>>, Option<(usize, usize)>),
        mut to: ArrayMut<'_, E::T>,
        staging: &mut ArrayMut<'_, E::T>,
    ) {
        let sizes = [self.problem.dstate, E::K::PARTS];
        debug_assert!(to.has(0, sizes[0] * sizes[1] * self.lanes.channels), "room for the block's states");
        match (view, place) {
            (Some(view), Some((row, sequence))) => {
                let strides = view.strides();
                let plane = Plane::of(view, 2, 3).along(row, strides[0]).along(sequence, strides[1]);
                let area = plane.at(self.block.first, 0).area(self.block.count, sizes[0]);
                self.lanes.load_states(simd, area, sizes[1], to, staging);
            }
            _ => to.clear(sizes[0] * sizes[1] * self.lanes.channels),
        }
    }
}

/// Whether a tile of B or C is (state, step): the loops walk the steps of a few real states, whose scalars then share lines. Otherwise it
/// is (step, part, state): lanes that hold states of one channel read neighbouring ones.
#[inline(always)]
pub(super) fn by_state<E: Types>(per_channel: usize) -> bool {
    E::K::PARTS == 1 && per_channel == 1
}

/// Doubles numbers: the output of complex states is `2 Re(C h)`.
#[inline(always)]
pub(super) fn double<T: Real>(numbers: &mut [T]) {
    numbers.iter_mut().for_each(|value| *value = *value + *value);
}
