//! Problem to plan: how channels, steps and saved states are laid out. A pure function of the problem, never of the number of threads.

use super::{CHECKPOINT, Problem};

/// Where the states of the forward pass are kept: one for each [`CHECKPOINT`] steps of a segment after the first ones, which start from the
/// segment's own initial state. One state is (dstate, parts, padded dim), channels fastest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checkpoints {
    /// Index of the first saved state of each segment.
    pub first: Vec<usize>,
    /// Channels, padded so that any vector of any level fits.
    pub padded_dim: usize,
    /// Elements of one state.
    pub state_len: usize,
    /// Elements in all.
    pub len: usize,
}

/// The widest vector has this many lanes; saved states are padded to it, so that they do not depend on the level.
pub(crate) const MAX_LANES: usize = 16;

impl Checkpoints {
    pub(crate) fn new(problem: &Problem<'_>) -> Self {
        let mut count = 0;
        let first = problem
            .segments
            .list
            .iter()
            .map(|segment| {
                let first = count;
                count += segment.len().div_ceil(CHECKPOINT).saturating_sub(1);
                first
            })
            .collect();
        let padded_dim = problem.dim.next_multiple_of(MAX_LANES);
        let parts = 1 + usize::from(problem.complex);
        let state_len = problem.dstate * parts * padded_dim;
        Checkpoints { first, padded_dim, state_len, len: count * state_len }
    }

    /// Position of the state before tile `tile >= 1` of a segment.
    pub(crate) fn at(&self, segment: usize, tile: usize) -> usize {
        (self.first[segment] + tile - 1) * self.state_len
    }
}
