//! Problem to plan: how keys and columns of states are laid over threads. A pure function of the problem.

use super::super::OP;
use crate::cuda::{Launch, blocks_of_lines};
use crate::error::{Error, Result};

/// The inputs of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    /// States of all rows and heads.
    pub states: usize,
    pub keys: usize,
    pub columns: usize,
    /// Whether columns of a state lie side by side, or no axis of it does; else keys do.
    pub by_column: bool,
    /// Numbers of a state that one access takes.
    pub vector: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Plan {
    pub by_column: bool,
    pub vector: usize,
    /// Threads that share a column.
    pub lanes: usize,
    /// Vectors of columns of a thread.
    pub groups: usize,
    pub threads: usize,
    pub blocks_per_state: usize,
    pub launch: Launch,
}

impl Plan {
    pub(super) fn new(shape: &Shape) -> Result<Plan> {
        let Shape { by_column, vector, .. } = *shape;
        // A thread has 32 numbers of a state of 128 keys, all on their way at the same time: eight neighbours take a whole line of memory.
        let (threads, lanes, groups) = match (by_column, vector > 1) {
            (true, together) => {
                let threads = if shape.keys > 128 { 256 } else { 128 };
                (threads, threads / if together { 8 } else { 32 }, 1)
            }
            (false, _) => (128, shape.keys.div_ceil(16).max(1).next_power_of_two(), 2),
        };
        // heads and columns are numbered in 32 bits
        if shape.states > i32::MAX as usize {
            return Err(Error::Unavailable { what: OP, why: "so many states are more than a kernel can number" });
        }
        let columns = threads / lanes * groups * if by_column { vector } else { 1 };
        let (blocks_per_state, blocks) = blocks_of_lines(shape.states, shape.columns, columns);
        Ok(Plan { by_column, vector, lanes, groups, threads, blocks_per_state, launch: Launch::new(OP, blocks, threads)? })
    }

    /// Keys of a thread that lie side by side.
    pub(super) fn neighbouring_keys(&self) -> usize {
        if self.by_column { 1 } else { self.vector }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_covers_its_columns() {
        for (by_column, vector) in [(true, 1), (true, 4), (true, 8), (false, 1), (false, 4), (false, 8)] {
            for keys in [0, 1, 16, 33, 128, 256] {
                for (states, columns) in [(1, 1), (2048, 128), (3, 77), (0, 5), (4, 0)] {
                    let plan = Plan::new(&Shape { states, keys, columns, by_column, vector }).unwrap();
                    let lanes = plan.threads / plan.lanes;
                    // sums over keys of a column are those of a warp, or of threads that the same lanes of all warps are
                    assert!(plan.lanes.is_power_of_two() && if by_column { lanes <= 32 } else { plan.lanes <= 32 });
                    assert!(plan.blocks_per_state * lanes * plan.groups * if by_column { vector } else { 1 } >= columns);
                    assert_eq!(plan.launch.blocks(), states * plan.blocks_per_state);
                }
            }
        }
    }

    #[test]
    fn a_state_of_models_has_four_blocks() {
        let shape = Shape { states: 32, keys: 128, columns: 128, by_column: true, vector: 4 };
        let plans = [Plan::new(&shape).unwrap(), Plan::new(&Shape { by_column: false, ..shape }).unwrap()];
        assert_eq!(plans.map(|plan| (plan.lanes, plan.launch.blocks())), [(16, 128), (8, 128)]);
    }

    #[test]
    fn what_cannot_be_numbered_is_refused() {
        let shape = |states| Shape { states, keys: 1, columns: 256, by_column: true, vector: 1 };
        assert!(Plan::new(&shape(1 << 31)).is_err() && Plan::new(&shape(1 << 30)).is_err());
    }
}
