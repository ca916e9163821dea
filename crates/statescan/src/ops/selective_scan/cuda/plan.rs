//! Problem to plan: how lanes, channels and steps are laid over threads, and whether time is cut into segments. Pure functions of the
//! problem and the device's numbers.

use crate::cuda::{Launch, Numbers, SharedMemory};
use crate::ops::CHECKPOINT;

/// The inputs of a plan besides the device.
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
    /// Whether a step takes exponentials of its own: softplus, a gate.
    pub gated: bool,
    /// Whether segments can be put together: decays multiply to the decay of a sum of steps, and a row is one sequence.
    pub cuttable: bool,
}

impl Shape {
    pub(super) fn channels(&self) -> usize {
        self.rows.saturating_mul(self.dim)
    }

    /// Threads that share a channel's states, for so many channels at a time: as few as fill the device.
    fn lanes(&self, channels_in_all: usize, numbers: Numbers) -> usize {
        let fewest = self.fewest_lanes();
        let most = self.dstate.max(1).next_power_of_two().clamp(fewest, 16.max(fewest));
        let wanted = ENOUGH_THREADS * numbers.multiprocessors;
        let mut lanes = fewest;
        while lanes < most && channels_in_all.saturating_mul(lanes) < wanted {
            lanes *= 2;
        }
        lanes
    }

    /// Threads that convert inputs, for a block of so many channels, lanes of each and steps at a time. `light` threads have few states.
    ///
    /// Each converts four steps of a channel so many times, and as many times as every other helper: a round in which only some have work
    /// costs more than fewer helpers. Many states take more of them, whose B and C take registers.
    fn helpers(&self, [channels, lanes, steps]: [usize; 3], light: bool) -> usize {
        // a tile waits for one round where registers have room for as many helpers as there are quads
        let at_once = light && channels * lanes + channels * steps / 4 <= MOST_THREADS;
        let rounds = if at_once {
            1
        } else if light || self.heavy || self.gated {
            2
        } else {
            4
        };
        let least = match channels * lanes {
            _ if self.dstate > 128 => 128,
            128.. => 64,
            _ => 32,
        };
        let most = (MOST_THREADS - (channels * lanes).next_multiple_of(32)).min(256);
        (channels * steps / 4 / rounds).next_multiple_of(32).clamp(least, most)
    }

    /// The fewest threads that can share a channel's states.
    fn fewest_lanes(&self) -> usize {
        let states = self.dstate.max(1);
        states.div_ceil(if self.heavy { 4 } else { 8 }).next_power_of_two().clamp(states.min(2), 32)
    }
}

/// Time in segments, for rows that are long and too few to fill a device. Segments are scanned side by side twice, first for the states that
/// they leave: the first one as it is, those after it but the last one from zero, without outputs; then all but the first one from the states
/// that follow from these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Cut {
    pub segments: usize,
    /// Steps of each segment but the last one: whole tiles, and saved states lie on their bounds.
    pub steps: usize,
    /// Whether what enters the row comes between the two scans: then both of them are of all segments, the first one from zero.
    pub two_phase: bool,
}

impl Cut {
    pub(super) fn new(shape: &Shape, numbers: Numbers) -> Option<Cut> {
        let threads = shape.channels().saturating_mul(shape.fewest_lanes());
        if !shape.cuttable || threads == 0 {
            return None;
        }
        let together =
            (FULL_THREADS * numbers.multiprocessors / threads).min((shape.seqlen / SHORTEST_SEGMENT).saturating_sub(1));
        if together < FEWEST_TOGETHER {
            return None;
        }
        Some(Cut::into(shape.seqlen, together + 1))
    }

    /// At most so many segments of a row.
    pub(super) fn into(seqlen: usize, segments: usize) -> Cut {
        let steps = seqlen.div_ceil(segments).next_multiple_of(CHECKPOINT);
        Cut { segments: seqlen.div_ceil(steps), steps, two_phase: false }
    }

