//! Problem to plan for the backward pass: how lanes, channels and steps are laid over threads, and whether time is cut into segments.

use super::plan::{Cut, Shape};
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
    pub blocks_per_unit: usize,
    pub blocks_per_row: usize,
    /// Blocks of a segment, or of whole rows.
    pub blocks: usize,
    pub shared: usize,
}

/// Warps of a block: they share the conversion of B and C, and a block is one term of the sums for their gradients.
const WARPS: usize = 4;
/// Threads of a multiprocessor that segments should fill; as many registers as a thread can use leave room for so many.
const FULL_THREADS: usize = 256;
/// Steps of a segment that make up for its beginning.
const SHORTEST_SEGMENT: usize = 512;
/// Shared memory that is left for the vectors of each channel and for the system.
const SHARED_BESIDES: usize = 2 << 10;

/// The states of a thread for each of its channels, at most; what is computed again fills registers.
fn states_together(shape: &Shape) -> usize {
    if shape.heavy { 2 } else { 4 }
}

fn lanes(shape: &Shape) -> usize {
    shape.dstate.max(1).div_ceil(states_together(shape)).next_power_of_two().min(32)
}

fn width(shape: &Shape) -> usize {
    if shape.heavy || shape.dstate.max(1).div_ceil(lanes(shape)) > states_together(shape) { 1 } else { 2 }
}

/// Segments for rows that are long and too few to fill a device: first the gradient that each but the first one hands to the one before, from
/// zero, then all of them side by side.
fn cut(shape: &Shape, numbers: Numbers) -> Option<Cut> {
    let threads = shape.channels().saturating_mul(lanes(shape)) / width(shape);
    if !shape.cuttable || threads == 0 {
        return None;
    }
    let segments = (FULL_THREADS * numbers.multiprocessors / threads).min(shape.seqlen / SHORTEST_SEGMENT);
    (segments > 1).then(|| Cut::into(shape.seqlen, segments))
}

impl Plan {
    /// `shared` gives the bytes of shared memory for a geometry. `None` if no geometry fits.
    pub(super) fn new(shape: &Shape, numbers: Numbers, shared: impl Fn(Geometry) -> usize) -> Option<Plan> {
        let (lanes, mut width) = (lanes(shape), width(shape));
        let many = shape.heavy || width == 1;
        let most = numbers.shared_per_block.saturating_sub(SHARED_BESIDES);
        // two blocks keep a multiprocessor busy while one of them waits
        let limit = most.min((numbers.shared_per_multiprocessor / 2).saturating_sub(SHARED_BESIDES));
        let (mut warps, mut steps, mut span) = (WARPS, 16, if many { 4 } else { 8 });
        let of = |warps: usize, width: usize, steps: usize, span: usize| {
            let channels = warps * 32 / lanes * width;
            Geometry { lanes, width, channels, steps, span }
        };
        while warps > 1 && of(warps / 2, width, steps, span).channels >= shape.unit {
            warps /= 2;
        }
        let needs = |warps, width, steps, span| shared(of(warps, width, steps, span));
        while warps > 1 && needs(warps, width, steps, span) > limit {
            warps /= 2;
        }
        if needs(warps, width, steps, span) > most {
            (steps, span) = (8, 4.min(span));
        }
        if needs(warps, width, steps, span) > most {
            (width, span) = (1, 8);
        }
        let geometry = of(warps, width, steps, span);
        let shared = shared(geometry);
        let blocks_per_unit = shape.unit.div_ceil(geometry.channels);
        let blocks_per_row = shape.dim / shape.unit * blocks_per_unit;
        let cut = cut(shape, numbers);
        let blocks = shape.rows.checked_mul(blocks_per_row)?;
        let fits = blocks.checked_mul(cut.map_or(1, |cut| cut.segments)).is_some_and(|blocks| blocks <= i32::MAX as usize);
        let resident =
            (FULL_THREADS / geometry.threads()).min(numbers.shared_per_multiprocessor / (shared + SHARED_BESIDES)).max(1);
        (shared <= most && fits).then_some(Plan { cut, geometry, resident, blocks_per_unit, blocks_per_row, blocks, shared })
    }
}
