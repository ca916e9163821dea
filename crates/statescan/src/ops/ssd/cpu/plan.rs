//! Problem to plan: which heads are computed together, how time is cut, and where states and partial sums are kept. A pure function of the
//! problem, never of the number of threads.

use super::super::problem::Problem;
use crate::cpu::tile::MAX_LANES;
use crate::ops::CHECKPOINT;
use crate::ops::sequences::Segment;
use core::ops::Range;

/// Steps in a chunk: a state is saved at the start of each one.
pub(crate) const CHUNK: usize = CHECKPOINT;

/// Columns (head x headdim) that one job aims at: enough for matrix products at full speed and for sharing `<C, B>` among heads, few
/// enough that a job's chunk and state stay in the second-level cache.
const COLUMNS: usize = 256;

/// Some heads of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct HeadBlock {
    pub group: usize,
    /// Number of this block within its group.
    pub index: usize,
    pub first: usize,
    pub count: usize,
}

/// Who computes what. A job is one block of heads of one segment, walked chunk by chunk.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Plan {
    pub blocks: Vec<HeadBlock>,
    pub blocks_per_group: usize,
    /// Most heads in a block.
    pub heads: usize,
    pub segments: usize,
    /// Most steps in a chunk, filled up to whole vectors.
    pub steps: usize,
    /// Parts, one after the other, that a job can be handed over between.
    pub slices: usize,
}

/// So many jobs need no parts to end together.
const MANY_JOBS: usize = 32;
/// Parts of a job, at most. Another thread has to fetch the states, which takes longer than a tenth of a chunk: so threads keep to jobs
/// that they have begun, unless others are behind.
const SLICES: usize = 16;

impl Plan {
    pub(crate) fn new(problem: &Problem<'_>) -> Self {
        let in_group = problem.nheads / problem.ngroups;
        let wanted = COLUMNS.div_ceil(problem.headdim.max(1)).clamp(1, in_group.max(1));
        // equal blocks, rather than full ones and a rest
        let heads = in_group.div_ceil(in_group.div_ceil(wanted).max(1));
        let mut blocks = Vec::new();
        for group in 0..problem.ngroups {
            for (index, first) in (0..in_group).step_by(heads.max(1)).enumerate() {
                blocks.push(HeadBlock { group, index, first: group * in_group + first, count: heads.min(in_group - first) });
            }
        }
        let blocks_per_group = blocks.len() / problem.ngroups;
        let segments = problem.segments.list.len();
        let longest = problem.segments.list.iter().map(Segment::len).max().unwrap_or(0);
        let slices = if blocks.len() * segments < MANY_JOBS { longest.div_ceil(CHUNK).clamp(1, SLICES) } else { 1 };
        let steps = longest.next_multiple_of(MAX_LANES).clamp(MAX_LANES, CHUNK);
        Plan { blocks, blocks_per_group, heads, segments, steps, slices }
    }

    /// The chunks of a slice, of so many.
    pub(crate) fn slice(&self, index: usize, chunks: usize) -> Range<usize> {
        (index * chunks).div_ceil(self.slices)..((index + 1) * chunks).div_ceil(self.slices)
    }

    /// Elements of a row of heads x headdim in scratch memory: an odd number of lines, for rows a power of two apart would push each other
    /// out of the first cache.
    pub(crate) fn pitch(&self, headdim: usize) -> usize {
        (self.heads * headdim).next_multiple_of(MAX_LANES) | MAX_LANES
    }

    /// Number of jobs.
    pub(crate) fn jobs(&self) -> usize {
        self.segments * self.blocks.len()
    }

    /// Segment and block of a job.
    pub(crate) fn job(&self, index: usize) -> (usize, HeadBlock) {
        (index / self.blocks.len(), self.blocks[index % self.blocks.len()])
    }
}

/// The chunks of a segment, as steps of its row.
pub(crate) fn chunks(segment: Range<usize>) -> impl DoubleEndedIterator<Item = Range<usize>> + ExactSizeIterator {
    segment.clone().step_by(CHUNK).map(move |start| start..segment.end.min(start + CHUNK))
}

/// The layout of the states that the forward pass saves: one for each chunk of a segment after the first one, which starts from
/// the segment's own initial state. One state is (nheads, dstate, headdim) in blocks: a block of heads is (dstate, head,
/// headdim).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checkpoints {
    /// Index of the first saved state of each segment.
    pub first: Vec<usize>,
    /// Elements of one head's state.
    pub head_len: usize,
    /// Elements of one state.
    pub state_len: usize,
    /// Elements in all.
    pub len: usize,
}

impl Checkpoints {
    pub(crate) fn new(problem: &Problem<'_>) -> Self {
        let (first, count) = problem.segments.checkpoints(CHUNK);
        let head_len = problem.dstate * problem.headdim;
        let state_len = problem.nheads * head_len;
        Checkpoints { first, head_len, state_len, len: state_len * count }
    }

    /// Position of the state of a block before chunk `chunk >= 1` of a segment.
    pub(crate) fn at(&self, segment: usize, chunk: usize, block: &HeadBlock) -> usize {
        (self.first[segment] + chunk - 1) * self.state_len + block.first * self.head_len
    }
}
