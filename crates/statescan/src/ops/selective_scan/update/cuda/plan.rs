//! Problem to plan: how states and channels are laid over threads. A pure function of the problem.

use super::super::OP;
use crate::cuda::{Launch, blocks_of_lines};
use crate::error::{Error, Result};

/// The inputs of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub batch: usize,
    /// Channels of all heads.
    pub channels: usize,
    pub dstate: usize,
    /// Whether the states of a channel lie side by side.
    pub by_state: bool,
    /// Bytes of a state.
    pub size: usize,
    /// Whether a decay is more than an exponential of real numbers.
    pub costly: bool,
    /// The channels that a thread may have, all of one head.
    pub together: usize,
    /// Whether a head's channels have one step and one decay.
    pub tied: bool,
    /// Whether states stay in registers from token to token.
    pub many: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Plan {
    /// Neighbouring states that a thread takes at once.
    pub vector: usize,
    /// Threads that share a channel.
    pub lanes: usize,
    /// Channels of a thread: what tokens bring for all of them is loaded, widened and computed once.
    pub channels: usize,
    /// Blocks that a multiprocessor must be able to hold. It allows so many registers that every load of a thread is under way before the
    /// first is used: a compiler left alone saves them and loads late.
    pub resident: usize,
    pub blocks_per_row: usize,
    pub launch: Launch,
}

pub(super) const THREADS: usize = 128;

impl Plan {
    pub(super) fn new(shape: &Shape) -> Result<Plan> {
        let (vector, lanes) = if shape.by_state {
            let vector = (16 / shape.size).min(4);
            // two lanes write whole sectors; more of them repeat what a channel's states share
            let pieces = shape.dstate.div_ceil(vector).max(1).next_power_of_two();
            (vector, (pieces / 2).clamp(pieces.min(2), 32))
        } else {
            (1, 1)
        };
        // channels are numbered in 32 bits
        if shape.channels > i32::MAX as usize {
            return Err(Error::Unavailable { what: OP, why: "so many channels are more than a kernel can number" });
        }
        let channels = if shape.costly { 1 } else { shape.together.min(lanes) };
        let (blocks_per_row, blocks) = blocks_of_lines(shape.batch, shape.channels / channels, THREADS / lanes);
        let resident = match channels {
            1 if !shape.costly && !shape.many => 8,
            4 if shape.tied => 5,
            _ => 4,
        };
        Ok(Plan { vector, lanes, channels, resident, blocks_per_row, launch: Launch::new(OP, blocks, THREADS)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_covers_its_channels() {
        for by_state in [false, true] {
            for size in [2, 4, 8] {
                for dstate in [0, 1, 3, 16, 128, 1000] {
                    for (batch, channels) in [(1, 1), (1, 5120), (512, 5120), (3, 77), (0, 5), (4, 0)] {
                        let shape = Shape {
                            batch,
                            channels,
                            dstate,
                            by_state,
                            size,
                            costly: false,
                            together: 1,
                            tied: false,
                            many: false,
                        };
                        let plan = Plan::new(&shape).unwrap();
                        assert!(plan.lanes.is_power_of_two() && plan.lanes <= 32 && plan.vector * size <= 16);
                        assert!(plan.blocks_per_row * THREADS / plan.lanes >= channels);
                        assert_eq!(plan.launch.blocks(), batch * plan.blocks_per_row);
                    }
                }
            }
        }
    }

    #[test]
    fn a_channel_of_sixteen_states_has_two_threads() {
        let plan = |batch| {
            Plan::new(&Shape {
                batch,
                channels: 5120,
                dstate: 16,
                by_state: true,
                size: 4,
                costly: false,
                together: 1,
                tied: false,
                many: false,
            })
            .unwrap()
        };
        assert_eq!((plan(1).lanes, plan(1).vector, plan(512).launch.blocks()), (2, 4, 512 * 80));
    }

    #[test]
    fn what_cannot_be_numbered_is_refused() {
        let shape = |batch, channels| Shape {
            batch,
            channels,
            dstate: 16,
            by_state: true,
            size: 4,
            costly: false,
            together: 1,
            tied: false,
            many: false,
        };
        assert!(Plan::new(&shape(1, 1 << 40)).is_err() && Plan::new(&shape(usize::MAX, 64)).is_err());
    }
}
