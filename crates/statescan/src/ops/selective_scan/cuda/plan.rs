//! Problem to plan: how lanes, channels and steps are laid over threads. A pure function of the problem and the device's numbers.

use crate::cuda::{Launch, Numbers};

/// What a plan depends on besides the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    /// Batch rows or packed sequences.
    pub rows: usize,
    pub dim: usize,
    /// Channels that share a group of B and one of C; a block's channels do.
    pub unit: usize,
    pub seqlen: usize,
    pub dstate: usize,
    /// Whether a state-step takes many registers: complex states, discretizations with a gain.
    pub heavy: bool,
}

/// How a block's threads lie over its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Geometry {
    /// Threads that share a channel's states.
    pub lanes: usize,
    /// Channels of a block.
    pub channels: usize,
    /// Steps of a tile; they divide the steps between saved states.
    pub steps: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Plan {
    pub geometry: Geometry,
    /// Blocks that a multiprocessor must be able to hold, which bounds the registers of a thread.
    pub resident: usize,
    pub blocks_per_unit: usize,
    pub blocks_per_row: usize,
    pub launch: Launch,
}

/// Threads of a multiprocessor from which on more lanes cost more than they hide: a lane more reads each pair once more.
const ENOUGH_THREADS: usize = 240;
/// The most shared memory of a block on the smallest of the architectures.
const SHARED_EVERYWHERE: usize = 99 << 10;
/// What the system takes of shared memory for a block.
const SHARED_RESERVED: usize = 1 << 10;
/// The per-channel vectors that a block keeps besides.
const BYTES_PER_CHANNEL: usize = 8;

