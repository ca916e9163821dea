//! The backward pass: chunks are prepared, two walks leave states and their gradients before and after each, and gradients are computed chunk by chunk.

use super::backward_plan::{Layout, PREPARERS, Plan, Setting, THREADS};
use super::forward::by_time;
use super::hopper::backward::Walks;
use super::{Call, GATES, INPUTS, Inputs, hopper};
use crate::cuda::{
    Address, BLOCKS, COMMON, Config, HOPPER, Header, Kernel, Launch, MMA, Program, Queue, SEQUENCES, SLOTS, STEP_SIZE, Stream,
    Strided, Sum, header, params, sum_terms,
};
use crate::error::{Error, Result};
use crate::ops::checked::needed;
use crate::ops::gated_delta_rule::problem::Problem;
use crate::ops::gated_delta_rule::{GradientTargets, OP, Sources};
use crate::ops::on_cuda::{States, dtype, read, type_of, width};
use crate::tensor::{RawViewMut, View};
use core::ffi::c_void;

const TILES: Header = header!("backward_tiles.cuh");
const WORK: Header = header!("backward_work.cuh");
const FINISH: Header = header!("backward_finish.cuh");
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
/// Gradients of chunks after the walks on Hopper.
pub(super) static HOPPER_GRADIENTS: Program<Params> = Program::new(
    "gated_delta_rule_backward_gradients",
    &[COMMON, STEP_SIZE, MMA, BLOCKS, HOPPER],
    include_str!("hopper/backward_gradients.cu"),
)
.including(&[SLOTS, SEQUENCES, GATES, INPUTS, TILES, WORK, FINISH]);

params! {
    /// Parameters of the kernels of the backward pass.
    pub(super) struct Params(inputs: Inputs) {
        dy: Strided,
        before: States,
        /// The gradients of the states after and before sequences.
        dafter: States,
        dbefore: States,
        dq: Strided,
        dk: Strided,
        dv: Strided,
        dg: Strided,
        dbeta: Strided,
        /// Dense, of what products are made of: (chunk, head of keys, step, key), and (chunk, head, ..) of the others.
        q_units: Address<c_void>,
        k_units: Address<c_void>,
        read_k: Address<c_void>,
        written_k: Address<c_void>,
        read_q: Address<c_void>,
        t: Address<c_void>,
        a: Address<c_void>,
        states: Address<c_void>,
        gradients: Address<c_void>,
        d: Address<c_void>,
        x: Address<c_void>,
        /// Dense (chunk, head, step, key), (chunk, head, row, step), (chunk, head of keys, k and q, step).
        sums: Address<f32>,
        tokens: Address<f32>,
        norms: Address<f32>,
        /// Dense (chunk, head), and (chunk, head) or (chunk, head, key).
        da_terms: Address<f32>,
        dbias_terms: Address<f32>,
        chunks_per_row: i64,
        key_heads: i64,
    }
}

const TOO_MANY: Error = Error::Unavailable { what: OP, why: "so many rows need more blocks than a launch can have" };

