//! Backward: the scan, in two launches where time is cut into segments, then the sums over blocks and rows.

use super::backward_plan::{Geometry, Plan, Room};
use super::plan::{Cut, own_shared};
use super::{Call, Inputs, RAW_TILE, TILES, Tile, checkpoints_len, forward, has_quads, varies, view_of};
use crate::cuda::{
    Address, COMMON, Config, DISCRETIZATION, Launch, Numbers, Program, Queue, SLOTS, STEP_SIZE, SharedMemory, Stream, Strided,
    Sum, TileCopy, header, params, sum_terms,
};
use crate::error::{Error, Result};
use crate::ops::CHECKPOINT;
use crate::ops::checked::needed;
use crate::ops::discretization::Discretization;
use crate::ops::on_cuda::{Pass, read, single_only, type_of};
use crate::ops::selective_scan::{GradientTargets, OP, Problem, Projection, Sources, Targets};
use crate::ops::sequences::Sequences;
use crate::tensor::{DType, Device, RawViewMut, View, ViewMut};

pub(super) static BACKWARD: Program<Params> =
    Program::new("selective_scan_backward", &[COMMON, STEP_SIZE, DISCRETIZATION], include_str!("backward.cu")).including(&[
        SLOTS,
        RAW_TILE,
        TILES,
        header!("backward_tiles.cuh"),
        header!("backward_sums.cuh"),
        header!("backward_finish.cuh"),
        header!("backward_states.cuh"),
        header!("backward_sweeps.cuh"),
        header!("backward_ends.cuh"),
    ]);

const TOO_LARGE: Error = Error::Unavailable { what: OP, why: "so many states do not fit into a multiprocessor's shared memory" };

pub(crate) fn backward(queue: &Queue<'_>, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) -> Result<()> {
    Backward { call: Call::new(problem), sources, targets, two_phase: false }.run(queue, None)
}

/// Elements of the workspace, with room for saved states if they are not given, and for a cotangent of `y` of any type.
pub(crate) fn workspace_len(stream: &Stream, problem: &Problem<'_>, has_saved: bool) -> Result<usize> {
    let (sources, targets) = (Sources::default(), GradientTargets::default());
    let call = Backward { call: Call::new(problem), sources: &sources, targets: &targets, two_phase: false };
    let len = |cotangent| Some(Layout::new(&call.call, &call.plan_for(stream.numbers(), cotangent)?, !has_saved).len);
    // a type without a plan is refused when it is met
    [problem.x.dtype(), DType::F32, DType::F64].into_iter().filter_map(len).max().ok_or(TOO_LARGE)
}

impl Plan {
    fn lines(&self, call: &Call<'_, '_>) -> usize {
        call.rows() * self.cut.map_or(1, |cut| cut.segments)
    }
}

/// Addresses of what a pass reads that another one has left, and how its workspace is laid out.
pub(super) struct Places<'l> {
    pub checkpoints: u64,
    pub ends: u64,
    pub layout: &'l Layout,
}

/// The starts of a workspace's parts, in elements.
pub(super) struct Layout {
    ends: usize,
    b: usize,
    c: usize,
    a: usize,
    skip: usize,
    bias: usize,
    checkpoints: usize,
    len: usize,
}

impl Layout {
    pub fn new(call: &Call<'_, '_>, plan: &Plan, saves: bool) -> Self {
        let p = call.problem;
        let mut len = 0usize;
        let mut part = |size: usize| {
            let start = len;
            // whole units of 16 bytes
            len = len.saturating_add(size.next_multiple_of(4));
            start
        };
        let lines = plan.lines(call);
        let parameters = lines * p.dim * p.dstate * p.parts();
        let map = |map: &Projection<View<'_>>| match map {
            Projection::Varying(_) => p.batch * plan.blocks_per_row * p.dstate * p.parts() * p.seqlen,
            Projection::Constant(_) => parameters,
        };
        // the ends of a pass in two phases are not in the workspace
        let ends = part(plan.cut.filter(|cut| !cut.two_phase).map_or(0, |cut| call.ends_len(&cut)));
        let (b, c, a) = (part(map(&p.b)), part(map(&p.c)), part(parameters));
        let (skip, bias) = (part(lines * p.dim), part(lines * p.dim));
        let checkpoints = part(if saves { checkpoints_len(p) } else { 0 });
        Layout { ends, b, c, a, skip, bias, checkpoints, len }
    }
}

/// A backward pass as the kernel sees it.
pub(super) struct Backward<'p, 'a> {
    pub call: Call<'p, 'a>,
    pub sources: &'p Sources<'a>,
    pub targets: &'p GradientTargets,
    /// Whether the pass is in two phases.
    pub two_phase: bool,
}

