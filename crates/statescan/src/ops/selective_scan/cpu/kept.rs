//! What the jobs of a backward pass keep from tile to tile.

use super::super::Problem;
use super::inputs::{Parameters, ParametersOfBlocks, Sizes};
use crate::cpu::simd::Real;
use crate::cpu::{Array, Arrays, Room};

/// What stays of one block of channels for a whole job.
pub(super) struct Kept<T> {
    pub parameters: Parameters<T>,
    /// The gradient by the states before the tile, which is carried from tile to tile.
    pub g: Array<T>,
    /// Gathered gradients: by A, by constant B and C.
    pub da: Array<T>,
    pub db: Array<T>,
    pub dc: Array<T>,
    /// By D and the bias, one vector each.
    pub dd: Array<T>,
    pub dbias: Array<T>,
}

/// The same for all blocks of a job.
#[derive(Clone, Copy)]
pub(super) struct KeptOfBlocks<T> {
    pub parameters: ParametersOfBlocks<T>,
    g: Arrays<T>,
    da: Arrays<T>,
    db: Arrays<T>,
    dc: Arrays<T>,
    dd: Arrays<T>,
    dbias: Arrays<T>,
}

impl<T: Real> KeptOfBlocks<T> {
    pub(super) fn lay_out(room: &mut Room<T>, problem: &Problem<'_>, sizes: Sizes) -> Self {
        let Sizes { blocks, state, width, .. } = sizes;
        KeptOfBlocks {
            parameters: ParametersOfBlocks::lay_out(room, problem, sizes),
            g: room.arrays(blocks, state),
            da: room.arrays(blocks, state),
            db: room.arrays(blocks, state),
            dc: room.arrays(blocks, state),
            dd: room.arrays(blocks, width),
            dbias: room.arrays(blocks, width),
        }
    }

    /// Those of a block, by its number.
    #[inline(always)]
    pub(super) fn of(&self, i: usize) -> Kept<T> {
        let [g, da, db, dc] = [self.g, self.da, self.db, self.dc].map(|arrays| arrays.of(i));
        Kept { parameters: self.parameters.of(i), g, da, db, dc, dd: self.dd.of(i), dbias: self.dbias.of(i) }
    }
}

impl<T: Real> Kept<T> {
    /// Clears what is gathered: `state` elements of each gradient by states, and a vector of the others.
    #[inline(always)]
    pub(super) fn clear(&self, state: usize, width: usize) {
        [self.da, self.db, self.dc].into_iter().for_each(|sums| sums.clear(state));
        [self.dd, self.dbias].into_iter().for_each(|sums| sums.clear(width));
    }
}
