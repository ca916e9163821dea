//! Problem to plan: which leading axes become lanes. A pure function of shapes and strides.

use super::super::Problem;
use crate::cpu::tile::MAX_LANES;
use crate::tensor::Strides;
use core::ops::Range;

/// Neighbouring leading axes on which every tensor of the call has one common stride become one axis of channels; the longest such axis
/// goes into the lanes of vectors, and the others are walked one index at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The axis that gives the stride from channel to channel.
    pub lane_axis: usize,
    /// Channels along it and the axes that continue it.
    pub lanes: usize,
    /// The other axes with more than one index: position and size.
    pub outer: Vec<(usize, usize)>,
    /// Channels in a block, a multiple of [`MAX_LANES`].
    pub block: usize,
    pub blocks: usize,
}

/// Channels in a block where they lie side by side, so that memory is read in long runs; fewer where that would leave threads without work.
const WIDE: [usize; 3] = [128, 64, 32];
/// Blocks that there should be.
const JOBS: usize = 16;

impl Plan {
    /// `strides` are those of every tensor of the call; a time axis at the end is ignored.
    pub(crate) fn new(problem: &Problem<'_>, strides: &[Strides]) -> Self {
        let sizes = problem.leading();
        // rows whose states lie in slots are walked one by one
        let walked = usize::from(problem.pool.is_some());
        let axes: Vec<usize> = (walked..sizes.len()).filter(|&axis| sizes[axis] != 1).collect();
        let continues =
            |outer: usize, inner: usize| strides.iter().all(|s| s[outer] == s[inner].wrapping_mul(sizes[inner] as isize));
        // the longest run of axes that continue each other
        let (mut best, mut lanes) = (0..0, 1);
        let mut end = axes.len();
        while end > 0 {
            let mut start = end - 1;
            while start > 0 && continues(axes[start - 1], axes[start]) {
                start -= 1;
            }
            let product = axes[start..end].iter().map(|&axis| sizes[axis]).product();
            if product > lanes {
                (best, lanes) = (start..end, product);
            }
            end = start;
        }
        let lane_axis = axes[best.clone()].last().copied().unwrap_or(sizes.len() - 1);
        let others = axes.iter().enumerate().filter(|(i, _)| !best.contains(i)).map(|(_, &axis)| axis);
        let outer: Vec<_> = (0..walked).chain(others).map(|axis| (axis, sizes[axis])).collect();
        let others: usize = outer.iter().map(|&(_, size)| size).product();
        // the parts of a complex vector lie side by side in a tile, so there is one in a row
        let wide = !problem.complex && problem.b.strides()[lane_axis] == 1;
        let enough = |&block: &usize| wide && lanes.div_ceil(block).saturating_mul(others) >= JOBS;
        let block = WIDE.into_iter().find(enough).unwrap_or(MAX_LANES);
        Plan { lane_axis, lanes, outer, block, blocks: lanes.div_ceil(block) }
    }

    /// Number of jobs.
    pub(crate) fn jobs(&self) -> usize {
        self.outer.iter().map(|&(_, size)| size).product::<usize>() * self.blocks
    }

    /// The job's index along each outer axis, and its channels.
    pub(crate) fn job(&self, index: usize) -> (Vec<(usize, usize)>, Range<usize>) {
        let (mut rest, block) = (index / self.blocks, index % self.blocks);
        let mut at = self.outer.clone();
        for (_, i) in at.iter_mut().rev() {
            (rest, *i) = (rest / *i, rest % *i);
        }
        (at, block * self.block..self.lanes.min((block + 1) * self.block))
    }
}