params! {
    /// Parameters of `selective_scan_backward`.
    pub(super) struct Params(inputs: Inputs) {
        /// (batch, channel, step)
        dy: Strided,
        dx: Strided,
        ddt: Strided,
        dz: Strided,
        ddt_a: Strided,
        /// (row, sequence, channel, state)
        dfinal: Strided,
        dinitial: Strided,
        /// Dense (batch, saved, channel, state, part).
        checkpoints: Address<f32>,
        /// Dense (segment, row, channel, state), the first segment left out; then sums of decay steps.
        ends: Address<f32>,
        /// Dense (batch, block, part, state, step), or (line, part, channel, state) of a constant map.
        db: Address<f32>,
        dc: Address<f32>,
        /// Dense (line, part, channel, state), a line for each row of each segment.
        da: Address<f32>,
        /// Dense (line, channel).
        dskip: Address<f32>,
        dbias: Address<f32>,
    }
}

fn tile(geometry: Geometry) -> Tile {
    Tile { threads: geometry.threads(), channels: geometry.channels, steps: geometry.steps }
}

impl Backward<'_, '_> {
    /// Puts the pass into the stream; of one in two phases the second one, which reads what the first one has kept.
    pub fn run(&self, queue: &Queue<'_>, ends: Option<&View<'_>>) -> Result<()> {
        let (problem, sources) = (self.call.problem, self.sources);
        let workspace = needed(OP, &self.targets.workspace)?;
        single_only(problem.double, "selective_scan in f64")?;
        let plan = self.find_plan(queue)?;
        let layout = Layout::new(&self.call, &plan, sources.checkpoints.is_none());
        let at = |offset: usize| workspace.as_mut_ptr().wrapping_add(4 * offset);
        let checkpoints = match sources.checkpoints {
            Some(view) => view.as_ptr() as u64,
            None => {
                let len = checkpoints_len(problem);
                // SAFETY: the workspace has room for them at this place, and nothing else is there.
                let view = unsafe {
                    ViewMut::from_raw_parts(at(layout.checkpoints), DType::F32, Device::Cuda(queue.ordinal()), &[len], &[1])
                };
                let checkpoints = Some(view?.raw());
                forward(queue, problem, &Targets { y: None, final_state: None, checkpoints, workspace: None })?;
                at(layout.checkpoints) as u64
            }
        };
        let ends_at = ends.map_or(at(layout.ends) as u64, |ends| ends.as_ptr() as u64);
        let params = self.params(&plan, Places { checkpoints, ends: ends_at, layout: &layout }, |offset| at(offset) as u64);
        let aligned = (workspace.as_mut_ptr() as usize).is_multiple_of(16);
        let passes = if self.two_phase { &[Pass::Rest] } else { Pass::all(plan.cut.is_some()) };
        self.launch_passes(queue, &plan, passes, aligned, &params)?;
        let sums = self.sums(&plan, |offset| at(offset) as u64, &layout);
        // SAFETY: as in `launch_passes`; the scan has written every term.
        unsafe { sum_terms(queue, &sums) }.map_err(Into::into)
    }

    pub fn find_plan(&self, queue: &Queue<'_>) -> Result<Plan> {
        queue.find(|| self.plan_for(queue.numbers(), self.cotangent()).ok_or(TOO_LARGE))
    }

    pub fn launch_passes(&self, queue: &Queue<'_>, plan: &Plan, passes: &[Pass], aligned: bool, params: &Params) -> Result<()> {
        for &pass in passes.iter().filter(|_| plan.blocks > 0) {
            // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the
            // configuration describes their types and layouts, and the workspace has its size.
            unsafe { queue.launch(&BACKWARD, || self.config(plan, pass, aligned), self.launch(plan, pass), params)? };
        }
        Ok(())
    }

    /// The plan of the problem with every gradient, and a cotangent of `y` of a type: the size of a workspace does not depend on which are
    /// asked for.
    pub fn plan_for(&self, numbers: Numbers, cotangent: DType) -> Option<Plan> {
        let plan = Plan::new(&self.call.shape(), self.room(), numbers, |geometry| self.most_shared(geometry, cotangent))?;
        let cut = plan.cut.map(|cut| Cut { two_phase: self.two_phase, ..cut });
        Some(Plan { cut, ..plan })
    }

    /// The type that a plan makes room for: that of x, or of a cotangent of `y` that is wider.
    pub fn cotangent(&self) -> DType {
        let x = self.call.problem.x.dtype();
        self.sources.y.map(|y| y.dtype()).filter(|y| y.size() > x.size()).unwrap_or(x)
    }

    /// Complex states and gains take registers, and so do marks of sequences. With states by sequence, the code for a change of
    /// sequence is repeated for every state of a thread, and compiled as often.
    fn room(&self) -> Room {
        let p = self.call.problem;
        let states = match (p.complex, self.has_gain()) {
            (false, false) => 4,
            (true, true) => 1,
            _ => 2,
        };
        let marked = matches!(p.sequences, Sequences::SeqIdx(_));
        let span = if marked || states < 4 { 4 } else { 8 };
        Room { states, channels: if states < 4 || self.call.numbered() { 1 } else { 2 }, span }
    }

