//! Gradients within chunks: those by x and by the steps, and terms of those by A, D and dt_bias.

use super::TILES;
use super::plan::{Kind, Tiles};
use crate::cuda::{
    Address, BLOCKS, COMMON, Config, Launch, MMA, Numbers, Program, Queue, SEQUENCES, SLOTS, STEP_SIZE, Strided, params,
};
use crate::error::Result;
use crate::ops::on_cuda::type_of;
use crate::ops::ssd::cuda::{Call, INPUTS, Inputs, States, TOO_MANY, width_of};
use crate::ops::ssd::problem::Problem;
use crate::ops::ssd::{GradientTargets, Sources};
use core::ffi::c_void;

pub(in crate::ops::ssd::cuda) static GRADIENTS: Program<Params> =
    Program::new("ssd_gradients", &[COMMON, STEP_SIZE, MMA, BLOCKS], include_str!("gradients.cu"))
        .including(&[SLOTS, SEQUENCES, INPUTS, TILES]);

params! {
    /// Parameters of `ssd_gradients`.
    pub(in crate::ops::ssd::cuda) struct Params(inputs: Inputs) {
        /// (batch, step, head, column)
        dx: Strided,
        /// (batch, step, head)
        ddt: Strided,
        ddt_a: Strided,
        initial: States,
        dfinal: States,
        /// Slots of the states before chunks, and of the gradients by the states after them.
        states: Address<c_void>,
        gradients: Address<c_void>,
        /// Dense (batch, chunk, head).
        a_terms: Address<f32>,
        bias_terms: Address<f32>,
        /// Dense (batch, chunk, head), or (batch, chunk, head, column).
        skip_terms: Address<f32>,
    }
}

/// Addresses of slots and terms in the workspace.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops::ssd::cuda) struct Places {
    pub states: u64,
    pub gradients: u64,
    pub a: u64,
    pub bias: u64,
    pub skip: u64,
}

impl GradientTargets {
    /// Whether a gradient by something that steps depend on is wanted.
    pub(in crate::ops::ssd::cuda) fn need_steps(&self) -> bool {
        self.dt.is_some() || self.a.is_some() || self.dt_bias.is_some() || self.dt_a.is_some()
    }
}

pub(in crate::ops::ssd::cuda) fn config(
    call: &Call<'_, '_>,
    sources: &Sources<'_>,
    targets: &GradientTargets,
    tiles: &Tiles,
    numbers: Numbers,
) -> Config {
    let t = targets;
    call.config(&tiles.of(Kind::Gradients), sources.final_state.map(|v| v.dtype()))
        .flag("TURNS_ROWS", false)
        .dtype("DX", type_of(&t.x))
        .dtype("DDT", type_of(&t.dt))
        .dtype("DDT_A", type_of(&t.dt_a))
        .int("DX_WIDTH", width_of(&t.x))
        .flag("HAS_DX", t.x.is_some())
        .flag("HAS_DDT", t.dt.is_some())
        .flag("HAS_DDT_A", t.dt_a.is_some())
        .flag("HAS_STEPS", t.need_steps())
        .flag("HAS_DSKIP", t.d.is_some())
        .flag("SKIP_BY_COLUMN", t.d.is_some_and(|v| v.as_read().rank() == 2))
        .int("RESIDENT", tiles.resident(Kind::Gradients, numbers))
        .shared(&tiles.memory(Kind::Gradients, numbers))
}

/// The launch.
pub(in crate::ops::ssd::cuda) fn line(p: &Problem<'_>, tiles: &Tiles, numbers: Numbers) -> Result<Launch> {
    let blocks = [p.batch, p.nheads].into_iter().try_fold(tiles.chunks(p.seqlen), usize::checked_mul);
    let blocks = blocks.and_then(|n| u32::try_from(n).ok()).ok_or(TOO_MANY)?;
    Ok(Launch::line(blocks, tiles.threads() as u32, tiles.shared(Kind::Gradients, numbers) as u32))
}

/// # Safety
/// The views are valid, and so are the places for what the tiles say.
pub(in crate::ops::ssd::cuda) unsafe fn launch(
    stream: &Queue<'_>,
    call: &Call<'_, '_>,
    sources: &Sources<'_>,
    targets: &GradientTargets,
    tiles: &Tiles,
    places: &Places,
) -> Result<()> {
    let p = call.problem;
    let launch = line(p, tiles, stream.numbers())?;
    if launch.blocks() == 0 {
        return Ok(());
    }
    let config = || config(call, sources, targets, tiles, stream.numbers());
    let params = Params {
        inputs: call.inputs(tiles.span, tiles.of(Kind::Gradients).column_tiles),
        dx: Strided::of_option(&targets.x),
        ddt: Strided::of_option(&targets.dt),
        ddt_a: Strided::of_option(&targets.dt_a),
        initial: States::of(&p.initial_state),
        dfinal: States::of(&sources.final_state),
        states: Address::new(places.states),
        gradients: Address::new(places.gradients),
        a_terms: Address::new(places.a),
        bias_terms: Address::new(places.bias),
        skip_terms: Address::new(places.skip),
    };
    // SAFETY: the caller's contract; the configuration describes types and layouts of the views.
    unsafe { stream.launch(&GRADIENTS, config, launch, &params) }.map_err(Into::into)
}
