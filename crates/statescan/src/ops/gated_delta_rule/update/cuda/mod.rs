//! A step of the gated delta rule on CUDA: a checked problem becomes a plan, a configuration and the parameters of one launch.

mod plan;
#[cfg(all(test, feature = "cuda"))]
mod tests;

use super::{OP, Problem};
use crate::cuda::{COMMON, Config, Kernel, PlannedLaunch, Program, Queue, STEP_SIZE, STEP_SLOTS, Strided, neighbours, params};
use crate::error::Result;
use crate::ops::gated_delta_rule::gates::GATES;
use crate::ops::on_cuda::{StepSlotTypes, StepSlots, dtype, single_only};
use crate::ops::slots::Slots;
use crate::tensor::{DType, View};
use plan::{Plan, Shape};

static UPDATE: Program<Params> =
    Program::new(OP, &[COMMON, STEP_SIZE], include_str!("update.cu")).including(&[GATES, STEP_SLOTS]);

params! {
    /// Parameters of `gated_delta_rule_update`.
    struct Params {
        /// (slot, head, key, column)
        state: Strided,
        /// The states that are read, if they lie apart from those that are written.
        before: Strided,
        /// (row, head of keys, key)
        q: Strided,
        k: Strided,
        /// (row, head, column)
        v: Strided,
        /// (row, head) or (row, head, key)
        g: Strided,
        beta: Strided,
        /// (head) or (head, key)
        a_log: Strided,
        bias: Strided,
        y: Strided,
        /// (row)
        indices: Strided,
        slots: StepSlots,
        states: i64,
        /// Heads of values, and how many of them share one of keys.
        heads: u32,
        group: u32,
        columns: u32,
        blocks_per_state: u32,
        scale: f32,
        lower_bound: f32,
        beta_factor: f32,
        /// Bytes up to the alignment of the others.
        free: u32,
    }
}

/// The views that a step reads and writes beside its arguments.
#[derive(Clone, Copy)]
pub(in crate::ops::gated_delta_rule) struct Places<'v> {
    pub state: View<'v>,
    /// The states before the step, where they are not those that are written.
    pub before: Option<View<'v>>,
    pub y: View<'v>,
    /// The states of the rows, which only the device can read.
    pub indices: Option<View<'v>>,
    pub slots: Option<&'v Slots<'v>>,
    /// The bounds of sequences of tokens that have no slots.
    pub bounds: Option<View<'v>>,
}

impl Places<'_> {
    /// Sequences, of which each has a state, among so many rows.
    fn sequences(&self, rows: usize) -> usize {
        let bounded = self.bounds.map(|bounds| bounds.len() - 1);
        self.slots.map(|slots| slots.read.len()).or(bounded).unwrap_or(rows)
    }

    /// Whether sequences of so many rows may have other than one token.
    fn has_many(&self, rows: usize) -> bool {
        self.bounds.is_some() || self.slots.is_some_and(|slots| slots.has_many(rows))
    }
}

/// Whether neighbouring threads take the columns of states that lie so, and not their keys.
pub(in crate::ops::gated_delta_rule) fn by_column(states: &View<'_>) -> bool {
    states.strides()[2] != 1 || states.strides()[3] == 1
}

/// Puts the kernel of a step into a stream.
pub(in crate::ops::gated_delta_rule) fn update(queue: &Queue<'_>, problem: &Problem<'_>, places: &Places<'_>) -> Result<()> {
    single_only(problem.double, "gated_delta_rule_update in f64")?;
    let shape = shape(problem, places);
    let plan = queue.find(|| Plan::new(&shape))?;
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configuration
    // describes their types. No two rows write a state (the caller's part, for indices that only the device can read).
    unsafe { kernel(problem, places, &plan).launch(queue, &UPDATE) }.map_err(Into::into)
}

/// The launch of a call of one token.
pub(in crate::ops::gated_delta_rule) fn plan(problem: &Problem<'_>, places: &Places<'_>) -> Result<PlannedLaunch> {
    Ok(PlannedLaunch::new("forward", UPDATE.kernel, Plan::new(&shape(problem, places))?.launch))
}

