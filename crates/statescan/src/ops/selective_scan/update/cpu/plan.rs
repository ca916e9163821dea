//! Problem to plan: which axis lies along a vector, and how (row, head, block of channels) divide into jobs. A pure function of the problem,
//! never of the number of threads.

use super::super::Problem;

/// Channels of a block: what is the same for all states of a channel is computed for this many at once.
pub(crate) const BLOCK: usize = 512;

/// States that are worth a thread's attention: waking one costs about as much as 30 000 states.
const JOB: usize = 1 << 17;

/// The axis that lies along a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Axis {
    /// Neighbouring states of one channel, summed up at the end.
    States,
    /// Neighbouring channels of one state.
    Channels,
}

/// How a step is carried out. A unit is one row, one head, one block of channels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub axis: Axis,
    /// `a` is the same for all states of a channel: one decay for each channel.
    pub uniform: bool,
    /// Blocks of channels in a head.
    pub blocks: usize,
    pub units: usize,
    pub units_per_job: usize,
    pub jobs: usize,
}

/// One row, head and block of channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unit {
    pub batch: usize,
    pub head: usize,
    pub first: usize,
    pub channels: usize,
}

impl Plan {
    pub(crate) fn new(problem: &Problem<'_>) -> Self {
        let [_, _, lane, state] = problem.state.strides;
        // few states would leave most of a vector empty
        let axis = match problem.dstate >= 8 && (state == 1 || lane != 1) {
            true => Axis::States,
            false => Axis::Channels,
        };
        let uniform = problem.a.strides[3] == 0 || problem.dstate == 1;
        let blocks = problem.headdim.div_ceil(BLOCK);
        let units = problem.rows.len() * problem.heads * blocks;
        let work = problem.headdim.min(BLOCK) * (problem.dstate + 8);
        let units_per_job = (JOB / work.max(1)).max(1);
        Plan { axis, uniform, blocks, units, units_per_job, jobs: units.div_ceil(units_per_job) }
    }

    /// The units of a job.
    pub(crate) fn units<'p>(&'p self, problem: &'p Problem<'_>, job: usize) -> impl Iterator<Item = Unit> + 'p {
        let first = job * self.units_per_job;
        (first..self.units.min(first + self.units_per_job)).map(move |unit| {
            let (row, block) = (unit / self.blocks, unit % self.blocks);
            let first = block * BLOCK;
            let channels = BLOCK.min(problem.headdim - first);
            Unit { batch: row / problem.heads, head: row % problem.heads, first, channels }
        })
    }
}