/// A backward pass as its kernels see it.
pub(super) struct Backward<'p, 'a> {
    pub call: Call<'p, 'a>,
    pub sources: &'p Sources<'a>,
    pub targets: &'p GradientTargets,
    pub plan: Plan,
}

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
    Ok(Layout::new(&call, &plan, hopper::Route::backward(&call, &plan, stream.numbers()).as_ref()).len)
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
    let layout = Layout::new(&call, &plan, route.as_ref());
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
    /// Whether sums of the gate's gradients are asked for.
    fn has_sums(&self) -> bool {
        self.targets.a_log.is_some() || self.targets.dt_bias.is_some()
    }

    /// Whether a gradient is asked for that takes products with keys.
    fn needs_keys(&self) -> bool {
        let t = self.targets;
        [&t.q, &t.k, &t.g, &t.beta].into_iter().any(Option::is_some) || self.has_sums()
    }

    pub(super) fn needs_chunks(&self) -> bool {
        self.needs_keys() || self.targets.v.is_some()
    }

    /// Those of the three kernels.
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

    fn params(&self, layout: &Layout, base: u64) -> Params {
        let (p, t) = (self.call.problem, self.targets);
        let at = |offset: usize| Address::new(base + 4 * offset as u64);
        let numbers = |offset: usize| Address::new(base + 4 * offset as u64);
        let target = |target: &Option<RawViewMut>| Strided::of_option(&read(target));
        Params {
            inputs: self.call.inputs(),
            dy: Strided::of_option(&self.sources.y),
            before: States::of(&p.initial_state),
            dafter: States::of(&self.sources.final_state),
            dbefore: States::of(&read(&t.initial_state)),
            dq: target(&t.q),
            dk: target(&t.k),
            dv: target(&t.v),
            dg: target(&t.g),
            dbeta: target(&t.beta),
            q_units: at(layout.q_units),
            k_units: at(layout.k_units),
            read_k: at(layout.read_k),
            written_k: at(layout.written_k),
            read_q: at(layout.read_q),
            t: at(layout.t),
            a: at(layout.a),
            states: at(layout.states),
            gradients: at(layout.gradients),
            d: at(layout.d),
            x: at(layout.x),
            sums: numbers(layout.sums),
            tokens: numbers(layout.tokens),
            norms: numbers(layout.norms),
            da_terms: numbers(layout.da_terms),
            dbias_terms: numbers(layout.dbias_terms),
            chunks_per_row: self.plan.chunks_per_row(&self.call) as i64,
            key_heads: p.heads as i64,
        }
    }

    /// What the three kernels have in common.
    fn config(&self, threads: usize, loaders: usize) -> Config {
        self.call
            .config()
            .set("MATH", self.plan.math())
            .int("SPAN", self.plan.span)
            .int("THREADS", threads)
            .int("LOADERS", loaders)
    }

    /// The constants of a tensor over steps that is read in pieces.
    fn dy_config(&self, config: Config) -> Config {
        let dy = &self.sources.y;
        config
            .dtype("DY", dtype(dy))
            .flag("HAS_DY", dy.is_some())
            .flag("DY_BY_TIME", dy.as_ref().is_some_and(by_time))
            .int("DY_STEP_WIDTH", dy.as_ref().map_or(1, width))
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
        self.gradients_config_of(self.plan.slice, self.plan.gradient_shared())
    }

    /// The configuration for slices of so many columns, and so much shared memory.
    pub(super) fn gradients_config_of(&self, slice: usize, shared: usize) -> Config {
        let (p, t) = (self.call.problem, self.targets);
        let widest = |target: &Option<RawViewMut>| read(target).as_ref().map_or(1, |view: &View<'_>| width(view));
        self.dy_config(self.config(THREADS, THREADS))
            .dtype("DQ", type_of(&t.q))
            .dtype("DK", type_of(&t.k))
            .dtype("DV", type_of(&t.v))
            .dtype("DGATE", type_of(&t.g))
            .dtype("DBETA", type_of(&t.beta))
            .flag("UNIT", p.gates.qk_l2norm)
            .flag("HAS_DQ", t.q.is_some())
            .flag("HAS_DK", t.k.is_some())
            .flag("HAS_DV", t.v.is_some())
            .flag("HAS_DGATE", t.g.is_some())
            .flag("HAS_DBETA", t.beta.is_some())
            .flag("HAS_SUMS", self.has_sums())
            .flag("NEEDS_KEYS", self.needs_keys())
            .int("STEP_WIDTH", width(&p.v))
            .int("DQ_WIDTH", widest(&t.q).min(2))
            .int("DK_WIDTH", widest(&t.k).min(2))
            .int("DV_WIDTH", widest(&t.v))
            .int("SLICE", slice)
            .int("SHARED", shared)
    }
}
