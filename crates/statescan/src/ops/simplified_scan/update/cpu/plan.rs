//! Problem to plan: blocks of states, then blocks of outputs, each for all rows of the batch. A pure function of the problem.

use super::super::Problem;
use crate::cpu::tile::MAX_LANES;
use core::ops::Range;

/// Rows whose sums are kept while a tile of a map is in cache.
pub(crate) const ROWS: usize = 64;

/// The division of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    dstate: usize,
    dim: usize,
}

impl Plan {
    pub(crate) fn new(problem: &Problem<'_>) -> Self {
        Plan { dstate: problem.dstate, dim: problem.dim }
    }

    pub(crate) fn state_blocks(&self) -> usize {
        self.dstate.div_ceil(MAX_LANES)
    }

    pub(crate) fn output_blocks(&self) -> usize {
        self.dim.div_ceil(MAX_LANES)
    }

    /// States of a block.
    pub(crate) fn states(&self, block: usize) -> Range<usize> {
        block * MAX_LANES..self.dstate.min((block + 1) * MAX_LANES)
    }

    /// Outputs of a block.
    pub(crate) fn outputs(&self, block: usize) -> Range<usize> {
        block * MAX_LANES..self.dim.min((block + 1) * MAX_LANES)
    }
}
