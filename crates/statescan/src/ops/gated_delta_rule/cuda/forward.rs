//! The forward pass: which kernel takes a call, and how it is launched.

use super::{Call, INPUTS, Inputs, by_time, hopper, tokens};
use crate::cuda::{
    COMMON, Config, Kernel, Launch, Numbers, PlannedLaunch, Program, Queue, SEQUENCES, SLOTS, STEP_SIZE, Stream, Strided, params,
    written_like,
};
use crate::error::{Error, Result};
use crate::ops::gated_delta_rule::gates::GATES;
use crate::ops::gated_delta_rule::problem::Problem;
use crate::ops::gated_delta_rule::{OP, Targets};
use crate::ops::on_cuda::{States, dtype, read, type_of, width};
use crate::tensor::View;

pub(super) static STEPS: Program<Params> =
    Program::new("gated_delta_rule_steps", &[COMMON, STEP_SIZE], include_str!("forward_steps.cu"))
        .including(&[SLOTS, SEQUENCES, GATES, INPUTS]);

params! {
    /// Parameters of `gated_delta_rule_steps`.
    pub(super) struct Params(inputs: Inputs) {
        y: Strided,
        before: States,
        after: States,
        /// Blocks that share the columns of a head.
        column_blocks: i64,
    }
}

const TOO_MANY: Error = Error::Unavailable { what: OP, why: "so many rows need more blocks than a launch can have" };

/// Threads that bring tiles, and those of a warp that share a column: `HELPERS` and `LANES` of the kernel.
const HELPERS: usize = 128;
const LANES: usize = 8;
/// Numbers of the state that a thread keeps, but for one column of more keys.
const KEPT: usize = 32;
/// The most warps of a block that compute.
const WARPS: usize = 4;

/// How the columns of heads divide among threads and blocks: a function of sizes, types and a device's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Keys, filled up so that every thread of a column has as many.
    keys: usize,
    /// Columns of a thread.
    own: usize,
    warps: usize,
    /// Steps of a tile.
    steps: usize,
    by_channel: bool,
    column_blocks: usize,
}

impl Plan {
    pub(super) fn new(call: &Call<'_, '_>, numbers: Numbers) -> Plan {
        let p = call.problem;
        let keys = p.keys.max(1).next_multiple_of(4 * LANES);
        let of_warp = |own| 32 / LANES * own;
        let all = |own| call.pieces().saturating_mul(p.value_heads()).saturating_mul(p.values.div_ceil(of_warp(own)));
        // two columns of a thread read keys and queries once for both, but leave a device half as many threads
        let own = if keys / LANES * 2 <= KEPT && all(1) > 4 * numbers.multiprocessors { 2 } else { 1 };
        let warps = p.values.div_ceil(of_warp(own)).next_power_of_two().clamp(1, WARPS);
        let plan = Plan { keys, own, warps, steps: 16, by_channel: p.gates.by_channel, column_blocks: 0 };
        let plan = Plan { column_blocks: p.values.div_ceil(plan.columns()), ..plan };
        if plan.shared() <= numbers.shared_per_multiprocessor / 2 { plan } else { Plan { steps: 8, ..plan } }
    }

    /// Columns of a block.
    fn columns(&self) -> usize {
        self.warps * (32 / LANES) * self.own
    }

    fn threads(&self) -> usize {
        HELPERS + 32 * self.warps
    }

    /// Shared memory: two `Stage` of the kernel.
    pub(super) fn shared(&self) -> usize {
        let (pitch, steps) = (self.keys + 4, self.steps);
        let decays = if self.by_channel { steps * pitch } else { 4 };
        2 * 4 * (2 * steps * pitch + decays + 2 * steps * self.columns() + 8 * steps)
    }

    /// Blocks whose registers a multiprocessor holds.
    fn resident(&self) -> usize {
        let rows = self.keys / LANES * (self.own + 2 + usize::from(self.by_channel));
        if rows <= 64 { 2 } else { 1 }
    }
}