    fn launch(&self, plan: &Plan, pass: Pass) -> Launch {
        let segments = match pass {
            Pass::Whole => 1,
            Pass::Ends => plan.cut.map_or(1, |cut| cut.together()),
            Pass::Rest => plan.cut.map_or(1, |cut| cut.segments),
        };
        let shared = self.memory(plan.geometry, pass).len() as u32;
        Launch::line((plan.blocks * segments) as u32, plan.geometry.threads() as u32, shared)
    }

    fn has_gain(&self) -> bool {
        matches!(self.call.problem.options.discretization, Discretization::Zoh | Discretization::Bilinear)
    }

    /// Bytes of shared memory with every gradient and a cotangent of `y`.
    fn most_shared(&self, geometry: Geometry, cotangent: DType) -> usize {
        let p = self.call.problem;
        let Geometry { channels, steps, stages, .. } = geometry;
        let maps = [&p.b, &p.c].into_iter().filter(|map| varies(map)).count();
        let dy = [TileCopy::TimeShifted, TileCopy::RowShifted].map(|copy| copy.dense_bytes(cotangent, channels, steps));
        let dy = dy[0].max(dy[1]);
        self.computed_bytes(geometry, p.z.is_some(), maps) + stages * (self.call.stage_bytes(tile(geometry), true) + dy)
    }

    /// Shared memory as `backward_tiles.cuh` lays it out, which compares the whole.
    fn memory(&self, geometry: Geometry, pass: Pass) -> SharedMemory {
        let (p, t, tile) = (self.call.problem, self.targets, tile(geometry));
        let timed = |view: &View<'_>| self.call.copy_of(view, tile).dense_bytes(view.dtype(), tile.channels, tile.steps);
        let dy = self.sources.y.as_ref().map_or(0, timed);
        let stage = self.call.stage_bytes(tile, true) + dy;
        let (computed, stage) = if pass == Pass::Ends {
            // neither x nor B
            let c = if varies(&p.c) { self.call.map_bytes(tile.steps, geometry.lanes) } else { 0 };
            let b = self.call.map_stage_bytes(&p.b, tile);
            (self.plane_bytes(geometry, t.z.is_some()) + c, stage - timed(&p.x) - b)
        } else {
            let maps = [t.b.is_some() && varies(&p.b), t.c.is_some() && varies(&p.c)];
            let summed = maps.into_iter().filter(|&summed| summed).count();
            (self.computed_bytes(geometry, t.z.is_some(), summed), stage)
        };
        SharedMemory::default()
            .array("PLANES_AT", computed)
            .array("STAGES_AT", geometry.stages * stage)
            .beside(own_shared(geometry.channels))
    }

    /// Bytes of what lies there for each channel and step.
    fn plane_bytes(&self, geometry: Geometry, dz: bool) -> usize {
        let sums = self.sums_of_channel(dz);
        let planes = if self.call.problem.dt_a.is_some() || sums > 2 { (1 + sums).max(4) } else { 3 };
        planes * 4 * geometry.channels * (geometry.steps + 4)
    }

    /// How many sums over states there are for each channel and step.
    fn sums_of_channel(&self, dz: bool) -> usize {
        2 + usize::from(self.has_gain()) + usize::from(dz)
    }

    /// Bytes of what is computed; `summed` of B and C have a gradient that is summed over channels.
    fn computed_bytes(&self, geometry: Geometry, dz: bool, summed: usize) -> usize {
        let p = self.call.problem;
        let Geometry { lanes, width, steps, span, .. } = geometry;
        let (threads, warps) = (geometry.threads(), geometry.threads() / 32);
        let states = p.dstate.max(1).div_ceil(lanes) * p.parts();
        let varying = [&p.b, &p.c].into_iter().filter(|map| varies(map)).count();
        self.plane_bytes(geometry, dz)
            + CHECKPOINT / span * width * states * threads * 4
            + varying * self.call.map_bytes(steps, lanes)
            + warps * summed * self.call.map_bytes(steps + 4, lanes)
            + self.call.change_bytes(steps)
    }

