//! What the jobs of a backward pass keep from tile to tile.

use super::super::{Problem, Projection};
use super::inputs::{Constants, double, parameter};
use super::lanes::Lanes;
use super::plan::Block;
use super::{Context, Types};
use crate::cpu::simd::{Isa, Real};
use crate::ops::rules::FieldKind;

/// The arrays of one block of channels that stay for a whole job.
pub(super) struct Kept<T> {
    pub a: *mut T,
    /// B and C where they are constant.
    pub b: *mut T,
    pub c: *mut T,
    /// The gradient by the states before the tile, which is carried from tile to tile.
    pub g: *mut T,
    /// Gathered gradients: by A, by constant B and C, by D and the bias (one vector each).
    pub da: *mut T,
    pub db: *mut T,
    pub dc: *mut T,
    pub dd: *mut T,
    pub dbias: *mut T,
    pub constants: Constants<T>,
}

/// The arrays in [`Kept`], one after the other.
pub(super) const KEPT: usize = 10;

/// Their lengths, for all blocks of a job.
pub(super) fn kept_lens<E: Types>(context: &Context<'_, '_>) -> [usize; KEPT] {
    let (width, per_channel) = (context.level.lanes(context.problem.double), context.plan.lanes_per_channel);
    let blocks = most_blocks(context);
    let (state, vector) = (blocks * context.problem.dstate / per_channel * E::K::PARTS * width, blocks * width);
    [state, state, state, state, state, state, state, vector, vector, Constants::<E::T>::COUNT * vector]
}

/// Blocks of channels of a job, at most.
pub(super) fn most_blocks(context: &Context<'_, '_>) -> usize {
    let (width, plan) = (context.level.lanes(context.problem.double), &context.plan);
    let longest = plan.channels.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    longest.div_ceil(width / plan.lanes_per_channel)
}

/// Loads the parameters of a block.
///
/// # Safety
/// The arrays have room for the block's states.
#[inline(always)]
pub(super) unsafe fn begin<E: Types, S: Isa>(
    simd: S,
    lanes: Lanes<E::T>,
    problem: &Problem<'_>,
    block: Block,
    kept: &Kept<E::T>,
) {
    let state = problem.dstate * E::K::PARTS * lanes.channels;
    // SAFETY: the caller's contract.
    unsafe {
        parameter::<E, S>(simd, lanes, &problem.a, block, kept.a);
        kept.constants.load::<E, S>(simd, lanes, problem, block, kept.a);
        if let Projection::Constant(view) = &problem.b {
            parameter::<E, S>(simd, lanes, view, block, kept.b);
        }
        if let Projection::Constant(view) = &problem.c {
            parameter::<E, S>(simd, lanes, view, block, kept.c);
            if E::K::PARTS == 2 {
                double(kept.c, state);
            }
        }
    }
}

impl<T: Real> Kept<T> {
    /// What is gathered, and how much of it: elements of the states of a block, and of a vector.
    #[inline(always)]
    fn sums(&self, [state, width]: [usize; 2]) -> [(*mut T, usize); 5] {
        [(self.da, state), (self.db, state), (self.dc, state), (self.dd, width), (self.dbias, width)]
    }

    /// Clears what is gathered.
    ///
    /// # Safety
    /// The arrays have room for as much.
    #[inline(always)]
    pub(super) unsafe fn clear(&self, lens: [usize; 2]) {
        for (sums, len) in self.sums(lens) {
            // SAFETY: the caller's contract.
            unsafe { core::slice::from_raw_parts_mut(sums, len) }.fill(T::default());
        }
    }
}