impl Plan {
    /// `shared` gives the bytes of shared memory for a geometry. `None` if no geometry fits.
    pub(super) fn new(shape: &Shape, numbers: Numbers, shared: impl Fn(Geometry) -> usize) -> Option<Plan> {
        let Shape { rows, dim, unit, seqlen, dstate, heavy } = *shape;
        let states = dstate.max(1);
        let most_states = if heavy { 4 } else { 8 };
        let fewest = states.div_ceil(most_states).next_power_of_two().clamp(states.min(2), 32);
        let most = states.next_power_of_two().clamp(fewest, 16.max(fewest));
        let channels_in_all = rows.saturating_mul(dim);
        let wanted = ENOUGH_THREADS * numbers.multiprocessors;
        let mut lanes = fewest;
        while lanes < most && channels_in_all.saturating_mul(lanes) < wanted {
            lanes *= 2;
        }
        let threads = channels_in_all.saturating_mul(lanes);
        let block = if threads / 128 >= 2 * numbers.multiprocessors { 128 } else { 64 };
        let channels = (block / lanes).max(1).min(unit.next_power_of_two());
        let blocks_per_unit = unit.div_ceil(channels);
        let blocks_per_row = dim / unit * blocks_per_unit;
        let blocks = u32::try_from(rows.checked_mul(blocks_per_row)?).ok().filter(|&n| n <= i32::MAX as u32)?;

        // long tiles for few channels, whose loads are short otherwise; shorter ones where they would keep blocks out of a multiprocessor
        let at_once = (blocks as usize).div_ceil(numbers.multiprocessors).clamp(1, 4);
        let share = (numbers.shared_per_multiprocessor / at_once).saturating_sub(SHARED_RESERVED);
        let limit = numbers.shared_per_block.min(SHARED_EVERYWHERE);
        let bytes = |steps| shared(Geometry { lanes, channels, steps }) + BYTES_PER_CHANNEL * channels;
        let mut steps = if lanes >= 8 { 64 } else { 32 };
        while steps > 16 && steps / 2 >= seqlen {
            steps /= 2;
        }
        while steps > 16 && bytes(steps) > limit.min(share) {
            steps /= 2;
        }
        while steps > 4 && bytes(steps) > limit {
            steps /= 2;
        }
        let geometry = Geometry { lanes, channels, steps };
        let threads = channels * lanes;
        // at most 255 or 128 registers for a thread
        let many = heavy || dstate > 32 || states.div_ceil(lanes) > 4;
        let together = if many { 256 } else { 512 };
        let resident = (together / threads).clamp(1, 16);
        let launch = Launch { blocks, threads: threads as u32, shared: shared(geometry) as u32 };
        (bytes(steps) <= limit).then_some(Plan { geometry, resident, blocks_per_unit, blocks_per_row, launch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Numbers = Numbers { multiprocessors: 132, shared_per_block: 227 << 10, shared_per_multiprocessor: 228 << 10 };
    const SMALL: Numbers = Numbers { multiprocessors: 20, shared_per_block: 99 << 10, shared_per_multiprocessor: 100 << 10 };

    fn shape(rows: usize, dim: usize, seqlen: usize, dstate: usize) -> Shape {
        Shape { rows, dim, unit: dim, seqlen, dstate, heavy: false }
    }

    /// Shared memory of f32 arguments.
    fn shared(dstate: usize) -> impl Fn(Geometry) -> usize {
        move |g: Geometry| {
            let raw = (g.channels * 2 + dstate * 2) * (4 * g.steps + 16);
            g.channels * (8 * (g.steps + 2) + g.lanes * 4 * (g.steps + 4))
                + 8 * g.steps * dstate.next_multiple_of(g.lanes)
                + 2 * raw
        }
    }

    fn plan(shape: Shape, numbers: Numbers) -> Plan {
        Plan::new(&shape, numbers, shared(shape.dstate)).unwrap()
    }

    #[test]
    fn fewer_channels_get_more_lanes() {
        let lanes = |rows, dim| plan(shape(rows, dim, 4096, 16), H200).geometry.lanes;
        assert_eq!([lanes(8, 2048), lanes(1, 5120), lanes(1, 1536), lanes(2, 192)], [2, 8, 16, 16]);
        // as many as there are states at most
        assert_eq!(plan(shape(1, 64, 4096, 3), H200).geometry.lanes, 4);
        assert_eq!(plan(shape(1, 64, 4096, 1), H200).geometry.lanes, 1);
    }

    #[test]
    fn every_plan_covers_its_channels_and_fits() {
        for numbers in [H200, SMALL] {
            for dstate in [1, 2, 5, 16, 17, 64, 70, 128, 256, 400] {
                for (rows, dim, groups) in
                    [(1, 1, 1), (1, 12, 12), (2, 21, 3), (8, 2048, 1), (1, 5120, 8), (64, 96, 1), (5000, 3, 1)]
                {
                    for seqlen in [0, 1, 17, 64, 5000] {
                        for heavy in [false, true] {
                            let shape = Shape { unit: dim / groups, heavy, ..shape(rows, dim, seqlen, dstate) };
                            let plan = plan(shape, numbers);
                            let Geometry { lanes, channels, steps } = plan.geometry;
                            assert!(
                                lanes.is_power_of_two() && lanes <= 32 && 64 % steps == 0 && steps % 4 == 0,
                                "{shape:?} {plan:?}"
                            );
                            assert!(channels * plan.blocks_per_unit >= shape.unit);
                            assert_eq!(plan.blocks_per_row, plan.blocks_per_unit * groups);
                            assert_eq!(plan.launch.blocks as usize, rows * plan.blocks_per_row);
                            assert_eq!(plan.launch.threads as usize, lanes * channels);
                            assert!(plan.launch.threads <= 128 && plan.resident * lanes * channels <= 2048);
                            assert!(plan.launch.shared as usize <= SHARED_EVERYWHERE);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_fit_has_no_plan() {
        assert_eq!(Plan::new(&shape(1, 4, 8, 100_000), H200, shared(100_000)), None);
        assert_eq!(Plan::new(&shape(usize::MAX, 4, 8, 16), H200, shared(16)), None);
    }

    #[test]
    fn empty_problems_launch_nothing() {
        assert_eq!(plan(shape(0, 16, 8, 16), H200).launch.blocks, 0);
    }
}
