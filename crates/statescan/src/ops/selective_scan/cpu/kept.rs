//! Memory of a backward pass's jobs that lasts from tile to tile.

use super::super::Problem;
use super::inputs::{Parameters, ParametersOfBlocks, Sizes};
use crate::cpu::simd::Real;
use crate::cpu::{ArrayMut, Arrays, Room};

/// The memory of one block of channels, which lasts for a whole job.
pub(super) struct Kept<'m, T> {
    pub parameters: Parameters<'m, T>,
    /// The gradient by the states before the tile, which is carried from tile to tile.
    pub g: ArrayMut<'m, T>,
    /// Gathered gradients: by A, by constant B and C.
    pub da: ArrayMut<'m, T>,
    pub db: ArrayMut<'m, T>,
    pub dc: ArrayMut<'m, T>,
    /// By D and the bias, one vector each.
    pub dd: ArrayMut<'m, T>,
    pub dbias: ArrayMut<'m, T>,
}

/// The memory of all blocks of a job.
pub(super) struct KeptOfBlocks<'m, T> {
    pub parameters: ParametersOfBlocks<'m, T>,
    g: Arrays<'m, T>,
    da: Arrays<'m, T>,
    db: Arrays<'m, T>,
    dc: Arrays<'m, T>,
    dd: Arrays<'m, T>,
    dbias: Arrays<'m, T>,
}

impl<'m, T: Real> KeptOfBlocks<'m, T> {
    pub(super) fn lay_out(room: &mut Room<'m, T>, problem: &Problem<'_>, sizes: Sizes) -> Self {
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

    /// Returns the memory of block `i`.
    #[inline(always)]
    pub(super) fn of(&mut self, i: usize) -> Kept<'_, T> {
        let [g, da, db, dc] = [&mut self.g, &mut self.da, &mut self.db, &mut self.dc].map(|arrays| arrays.of(i));
        Kept { parameters: self.parameters.of(i), g, da, db, dc, dd: self.dd.of(i), dbias: self.dbias.of(i) }
    }

    /// Returns the memory once more, for a thread that walks the next tile or window of the job.
    ///
    /// # Safety
    /// Threads take turns: what one uses, no other does meanwhile.
    pub(super) unsafe fn in_turns(&self) -> Self {
        // SAFETY: the contract above.
        let again = |arrays: &Arrays<'m, T>| unsafe { arrays.in_turns() };
        let [g, da, db, dc] = [&self.g, &self.da, &self.db, &self.dc].map(again);
        KeptOfBlocks { parameters: self.parameters.each(again), g, da, db, dc, dd: again(&self.dd), dbias: again(&self.dbias) }
    }
}

impl<T: Real> Kept<'_, T> {
    /// Clears what is gathered: `state` elements of each gradient by states, and a vector of the others.
    #[inline(always)]
    pub(super) fn clear(mut self, state: usize, width: usize) {
        [&mut self.da, &mut self.db, &mut self.dc].into_iter().for_each(|sums| sums.clear(state));
        [&mut self.dd, &mut self.dbias].into_iter().for_each(|sums| sums.clear(width));
    }
}
