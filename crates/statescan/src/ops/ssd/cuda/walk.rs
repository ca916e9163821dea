//! The walk over time: the forward pass, and states and their gradients for the backward pass.

use super::hopper::walk as hopper;
use super::portable::plan::{Cut, Kind, Math, Tiles};
use super::{Call, Inputs, States, TOO_LARGE, TOO_MANY, refuse_double, type_of, width_of};
use crate::cuda::{Address, BLOCKS, COMMON, Config, Launch, MMA, Numbers, Program, STEP_SIZE, Stream, Strided, Value, params};
use crate::error::Result;
use crate::ops::ssd::Targets;
use crate::ops::ssd::problem::Problem;
use crate::tensor::{DType, RawViewMut, View};
use core::ffi::c_void;

pub(super) static WALK: Program<Params> = Program::new(
    "ssd_walk",
    &[COMMON, STEP_SIZE, MMA, BLOCKS],
    concat!(
        include_str!("../../../cuda/sequences.cuh"),
        include_str!("inputs.cuh"),
        include_str!("portable/tiles.cuh"),
        include_str!("hand_on.cuh"),
        include_str!("portable/walk.cu")
    ),
);

params! {
    /// Parameters of `ssd_walk`.
    pub(super) struct Params(inputs: Inputs) {
        /// (batch, step, head, column): y, or the gradient by z.
        y: Strided,
        /// The states that a walk begins a sequence with, and those that it ends one with.
        before: States,
        after: States,
        /// Slots of the state at each chunk.
        slots: Address<c_void>,
        /// Dense (segment, batch, head, state, column), padded: what segments add to a state of zero.
        ends: Address<f32>,
        /// Dense (segment, batch, head, tile of columns): their decays.
        decays: Address<f32>,
        segments: i64,
        segment_steps: i64,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

/// What a walk writes besides the states after sequences.
#[derive(Clone, Copy)]
pub(super) enum Output<'t> {
    Nothing,
    Y(&'t RawViewMut),
    /// The gradient by z.
    Gate(&'t RawViewMut),
}

/// One walk.
pub(super) struct Walk<'p, 'a> {
    pub call: Call<'p, 'a>,
    pub direction: Direction,
    pub output: Output<'p>,
    pub before: Option<View<'a>>,
    pub after: Option<RawViewMut>,
    /// Address of slots, where they are wanted.
    pub slots: Option<u64>,
    /// Chunks that share a slot: one, or as many as the kernel for Hopper is known to be asked for.
    pub slot_chunks: usize,
}

/// What a launch does with rows, as `common.cuh` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Whole,
    Ends,
    Rest,
}

impl Pass {
    pub fn name(self) -> &'static str {
        match self {
            Pass::Whole => "Whole",
            Pass::Ends => "Ends",
            Pass::Rest => "Rest",
        }
    }
}

/// Elements of the workspace for the ends and decays of segments, whichever kernel walks.
pub(super) fn ends_len(call: &Call<'_, '_>, tiles: &Tiles, cut: Option<Cut>, numbers: Numbers) -> usize {
    let p = call.problem;
    let portable = cut.map_or(0, |cut| cut.segments * p.batch * p.nheads * (tiles.slot() + tiles.column_tiles));
    portable.max(hopper::Plan::new(p, numbers).map_or(0, |plan| plan.workspace_len(p)))
}

impl Walk<'_, '_> {
    pub fn kind(&self, pass: Pass) -> Kind {
        let output = !matches!(self.output, Output::Nothing) && pass != Pass::Ends;
        Kind::Walk { output, state: output || (self.slots.is_some() && pass != Pass::Ends) }
    }

    pub fn config(&self, tiles: &Tiles, pass: Pass, numbers: Numbers) -> Config {
        let kind = self.kind(pass);
        let target = match self.output {
            Output::Nothing => None,
            Output::Y(to) | Output::Gate(to) => Some(*to),
        };
        let width = [width_of(&target)].into_iter();
        let width = width.chain(self.call.problem.z.map(|v| super::width(&v)));
        let width = width.chain(self.call.dy.map(|v| super::width(&v)));
        let width = width.chain(self.call.gated.map(|_| super::gated_width(self.call.problem.headdim, tiles.math)));
        let width = width.min().unwrap_or(1);
        let (output, state) = match kind {
            Kind::Walk { output, state } => (output, state),
            _ => (false, false),
        };
        self.call
            .config(tiles, None)
            .dtype("Y", type_of(&target))
            .dtype("BEFORE", self.before.map_or(DType::F32, |v| v.dtype()))
            .dtype("AFTER", type_of(&self.after))
            .int("OUT_WIDTH", width)
            .set("PASS", Value::Name("Pass", pass.name()))
            .flag("FORWARDS", self.direction == Direction::Forward)
            .flag("HAS_OUTPUT", output)
            .flag("TURNS_ROWS", output && tiles.math == Math::Tf32)
            .flag("GATE_GRADIENT", matches!(self.output, Output::Gate(_)))
            .flag("HAS_SLOTS", self.slots.is_some() && pass != Pass::Ends)
            .flag("NEEDS_STATE_TILE", state)
            .int("STAGES", tiles.stages(kind, numbers))
            .int("RESIDENT", tiles.resident(kind, numbers))
            .int("SHARED", tiles.shared(kind, numbers))
    }

    fn params(&self, tiles: &Tiles, cut: Option<(Cut, u64)>) -> Params {
        let p = self.call.problem;
        let y = match self.output {
            Output::Nothing => Strided::default(),
            Output::Y(to) | Output::Gate(to) => Strided::of(&to.as_read()),
        };
        let rows = cut.map_or(0, |(cut, _)| cut.segments * p.batch * p.nheads);
        let ends = cut.map_or(0, |(_, workspace)| workspace);
        Params {
            inputs: self.call.inputs(tiles.span, tiles.column_tiles),
            y,
            before: States::of(&self.before),
            after: States::of(&self.after.as_ref().map(|v| v.as_read())),
            slots: Address::new(self.slots.unwrap_or(0)),
            ends: Address::new(ends),
            decays: Address::new(ends + 4 * (rows * tiles.slot()) as u64),
            segments: cut.map_or(1, |(cut, _)| cut.segments as i64),
            segment_steps: cut.map_or(p.seqlen, |(cut, _)| cut.steps) as i64,
        }
    }

    /// Puts the walk into the stream, in two launches where time is cut and there is a workspace.
    ///
    /// # Safety
    /// The views are valid, the slots for what the tiles say, and the workspace has [`ends_len`] elements.
    pub unsafe fn launch(&self, stream: &Stream, tiles: &Tiles, cut: Option<Cut>, workspace: Option<u64>) -> Result<()> {
        // SAFETY: the caller's contract.
        if unsafe { hopper::walk(stream, self, tiles, workspace)? } {
            return Ok(());
        }
        debug_assert_eq!(self.slot_chunks, 1, "slots of several chunks are Hopper's");
        let (p, cut) = (self.call.problem, cut.zip(workspace));
        let passes: &[_] = if cut.is_some() { &[Pass::Ends, Pass::Rest] } else { &[Pass::Whole] };
        let params = self.params(tiles, cut);
        for &pass in passes {
            let segments = match (cut, pass) {
                (Some((cut, _)), Pass::Ends) => cut.segments - 1,
                (Some((cut, _)), _) => cut.segments,
                _ => 1,
            };
            let blocks = [p.batch, p.nheads, tiles.column_tiles].into_iter().try_fold(segments, usize::checked_mul);
            let blocks = blocks.and_then(|n| u32::try_from(n).ok()).ok_or(TOO_MANY)?;
            if blocks == 0 || p.headdim == 0 {
                continue;
            }
            let kind = self.kind(pass);
            let config = self.config(tiles, pass, stream.numbers());
            let launch = Launch::line(blocks, tiles.threads() as u32, tiles.shared(kind, stream.numbers()) as u32);
            // SAFETY: the caller's contract; the configuration describes types and layouts of the views.
            unsafe { stream.launch(&WALK, &config, launch, &params)? };
        }
        Ok(())
    }
}

/// The kinds of kernels of a forward pass.
pub(super) const FORWARD: &[Kind] = &[Kind::Walk { output: true, state: true }];

fn plan(stream: &Stream, call: &Call<'_, '_>) -> Result<(Tiles, Option<Cut>)> {
    let (shape, numbers) = (call.shape(call.math(stream.allows_tf32())), stream.numbers());
    let tiles = Tiles::new(&shape, FORWARD, numbers).ok_or(TOO_LARGE)?;
    Ok((tiles, Cut::new(&shape, &tiles, FORWARD[0], numbers)))
}

pub(crate) fn forward(stream: &Stream, problem: &Problem<'_>, targets: &Targets) -> Result<()> {
    refuse_double(problem)?;
    let call = Call::new(problem, None);
    let (tiles, cut) = plan(stream, &call)?;
    let output = targets.y.as_ref().map_or(Output::Nothing, Output::Y);
    let walk = Walk {
        call,
        direction: Direction::Forward,
        output,
        before: problem.initial_state,
        after: targets.final_state,
        slots: None,
        slot_chunks: 1,
    };
    let workspace = targets.workspace.as_ref().map(|v| v.as_mut_ptr() as u64);
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; a workspace has the
    // size that the same plans give.
    unsafe { walk.launch(stream, &tiles, cut, workspace) }
}

/// Elements of the workspace that a forward pass wants.
pub(crate) fn workspace_len(stream: &Stream, problem: &Problem<'_>) -> Result<usize> {
    let call = Call::new(problem, None);
    let (tiles, cut) = plan(stream, &call)?;
    Ok(ends_len(&call, &tiles, cut, stream.numbers()))
}
