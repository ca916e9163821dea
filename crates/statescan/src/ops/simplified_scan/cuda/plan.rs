//! Problem to plan: how time is cut, and what lies where in a workspace. A pure function of the problem's sizes and the device's numbers.

use crate::cuda::Numbers;

/// Neighbouring steps of a lane, warps of a block, and the steps that a warp takes at once: a state is saved before each but the first.
pub(super) const ITEMS: usize = 4;
pub(super) const WARPS: usize = 4;
pub(super) const TILE: usize = 32 * ITEMS;
/// Numbers that a segment composes to.
const END: usize = 5;
/// Warps of a multiprocessor that keep it busy.
const ENOUGH_WARPS: usize = 16;
/// A segment has at least so many tiles: what segments compose to is read and computed once more.
const SEGMENT: usize = 2;

/// Rows, columns and depth of a block of a product, as `product.cu` has them.
pub(super) const ROWS: usize = 64;
pub(super) const COLUMNS: usize = 64;
pub(super) const DEPTH: usize = 32;
/// Streamed lines of a block of a product on Hopper, which has as many columns.
pub(super) const LINES: usize = 128;
/// Blocks of a product that a multiprocessor runs at the same time.
pub(super) const RESIDENT: usize = 2;
/// Units of depth that a slice has at least: its sums are written and read once more.
const SLICE: usize = 8;
/// Steps of a piece of the gradient by the skip, and the most slices of it.
pub(super) const PIECE: usize = 512;
const SKIP_SLICES: usize = 64;

/// The sizes that a plan depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub batch: usize,
    pub dim: usize,
    pub dstate: usize,
    pub seqlen: usize,
    /// Whether states lie in a pool.
    pub pooled: bool,
}

/// Something cut into slices of neighbouring units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slices {
    pub count: usize,
    pub units: usize,
}

impl Slices {
    /// So many slices of so many units, none of them empty.
    fn new(units: usize, wanted: usize) -> Self {
        let each = units.div_ceil(wanted.max(1)).max(1);
        Slices { count: units.div_ceil(each), units: each }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    shape: Shape,
    /// Elements from row to row of numbers along time in the workspace.
    pub pitch: usize,
    /// Segments of time, and the tiles of each.
    pub segments: usize,
    pub segment_tiles: usize,
    /// How the products over rows and steps are cut.
    pub over_time: Slices,
    /// How the gradient by the skip is.
    pub skip: Slices,
}

/// Tiles of a row.
pub(super) fn tiles(seqlen: usize) -> usize {
    seqlen.div_ceil(TILE)
}

/// Elements of all saved states: for each row and tile but the first, both parts of the states before the tile.
pub(super) fn checkpoints_len(shape: &Shape) -> usize {
    2 * shape.batch * tiles(shape.seqlen).saturating_sub(1) * shape.dstate
}

impl Plan {
    pub fn new(shape: Shape, numbers: Numbers) -> Plan {
        let Shape { batch, dstate, seqlen, pooled, .. } = shape;
        let (tiles, rows) = (tiles(seqlen), batch.saturating_mul(dstate));
        // a segment would write a slot of a pool while another one reads it
        let wanted = if pooled { 1 } else { (ENOUGH_WARPS * numbers.multiprocessors).checked_div(rows).unwrap_or(1) };
        let segment_tiles = tiles.div_ceil(wanted.min(tiles / SEGMENT).max(1)).max(1);
        let units = batch * seqlen.div_ceil(DEPTH);
        // whole rounds of blocks, so that none is left for a round of its own
        let slices = Self::places(&shape, numbers).max(1).min(units.div_ceil(SLICE));
        Plan {
            shape,
            pitch: seqlen.next_multiple_of(ITEMS),
            segments: tiles.div_ceil(segment_tiles).max(1),
            segment_tiles,
            over_time: Slices::new(units, slices),
            skip: Slices::new(batch * seqlen.div_ceil(PIECE), SKIP_SLICES),
        }
    }

    /// Blocks of whole rounds for each tile of a gradient of a map.
    fn places(shape: &Shape, numbers: Numbers) -> usize {
        let tiles = |rows: usize, columns: usize, lines| (rows.div_ceil(lines) * columns.div_ceil(COLUMNS)).max(1);
        let &Shape { dim, dstate, .. } = shape;
        if numbers.capability == (9, 0) {
            numbers.multiprocessors / tiles(dim, dstate, LINES).max(tiles(dstate, dim, LINES))
        } else {
            2 * RESIDENT * numbers.multiprocessors / tiles(dim, dstate, ROWS)
        }
    }

