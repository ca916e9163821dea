//! The walks over time: the scan of the forward pass, and that of the backward pass with the gradients of steps.

use super::plan::{ITEMS, WARPS};
use super::{Call, OP};
use crate::cuda::{
    Address, COMMON, Config, DISCRETIZATION, Header, Kernel, Launch, Program, SEQUENCES, SLOTS, Stream, Strided, header,
    neighbours, params,
};
use crate::error::Result;
use crate::ops::on_cuda::{Pass, SlotTypes, Slots, dtype, read};
use crate::ops::simplified_scan::Step;
use crate::tensor::{DType, RawViewMut, View};
use num_complex::Complex32;

const STEPS: [Header; 3] = [SLOTS, SEQUENCES, header!("steps.cuh")];

pub(super) static SCAN: Program<Params> =
    Program::new("simplified_scan", &[COMMON, DISCRETIZATION], include_str!("scan.cu")).including(&STEPS);
pub(super) static GRADIENTS: Program<GradientParams> =
    Program::new("simplified_scan_gradients", &[COMMON, DISCRETIZATION], include_str!("gradients.cu")).including(&STEPS);

params! {
    /// The inputs of both walks, and the layout of warps over them.
    pub(super) struct Inputs {
        /// (state)
        a: Strided,
        /// (batch, state, step)
        delta: Strided,
        delta_a: Strided,
        /// Bounds (sequence), or the sequence of a step (batch, step).
        sequences: Strided,
        slots: Slots,
        /// (row, sequence, state): the states that a walk begins a sequence with, and those that it ends one with.
        before: Strided,
        after: Strided,
        /// Dense (batch, state, step) with padded rows: v, and then x.
        numbers: Address<Complex32>,
        /// The summaries of segments.
        ends: Address<f32>,
        batch: i64,
        dstate: i64,
        seqlen: i64,
        sequence_count: i64,
        pitch: i64,
        segments: i64,
        segment_tiles: i64,
        /// Segments of this launch, in the direction of the walk.
        launched_segments: i64,
    }
}

params! {
    /// Parameters of `simplified_scan`.
    pub(super) struct Params(inputs: Inputs) {
        /// Dense (batch, tile, state, part).
        checkpoints: Address<f32>,
    }
}

params! {
    /// Parameters of `simplified_scan_gradients`.
    pub(super) struct GradientParams(inputs: Inputs) {
        /// (row, sequence, state)
        initial: Strided,
        /// (batch, state, step)
        ddelta: Strided,
        ddelta_a: Strided,
        /// Dense (batch, tile, state, part).
        checkpoints: Address<f32>,
        /// As `numbers`: the gradient by x, and then that by v.
        by_numbers: Address<Complex32>,
        /// Dense (segment, batch, part, state).
        terms_a: Address<f32>,
        terms_delta: Address<f32>,
        terms_delta_a: Address<f32>,
    }
}

/// Addresses in a workspace, and of the saved states.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    pub numbers: u64,
    pub ends: u64,
    pub checkpoints: u64,
}

/// Step sizes with three axes, and neighbouring steps that one access takes.
fn steps(step: &Option<Step<'_>>) -> (Strided, usize) {
    match step {
        None => (Strided::default(), 1),
        Some(Step::Varying(view)) => (Strided::of(view), neighbours(view, 2, ITEMS)),
        Some(Step::Constant(view)) => (Strided::with(view, [0, view.strides()[0], 0, 0]), 1),
    }
}

fn type_of(step: &Option<Step<'_>>) -> DType {
    step.map_or(DType::F32, |step| step.view().dtype())
}

impl Call<'_, '_> {
    fn walk_config(&self, pass: Pass, before: &Option<View<'_>>, after: &Option<View<'_>>) -> Config {
        let p = self.problem;
        let (delta, delta_a) = (Some(p.delta), p.delta_a);
        let steady = |step: &Option<Step<'_>>| step.is_some_and(|step| step.is_constant());
        Config::default()
            .with(&SlotTypes::of(&p.pool))
            .dtype("A", p.a.dtype())
            .dtype("DELTA", type_of(&delta))
            .dtype("DELTA_A", type_of(&delta_a))
            .dtype("INDEX", self.sequences.map_or(DType::I32, |v| v.dtype()))
            .dtype("BEFORE", dtype(before))
            .dtype("AFTER", dtype(after))
            .set("METHOD", p.discretization.constant())
            .set("SEQUENCES", p.sequences.value())
            .set("PASS", pass.value())
            .flag("NUMBERED", self.numbered())
            .flag("REVERSE", p.reverse)
            .flag("HAS_DELTA_A", delta_a.is_some())
            .flag("DELTA_IS_STEADY", steady(&delta))
            .flag("DELTA_A_IS_STEADY", steady(&delta_a))
            .int("DELTA_WIDTH", steps(&delta).1)
            .int("DELTA_A_WIDTH", steps(&delta_a).1)
            .int("ITEMS", ITEMS)
            .int("WARPS", WARPS)
    }

    fn inputs(&self, pass: Pass, places: &Places, before: &Option<View<'_>>, after: &Option<View<'_>>) -> Inputs {
        let (p, plan) = (self.problem, &self.plan);
        Inputs {
            a: Strided::of(&p.a),
            delta: steps(&Some(p.delta)).0,
            delta_a: steps(&p.delta_a).0,
            sequences: Strided::of_option(&self.sequences),
            slots: Slots::of(&p.pool),
            before: Strided::of_option(before),
            after: Strided::of_option(after),
            numbers: Address::new(places.numbers),
            ends: Address::new(places.ends),
            batch: p.batch as i64,
            dstate: p.dstate as i64,
            seqlen: p.seqlen as i64,
            sequence_count: self.sequence_count as i64,
            pitch: plan.pitch as i64,
            segments: plan.segments as i64,
            segment_tiles: plan.segment_tiles as i64,
            launched_segments: pass.segments(plan.segments) as i64,
        }
    }

