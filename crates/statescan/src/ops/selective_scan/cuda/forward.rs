//! Forward: one launch, or two where time is cut into segments.

use super::plan::{Cut, Geometry, Plan, own_shared};
use super::{Call, Inputs, RAW_TILE, TILES, Tile, has_quads, varies};
use crate::cuda::{
    Address, COMMON, Config, DISCRETIZATION, Program, Queue, SLOTS, STEP_SIZE, SharedMemory, Stream, Strided, header, params,
};
use crate::error::{Error, Result};
use crate::ops::discretization::Discretization;
use crate::ops::on_cuda::{Pass, read, single_only, type_of};
use crate::ops::selective_scan::{OP, Problem, Targets};
use crate::tensor::{DType, RawViewMut};

pub(super) static FORWARD: Program<Params> =
    Program::new("selective_scan_forward", &[COMMON, STEP_SIZE, DISCRETIZATION], include_str!("forward.cu")).including(&[
        SLOTS,
        RAW_TILE,
        TILES,
        header!("forward_tiles.cuh"),
        header!("forward_help.cuh"),
        header!("forward_scan.cuh"),
    ]);

pub(crate) fn forward(queue: &Queue<'_>, problem: &Problem<'_>, targets: &Targets) -> Result<()> {
    Forward::new(problem, targets).launch(queue, |plan| Pass::all(plan.cut.is_some())).map(drop)
}

/// Elements of the workspace that a forward pass wants: the states after segments and the sums of their steps.
pub(crate) fn workspace_len(stream: &Stream, problem: &Problem<'_>) -> Result<usize> {
    let call = Call::new(problem);
    Ok(Cut::new(&call.shape(), stream.numbers()).map_or(0, |cut| call.ends_len(&cut)))
}

/// A forward pass as the kernel sees it.
pub(super) struct Forward<'p, 'a> {
    pub call: Call<'p, 'a>,
    pub targets: &'p Targets,
    /// The address of what the first phase keeps for the second one, of a pass in two phases.
    pub ends: Option<u64>,
}

params! {
    /// Parameters of `selective_scan_forward`.
    pub(super) struct Params(inputs: Inputs) {
        /// (batch, channel, step)
        y: Strided,
        /// The states after sequences, (row, sequence, channel, state).
        last: Strided,
        /// Dense (batch, saved, channel, state, part).
        checkpoints: Address<f32>,
        /// Dense (segment, row, channel, state): states; then (segment, row, channel): sums of decay steps.
        workspace: Address<f32>,
    }
}

fn tile(geometry: Geometry) -> Tile {
    let Geometry { channels, steps, helpers, .. } = geometry;
    Tile { threads: helpers, channels, steps }
}

impl<'p, 'a> Forward<'p, 'a> {
    pub fn new(problem: &'p Problem<'a>, targets: &'p Targets) -> Self {
        Forward { call: Call::new(problem), targets, ends: None }
    }

    /// Puts launches of a plan into the stream.
    pub fn launch(&self, queue: &Queue<'_>, passes: impl Fn(&Plan) -> &'static [Pass]) -> Result<Plan> {
        single_only(self.call.problem.double, "selective_scan in f64")?;
        let plan = queue.find(|| self.plan(queue))?;
        if plan.launch.blocks() > 0 {
            let params = self.params(&plan);
            for &pass in passes(&plan) {
                // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the
                // configuration describes their types and layouts, and its device is theirs.
                unsafe { queue.launch(&FORWARD, || self.config(&plan, pass), plan.launch, &params)? };
            }
        }
        Ok(plan)
    }

    fn plan(&self, stream: &Stream) -> Result<Plan> {
        let (shape, numbers) = (self.call.shape(), stream.numbers());
        let cut = match (self.ends, &self.targets.workspace) {
            (Some(_), _) => Cut::new(&shape, numbers).map(|cut| cut.in_two_phases(shape.seqlen)),
            (None, Some(_)) => Cut::new(&shape, numbers),
            (None, None) => None,
        };
        Plan::new(&shape, cut, numbers, |geometry| self.memory(geometry))
            .ok_or(Error::Unavailable { what: OP, why: "so many states do not fit into a multiprocessor's shared memory" })
    }

    fn gain_step(&self) -> bool {
        let p = self.call.problem;
        p.dt_a.is_some() && matches!(p.options.discretization, Discretization::Zoh | Discretization::Bilinear)
    }

    /// Whether threads that finish outputs take neighbouring steps.
    fn by_time(&self, geometry: Geometry) -> bool {
        self.targets.y.as_ref().is_none_or(|y| self.call.copy_of(&y.as_read(), tile(geometry)).by_time())
    }

    /// Shared memory as `forward_tiles.cuh` lays it out, which compares the whole.
    pub fn memory(&self, geometry: Geometry) -> SharedMemory {
        let (p, call, tile) = (self.call.problem, &self.call, tile(geometry));
        let Geometry { lanes, channels, steps, stages, .. } = geometry;
        let line = 4 * (steps + 4);
        let pairs = channels * 8 * (steps + 2) + 16;
        let gain = if self.gain_step() { channels * line } else { 0 };
        let maps = [&p.b, &p.c].into_iter().filter(|map| varies(map)).count() * call.map_bytes(steps, lanes);
        let padding = if lanes >= 8 { 64 } else { 0 } + if self.by_time(geometry) || lanes == 1 { 0 } else { 16 };
        let partial = if self.targets.y.is_some() { channels * (lanes * line + padding) } else { 0 };
        SharedMemory::default()
            .array("READY_AT", 2 * (pairs + gain + maps + call.change_bytes(steps)))
            .array("PARTIALS_AT", 2 * partial)
            .array("STAGES_AT", stages * call.stage_bytes(tile, false))
            .beside(own_shared(channels))
    }

    pub fn config(&self, plan: &Plan, pass: Pass) -> Config {
        let (geometry, y) = (plan.geometry, &self.targets.y);
        let field = if self.call.problem.complex { DType::Complex64 } else { DType::F32 };
        self.call
            .config(tile(geometry), geometry.lanes, pass)
            .dtype("Y", type_of(y))
            .dtype("FINAL", read(&self.targets.final_state).map_or(field, |v| v.dtype()))
            .flag("Y_BY_TIME", self.by_time(geometry))
            .flag("Y_VECTOR", has_quads(y))
            .flag("HAS_Y", y.is_some())
            .flag("HAS_FINAL", self.targets.final_state.is_some())
            .flag("HAS_CHECKPOINTS", self.targets.checkpoints.is_some())
            .flag("TWO_PHASE", self.ends.is_some())
            .flag("DENSE", false)
            .int("STAGES", geometry.stages)
            .int("RESIDENT", plan.resident)
            .int("UNROLL", plan.unroll)
            .int("SHARED", self.memory(geometry).len())
            .int("STATIC", self.memory(geometry).beside_len())
    }

    fn params(&self, plan: &Plan) -> Params {
        let address = |v: &Option<RawViewMut>| v.as_ref().map_or(Address::NULL, |v| Address::new(v.as_mut_ptr() as u64));
        let states = [self.targets.final_state.as_ref().map(|v| v.as_read())];
        Params {
            inputs: self.call.inputs(plan.blocks_per_unit, plan.blocks_per_row, plan.cut, &states),
            y: Strided::of_option(&self.targets.y),
            last: Strided::of_option(&self.targets.final_state),
            checkpoints: address(&self.targets.checkpoints),
            workspace: self.ends.map_or_else(|| address(&self.targets.workspace), Address::new),
        }
    }
}
