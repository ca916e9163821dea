//! Problem to plan: how channels, steps and saved states are divided. A pure function of the problem, never of the number of threads, so
//! that sums are taken in the same order whoever computes them.

use super::{CHECKPOINT, Problem, Projection};
use crate::cpu::tile::MAX_LANES;
use crate::tensor::View;
use core::ops::Range;

/// Where the states of the forward pass are kept: one for each [`CHECKPOINT`] steps of a segment after the first ones, which start from the
/// segment's own initial state. One state is (dstate, parts, padded dim), channels fastest, padded so that it does not depend on the
/// width of a vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checkpoints {
    /// Index of the first saved state of each segment.
    pub first: Vec<usize>,
    /// Channels, padded to the widest vector.
    pub padded_dim: usize,
    /// Elements of one state.
    pub state_len: usize,
    /// Elements in all.
    pub len: usize,
}

impl Checkpoints {
    pub(crate) fn new(problem: &Problem<'_>) -> Self {
        let (first, count) = problem.segments.checkpoints(CHECKPOINT);
        // a broadcast view can claim any size: a length that overflows matches no buffer
        let padded_dim = problem.dim.checked_next_multiple_of(MAX_LANES).unwrap_or(usize::MAX);
        let state_len = problem.dstate.saturating_mul(problem.parts()).saturating_mul(padded_dim);
        Checkpoints { first, padded_dim, state_len, len: state_len.saturating_mul(count) }
    }

    /// Position of the state before tile `tile >= 1` of a segment.
    pub(crate) fn at(&self, segment: usize, tile: usize) -> usize {
        (self.first[segment] + tile - 1) * self.state_len
    }
}

/// The division of one call into jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Ranges of channels, none of which crosses a group of B or C. A tile of B and C is read once for all channels of a range, and the
    /// gradients of B and C are first summed over it.
    pub channels: Vec<Range<usize>>,
    /// Ranges of segments; the gradients of per-channel parameters are first summed over one.
    pub segments: Vec<Range<usize>>,
}

/// Ranges of channels get narrower until there are so many jobs.
const MANY_JOBS: usize = 24;
/// Partial sums of the gradients of per-channel parameters are kept for at most this many ranges of segments.
const MAX_SEGMENT_RANGES: usize = 32;

impl Plan {
    pub(crate) fn new(problem: &Problem<'_>) -> Self {
        let dim = problem.dim;
        let groups = |map: &Projection<View<'_>>| match map {
            Projection::Varying(view) => view.shape()[1],
            Projection::Constant(_) => 1,
        };
        let unit = gcd(dim / groups(&problem.b), dim / groups(&problem.c)).max(1);
        // partial gradients of B and C take 2 N numbers a step for each range, x and dt with their gradients 4 a step and channel: with
        // 4 N channels in a range the partials stay near an eighth of that
        let size = (4 * problem.dstate.min(MAX_LANES * 4) * problem.parts())
            .next_multiple_of(MAX_LANES)
            .clamp(4 * MAX_LANES, 16 * MAX_LANES);
        let count = problem.segments.list.len();
        // narrower ranges where they would be too few to share out
        let size = size.min((dim * count).div_ceil(MANY_JOBS).next_multiple_of(MAX_LANES).max(MAX_LANES));
        let mut channels = Vec::new();
        for start in (0..dim).step_by(unit) {
            let pieces = unit.div_ceil(size);
            let piece = unit.div_ceil(pieces).next_multiple_of(MAX_LANES);
            channels.extend((0..unit).step_by(piece).map(|c| start + c..start + unit.min(c + piece)));
        }
        let step = count.div_ceil(MAX_SEGMENT_RANGES).max(1);
        let segments = (0..count).step_by(step).map(|s| s..count.min(s + step)).collect();
        Plan { channels, segments }
    }

    /// Number of jobs.
    pub(crate) fn jobs(&self) -> usize {
        self.channels.len() * self.segments.len()
    }

    /// The job's range of segments and range of channels, by index.
    pub(crate) fn job(&self, index: usize) -> (usize, usize) {
        (index / self.channels.len(), index % self.channels.len())
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
