//! The gradient by the skip: one launch that leaves terms.

use super::OP;
use super::plan::{PIECE, Slices, WARPS};
use crate::cuda::{Address, COMMON, Config, Kernel, Launch, Program, Stream, Strided, params};
use crate::error::Result;
use crate::tensor::View;

pub(super) static SKIP: Program<Params> = Program::new("simplified_scan_skip", &[COMMON], include_str!("skip.cu"));

params! {
    /// Parameters of `simplified_scan_skip`.
    pub(super) struct Params {
        /// (batch, channel, step)
        u: Strided,
        by_y: Strided,
        /// Dense (slice, channel).
        terms: Address<f32>,
        batch: i64,
        dim: i64,
        seqlen: i64,
        slices: i64,
        slice_pieces: i64,
    }
}

/// One such launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Skip<'v> {
    pub u: View<'v>,
    pub by_y: View<'v>,
    pub slices: Slices,
    /// Address of the terms.
    pub terms: u64,
}

impl Skip<'_> {
    pub fn kernel(&self) -> Result<Kernel<Params>> {
        let [batch, dim, seqlen] = [0, 1, 2].map(|axis| self.u.shape()[axis]);
        let config =
            Config::default().dtype("U", self.u.dtype()).dtype("BY_Y", self.by_y.dtype()).int("STEPS", PIECE).int("WARPS", WARPS);
        let params = Params {
            u: Strided::of(&self.u),
            by_y: Strided::of(&self.by_y),
            terms: Address::new(self.terms),
            batch: batch as i64,
            dim: dim as i64,
            seqlen: seqlen as i64,
            slices: self.slices.count as i64,
            slice_pieces: self.slices.units as i64,
        };
        let warps = dim.checked_mul(self.slices.count);
        Ok(Kernel { config, launch: Launch::new(OP, warps.map(|n| n.div_ceil(WARPS)), 32 * WARPS)?, params })
    }

    /// # Safety
    /// The views and terms are valid.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's contract; the configuration describes the types.
        unsafe { self.kernel()?.launch(stream, &SKIP) }.map_err(Into::into)
    }
}