    /// Returns the cut of the row into as many segments as are scanned at the same time, for a pass in two phases.
    pub(super) fn in_two_phases(&self, seqlen: usize) -> Cut {
        Cut { two_phase: true, ..Cut::into(seqlen, self.together()) }
    }

    /// Segments that are scanned at the same time.
    pub(super) fn together(&self) -> usize {
        if self.two_phase { self.segments } else { self.segments - 1 }
    }
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
    /// Threads that copy, convert and finish what the others scan.
    pub helpers: usize,
    /// Tiles as they are stored, of which two are in use and the others on their way.
    pub stages: usize,
}

impl Geometry {
    /// Each role has whole warps.
    pub(super) fn threads(&self) -> usize {
        self.helpers + (self.channels * self.lanes).next_multiple_of(32)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Plan {
    pub cut: Option<Cut>,
    pub geometry: Geometry,
    /// Blocks that a multiprocessor must be able to hold, which bounds the registers of a thread.
    pub resident: usize,
    /// Rounds of the loop over steps that are written out.
    pub unroll: usize,
    pub blocks_per_unit: usize,
    pub blocks_per_row: usize,
    pub launch: Launch,
}

/// Threads of a multiprocessor from which on more lanes cost more than they hide: a lane more reads each pair once more.
const ENOUGH_THREADS: usize = 240;
/// Threads of a multiprocessor that leave registers enough for each.
const MOST_THREADS: usize = 512;
/// Threads of a multiprocessor that segments should fill, with as few lanes as possible.
const FULL_THREADS: usize = 256;
/// Segments at a time from which on the second scan pays.
const FEWEST_TOGETHER: usize = 4;
/// Steps of a segment that make up for its beginning.
const SHORTEST_SEGMENT: usize = 512;
/// Steps of the shortest row that is cut.
pub(crate) const SHORTEST_CUT: usize = (FEWEST_TOGETHER + 1) * SHORTEST_SEGMENT;
/// Shared memory that kernels declare themselves, for the vectors of each channel, up to where the tiles behind it begin.
pub(super) const fn own_shared(channels: usize) -> usize {
    (8 * channels).next_multiple_of(128)
}
/// Shared memory that plans leave for that, at least.
const SHARED_BESIDES: usize = 2 << 10;

impl Plan {
    /// `memory` gives the shared memory for a geometry. `None` if no geometry fits.
    pub(super) fn new(
        shape: &Shape,
        cut: Option<Cut>,
        numbers: Numbers,
        memory: impl Fn(Geometry) -> SharedMemory,
    ) -> Option<Plan> {
        let Shape { rows, dim, unit, seqlen, dstate, heavy, .. } = *shape;
        let states = dstate.max(1);
        let segments = cut.map_or(1, |cut| cut.together());
        let channels_in_all = shape.channels().saturating_mul(segments);
        let lanes = shape.lanes(channels_in_all, numbers);
        let per_lane = states.div_ceil(lanes);
        // a thread with few states takes few registers, so that one block has all threads; with more states two blocks share a multiprocessor
        let light = per_lane <= 2 && !heavy;
        let most_channels = (if light { 384 } else { 128 } / lanes).max(1);
        // every multiprocessor gets as many channels, in blocks of one size and whole warps
        let even = channels_in_all.div_ceil(numbers.multiprocessors).max(1);
        let even = even.div_ceil(even.div_ceil(most_channels)).next_multiple_of((32 / lanes).clamp(4, most_channels.max(4)));
        let fits = |geometry| {
            let memory = memory(geometry);
            memory.len() + SHARED_BESIDES.max(memory.beside_len()) <= numbers.shared_per_block
        };
        let preferred = if per_lane <= 2 { 32 } else { 16 };
        let geometry = |channels: usize| {
            let helpers = shape.helpers([channels, lanes, preferred], light);
            let mut geometry = Geometry { lanes, channels, steps: preferred, helpers, stages: 3 };
            while geometry.steps > 8 && geometry.steps / 2 >= seqlen {
                geometry.steps /= 2;
            }
            while geometry.steps > 4 && !fits(geometry) {
                geometry.steps /= 2;
            }
            if !fits(geometry) {
                geometry.stages = 2;
            }
            geometry
        };
        let mut channels = even.min(unit.next_multiple_of(4));
        // rather fewer channels than short tiles
        while channels > 4 && geometry(channels).steps < preferred.min(seqlen.next_power_of_two().max(8)) {
            channels = (channels / 2).next_multiple_of(4);
        }
        let geometry = geometry(channels);
        let resident = if light { 1 } else { (MOST_THREADS / geometry.threads()).clamp(1, 2) };
        let unroll = match (heavy, per_lane) {
            (true, _) | (_, 9..) => 1,
            (_, 3..) => 4,
            _ => 2,
        };
        let blocks_per_unit = unit.div_ceil(channels);
        let blocks_per_row = dim / unit * blocks_per_unit;
        let blocks =
            u32::try_from(rows.checked_mul(blocks_per_row)?.checked_mul(segments)?).ok().filter(|&n| n <= i32::MAX as u32)?;
        let launch = Launch::line(blocks, geometry.threads() as u32, memory(geometry).len() as u32);
        fits(geometry).then_some(Plan { cut, geometry, resident, unroll, blocks_per_unit, blocks_per_row, launch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(rows: usize, dim: usize, seqlen: usize, dstate: usize) -> Shape {
        Shape { rows, dim, unit: dim, seqlen, dstate, heavy: false, gated: false, cuttable: true }
    }

    /// Shared memory of f32 arguments.
    fn shared(dstate: usize) -> impl Fn(Geometry) -> SharedMemory {
        move |g: Geometry| {
            let raw = (g.channels * 2 + dstate * 2) * (4 * g.steps + 16);
            let partials = g.channels * (g.lanes * 4 * (g.steps + 4) + 64);
            let ready = g.channels * 8 * (g.steps + 2) + partials + 8 * g.steps * dstate.next_multiple_of(g.lanes);
            SharedMemory::default().array("AT", 2 * ready + g.stages * raw).beside(own_shared(g.channels))
        }
    }

    fn plan(shape: Shape, numbers: Numbers) -> Plan {
        Plan::new(&shape, None, numbers, shared(shape.dstate)).unwrap()
    }

    fn cut_plan(shape: Shape, numbers: Numbers) -> Plan {
        Plan::new(&shape, Cut::new(&shape, numbers), numbers, shared(shape.dstate)).unwrap()
    }

    #[test]
    fn long_rows_of_few_channels_are_cut() {
        let cut = |rows, dim, seqlen| Cut::new(&shape(rows, dim, seqlen, 16), Numbers::H200);
        assert_eq!(cut(1, 1536, 65536), Some(Cut { segments: 12, steps: 5504, two_phase: false }));
        assert_eq!(cut(1, 1536, 4096), Some(Cut { segments: 8, steps: 512, two_phase: false }));
        for (rows, dim, seqlen) in [(8, 2048, 2048), (1, 5120, 4096), (1, 1536, 2048), (1, 1536, 0), (0, 4, 5000), (1, 0, 5000)] {
            assert_eq!(cut(rows, dim, seqlen), None);
        }
        assert_eq!(Cut::new(&Shape { cuttable: false, ..shape(1, 1536, 65536, 16) }, Numbers::H200), None);
        assert_eq!((cut(1, 1, SHORTEST_CUT - 1), cut(1, 1, SHORTEST_CUT).is_some()), (None, true));
        // segments count as channels
        assert_eq!(cut_plan(shape(1, 1536, 65536, 16), Numbers::H200).geometry.lanes, 2);
    }

    #[test]
    fn segments_cover_rows() {
        for numbers in [Numbers::H200, Numbers::SMALL] {
            for dim in [1, 7, 192, 500, 3000] {
                for seqlen in [100, 2559, 2560, 2561, 5000, 65536, 1 << 20] {
                    for dstate in [1, 16, 100] {
                        let shape = shape(1, dim, seqlen, dstate);
                        let Some(cut) = Cut::new(&shape, numbers) else { continue };
                        assert!(cut.steps.is_multiple_of(CHECKPOINT) && cut.together() > 0, "{shape:?} {cut:?}");
                        assert!(cut.steps * cut.together() < seqlen && seqlen <= cut.steps * cut.segments, "{shape:?} {cut:?}");
                        let plan = cut_plan(shape, numbers);
                        assert_eq!(plan.launch.blocks(), plan.blocks_per_row * cut.together());
                    }
                }
            }
        }
    }

    #[test]
    fn fewer_channels_get_more_lanes() {
        let lanes = |rows, dim| plan(shape(rows, dim, 4096, 16), Numbers::H200).geometry.lanes;
        assert_eq!([lanes(8, 2048), lanes(1, 5120), lanes(1, 1536), lanes(2, 192)], [2, 8, 16, 16]);
        // channels are dealt evenly over multiprocessors
        let channels = |rows, dim| plan(shape(rows, dim, 4096, 16), Numbers::H200).geometry.channels;
        assert_eq!([channels(8, 2048), channels(1, 5120), channels(1, 1536), channels(2, 192)], [64, 40, 12, 4]);
        // helpers have whole rounds of work, two of them where steps take exponentials
        let helpers = |rows, dim, gated| plan(Shape { gated, ..shape(rows, dim, 4096, 16) }, Numbers::H200).geometry.helpers;
        assert_eq!([helpers(8, 2048, false), helpers(8, 2048, true), helpers(1, 5120, false)], [64, 128, 160]);
        // as many as there are states at most
        assert_eq!(plan(shape(1, 64, 4096, 3), Numbers::H200).geometry.lanes, 4);
        assert_eq!(plan(shape(1, 64, 4096, 1), Numbers::H200).geometry.lanes, 1);
    }

    #[test]
    fn every_plan_covers_its_channels_and_fits() {
        for numbers in [Numbers::H200, Numbers::SMALL] {
            for dstate in [1, 2, 5, 16, 17, 64, 70, 128, 256, 400] {
                for (rows, dim, groups) in
                    [(1, 1, 1), (1, 12, 12), (2, 21, 3), (8, 2048, 1), (1, 5120, 8), (64, 96, 1), (5000, 3, 1)]
                {
                    for seqlen in [0, 1, 17, 64, 5000] {
                        for heavy in [false, true] {
                            let shape = Shape { unit: dim / groups, heavy, ..shape(rows, dim, seqlen, dstate) };
                            let plan = plan(shape, numbers);
                            let Geometry { lanes, channels, steps, helpers, .. } = plan.geometry;
                            assert!(
                                lanes.is_power_of_two() && lanes <= 32 && 64 % steps == 0 && steps % 4 == 0,
                                "{shape:?} {plan:?}"
                            );
                            assert!(channels * plan.blocks_per_unit >= shape.unit);
                            assert_eq!(plan.blocks_per_row, plan.blocks_per_unit * groups);
                            assert_eq!(plan.launch.blocks(), rows * plan.blocks_per_row);
                            assert!(
                                helpers.is_multiple_of(32)
                                    && plan.launch.threads.is_multiple_of(32)
                                    && plan.geometry.threads() * plan.resident <= MOST_THREADS,
                                "{shape:?} {plan:?}"
                            );
                            assert!(shared(dstate)(plan.geometry).whole_len() <= numbers.shared_per_block);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_fit_has_no_plan() {
        assert_eq!(Plan::new(&shape(1, 4, 8, 100_000), None, Numbers::H200, shared(100_000)), None);
        assert_eq!(Plan::new(&shape(usize::MAX, 4, 8, 16), None, Numbers::H200, shared(16)), None);
    }

    #[test]
    fn empty_problems_launch_nothing() {
        assert_eq!(plan(shape(0, 16, 8, 16), Numbers::H200).launch.blocks(), 0);
    }
}
