//! The gradients of B and of C, chunk by chunk: sums over the heads of a group, one launch for each.

use super::TILES;
use super::plan::{Kind, Tiles};
use crate::cuda::{
    Address, BLOCKS, COMMON, Config, Launch, MMA, Numbers, Program, Queue, SEQUENCES, SLOTS, STEP_SIZE, Strided, params,
};
use crate::error::Result;
use crate::ops::ssd::Sources;
use crate::ops::ssd::cuda::{Call, INPUTS, Inputs, States, TOO_MANY};
use crate::ops::ssd::problem::Problem;
use crate::tensor::RawViewMut;
use core::ffi::c_void;

pub(in crate::ops::ssd::cuda) static MAPS: Program<Params> =
    Program::new("ssd_maps", &[COMMON, STEP_SIZE, MMA, BLOCKS], include_str!("maps.cu"))
        .including(&[SLOTS, SEQUENCES, INPUTS, TILES]);

params! {
    /// Parameters of `ssd_maps`.
    pub(in crate::ops::ssd::cuda) struct Params(inputs: Inputs) {
        /// (batch, step, group, state)
        target: Strided,
        initial: States,
        dfinal: States,
        /// Slots of the states before chunks (for C), or of the gradients by the states after them (for B).
        slots: Address<c_void>,
        /// Dense (batch, step, slice, group, state).
        terms: Address<f32>,
        slices: i64,
        heads_per_slice: i64,
        state_tiles: i64,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops::ssd::cuda) enum Of {
    B,
    C,
}

/// One of the two gradients.
pub(in crate::ops::ssd::cuda) struct Maps<'t> {
    pub of: Of,
    pub target: &'t RawViewMut,
    /// Address of the slots that it reads.
    pub slots: u64,
    /// Address of terms, which are summed afterwards if there are several slices.
    pub terms: u64,
    pub slices: usize,
}

impl Maps<'_> {
    pub fn config(&self, call: &Call<'_, '_>, sources: &Sources<'_>, tiles: &Tiles, numbers: Numbers) -> Config {
        call.config(tiles, sources.final_state.map(|v| v.dtype()))
            .flag("TURNS_ROWS", false)
            .dtype("TARGET", self.target.as_read().dtype())
            .flag("OF_B", self.of == Of::B)
            .flag("IN_TERMS", self.slices > 1)
            .int("OWN_STATES", tiles.own_states())
            .int("RESIDENT", tiles.resident(Kind::Maps, numbers))
            .shared(&tiles.memory(Kind::Maps, numbers))
    }

    /// # Safety
    /// The views are valid, and so are slots and terms for what the tiles say.
    pub unsafe fn launch(&self, stream: &Queue<'_>, call: &Call<'_, '_>, sources: &Sources<'_>, tiles: &Tiles) -> Result<()> {
        let p = call.problem;
        let launch = line(p, tiles, self.slices, stream.numbers())?;
        if launch.blocks() == 0 || p.dstate == 0 {
            return Ok(());
        }
        let config = || self.config(call, sources, tiles, stream.numbers());
        let params = Params {
            inputs: call.inputs(tiles.span, tiles.column_tiles),
            target: Strided::of(&self.target.as_read()),
            initial: States::of(&p.initial_state),
            dfinal: States::of(&sources.final_state),
            slots: Address::new(self.slots),
            terms: Address::new(self.terms),
            slices: self.slices as i64,
            heads_per_slice: (p.nheads / p.ngroups.max(1)).div_ceil(self.slices) as i64,
            state_tiles: tiles.state_tiles() as i64,
        };
        // SAFETY: the caller's contract; the configuration describes types and layouts of the views.
        unsafe { stream.launch(&MAPS, config, launch, &params) }.map_err(Into::into)
    }
}

/// The launch for a map whose heads are divided among so many blocks.
pub(in crate::ops::ssd::cuda) fn line(p: &Problem<'_>, tiles: &Tiles, slices: usize, numbers: Numbers) -> Result<Launch> {
    let sizes = [p.batch, p.ngroups, tiles.state_tiles(), slices];
    let blocks = sizes.into_iter().try_fold(tiles.chunks(p.seqlen), usize::checked_mul);
    let blocks = blocks.and_then(|n| u32::try_from(n).ok()).ok_or(TOO_MANY)?;
    Ok(Launch::line(blocks, tiles.threads() as u32, tiles.shared(Kind::Maps, numbers) as u32))
}
