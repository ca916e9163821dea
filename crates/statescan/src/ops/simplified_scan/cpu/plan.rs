//! Problem to plan: how time is cut. A pure function of the problem, never of the number of threads.
//!
//! The steps of all rows form one line, row after row. It is cut into tiles of at most 64 steps (none crosses a row; states are saved at
//! their starts), tiles into blocks (the rows of one matrix product), blocks into waves (as much of the line as the workspace holds).
//! The products see blocks only, whatever the number and the length of the sequences in them.

use super::super::Problem;
use crate::cpu::tile::MAX_LANES;
use crate::ops::CHECKPOINT;
use core::ops::Range;

/// Steps in a block: enough for a product to run at full speed though it packs the map again; fewer where there are not many steps, so that
/// several threads find work.
const BLOCK: [usize; 2] = [256, 512];
/// From this number of steps on blocks are long.
const LONG: usize = 8 * BLOCK[1];
/// Blocks in a wave, so that there is work for many threads, as long as the workspace allows it.
const WAVE: Range<usize> = 4..32;
/// Bytes that a workspace should not exceed.
const WORKSPACE: usize = 64 << 20;
/// States whose steps are scanned by one job.
pub(crate) const CHUNK: usize = 2 * MAX_LANES;
/// Rows of the gradient of a map that are summed by one job.
pub(crate) const PANEL: usize = 128;

/// Steps of one row that lie in one tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tile {
    pub batch: usize,
    pub start: usize,
    pub end: usize,
}

impl Tile {
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }
}

/// The division of one pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    seqlen: usize,
    pub tiles_per_row: usize,
    pub tiles: usize,
    tiles_per_block: usize,
    tiles_per_wave: usize,
}

impl Plan {
    /// `workspace` is the number of elements of workspace that a step needs.
    pub(crate) fn new(problem: &Problem<'_>, workspace: usize) -> Self {
        let seqlen = problem.seqlen;
        let tiles_per_row = seqlen.div_ceil(CHECKPOINT);
        let tiles = tiles_per_row * problem.batch;
        let block = BLOCK[usize::from(problem.batch * seqlen >= LONG)];
        let tiles_per_block = block / seqlen.clamp(1, CHECKPOINT);
        let bytes = block * workspace.max(1) * if problem.double { 8 } else { 4 };
        let blocks = (WORKSPACE / bytes).clamp(WAVE.start, WAVE.end);
        Plan { seqlen, tiles_per_row, tiles, tiles_per_block, tiles_per_wave: blocks * tiles_per_block }
    }

    pub(crate) fn waves(&self) -> usize {
        self.tiles.div_ceil(self.tiles_per_wave)
    }

    /// Tiles of a wave.
    pub(crate) fn wave(&self, index: usize) -> Range<usize> {
        let start = index * self.tiles_per_wave;
        start..self.tiles.min(start + self.tiles_per_wave)
    }

    /// Number of blocks in a wave.
    pub(crate) fn blocks(&self, wave: &Range<usize>) -> usize {
        wave.len().div_ceil(self.tiles_per_block)
    }

    /// Tiles of a block of a wave.
    pub(crate) fn block(&self, wave: &Range<usize>, index: usize) -> Range<usize> {
        let start = wave.start + index * self.tiles_per_block;
        start..wave.end.min(start + self.tiles_per_block)
    }

    /// Rows that a wave touches.
    pub(crate) fn rows(&self, wave: &Range<usize>) -> Range<usize> {
        wave.start / self.tiles_per_row..wave.end.div_ceil(self.tiles_per_row)
    }

    /// Tiles of a row that lie in a wave.
    pub(crate) fn row(&self, wave: &Range<usize>, row: usize) -> Range<usize> {
        let start = row * self.tiles_per_row;
        wave.start.max(start)..wave.end.min(start + self.tiles_per_row)
    }

    pub(crate) fn tile(&self, index: usize) -> Tile {
        let (batch, start) = (index / self.tiles_per_row, index % self.tiles_per_row * CHECKPOINT);
        Tile { batch, start, end: self.seqlen.min(start + CHECKPOINT) }
    }

    /// Position of the first step of a tile (or of the end) on the line.
    pub(crate) fn position(&self, tile: usize) -> usize {
        match tile.checked_div(self.tiles_per_row) {
            Some(row) => row * self.seqlen + tile % self.tiles_per_row * CHECKPOINT,
            None => 0,
        }
    }

    /// Steps in a range of tiles.
    pub(crate) fn steps(&self, tiles: &Range<usize>) -> usize {
        self.position(tiles.end) - self.position(tiles.start)
    }

    /// The largest number of steps in a block.
    pub(crate) fn block_steps(&self) -> usize {
        self.tiles_per_block.min(self.tiles) * self.seqlen.min(CHECKPOINT)
    }

    /// The largest number of steps in a wave.
    pub(crate) fn wave_steps(&self) -> usize {
        self.tiles_per_wave.min(self.tiles) * self.seqlen.min(CHECKPOINT)
    }
}

/// States padded to the widest vector, so that what is saved does not depend on the width.
pub(crate) fn padded(dstate: usize) -> usize {
    dstate.next_multiple_of(MAX_LANES)
}

/// Elements of all saved states: for each row and tile but the first, the state before the tile as real parts and imaginary parts.
pub(crate) fn checkpoints_len(problem: &Problem<'_>) -> usize {
    let per_row = problem.seqlen.div_ceil(CHECKPOINT).saturating_sub(1);
    problem.batch * per_row * 2 * padded(problem.dstate)
}

/// Position of the state before a tile that is not the first of its row.
pub(crate) fn checkpoint(plan: &Plan, problem: &Problem<'_>, tile: usize) -> usize {
    let (row, number) = (tile / plan.tiles_per_row, tile % plan.tiles_per_row);
    (row * (plan.tiles_per_row - 1) + number - 1) * 2 * padded(problem.dstate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::simplified_scan::Args;
    use crate::ops::states::NO_STATES;
    use crate::tensor::{Device, View};

    #[test]
    fn tiles_blocks_and_waves_cover_the_line_once() {
        let data = [0f32; 1];
        let view = |shape: &[usize]| View::strided(&data, 0, shape, &vec![0; shape.len()]).unwrap();
        for (batch, seqlen) in [(1, 1), (3, 64), (2, 65), (5000, 3), (1, 100_000), (7, 1000), (0, 5), (5, 0)] {
            let (dim, dstate) = (300, 200);
            let (u, delta) = (view(&[batch, dim, seqlen]), view(&[batch, dstate, seqlen]));
            let args = Args::new(u, delta, view(&[dstate]), view(&[dstate, dim]), view(&[dim, dstate]));
            let plan = Plan::new(&Problem::new(&args, Device::Cpu, NO_STATES).unwrap(), 1000);
            let mut next = 0;
            for wave in (0..plan.waves()).map(|w| plan.wave(w)) {
                assert!(plan.steps(&wave) <= plan.wave_steps());
                let rows: usize = plan.rows(&wave).map(|row| plan.row(&wave, row).len()).sum();
                assert_eq!(rows, wave.len());
                for block in (0..plan.blocks(&wave)).map(|b| plan.block(&wave, b)) {
                    assert!(plan.steps(&block) <= plan.block_steps());
                    for tile in block {
                        let Tile { batch, start, end } = plan.tile(tile);
                        assert_eq!((plan.position(tile), batch * seqlen + start), (next, next));
                        next = batch * seqlen + end;
                    }
                }
            }
            assert_eq!(next, batch * seqlen);
        }
    }
}
