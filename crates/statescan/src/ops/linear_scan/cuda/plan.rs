//! Problem to plan: how rows and steps are laid over threads, and whether time is cut. A pure function of the problem and the device's
//! numbers.

use super::OP;
use crate::cuda::{Launch, Numbers};
use crate::error::{Error, Result};

/// The inputs of a plan besides the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub rows: usize,
    pub seqlen: usize,
    pub complex: bool,
    /// Bytes of an input.
    pub size: usize,
    /// Whether neighbouring threads take neighbouring steps, rather than rows.
    pub by_time: bool,
    /// Whether states lie in a pool.
    pub pooled: bool,
    /// Whether a thread takes the steps of its channel one after another.
    pub exact: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Plan {
    /// Steps of a thread in a tile.
    pub items: usize,
    pub channel_lanes: usize,
    pub time_lanes: usize,
    pub row_blocks: usize,
    /// Segments of time, and the tiles of each.
    pub segments: usize,
    pub segment_tiles: usize,
}

/// Blocks for each multiprocessor that keep it busy.
const ENOUGH_BLOCKS: usize = 8;
/// A segment has at least so many tiles: what segments compose to is read and written once more.
const TILES: usize = 2;
/// Steps up to which no row is cut: too few tiles for two segments, even of the shortest tiles, eight threads with four steps each.
pub(crate) const LONGEST_WHOLE: usize = (2 * TILES - 1) * 8 * 4;

impl Plan {
    /// Without memory for what segments compose to (`apart`), rows are whole.
    pub(super) fn new(shape: &Shape, numbers: Numbers, apart: bool) -> Result<Plan> {
        let items = match (shape.by_time, shape.complex) {
            // 16 bytes, so that neighbouring threads write whole sectors
            (true, complex) => (16 / shape.size.max(2)).clamp(if complex { 2 } else { 4 }, 8),
            (false, true) => 4,
            (false, false) => 8,
        };
        let pieces = shape.seqlen.div_ceil(items).max(1);
        let (channel_lanes, time_lanes) = match shape.by_time {
            _ if shape.exact => (32, 1),
            true => {
                let time_lanes = pieces.next_power_of_two().min(128);
                (128 / time_lanes, time_lanes)
            }
            false => {
                let channel_lanes = shape.rows.max(1).next_power_of_two().min(32);
                (channel_lanes, pieces.next_power_of_two().min(8))
            }
        };
        // rows are numbered in 32 bits
        if shape.rows > i32::MAX as usize {
            return Err(Error::Unavailable { what: OP, why: "so many rows are more than a kernel can number" });
        }
        let row_blocks = shape.rows.div_ceil(channel_lanes);
        let tiles = pieces.div_ceil(time_lanes);
        let wanted = (ENOUGH_BLOCKS * numbers.multiprocessors).checked_div(row_blocks).unwrap_or(1);
        let most = if apart && !shape.exact { tiles / TILES } else { 1 };
        let segment_tiles = tiles.div_ceil(wanted.min(most).max(1));
        let segments = tiles.div_ceil(segment_tiles);
        Ok(Plan { items, channel_lanes, time_lanes, row_blocks, segments, segment_tiles })
    }

    /// Elements of f32 for what the segments but the last compose to, and for the first states where they lie in a pool.
    pub(super) fn ends_len(&self, shape: &Shape) -> usize {
        let kept = usize::from(shape.pooled && self.segments > 1);
        (self.segments - 1 + kept) * shape.rows * if shape.complex { 4 } else { 2 }
    }

    /// The launch over the first `segments` segments.
    pub(super) fn launch(&self, segments: usize) -> Result<Launch> {
        Ok(Launch::new(OP, self.row_blocks.checked_mul(segments), self.channel_lanes * self.time_lanes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(rows: usize, seqlen: usize, by_time: bool) -> Shape {
        Shape { rows, seqlen, complex: false, size: 4, by_time, pooled: false, exact: false }
    }

    #[test]
    fn every_plan_covers_its_problem() {
        for by_time in [false, true] {
            for complex in [false, true] {
                for apart in [false, true] {
                    for (rows, seqlen) in [(1, 1), (12288, 16384), (3, 1 << 33), (70, 1000), (5, 0), (0, 9), (1 << 20, 3)] {
                        let shape = Shape { complex, ..shape(rows, seqlen, by_time) };
                        let plan = Plan::new(&shape, Numbers::H200, apart).unwrap();
                        let tile = plan.time_lanes * plan.items;
                        assert!(plan.row_blocks * plan.channel_lanes >= rows, "{shape:?} {plan:?}");
                        assert!(plan.segments * plan.segment_tiles * tile >= seqlen, "{shape:?} {plan:?}");
                        assert!(plan.segments == 1 || (plan.segments - 1) * plan.segment_tiles * tile < seqlen);
                        assert!(apart || plan.segments == 1);
                        assert!(plan.time_lanes.is_power_of_two() && plan.channel_lanes * plan.time_lanes <= 256);
                    }
                }
            }
        }
    }

    #[test]
    fn few_rows_are_cut() {
        let segments = |rows, seqlen| Plan::new(&shape(rows, seqlen, true), Numbers::H200, true).unwrap().segments;
        assert_eq!([segments(12288, 16384), segments(64, 65536), segments(1, 1 << 24)], [1, 16, 1024]);
        let most = |seqlen| {
            let of =
                |(by_time, complex, size)| Plan::new(&Shape { complex, size, ..shape(1, seqlen, by_time) }, Numbers::H200, true);
            let all = [(true, false, 2), (true, false, 4), (true, true, 8), (false, false, 2), (false, true, 8)];
            all.into_iter().map(|case| of(case).unwrap().segments).max()
        };
        assert!((0..=LONGEST_WHOLE).all(|seqlen| most(seqlen) <= Some(1)) && most(LONGEST_WHOLE + 1) == Some(2));
    }

    #[test]
    fn what_cannot_be_numbered_is_refused() {
        assert!(Plan::new(&shape(1 << 32, 4, true), Numbers::H200, true).is_err());
    }
}