impl Call<'_, '_> {
    pub(super) fn steps_config(&self, plan: &Plan, targets: &Targets) -> Config {
        let (p, y) = (self.problem, read(&targets.y));
        let columns = |view: &View<'_>| width(view).min(plan.columns());
        let g = p.g.filter(|_| p.gates.by_channel);
        self.config()
            .flag("UNIT", p.gates.qk_l2norm)
            .dtype("Y", dtype(&y))
            .dtype("INITIAL", dtype(&p.initial_state))
            .dtype("FINAL", type_of(&targets.final_state))
            .flag("HAS_Y", y.is_some())
            .flag("HAS_INITIAL", p.initial_state.is_some())
            .flag("HAS_FINAL", targets.final_state.is_some())
            .flag("QUERY_BY_TIME", by_time(&p.q))
            .flag("KEY_BY_TIME", by_time(&p.k))
            .flag("VALUE_BY_TIME", by_time(&p.v))
            .flag("GATE_BY_TIME", g.as_ref().is_some_and(by_time))
            .flag("Y_BY_TIME", y.as_ref().is_some_and(by_time))
            .int("QUERY_WIDTH", width(&p.q))
            .int("KEY_WIDTH", width(&p.k))
            .int("VALUE_WIDTH", columns(&p.v))
            .int("GATE_WIDTH", g.as_ref().map_or(1, width))
            .int("Y_WIDTH", y.as_ref().map_or(1, columns))
            .int("PADDED_KEYS", plan.keys)
            .int("OWN", plan.own)
            .int("WARPS", plan.warps)
            .int("STEPS", plan.steps)
            .int("RESIDENT", plan.resident())
            .int("SHARED", plan.shared())
    }

    fn steps(&self, targets: &Targets, numbers: Numbers) -> Result<Kernel<Params, impl Fn() -> Config>> {
        let plan = Plan::new(self, numbers);
        let parts = [self.problem.value_heads(), plan.column_blocks];
        let blocks = parts.into_iter().try_fold(self.pieces(), usize::checked_mul);
        let blocks = blocks.and_then(|n| u32::try_from(n).ok()).ok_or(TOO_MANY)?;
        let launch = Launch::line(blocks, plan.threads() as u32, plan.shared() as u32);
        let params = Params {
            inputs: self.inputs(),
            y: Strided::of_option(&read(&targets.y)),
            before: States::of(&self.problem.initial_state),
            after: States::of(&read(&targets.final_state)),
            column_blocks: plan.column_blocks as i64,
        };
        Ok(Kernel { config: move || self.steps_config(&plan, targets), launch, params })
    }
}

pub(in crate::ops::gated_delta_rule) fn forward(queue: &Queue<'_>, problem: &Problem<'_>, targets: &Targets) -> Result<()> {
    let (call, y) = (Call::new(problem)?, read(&targets.y));
    if targets.y.is_none() && targets.final_state.is_none() {
        return Ok(());
    }
    if let Some(call) = tokens::Call::new(&call, targets) {
        return call.launch(queue);
    }
    let workspace = targets.workspace.as_ref().filter(|v| !v.as_read().is_empty());
    if let Some((route, workspace)) = hopper::Route::new(&call, y, queue.numbers()).zip(workspace) {
        // SAFETY: as below; a workspace has the elements that the route of the same call wants.
        return unsafe { route.launch(queue, &call, targets, workspace.as_mut_ptr() as u64) };
    }
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configuration describes
    // their types and layouts.
    unsafe { call.steps(targets, queue.numbers())?.launch(queue, &STEPS) }.map_err(Into::into)
}

/// Elements of the workspace that a forward pass wants, whichever results are asked for and however they lie.
pub(in crate::ops::gated_delta_rule) fn workspace_len(stream: &Stream, problem: &Problem<'_>) -> Result<usize> {
    let call = Call::new(problem)?;
    Ok(hopper::Route::new(&call, None, stream.numbers()).map_or(0, |route| route.workspace_len(&call)))
}

/// The launches of a forward pass with every result and a workspace.
pub(in crate::ops::gated_delta_rule) fn plan(problem: &Problem<'_>, numbers: Numbers) -> Result<Vec<PlannedLaunch>> {
    let (call, y) = (Call::new(problem)?, written_like(&problem.v)?);
    let final_state = problem.initial_state.as_ref().map(written_like).transpose()?;
    let targets = Targets { y: Some(y), final_state, ..Targets::default() };
    if let Some(call) = tokens::Call::new(&call, &targets) {
        return Ok(vec![call.plan()?]);
    }
    Ok(match hopper::Route::new(&call, Some(y.as_read()), numbers) {
        Some(route) => route.plan(&call),
        None => vec![PlannedLaunch::new("forward", STEPS.kernel, call.steps(&targets, numbers)?.launch)],
    })
}
