//! A step of a selective scan on CUDA: a checked problem becomes a plan, a configuration and the parameters of one launch.

mod plan;
#[cfg(all(test, feature = "cuda"))]
mod tests;

use super::{OP, Operand, Problem};
use crate::cuda::{
    COMMON, Config, DISCRETIZATION, Kernel, Program, Queue, STEP_SIZE, STEP_SLOTS, StepTypes, Strided, neighbours, params,
};
use crate::error::Result;
use crate::ops::discretization::Discretization;
use crate::ops::on_cuda::{StepSlotTypes, StepSlots, single_only};
use crate::ops::slots::Slots;
use crate::tensor::{DType, View};
use plan::{Plan, Shape, THREADS};

/// Channels of all rows from which on each thread has several.
const ENOUGH: usize = 1 << 17;

static UPDATE: Program<Params> =
    Program::new(OP, &[COMMON, STEP_SIZE, DISCRETIZATION], include_str!("update.cu")).including(&[STEP_SLOTS]);

params! {
    /// Parameters of `selective_state_update`: tensors of (row, head, channel of the head, state), strides of 0 where there is no axis.
    struct Params {
        state: Strided,
        x: Strided,
        dt: Strided,
        a: Strided,
        b: Strided,
        c: Strided,
        skip: Strided,
        z: Strided,
        bias: Strided,
        dt_a: Strided,
        y: Strided,
        /// (row)
        indices: Strided,
        slots: StepSlots,
        states: i64,
        /// Channels of all heads, as many at a time as a thread has.
        channels: u32,
        /// Channels of a head.
        headdim: u32,
        heads_per_b: u32,
        heads_per_c: u32,
        blocks_per_row: u32,
        dt_low: f32,
        dt_high: f32,
    }
}

/// The states of rows, which only the device can read.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rows<'v> {
    pub indices: Option<View<'v>>,
    pub slots: Option<&'v Slots<'v>>,
}

pub(super) fn update(queue: &Queue<'_>, problem: &Problem<'_>, rows: &Rows<'_>) -> Result<()> {
    single_only(problem.double, "selective_state_update in f64")?;
    let shape = shape(problem, rows);
    let plan = queue.find(|| Plan::new(&shape))?;
    let kernel = kernel(problem, rows, &shape, &plan);
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configuration
    // describes their types. No two rows write a state (the caller's part, for indices that only the device can read).
    unsafe { kernel.launch(queue, &UPDATE) }.map_err(Into::into)
}

/// Whether a head's channels have one step.
fn is_step_tied(p: &Problem<'_>) -> bool {
    [Some(p.dt), p.dt_bias, p.dt_a].iter().flatten().all(|operand| operand.strides[2] == 0)
}

fn shape(p: &Problem<'_>, rows: &Rows<'_>) -> Shape {
    let [_, _, lane, state] = p.state.strides;
    // few states leave threads without work
    let by_state = p.dstate >= 4 && (state == 1 || lane != 1);
    let size = p.state.view.dtype().size();
    let costly = p.complex || matches!(p.discretization, Discretization::Zoh | Discretization::Bilinear);
    // a decay for each state takes the registers of two channels
    let most = if p.a.strides[3] == 0 { 4 } else { 2 };
    let together = [most, 2, 1].into_iter().find(|&count| p.headdim.is_multiple_of(count)).unwrap_or(1);
    // one token is quicker so where states are narrow, their decay is one, and rows fill a device all the same
    let quicker = size == 2 && together == 4 && p.rows.len() * p.heads * p.headdim >= ENOUGH;
    let many = rows.slots.is_some_and(|slots| slots.has_many(p.rows.len()));
    let together = if many || quicker { together } else { 1 };
    let batch = rows.slots.map_or(p.rows.len(), |slots| slots.read.len());
    Shape {
        batch,
        channels: p.heads * p.headdim,
        dstate: p.dstate,
        by_state,
        size,
        costly,
        together,
        tied: is_step_tied(p) && p.a.strides[2] == 0,
        many,
    }
}

fn kernel<'k>(
    p: &'k Problem<'_>,
    rows: &'k Rows<'k>,
    shape: &'k Shape,
    plan: &'k Plan,
) -> Kernel<Params, impl Fn() -> Config + 'k> {
    Kernel { config: move || config(p, rows, shape, plan), params: params(p, rows, shape, plan), launch: plan.launch }
}