    fn walk_launch(&self, pass: Pass) -> Result<Launch> {
        let warps = (self.problem.batch * self.problem.dstate).checked_mul(pass.segments(self.plan.segments));
        Ok(Launch::new(OP, warps.map(|warps| warps.div_ceil(WARPS)), 32 * WARPS)?)
    }
}

/// The scan of the forward pass, of v in the workspace.
#[derive(Clone, Copy)]
pub(super) struct Scan {
    pub after: Option<RawViewMut>,
    /// Whether it leaves x in place of v, and states for the backward pass.
    pub states: bool,
    pub checkpoints: bool,
}

impl Scan {
    pub fn kernels(&self, call: &Call<'_, '_>, places: &Places) -> Result<Vec<Kernel<Params>>> {
        let (before, after) = (call.problem.initial_state, read(&self.after));
        let kernel = |&pass: &Pass| {
            let config = call.walk_config(pass, &before, &after);
            let config = config.flag("HAS_STATES", self.states).flag("HAS_CHECKPOINTS", self.checkpoints);
            let checkpoints = Address::new(places.checkpoints);
            let params = Params { inputs: call.inputs(pass, places, &before, &after), checkpoints };
            Ok(Kernel { config, launch: call.walk_launch(pass)?, params })
        };
        Pass::all(call.plan.segments > 1).iter().map(kernel).collect()
    }

    /// # Safety
    /// The views are valid, and the places have what the plan says.
    pub unsafe fn launch(&self, call: &Call<'_, '_>, stream: &Stream, places: &Places) -> Result<()> {
        for kernel in self.kernels(call, places)? {
            // SAFETY: the caller's contract; the configuration describes types and layouts.
            unsafe { kernel.launch(stream, &SCAN)? };
        }
        Ok(())
    }
}

/// The walk of the backward pass.
#[derive(Clone, Copy)]
pub(super) struct Gradients<'v> {
    /// The gradient by the states after sequences.
    pub before: Option<View<'v>>,
    pub after: Option<RawViewMut>,
    pub ddelta: Option<RawViewMut>,
    pub ddelta_a: Option<RawViewMut>,
    /// Real numbers of the gradient by A, or 0 if nobody wants it.
    pub a_parts: usize,
    /// Whether there is a gradient by x in the workspace, whether the gradient by v replaces it, and whether x replaces v.
    pub by_y: bool,
    pub dv: bool,
    pub states: bool,
    pub by_numbers: u64,
    /// Addresses of the terms of the gradients by A and step sizes.
    pub terms: [u64; 3],
}

impl Gradients<'_> {
    pub fn kernels(&self, call: &Call<'_, '_>, places: &Places) -> Result<Vec<Kernel<GradientParams>>> {
        let (p, before, after) = (call.problem, self.before, read(&self.after));
        let (ddelta, ddelta_a) = (read(&self.ddelta), read(&self.ddelta_a));
        let width = |view: &Option<View<'_>>| view.filter(|v| v.rank() == 3).map_or(1, |v| neighbours(&v, 2, ITEMS));
        let timed = |view: &Option<View<'_>>| Strided::of_option(&view.filter(|v| v.rank() == 3));
        let [a, delta, delta_a] = self.terms.map(Address::new);
        let kernel = |&pass: &Pass| {
            let has_steps = self.a_parts > 0 || ddelta.is_some() || ddelta_a.is_some();
            let config = call
                .walk_config(pass, &before, &after)
                .dtype("INITIAL", dtype(&p.initial_state))
                .dtype("DDELTA", dtype(&ddelta))
                .dtype("DDELTA_A", dtype(&ddelta_a))
                .int("DDELTA_WIDTH", width(&ddelta))
                .int("DDELTA_A_WIDTH", width(&ddelta_a))
                .flag("HAS_DDELTA", ddelta.is_some())
                .flag("HAS_DDELTA_A", ddelta_a.is_some())
                .flag("HAS_DA", self.a_parts > 0)
                .flag("HAS_STEPS", has_steps)
                .flag("HAS_BY_Y", self.by_y)
                .flag("HAS_DV", self.dv)
                .flag("HAS_STATES", self.states)
                .int("A_PARTS", self.a_parts);
            let params = GradientParams {
                inputs: call.inputs(pass, places, &before, &after),
                initial: Strided::of_option(&p.initial_state),
                ddelta: timed(&ddelta),
                ddelta_a: timed(&ddelta_a),
                checkpoints: Address::new(places.checkpoints),
                by_numbers: Address::new(self.by_numbers),
                terms_a: a,
                terms_delta: delta,
                terms_delta_a: delta_a,
            };
            Ok(Kernel { config, launch: call.walk_launch(pass)?, params })
        };
        Pass::all(call.plan.segments > 1).iter().map(kernel).collect()
    }

    /// # Safety
    /// As [`Scan::launch`].
    pub unsafe fn launch(&self, call: &Call<'_, '_>, stream: &Stream, places: &Places) -> Result<()> {
        for kernel in self.kernels(call, places)? {
            // SAFETY: the caller's contract; the configuration describes types and layouts.
            unsafe { kernel.launch(stream, &GRADIENTS)? };
        }
        Ok(())
    }
}
