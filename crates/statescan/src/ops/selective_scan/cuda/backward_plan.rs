//! Problem to plan for the backward pass: how lanes, channels and steps are laid over threads, and whether time is cut into segments.

use super::plan::{Cut, Shape, own_shared};
use crate::cuda::Numbers;

/// How a block's threads lie over its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Geometry {
    /// Threads that share a channel's states.
    pub lanes: usize,
    /// Channels of a thread.
    pub width: usize,
    /// Channels of a block.
    pub channels: usize,
    /// Steps of a tile; they divide the steps between saved states.
    pub steps: usize,
    /// Steps that are computed again in registers at once; they divide a tile's.
    pub span: usize,
    /// Tiles as they are stored: the one at work and those on their way.
    pub stages: usize,
}

impl Geometry {
    pub(super) fn threads(&self) -> usize {
        self.channels / self.width * self.lanes
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Plan {
    pub cut: Option<Cut>,
    pub geometry: Geometry,
    /// Blocks that a multiprocessor must be able to hold, which bounds the registers of a thread.
    pub resident: usize,
    /// Blocks that a multiprocessor must be able to hold in the first pass over segments.
    pub resident_ends: usize,
    pub blocks_per_unit: usize,
    pub blocks_per_row: usize,
    /// Blocks of a segment, or of whole rows.
    pub blocks: usize,
}

/// Warps of a block, steps of a tile and stages, the best first. Warps of a block share the conversion of B and C, and a block is one term
/// of the sums for their gradients; long tiles wait less.
const SHAPES: [(usize, usize, usize); 10] =
    [(4, 32, 2), (4, 32, 1), (4, 16, 2), (4, 16, 1), (4, 8, 1), (2, 16, 1), (2, 8, 1), (2, 4, 1), (1, 16, 1), (1, 4, 1)];
/// Threads of a multiprocessor that segments should fill; as many registers as a thread can use leave room for so many.
const FULL_THREADS: usize = 256;
/// Steps of a segment that make up for its beginning.
const SHORTEST_SEGMENT: usize = 64;

/// Shared memory that is left for the vectors of each channel and for the system.
fn besides(channels: usize) -> usize {
    own_shared(channels) + (1 << 10)
}

/// The numbers that fit into registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Room {
    /// States of a thread for each of its channels, as long as a warp can share the rest.
    pub states: usize,
    /// Channels of a thread, as long as those of a warp share states.
    pub channels: usize,
    /// Steps that are computed again at once.
    pub span: usize,
}

impl Room {
    /// Returns this room, or less of it for each of more threads if channels are few.
    fn shared_by_more(mut self, shape: &Shape, numbers: Numbers) -> Room {
        let segments = if shape.cuttable { (shape.seqlen / SHORTEST_SEGMENT).max(1) } else { 1 };
        let threads = |room: Room| shape.channels().saturating_mul(lanes(shape, room) * segments) / room.channels;
        while 2 * threads(self) <= FULL_THREADS * numbers.multiprocessors && (self.channels > 1 || self.states > 1) {
            if self.channels > 1 {
                self.channels = 1;
            } else {
                self.states /= 2;
            }
        }
        self
    }
}

fn lanes(shape: &Shape, room: Room) -> usize {
    shape.dstate.max(1).div_ceil(room.states).next_power_of_two().min(32)
}

/// Segments for rows that are long and too few to fill a device: first the gradient that each but the first one hands to the one before, from
/// zero, then all of them side by side. `blocks` are those of a segment.
fn cut(shape: &Shape, geometry: &Geometry, blocks: usize, numbers: Numbers) -> Option<Cut> {
    let places = FULL_THREADS * numbers.multiprocessors / geometry.threads();
    let at_once = places.checked_div(blocks)?;
    if !shape.cuttable || at_once < 2 {
        return None;
    }
    // at least twice as many as can be resident, which the first pass has room for, and such that few places are idle in the last turn
    let most = (4 * at_once + 1).min(shape.seqlen / SHORTEST_SEGMENT);
    let turns = |segments: usize| (blocks * segments).next_multiple_of(places) as f64 / (blocks * segments) as f64;
    let segments = ((2 * at_once).min(most)..=most).filter(|&n| n > 1).min_by(|&a, &b| turns(a).total_cmp(&turns(b)))?;
    Some(Cut::into(shape.seqlen, segments))
}

impl Plan {
    /// `shared` gives the bytes of shared memory for a geometry. `None` if no geometry fits.
    pub(super) fn new(shape: &Shape, room: Room, numbers: Numbers, shared: impl Fn(Geometry) -> usize + Copy) -> Option<Plan> {
        let room = room.shared_by_more(shape, numbers);
        let lanes = lanes(shape, room);
        let width = if lanes == 32 { 1 } else { room.channels };
        let span = if width == 1 { room.span.min(4) } else { room.span };
        let most = |g: &Geometry| numbers.shared_per_block.saturating_sub(besides(g.channels));
        // two blocks keep a multiprocessor busy while one of them waits
        let half = |g: &Geometry| most(g).min((numbers.shared_per_multiprocessor / 2).saturating_sub(besides(g.channels)));
        let geometries = SHAPES.map(|(warps, steps, stages)| {
            let slots = 32 / lanes * width;
            // no more warps than there are channels for
            let warps = warps.min(shape.unit.div_ceil(slots).next_power_of_two());
            Geometry { lanes, width, channels: warps * slots, steps, span: span.min(steps), stages }
        });
        // a thread runs out of registers if it converts much of B and C at once, or, one of few, walks long spans beside its copies
        let light = |g: &Geometry| {
            let quick = g.stages == 2 || g.span < 8 || g.threads() >= 128;
            shape.dstate.next_multiple_of(lanes) * g.steps <= 16 * g.threads() && quick
        };
        let mut fitting = geometries.into_iter().filter(light);
        let short = geometries.map(|g| Geometry { span: g.span.min(4), ..g });
        let geometry = (fitting.clone().find(|g| shared(*g) <= half(g)))
            .or_else(|| fitting.find(|g| shared(*g) <= most(g)))
            .or_else(|| short.into_iter().find(|g| shared(*g) <= most(g)))?;
        let shared = shared(geometry);
        let blocks_per_unit = shape.unit.div_ceil(geometry.channels);
        let blocks_per_row = shape.dim / shape.unit * blocks_per_unit;
        let blocks = shape.rows.checked_mul(blocks_per_row)?;
        let cut = cut(shape, &geometry, blocks, numbers);
        let fits = blocks.checked_mul(cut.map_or(1, |cut| cut.segments)).is_some_and(|blocks| blocks <= i32::MAX as usize);
        let resident = (FULL_THREADS / geometry.threads())
            .min(numbers.shared_per_multiprocessor / (shared + besides(geometry.channels)))
            .max(1);
        let resident_ends = 2 * FULL_THREADS / geometry.threads();
        fits.then_some(Plan { cut, geometry, resident, resident_ends, blocks_per_unit, blocks_per_row, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { states: 4, channels: 2, span: 8 };

    fn shape(rows: usize, dim: usize, seqlen: usize, dstate: usize) -> Shape {
        Shape { rows, dim, unit: dim, seqlen, dstate, heavy: false, gated: false, cuttable: true }
    }

    /// Shared memory of f32 arguments.
    fn shared(dstate: usize) -> impl Fn(Geometry) -> usize + Copy {
        move |g: Geometry| {
            let padded = dstate.max(1).next_multiple_of(g.lanes);
            12 * g.channels * (g.steps + 4)
                + 256 / g.span * padded / g.lanes * g.width * g.threads()
                + (8 * g.steps + g.threads() / 4 * (g.steps + 4)) * padded
                + g.stages * 4 * g.steps * (3 * g.channels + 2 * dstate)
        }
    }

    #[test]
    fn few_channels_are_cut_into_segments() {
        let segments = |rows, dim, seqlen| {
            let shape = shape(rows, dim, seqlen, 16);
            Plan::new(&shape, ROOM, Numbers::H200, shared(16)).unwrap().cut.map(|cut| (cut.segments, cut.steps))
        };
        assert_eq!(segments(1, 1536, 65536), Some((22, 3008)));
        assert_eq!(segments(1, 5120, 4096), Some((13, 320)));
        assert_eq!(segments(8, 2048, 2048), None);
        assert_eq!(segments(64, 2048, 512), None);
        assert_eq!(segments(1, 1536, 1000), Some((8, 128)));
        assert_eq!(segments(1, 1536, 250), Some((2, 128)));
        assert_eq!(segments(1, 1536, 127), None);
        let whole = Shape { cuttable: false, ..shape(1, 1536, 65536, 16) };
        assert_eq!(Plan::new(&whole, ROOM, Numbers::H200, shared(16)).unwrap().cut, None);
    }

    #[test]
    fn fewer_channels_get_more_threads() {
        let of = |rows, dim, seqlen| {
            let g = Plan::new(&shape(rows, dim, seqlen, 16), ROOM, Numbers::H200, shared(16)).unwrap().geometry;
            (g.lanes, g.width)
        };
        assert_eq!([of(8, 2048, 2048), of(1, 1536, 65536), of(2, 1536, 333), of(1, 1536, 64)], [(4, 2), (4, 2), (4, 2), (16, 1)]);
    }

    #[test]
    fn every_plan_covers_its_channels_and_fits() {
        for numbers in [Numbers::H200, Numbers::SMALL] {
            for dstate in [0, 1, 2, 5, 16, 17, 64, 70, 128, 256] {
                for (rows, dim, groups) in
                    [(1, 1, 1), (1, 12, 12), (2, 21, 3), (8, 2048, 1), (1, 5120, 8), (5000, 3, 1), (0, 4, 1)]
                {
                    for channels in [1, 2] {
                        let shape = Shape { unit: dim / groups, ..shape(rows, dim, 5000, dstate) };
                        let room = Room { channels, ..ROOM };
                        let plan = Plan::new(&shape, room, numbers, shared(dstate)).unwrap();
                        let Geometry { lanes, width, channels, steps, span, .. } = plan.geometry;
                        assert!(32 % lanes == 0 && 64 % steps == 0 && steps % span == 0 && span % 4 == 0, "{plan:?}");
                        assert!(channels % width == 0 && plan.geometry.threads().is_multiple_of(32), "{plan:?}");
                        assert!(channels * plan.blocks_per_unit >= shape.unit);
                        assert_eq!(plan.blocks_per_row, plan.blocks_per_unit * groups);
                        assert_eq!(plan.blocks, rows * plan.blocks_per_row);
                        assert!(shared(dstate)(plan.geometry) <= numbers.shared_per_block);
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_fit_has_no_plan() {
        assert_eq!(Plan::new(&shape(1, 4, 8, 100_000), ROOM, Numbers::H200, shared(100_000)), None);
        assert_eq!(Plan::new(&shape(usize::MAX, 4, 8, 16), ROOM, Numbers::H200, shared(16)), None);
    }
}