/// Returns the constants that a kernel is compiled with.
fn config(p: &Problem<'_>, rows: &Rows<'_>, shape: &Shape, plan: &Plan) -> Config {
    // whether a thread's states of a tensor are one access
    let together = |o: &Operand<'_>| {
        plan.vector > 1
            && p.dstate.is_multiple_of(plan.vector)
            && neighbours(&o.view, o.view.rank() - 1, plan.vector) == plan.vector
    };
    let of = |operand: &Option<Operand<'_>>| operand.map_or(DType::F32, |o| o.view.dtype());
    let [bias, dt_a] = [p.dt_bias, p.dt_a].map(|operand| operand.map(|o| o.view));
    let step_size = StepTypes::of(&p.dt.view, &bias, &dt_a, p.step_size);
    Config::default()
        .with(&step_size)
        .with(&StepSlotTypes::of(rows.slots, p.rows.len()))
        .dtype("STATE", p.state.view.dtype())
        .dtype("X", p.x.view.dtype())
        .dtype("A", p.a.view.dtype())
        .dtype("B", p.b.0.view.dtype())
        .dtype("C", p.c.0.view.dtype())
        .dtype("SKIP", of(&p.d))
        .dtype("Z", of(&p.z))
        .dtype("Y", p.y.view.dtype())
        .dtype("INDEX", rows.indices.map_or(DType::I32, |v| v.dtype()))
        .set("METHOD", p.discretization.constant())
        .flag("COMPLEX", p.complex)
        .flag("UNIFORM", p.a.strides[3] == 0 || p.dstate == 1)
        .flag("HAS_SKIP", p.d.is_some())
        .flag("HAS_Z", p.z.is_some())
        .flag("HAS_INDICES", rows.indices.is_some())
        .flag("ONE_HEAD", p.heads == 1)
        .flag("EVEN", (shape.channels / plan.channels).is_multiple_of(THREADS / plan.lanes))
        .flag("X_TOGETHER", neighbours(&p.x.view, p.x.view.rank() - 1, plan.channels) == plan.channels)
        .flag("WALKS", plan.channels > 1 || rows.slots.is_some_and(|slots| slots.has_many(p.rows.len())))
        .flag("A_TIED", p.a.strides[2] == 0)
        .flag("STEP_TIED", is_step_tied(p))
        .flag("STATE_TOGETHER", together(&p.state))
        .flag("A_TOGETHER", together(&p.a))
        .flag("B_TOGETHER", together(&p.b.0))
        .flag("C_TOGETHER", together(&p.c.0))
        .int("DSTATE", p.dstate)
        .int("VECTOR", plan.vector)
        .int("LANES", plan.lanes)
        .int("CHANNELS", plan.channels)
        .int("RESIDENT", plan.resident)
        .int("THREADS", THREADS)
}

fn params(p: &Problem<'_>, rows: &Rows<'_>, shape: &Shape, plan: &Plan) -> Params {
    let strided = |o: &Operand<'_>| Strided::with(&o.view, o.strides);
    let optional = |o: &Option<Operand<'_>>| o.as_ref().map(strided).unwrap_or_default();
    Params {
        state: strided(&p.state),
        x: strided(&p.x),
        dt: strided(&p.dt),
        a: strided(&p.a),
        b: strided(&p.b.0),
        c: strided(&p.c.0),
        skip: optional(&p.d),
        z: optional(&p.z),
        bias: optional(&p.dt_bias),
        dt_a: optional(&p.dt_a),
        y: strided(&p.y),
        indices: Strided::of_option(&rows.indices),
        slots: StepSlots::of(rows.slots, p.rows.len(), p.state.view.shape()[0]),
        states: p.state.view.shape()[0] as i64,
        channels: (shape.channels / plan.channels) as u32,
        headdim: p.headdim as u32,
        heads_per_b: p.b.1.max(1) as u32,
        heads_per_c: p.c.1.max(1) as u32,
        blocks_per_row: plan.blocks_per_row as u32,
        dt_low: p.step_size.limit.0 as f32,
        dt_high: p.step_size.limit.1 as f32,
    }
}