    /// `aligned`: whether the workspace is, to 16 bytes.
    pub fn config(&self, plan: &Plan, pass: Pass, aligned: bool) -> Config {
        let (p, t, geometry) = (self.call.problem, self.targets, plan.geometry);
        let tile = tile(geometry);
        let field = if p.complex { DType::Complex64 } else { DType::F32 };
        let outputs = || [&t.x, &t.dt, &t.z, &t.dt_a].into_iter().flatten();
        let first = outputs().next();
        let dy = self.sources.y;
        self.call
            .config(tile, geometry.lanes, pass)
            .dtype("DY", dy.map_or(DType::F32, |v| v.dtype()))
            .set("DY_COPY", dy.map_or(TileCopy::Time, |v| self.call.copy_of(&v, tile)).value())
            .dtype("DX", type_of(&t.x))
            .dtype("DDT", type_of(&t.dt))
            .dtype("DZ", type_of(&t.z))
            .dtype("DDT_A", type_of(&t.dt_a))
            .dtype("DFINAL", self.sources.final_state.map_or(field, |v| v.dtype()))
            .dtype("DINITIAL", read(&t.initial_state).map_or(field, |v| v.dtype()))
            .flag("OUT_BY_TIME", first.is_none_or(|v| self.call.copy_of(&v.as_read(), tile).by_time()))
            .flag("OUT_NEAR", outputs().all(|v| v.as_read().strides()[2] == 1))
            .flag("DX_VECTOR", has_quads(&t.x))
            .flag("DDT_VECTOR", has_quads(&t.dt))
            .flag("DZ_VECTOR", has_quads(&t.z))
            .flag("DDT_A_VECTOR", has_quads(&t.dt_a))
            .flag("HAS_DY", dy.is_some())
            .flag("HAS_DFINAL", self.sources.final_state.is_some())
            .flag("HAS_DX", t.x.is_some())
            .flag("HAS_DDT", t.dt.is_some())
            .flag("HAS_DA", t.a.is_some())
            .flag("HAS_DB", t.b.is_some())
            .flag("HAS_DC", t.c.is_some())
            .flag("HAS_DSKIP", t.d.is_some())
            .flag("HAS_DZ", t.z.is_some())
            .flag("HAS_DBIAS", t.dt_bias.is_some())
            .flag("HAS_DDT_A", t.dt_a.is_some())
            .flag("HAS_DINITIAL", t.initial_state.is_some())
            .flag("B_COMPLEX", view_of(&p.b).dtype().is_complex())
            .flag("C_COMPLEX", view_of(&p.c).dtype().is_complex())
            .flag("TERMS_VECTOR", aligned && p.seqlen.is_multiple_of(4))
            .int("WIDTH", geometry.width)
            .int("SPAN", geometry.span)
            .int("STAGES", geometry.stages)
            .flag("DENSE", true)
            .flag("TWO_PHASE", self.two_phase)
            .int("RESIDENT", if pass == Pass::Ends { plan.resident_ends } else { plan.resident })
            .int("SHARED", self.memory(geometry, pass).len())
            .int("STATIC", self.memory(geometry, pass).beside_len())
    }

    pub fn params(&self, plan: &Plan, places: Places<'_>, at: impl Fn(usize) -> u64) -> Params {
        let (s, t) = (self.sources, self.targets);
        let states = [s.final_state, t.initial_state.as_ref().map(|v| v.as_read())];
        let (layout, at) = (places.layout, |offset| Address::new(at(offset)));
        Params {
            inputs: self.call.inputs(plan.blocks_per_unit, plan.blocks_per_row, plan.cut, &states),
            dy: Strided::of_option(&s.y),
            dx: Strided::of_option(&t.x),
            ddt: Strided::of_option(&t.dt),
            dz: Strided::of_option(&t.z),
            ddt_a: Strided::of_option(&t.dt_a),
            dfinal: Strided::of_option(&s.final_state),
            dinitial: Strided::of_option(&t.initial_state),
            checkpoints: Address::new(places.checkpoints),
            ends: Address::new(places.ends),
            db: at(layout.b),
            dc: at(layout.c),
            da: at(layout.a),
            dskip: at(layout.skip),
            dbias: at(layout.bias),
        }
    }

    fn sums(&self, plan: &Plan, at: impl Fn(usize) -> u64, layout: &Layout) -> Vec<Sum<RawViewMut>> {
        let t = self.targets;
        let lines = plan.lines(&self.call);
        let map = |target: &Option<Projection<RawViewMut>>, offset| {
            target.as_ref().map(|map| match *map {
                Projection::Varying(to) => {
                    Sum { to, terms: at(offset), count: plan.blocks_per_row / to.as_read().shape()[1].max(1) }
                }
                Projection::Constant(to) => Sum { to, terms: at(offset), count: lines },
            })
        };
        let parameter =
            |target: &Option<RawViewMut>, offset| target.as_ref().map(|&to| Sum { to, terms: at(offset), count: lines });
        let sums = [
            map(&t.b, layout.b),
            map(&t.c, layout.c),
            parameter(&t.a, layout.a),
            parameter(&t.d, layout.skip),
            parameter(&t.dt_bias, layout.bias),
        ];
        sums.into_iter().flatten().collect()
    }
}