    /// Terms of a gradient that each row and segment adds to.
    pub fn terms(&self) -> usize {
        self.segments * self.shape.batch
    }
}

/// The starts of a workspace's parts, in elements of f32; each at whole units of 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Layout {
    /// (batch, state, step): v, and then x.
    pub numbers: usize,
    /// The summaries of segments.
    pub ends: usize,
    /// In a backward pass: (batch, state, step), the gradient by x, and then that by v.
    pub by_numbers: usize,
    pub checkpoints: usize,
    /// Terms of the gradients by A and the step sizes.
    pub a: usize,
    pub delta: usize,
    pub delta_a: usize,
    /// Terms of those by B, C and the skip.
    pub b: usize,
    pub c: usize,
    pub d: usize,
    pub len: usize,
}

impl Layout {
    fn part(&mut self, size: usize) -> usize {
        let start = self.len;
        self.len = start.saturating_add(size.next_multiple_of(4));
        start
    }

    /// The layout of a forward pass.
    pub fn forward(plan: &Plan) -> Layout {
        let rows = plan.shape.batch.saturating_mul(plan.shape.dstate);
        let mut layout = Layout::default();
        layout.numbers = layout.part(2 * rows * plan.pitch);
        layout.ends = layout.part((plan.segments - 1) * rows * END);
        // the caller's memory may begin inside a unit of 16 bytes
        layout.part(4);
        layout
    }

    /// The layout of a backward pass.
    pub fn backward(plan: &Plan) -> Layout {
        let Shape { batch, dim, dstate, .. } = plan.shape;
        let (rows, map) = (batch.saturating_mul(dstate), dim * dstate);
        let mut layout = Self::forward(plan);
        layout.by_numbers = layout.part(2 * rows * plan.pitch);
        layout.checkpoints = layout.part(checkpoints_len(&plan.shape));
        layout.a = layout.part(2 * plan.terms() * dstate);
        [layout.delta, layout.delta_a] = [0; 2].map(|_| layout.part(plan.terms() * dstate));
        [layout.b, layout.c] = [0; 2].map(|_| layout.part(2 * plan.over_time.count * map));
        layout.d = layout.part(plan.skip.count * dim);
        layout.part(4);
        layout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(batch: usize, dim: usize, dstate: usize, seqlen: usize) -> Plan {
        Plan::new(Shape { batch, dim, dstate, seqlen, pooled: false }, Numbers::H200)
    }

    #[test]
    fn every_plan_covers_its_problem() {
        for batch in [0, 1, 8, 5000] {
            for (dim, dstate) in [(0, 3), (3, 0), (1, 1), (512, 256), (17, 1000)] {
                for seqlen in [0, 1, 127, 128, 129, 4096, 65536, 1 << 33] {
                    let plan = plan(batch, dim, dstate, seqlen);
                    let tiles = tiles(seqlen);
                    assert!(plan.segments * plan.segment_tiles >= tiles, "{plan:?}");
                    assert!(plan.segments == 1 || (plan.segments - 1) * plan.segment_tiles < tiles, "{plan:?}");
                    for (slices, units) in [(plan.over_time, seqlen.div_ceil(DEPTH)), (plan.skip, seqlen.div_ceil(PIECE))] {
                        let units = batch * units;
                        assert!(slices.count * slices.units >= units, "{plan:?}");
                        assert!(units == 0 || (slices.count - 1) * slices.units < units, "{plan:?}");
                    }
                    assert!(plan.pitch >= seqlen && plan.pitch.is_multiple_of(ITEMS));
                }
            }
        }
    }

    #[test]
    fn few_rows_are_cut() {
        let segments = |batch, dstate, seqlen| plan(batch, 4, dstate, seqlen).segments;
        assert_eq!([segments(8, 256, 4096), segments(1, 128, 65536), segments(32, 128, 1024)], [1, 16, 1]);
        assert_eq!([segments(1, 1, 511), segments(1, 1, 513), segments(1, 1, 100)], [2, 2, 1]);
    }

    #[test]
    fn parts_of_a_workspace_lie_apart_and_are_bounded() {
        let plan = plan(8, 512, 256, 4096);
        let layout = Layout::backward(&plan);
        let Layout { numbers, ends, by_numbers, checkpoints, a, delta, delta_a, b, c, d, len } = layout;
        let starts = [numbers, ends, by_numbers, checkpoints, a, delta, delta_a, b, c, d, len];
        assert!(starts.windows(2).all(|pair| pair[0] <= pair[1] && pair[0] % 4 == 0), "{layout:?}");
        assert!(Layout::forward(&plan).len < 2 * 8 * 256 * 4096 + 16);
        // two complex rows of states, the terms of B and C, and little else
        let (rows, terms) = (4 * 8 * 256 * 4096, 2 * 2 * plan.over_time.count * 512 * 256);
        assert!(len < rows + terms + rows / 64, "{len}");
    }
}
