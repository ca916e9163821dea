//! Problem to plan: which axis vectors lie along, and how steps and channels divide into slices, groups and blocks. A pure function of the
//! problem, never of the number of threads.

use super::super::Problem;
use crate::cpu::tile::MAX_LANES;

/// The axis that lies along a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Axis {
    /// Neighbouring steps of one channel; taps are shifted loads.
    Time,
    /// Neighbouring channels of one step; taps are other rows.
    Channels,
}

/// Steps that are worked on at once, within one segment, or padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    pub batch: usize,
    pub start: usize,
    pub end: usize,
    /// The segment they belong to; none for padding.
    pub segment: Option<usize>,
}

/// How a convolution is carried out. A job is one group of slices for one block of channels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub axis: Axis,
    pub slices: Vec<Slice>,
    /// The end of each group of slices; weight gradients are first summed over a group, then over groups.
    pub groups: Vec<usize>,
    /// Channels in a tile.
    pub tile_channels: usize,
    /// Channels in a job, a multiple of the former.
    pub block_channels: usize,
    /// The most steps in a slice.
    pub slice_steps: usize,
    /// Blocks of channels.
    pub blocks: usize,
}

impl Plan {
    /// `tiles` is the number of tiles that the pass works on at once.
    pub(crate) fn new(problem: &Problem<'_>, tiles: usize) -> Self {
        let strides = problem.x.strides();
        // short rows would leave most of a vector along time empty
        let axis = match problem.seqlen >= 16 && (strides[2] == 1 || strides[1] != 1) {
            true => Axis::Time,
            false => Axis::Channels,
        };
        let (slice_steps, tile_channels, block_channels, group_steps) = match axis {
            // whole rows of moderate length, so that memory is walked in one direction
            Axis::Time if tiles <= 2 => (2048, 4, 16, 2048),
            Axis::Time => (512, 4, 16, 2048),
            // long rows are read faster, many tiles must still stay near
            Axis::Channels if tiles <= 2 => (64, 256, 256, 512),
            Axis::Channels => (64, 64, 64, 1024),
        };
        // tiles are no larger than the call needs
        let channels = problem.dim.next_multiple_of(MAX_LANES).max(MAX_LANES);
        let (tile_channels, block_channels) = (tile_channels.min(channels), block_channels.min(channels));
        let mut slices = Vec::new();
        for (index, segment) in problem.segments.list.iter().enumerate() {
            // a sequence without steps still hands its state on
            let mut start = segment.start;
            loop {
                let end = segment.end.min(start + slice_steps);
                slices.push(Slice { batch: segment.batch, start, end, segment: Some(index) });
                start = end;
                if start == segment.end {
                    break;
                }
            }
        }
        for p in &problem.padding {
            let cuts = (p.start..p.end).step_by(slice_steps);
            let slice = |start: usize| Slice { batch: p.batch, start, end: p.end.min(start + slice_steps), segment: None };
            slices.extend(cuts.map(slice));
        }
        let (mut groups, mut steps) = (Vec::new(), 0);
        for (index, slice) in slices.iter().enumerate() {
            // a slice without steps costs something as well
            steps += (slice.end - slice.start).max(8);
            if steps >= group_steps || index + 1 == slices.len() {
                groups.push(index + 1);
                steps = 0;
            }
        }
        let slice_steps = slices.iter().map(|slice| slice.end - slice.start).max().unwrap_or(0);
        let blocks = problem.dim.div_ceil(block_channels);
        Plan { axis, slices, groups, tile_channels, block_channels, slice_steps, blocks }
    }

    /// The slices of a group.
    pub(crate) fn group(&self, index: usize) -> &[Slice] {
        let first = if index == 0 { 0 } else { self.groups[index - 1] };
        &self.slices[first..self.groups[index]]
    }
}
