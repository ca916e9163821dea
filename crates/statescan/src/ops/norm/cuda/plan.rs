//! How the channels of a group divide among threads, and rows among blocks. It depends on sizes and on the device's numbers alone.

use crate::cuda::{Launch, Numbers};
use crate::error::Result;

/// The sizes with which a kernel is fastest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Preference {
    /// The most threads of a team with [`FEW`] channels each.
    pub narrow: usize,
    /// The most channels of a row that a thread keeps: what has more is read again, from a cache.
    pub kept: usize,
    /// Threads for each multiprocessor: those that are there at once, and as many that follow.
    pub threads: usize,
}

/// Channels that a thread of a narrow team has, and at least those of a wider one.
const FEW: usize = 8;
const MANY: usize = 16;
/// Threads of a wider team at most.
const WIDE: usize = 512;
/// The most registers in which a thread keeps what it reads of one tensor's row.
const KEPT: usize = 8;
/// Threads of a block of small teams.
const THREADS: usize = 128;

/// A team of threads for a group of channels, and how many teams there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Threads of a team.
    pub lanes: usize,
    /// Runs of neighbours that each has.
    pub items: usize,
    /// Whether a thread keeps what it reads of a row.
    pub holds: bool,
    /// Neighbours of a run.
    pub vector: usize,
    /// Teams of a block.
    pub rows: usize,
    /// Blocks that share the rows of one group of channels.
    pub stripes: usize,
    groups: usize,
}

impl Plan {
    /// For so many rows of groups, whose channels of `size` bytes at most can be read `vector` at once, by a kernel of this preference.
    pub(super) fn new([rows, groups, group]: [usize; 3], [vector, size]: [usize; 2], of: Preference, numbers: Numbers) -> Plan {
        let vector = (0..4).map(|power| 8 >> power).find(|v| *v <= vector && group.is_multiple_of(*v)).unwrap_or(1);
        let runs = group.div_ceil(vector).max(1);
        let few = FEW / vector;
        let items = if runs <= few * of.narrow { few } else { (MANY / vector).max(runs.div_ceil(WIDE)) };
        let needed = runs.div_ceil(items);
        let lanes = if needed <= 32 { needed.next_power_of_two() } else { needed.next_multiple_of(32) };
        let teams = if lanes <= 32 { THREADS / lanes } else { 1 };
        let holds = items * vector.max(2) <= of.kept && items * (vector * size).div_ceil(4) <= KEPT;
        // no more blocks than there is work for
        let blocks = numbers.multiprocessors * (of.threads / (lanes * teams)).clamp(1, 16);
        let stripes = rows.div_ceil(teams).min(blocks.div_ceil(groups.max(1))).max(1);
        Plan { lanes, items, holds, vector, rows: teams, stripes, groups }
    }

    /// Teams that add up the same sums.
    pub(super) fn teams(&self) -> usize {
        self.stripes * self.rows
    }

    pub(super) fn launch(&self, op: &'static str) -> Result<Launch> {
        Ok(Launch::new(op, self.stripes.checked_mul(self.groups), self.lanes * self.rows)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFERENCE: Preference = Preference { narrow: 96, kept: 16, threads: 2048 };

    #[test]
    fn every_channel_has_a_thread_and_every_row_a_team() {
        for group in [1, 2, 3, 7, 8, 16, 31, 64, 100, 333, 640, 768, 1536, 5120, 8192, 8191, 20_000, 65_536, 100_001] {
            for vector in [1, 2, 4, 8] {
                for rows in [1, 5, 4096] {
                    let plan = Plan::new([rows, 3, group], [vector, 2], PREFERENCE, Numbers::H200);
                    assert!(plan.lanes * plan.items * plan.vector >= group, "{plan:?} {group}");
                    assert!(group.is_multiple_of(plan.vector) && plan.vector <= vector, "{plan:?} {group}");
                    assert!(plan.lanes * plan.rows <= WIDE && (plan.rows == 1 || plan.lanes <= 32), "{plan:?}");
                    assert!(plan.stripes >= 1 && (plan.stripes - 1) * plan.rows < rows, "{plan:?} {rows}");
                    assert!(plan.holds || group > FEW * PREFERENCE.narrow, "{plan:?} {group}");
                }
            }
        }
    }
}
