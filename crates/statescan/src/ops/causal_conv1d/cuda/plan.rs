//! Problem to plan: how pieces of channels x steps are laid over threads. A pure function of the problem and the device's numbers.

use super::OP;
use crate::cuda::{Launch, Numbers};
use crate::error::Result;

/// The inputs of a plan besides the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub batch: usize,
    pub dim: usize,
    pub seqlen: usize,
    /// Whether neighbouring threads take neighbouring steps, rather than channels.
    pub by_time: bool,
    /// Bytes of an input.
    pub size: usize,
    pub width: usize,
    /// Whether rows have several sequences.
    pub packed: bool,
    /// Whether inputs are read several at a time.
    pub aligned: bool,
}

impl Shape {
    /// Steps of a thread at a time: neighbours in time are 16 bytes, so that neighbouring threads write whole sectors.
    fn steps(&self) -> usize {
        if self.by_time { (16 / self.size).max(4) } else { 8 }
    }

    /// Threads of a block of a forward pass, and the blocks that a multiprocessor must be able to hold: more of them leave too few registers
    /// to each thread.
    fn blocks_forward(&self) -> (usize, usize) {
        match (self.by_time, self.packed || self.width > 4) {
            (true, false) => (64, 16),
            (true, true) => (64, 12),
            (false, false) => (128, 5),
            (false, true) => (128, 4),
        }
    }

    /// The most pieces of a thread of a forward pass, all under way at once.
    fn rounds(&self) -> usize {
        match (self.packed, self.by_time && self.aligned && self.width <= 4) {
            (true, _) => 1,
            (false, true) => 4,
            (false, false) => 2,
        }
    }

    /// Blocks of a backward pass that a multiprocessor must be able to hold.
    fn resident_backward(&self) -> usize {
        match (self.by_time, self.packed || !self.aligned, self.width) {
            (true, false, ..=4) => 7,
            (true, ..) => 4,
            (false, _, ..=4) => 3,
            (false, ..) => 2,
        }
    }
}

/// How threads lie over channels and steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Geometry {
    /// Channels of a thread.
    pub channels: usize,
    pub channel_lanes: usize,
    pub time_lanes: usize,
    /// Steps of a thread at a time.
    pub steps: usize,
    /// Blocks that a multiprocessor must be able to hold, which bounds the registers of a thread.
    pub resident: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Plan {
    pub geometry: Geometry,
    pub channel_blocks: usize,
    /// Blocks of steps in a row.
    pub time_blocks: usize,
    /// Pieces of a thread where each has a block of its own.
    pub rounds: usize,
    /// (batch, block of steps)
    pub items: usize,
    /// Parts of the items, whose blocks sum the gradients of filters on their own.
    pub splits: usize,
    pub launch: Launch,
}

/// The most threads of a block.
pub(super) const THREADS: usize = 128;
/// Threads of a multiprocessor that are worth having before they make more than one piece.
const FORWARD_THREADS: usize = 2048;
/// Blocks of a multiprocessor that sum gradients: as many as fit, and some more for an even end.
const SUMMING_BLOCKS: usize = 12;

impl Geometry {
    /// `bytes` of neighbouring channels for a thread.
    fn new(shape: &Shape, bytes: usize, (threads, resident): (usize, usize)) -> Self {
        let steps = shape.steps();
        let pieces = shape.seqlen.div_ceil(steps).max(1).next_power_of_two();
        if shape.by_time {
            let time_lanes = pieces.min(threads);
            return Geometry { channels: 1, channel_lanes: threads / time_lanes, time_lanes, steps, resident };
        }
        let channels = (bytes / shape.size).max(1);
        let time_lanes = pieces.min(threads / 32);
        let channel_lanes = shape.dim.div_ceil(channels).max(1).next_power_of_two().min(threads / time_lanes);
        Geometry { channels, channel_lanes, time_lanes, steps, resident }
    }
}

impl Plan {
    fn new(shape: &Shape, geometry: Geometry, rounds: usize, splits: impl Fn(usize, usize) -> usize) -> Result<Plan> {
        let channel_blocks = shape.dim.div_ceil(geometry.channels * geometry.channel_lanes);
        let time_blocks = shape.seqlen.div_ceil(geometry.steps * geometry.time_lanes * rounds);
        // items and blocks are numbered in 32 bits
        let items = shape.batch.checked_mul(time_blocks).filter(|&n| n <= i32::MAX as usize).unwrap_or(usize::MAX);
        let splits = splits(channel_blocks, items);
        let blocks = splits.checked_mul(channel_blocks).filter(|_| items < usize::MAX);
        let launch = Launch::new(OP, blocks, geometry.channel_lanes * geometry.time_lanes)?;
        Ok(Plan { geometry, rounds, channel_blocks, time_blocks, items, splits, launch })
    }

