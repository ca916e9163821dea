//! How the channels of a group divide among threads, and rows among blocks. It depends on sizes and on the device's numbers alone.

use crate::cuda::{Launch, Numbers};
use crate::error::{Error, Result};

/// Channels that a thread holds, where that needs no more threads than a block has.
const HELD: usize = 8;
/// The most that it can hold without registers running out.
const MOST_HELD: usize = 64;
const MOST_LANES: usize = 1024;
/// Threads of a block of small teams.
const THREADS: usize = 128;

/// A team of threads for a group of channels, and how many teams there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Threads of a team.
    pub lanes: usize,
    /// Runs of neighbours that each holds.
    pub items: usize,
    /// Neighbours of a run.
    pub vector: usize,
    /// Teams of a block.
    pub rows: usize,
    /// Blocks that share the rows of one group of channels.
    pub stripes: usize,
    groups: usize,
}

impl Plan {
    /// For so many rows of groups, whose channels can be read so many at once.
    pub(super) fn new(op: &'static str, [rows, groups, group]: [usize; 3], vector: usize, numbers: Numbers) -> Result<Plan> {
        let vector = (0..4).map(|power| 8 >> power).find(|v| *v <= vector && group.is_multiple_of(*v)).unwrap_or(1);
        let runs = group.div_ceil(vector).max(1);
        let items = (HELD / vector).max(runs.div_ceil(MOST_LANES));
        if items * vector > MOST_HELD {
            let why = "kernels for CUDA hold a group of at most 65536 channels in registers";
            return Err(Error::Unavailable { what: op, why });
        }
        let needed = runs.div_ceil(items);
        let lanes = if needed <= 32 { needed.next_power_of_two() } else { needed.next_multiple_of(32) };
        let teams = if lanes <= 32 { THREADS / lanes } else { 1 };
        // as many blocks as are resident at once, and no more than there is work for
        let resident = numbers.multiprocessors * (1536 / (lanes * teams)).clamp(1, 16);
        let stripes = rows.div_ceil(teams).min(resident.div_ceil(groups.max(1))).max(1);
        Ok(Plan { lanes, items, vector, rows: teams, stripes, groups })
    }

    /// Teams that add up the same sums.
    pub(super) fn teams(&self) -> usize {
        self.stripes * self.rows
    }

    pub(super) fn launch(&self, op: &'static str) -> Result<Launch> {
        Launch::new(op, self.stripes.checked_mul(self.groups), self.lanes * self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_channel_has_a_thread_and_every_row_a_team() {
        for group in [1, 2, 3, 7, 8, 16, 31, 64, 100, 333, 640, 768, 1536, 5120, 8192, 8191, 20_000, 65_536] {
            for vector in [1, 2, 4, 8] {
                for rows in [1, 5, 4096] {
                    let plan = Plan::new("norm", [rows, 3, group], vector, Numbers::H200).unwrap();
                    assert!(plan.lanes * plan.items * plan.vector >= group, "{plan:?} {group}");
                    assert!(group.is_multiple_of(plan.vector) && plan.vector <= vector, "{plan:?} {group}");
                    assert!(plan.lanes * plan.rows <= MOST_LANES && (plan.rows == 1 || plan.lanes <= 32), "{plan:?}");
                    assert!(plan.stripes >= 1 && (plan.stripes - 1) * plan.rows < rows, "{plan:?} {rows}");
                }
            }
        }
        assert!(Plan::new("norm", [1, 1, 65_537], 1, Numbers::H200).is_err());
    }
}