fn shape(p: &Problem<'_>, places: &Places<'_>) -> Shape {
    let state = &places.state;
    let by_column = by_column(state);
    let (axis, count) = if by_column { (3, p.values) } else { (2, p.keys) };
    let most = 16 / state.dtype().size();
    let are_together = |states: &View<'_>| neighbours(states, axis, most) == most;
    let together = count.is_multiple_of(most) && are_together(state) && places.before.as_ref().is_none_or(are_together);
    // a state that stays in registers from token to token has no room for eight columns; along keys the order of sums would be another one
    let few = by_column && places.has_many(p.rows.len());
    let vector = if together { most.min(if few { 4 } else { most }) } else { 1 };
    Shape { states: places.sequences(p.rows.len()) * p.heads * p.group, keys: p.keys, columns: p.values, by_column, vector }
}

fn kernel<'k>(p: &'k Problem<'_>, places: &'k Places<'k>, plan: &'k Plan) -> Kernel<Params, impl Fn() -> Config + 'k> {
    Kernel { config: move || config(p, places, plan), params: params(p, places, plan), launch: plan.launch }
}

/// Returns the constants that a kernel is compiled with.
fn config(p: &Problem<'_>, places: &Places<'_>, plan: &Plan) -> Config {
    let vector = plan.neighbouring_keys();
    // whether a thread's keys are one access
    let together = |view: &View<'_>| vector > 1 && view.rank() == 3 && neighbours(view, 2, vector) == vector;
    Config::default()
        .with(&StepSlotTypes::of(places.slots, p.rows.len()).bounded(places.bounds))
        .flag("APART", places.before.is_some())
        .dtype("STATE", places.state.dtype())
        .dtype("QUERY", p.q.dtype())
        .dtype("KEY", p.k.dtype())
        .dtype("VALUE", p.v.dtype())
        .dtype("GATE", dtype(&p.g))
        .dtype("BETA", dtype(&p.beta))
        .dtype("A_LOG", dtype(&p.a_log))
        .dtype("BIAS", dtype(&p.dt_bias))
        .dtype("Y", places.y.dtype())
        .dtype("INDEX", places.indices.map_or(DType::I32, |v| v.dtype()))
        .flag("HAS_GATE", p.g.is_some())
        .flag("BY_CHANNEL", p.gates.by_channel)
        .flag("RAW", p.gates.raw)
        .flag("BOUNDED", p.gates.lower_bound.is_some())
        .flag("BETA_SIGMOID", p.gates.beta_sigmoid)
        .flag("UNIT", p.gates.qk_l2norm)
        .flag("HAS_BETA", p.beta.is_some())
        .flag("HAS_BIAS", p.dt_bias.is_some())
        .flag("HAS_INDICES", places.indices.is_some())
        .flag("QUERY_TOGETHER", together(&p.q))
        .flag("KEY_TOGETHER", together(&p.k))
        .flag("GATE_TOGETHER", p.g.as_ref().is_some_and(together))
        .int("KEYS", p.keys)
        .flag("BY_COLUMN", plan.by_column)
        .int("VECTOR", plan.vector)
        .int("LANES_N", plan.lanes)
        .int("GROUPS", plan.groups)
        .int("THREADS", plan.threads)
}

fn params(p: &Problem<'_>, places: &Places<'_>, plan: &Plan) -> Params {
    Params {
        state: Strided::of(&places.state),
        before: Strided::of_option(&places.before),
        q: Strided::of(&p.q),
        k: Strided::of(&p.k),
        v: Strided::of(&p.v),
        g: Strided::of_option(&p.g),
        beta: Strided::of_option(&p.beta),
        a_log: Strided::of_option(&p.a_log),
        bias: Strided::of_option(&p.dt_bias),
        y: Strided::of(&places.y),
        indices: Strided::of_option(&places.indices),
        slots: StepSlots::of(places.slots, p.rows.len(), places.state.shape()[0]).bounded(places.bounds, p.rows.len()),
        states: places.state.shape()[0] as i64,
        heads: (p.heads * p.group) as u32,
        group: p.group.max(1) as u32,
        columns: p.values as u32,
        blocks_per_state: plan.blocks_per_state as u32,
        scale: p.gates.scale as f32,
        lower_bound: p.gates.lower_bound.unwrap_or(0.0) as f32,
        beta_factor: p.gates.beta_factor as f32,
        free: 0,
    }
}