    /// A block for each piece of work. Each thread makes a few pieces of long rows: their loads are under way together, and what they share
    /// is loaded and computed once.
    pub(super) fn forward(shape: &Shape, numbers: Numbers) -> Result<Plan> {
        let geometry = Geometry::new(shape, 8, shape.blocks_forward());
        let once = Self::new(shape, geometry, 1, |_, items| items)?;
        let most = once.time_blocks.clamp(1, shape.rounds());
        let threads = once.launch.blocks() * once.launch.threads as usize;
        let enough = FORWARD_THREADS * numbers.multiprocessors;
        let rounds = (1..=most).rev().find(|n| threads / n >= enough).unwrap_or(1);
        Self::new(shape, geometry, rounds, |_, items| items)
    }

    /// With gradients of filters (`summing`), a block sums over part of the batch and the steps; over all of them without memory
    /// for the parts (`apart`).
    pub(super) fn backward(shape: &Shape, numbers: Numbers, summing: bool, apart: bool) -> Result<Plan> {
        let splits = |channel_blocks: usize, items: usize| match (summing, apart) {
            (false, _) => items,
            (true, false) => 1,
            (true, true) => (SUMMING_BLOCKS * numbers.multiprocessors).div_ceil(channel_blocks.max(1)).min(items).max(1),
        };
        Self::new(shape, Geometry::new(shape, 4, (THREADS, shape.resident_backward())), 1, splits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(batch: usize, dim: usize, seqlen: usize, by_time: bool) -> Shape {
        Shape { batch, dim, seqlen, by_time, size: 2, width: 4, packed: false, aligned: true }
    }

    #[test]
    fn every_plan_covers_its_problem() {
        for by_time in [false, true] {
            for size in [2, 4] {
                for (batch, dim, seqlen) in
                    [(1, 1, 1), (2, 5, 67), (8, 2048, 2048), (1, 33, 4096), (300, 7, 3), (1, 3, 1 << 33), (1, 1 << 33, 3)]
                {
                    let shape = Shape { size, ..shape(batch, dim, seqlen, by_time) };
                    let backward = |summing, apart| Plan::backward(&shape, Numbers::H200, summing, apart);
                    for plan in [
                        Plan::forward(&shape, Numbers::H200),
                        backward(false, false),
                        backward(true, false),
                        backward(true, true),
                    ] {
                        let plan = plan.unwrap();
                        let Geometry { channels, channel_lanes, time_lanes, steps, .. } = plan.geometry;
                        assert!(plan.channel_blocks * channel_lanes * channels >= dim, "{shape:?} {plan:?}");
                        assert!(plan.time_blocks * plan.rounds * time_lanes * steps >= seqlen, "{shape:?} {plan:?}");
                        assert!(channel_lanes * time_lanes <= THREADS && time_lanes.is_power_of_two());
                        assert!(plan.splits <= batch * plan.time_blocks);
                        assert_eq!(plan.launch.blocks(), plan.splits * plan.channel_blocks);
                    }
                }
            }
        }
    }

    #[test]
    fn many_channels_are_summed_by_one_block_each() {
        let splits = |dim, by_time| Plan::backward(&shape(8, dim, 2048, by_time), Numbers::H200, true, true).unwrap().splits;
        assert_eq!(splits(2048, true), 1);
        assert_eq!(splits(64, true), 16);
        assert_eq!(splits(2048, false), 50);
    }

    #[test]
    fn empty_problems_launch_nothing_and_endless_ones_have_no_plan() {
        assert_eq!(Plan::forward(&shape(0, 4, 8, true), Numbers::H200).unwrap().launch.blocks(), 0);
        assert_eq!(Plan::forward(&shape(2, 0, 8, true), Numbers::H200).unwrap().launch.blocks(), 0);
        assert_eq!(Plan::forward(&shape(2, 4, 0, true), Numbers::H200).unwrap().launch.blocks(), 0);
        assert!(Plan::forward(&shape(usize::MAX, 4, 8, true), Numbers::H200).is_err());
    }
}
