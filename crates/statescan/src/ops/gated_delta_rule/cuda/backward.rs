//! The backward pass: chunks are prepared, two walks leave states and their gradients before and after each, and gradients are computed chunk by chunk.

use super::backward_pass::{Backward, FINISH, Params, TILES, WORK};
use super::backward_plan::{Layout, PREPARERS, Plan, Setting, THREADS};
use super::hopper::{self, backward::Walks};
use super::{Call, INPUTS, by_time};
use crate::cuda::{
    BLOCKS, COMMON, Config, Header, Kernel, Launch, MMA, Program, Queue, SEQUENCES, SLOTS, STEP_SIZE, Stream, Sum, header,
    sum_terms,
};
use crate::error::{Error, Result};
use crate::ops::checked::needed;
use crate::ops::gated_delta_rule::gates::GATES;
use crate::ops::gated_delta_rule::problem::Problem;
use crate::ops::gated_delta_rule::{GradientTargets, OP, Sources};
use crate::ops::on_cuda::{dtype, type_of, width};
use crate::tensor::RawViewMut;

const PRELUDE: &[Header] = &[COMMON, STEP_SIZE, MMA, BLOCKS];

pub(super) static PREPARE: Program<Params> =
    Program::new("gated_delta_rule_prepare", PRELUDE, include_str!("backward_prepare.cu"))
        .including(&[SLOTS, SEQUENCES, GATES, INPUTS, TILES]);
pub(super) static WALK: Program<Params> = Program::new("gated_delta_rule_walk", PRELUDE, include_str!("backward_walk.cu"))
    .including(&[SLOTS, SEQUENCES, GATES, INPUTS, TILES]);
pub(super) static GRADIENTS: Program<Params> =
    Program::new("gated_delta_rule_gradients", PRELUDE, include_str!("backward_gradients.cu")).including(&[
        SLOTS,
        SEQUENCES,
        GATES,
        INPUTS,
        TILES,
        WORK,
        FINISH,
        header!("backward_slices.cuh"),
        header!("backward_channels.cuh"),
    ]);
const TOO_MANY: Error = Error::Unavailable { what: OP, why: "so many rows need more blocks than a launch can have" };

/// Scratch memory is counted before cotangents are seen, and only an initial state says then how many sequences of `seq_idx` have states.
const NO_COUNT: Error = Error::Unavailable {
    what: "the backward pass of gated_delta_rule on CUDA with a state for each sequence of `seq_idx`",
    why: "it needs the initial state, too",
};

/// Elements of the workspace, whatever is given and asked for.
pub(in crate::ops::gated_delta_rule) fn workspace_len(stream: &Stream, problem: &Problem<'_>) -> Result<usize> {
    let call = Call::new(problem)?;
    if call.numbered() && problem.initial_state.is_none() {
        return Err(NO_COUNT);
    }
    let plan = Plan::new(&call, Setting::of(stream))?;
    let route = hopper::Route::backward(&call, &plan, stream.numbers());
    Ok(Layout::new(&call, &plan, hopper::backward::room(route.as_ref())).len)
}

pub(in crate::ops::gated_delta_rule) fn backward(
    queue: &Queue<'_>,
    problem: &Problem<'_>,
    sources: &Sources<'_>,
    targets: &GradientTargets,
) -> Result<()> {
    let call = Call::new(problem)?;
    let plan = Plan::new(&call, Setting::of(queue))?;
    let base = (needed(OP, &targets.workspace)?.as_mut_ptr() as u64).next_multiple_of(16);
    let pass = Backward { call, sources, targets, plan };
    let route = hopper::Route::backward(&call, &plan, queue.numbers());
    let layout = Layout::new(&call, &plan, hopper::backward::room(route.as_ref()));
    let params = pass.params(&layout, base);
    let [prepare, walk, gradients] = pass.launches()?;
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configurations describe
    // their types and layouts, and the workspace has the size of the layout.
    unsafe {
        match Walks::new(&pass, route) {
            Some(walks) => walks.launch(queue, &layout, base, &params)?,
            None => {
                Kernel { config: || pass.prepare_config(), launch: prepare, params }.launch(queue, &PREPARE)?;
                Kernel { config: || pass.walk_config(), launch: walk, params }.launch(queue, &WALK)?;
                if pass.needs_chunks() {
                    Kernel { config: || pass.gradients_config(), launch: gradients, params }.launch(queue, &GRADIENTS)?;
                }
            }
        }
    }
    let count = problem.batch * plan.chunks_per_row(&call);
    let sum = |target: &Option<RawViewMut>, terms: usize| target.map(|to| Sum { to, terms: base + 4 * terms as u64, count });
    let sums = [sum(&targets.a_log, layout.da_terms), sum(&targets.dt_bias, layout.dbias_terms)];
    // SAFETY: as above; every term has been written.
    unsafe { sum_terms(queue, &sums.into_iter().flatten().collect::<Vec<_>>()) }.map_err(Into::into)
}

impl Backward<'_, '_> {
    /// The launches of the three kernels.
    fn launches(&self) -> Result<[Launch; 3]> {
        let (p, plan) = (self.call.problem, &self.plan);
        let chunks = p.batch.checked_mul(plan.chunks_per_row(&self.call));
        let of_chunks = chunks.and_then(|n| n.checked_mul(p.heads));
        let of_walk = self.call.pieces().checked_mul(p.value_heads()).and_then(|n| n.checked_mul(2 * plan.column_blocks()));
        let line = |blocks: Option<usize>, threads: usize, shared: usize| -> Result<Launch> {
            let blocks = blocks.filter(|&n| n <= i32::MAX as usize).ok_or(TOO_MANY)?;
            Ok(Launch::line(blocks as u32, threads as u32, shared as u32))
        };
        Ok([
            line(of_chunks, PREPARERS, plan.prepare_shared())?,
            line(of_walk, plan.walkers()[1], plan.walk_shared())?,
            line(of_chunks, THREADS, plan.gradient_shared())?,
        ])
    }

    pub(super) fn prepare_config(&self) -> Config {
        let p = self.call.problem;
        self.config(PREPARERS, PREPARERS)
            .flag("UNIT", p.gates.qk_l2norm)
            .flag("QUERY_BY_TIME", by_time(&p.q))
            .flag("KEY_BY_TIME", by_time(&p.k))
            .int("QUERY_WIDTH", width(&p.q))
            .int("KEY_WIDTH", width(&p.k))
            .int("SHARED", self.plan.prepare_shared())
    }

    pub(super) fn walk_config(&self) -> Config {
        let p = self.call.problem;
        let [loaders, threads] = self.plan.walkers();
        self.dy_config(self.config(threads, loaders))
            .dtype("INITIAL", dtype(&p.initial_state))
            .dtype("DFINAL", dtype(&self.sources.final_state))
            .dtype("DINITIAL", type_of(&self.targets.initial_state))
            .flag("VALUE_BY_TIME", by_time(&p.v))
            .int("STEP_WIDTH", width(&p.v))
            .int("STAGES", self.plan.stages)
            .int("SHARED", self.plan.walk_shared())
    }

    pub(super) fn gradients_config(&self) -> Config {
        self.gradients_config_of(THREADS, self.plan.gradient_shared()).int("SLICE", self.plan.slice)
    }
}
