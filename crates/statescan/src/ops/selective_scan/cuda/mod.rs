//! The selective scan on CUDA: a checked problem becomes a plan, a configuration and the parameters of one launch.

mod plan;
#[cfg(all(test, feature = "cuda"))]
mod tests;

use super::{CHECKPOINT, OP, Problem, Projection, Targets};
use crate::cuda::{COMMON, Config, DISCRETIZATION, Program, Stream, Strided, TileCopy, Value};
use crate::error::{Error, Result};
use crate::ops::discretization::Discretization;
use crate::ops::sequences::Sequences;
use crate::tensor::{DType, RawViewMut, View};
use plan::{Cut, Geometry, Plan, Shape};

static FORWARD: Program =
    Program { kernel: "selective_scan_forward", prelude: &[COMMON, DISCRETIZATION], text: include_str!("forward.cu") };

/// Elements of the saved states: one for each [`CHECKPOINT`] steps of a row after the first ones, (batch, saved, dim, dstate, parts).
/// They lie on a grid of the row, not of its sequences, whose bounds only the device knows.
pub(super) fn checkpoints_len(problem: &Problem<'_>) -> usize {
    let saved = problem.seqlen.div_ceil(CHECKPOINT).saturating_sub(1);
    [saved, problem.dim, problem.dstate, problem.parts()].iter().fold(problem.batch, |n, &size| n.saturating_mul(size))
}

pub(super) fn forward(stream: &Stream, problem: &Problem<'_>, targets: &Targets) -> Result<()> {
    if problem.double {
        return Err(Error::Unavailable { what: "selective_scan in f64", why: "kernels for CUDA compute in f32" });
    }
    let call = Call::new(problem, targets);
    let (shape, numbers) = (call.shape(), stream.numbers());
    let cut = targets.workspace.as_ref().and_then(|_| Cut::new(&shape, numbers));
    let plan = Plan::new(&shape, cut, numbers, |geometry| call.shared(geometry))
        .ok_or(Error::Unavailable { what: OP, why: "so many states do not fit into a multiprocessor's shared memory" })?;
    if plan.launch.blocks == 0 {
        return Ok(());
    }
    let passes: &[_] = if cut.is_some() { &[Pass::Ends, Pass::Rest] } else { &[Pass::Whole] };
    let params = call.params(&plan);
    for &pass in passes {
        // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configuration
        // describes their types and layouts.
        unsafe { stream.launch(&FORWARD, &call.config(&plan, pass), plan.launch, &params)? };
    }
    Ok(())
}

/// Elements of the workspace that a forward pass wants: the states after segments and the sums of their steps.
pub(super) fn workspace_len(stream: &Stream, problem: &Problem<'_>) -> usize {
    let nothing = Targets { y: None, final_state: None, checkpoints: None, workspace: None };
    let call = Call::new(problem, &nothing);
    let cut = Cut::new(&call.shape(), stream.numbers());
    cut.map_or(0, |cut| cut.together() * problem.batch * problem.dim * (problem.dstate + 1))
}

/// What a launch does with rows, as `common.cuh` has it.
#[derive(Debug, Clone, Copy)]
enum Pass {
    Whole,
    Ends,
    Rest,
}

/// A forward pass as the kernel sees it.
struct Call<'p, 'a> {
    problem: &'p Problem<'a>,
    targets: &'p Targets,
    /// Bounds, or the sequence of each step, in the direction of the scan.
    sequences: Option<View<'a>>,
    /// Channels that share a group of B and one of C.
    unit: usize,
}

/// Parameters of `selective_scan_forward`, as `forward.cu` has them.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    x: Strided,
    dt: Strided,
    z: Strided,
    own_step: Strided,
    y: Strided,
    b: Strided,
    c: Strided,
    a: Strided,
    skip: Strided,
    bias: Strided,
    initial: Strided,
    last: Strided,
    sequences: Strided,
    checkpoints: u64,
    workspace: u64,
    seqlen: i64,
    dim: i64,
    sequence_count: i64,
    segment_steps: i64,
    last_segment: i64,
    segment_channels: i64,
    unit: i64,
    blocks_per_unit: i32,
    blocks_per_row: i32,
    blocks_per_segment: i32,
    channels_per_b: i64,
    channels_per_c: i64,
    dt_low: f32,
    dt_high: f32,
}

fn view_of<'v, 'a>(map: &'v Projection<View<'a>>) -> &'v View<'a> {
    match map {
        Projection::Varying(view) | Projection::Constant(view) => view,
    }
}

fn varies(map: &Projection<View<'_>>) -> bool {
    matches!(map, Projection::Varying(_))
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl<'p, 'a> Call<'p, 'a> {
    fn new(problem: &'p Problem<'a>, targets: &'p Targets) -> Self {
        let sequences = match problem.sequences {
            Sequences::Whole => None,
            Sequences::CuSeqlens(bounds) => Some(bounds),
            Sequences::SeqIdx(index) => Some(if problem.reverse { index.flip(1) } else { index }),
        };
        let mut call = Call { problem, targets, sequences, unit: 1 };
        call.unit = gcd(call.channels_per(&problem.b), call.channels_per(&problem.c)).max(1);
        call
    }

    fn channels_per(&self, map: &Projection<View<'_>>) -> usize {
        match map {
            Projection::Varying(view) => self.problem.dim / view.shape()[1],
            Projection::Constant(_) => self.problem.dim,
        }
    }

    /// Rows of blocks: packed sequences are scanned at the same time, numbered ones one after the other.
    fn rows(&self) -> usize {
        match self.problem.sequences {
            Sequences::CuSeqlens(bounds) => bounds.len() - 1,
            _ => self.problem.batch,
        }
    }

    fn shape(&self) -> Shape {
        let p = self.problem;
        let heavy = p.complex || !matches!(p.discretization, Discretization::Mamba | Discretization::Dirac);
        let cuttable = !heavy && matches!(p.sequences, Sequences::Whole);
        Shape { rows: self.rows(), dim: p.dim, unit: self.unit, seqlen: p.seqlen, dstate: p.dstate, heavy, cuttable }
    }

    fn gain_step(&self) -> bool {
        let p = self.problem;
        p.dt_a.is_some() && matches!(p.discretization, Discretization::Zoh | Discretization::Bilinear)
    }

    /// How a (batch, channel, step) tensor is copied in tiles.
    fn copy_of(&self, view: &View<'_>, geometry: Geometry) -> TileCopy {
        // blocks start at multiples of their channels within a unit
        let rows = if self.unit < self.problem.dim { gcd(geometry.channels, self.unit) } else { geometry.channels };
        TileCopy::of(view, 1, 2, rows, geometry.steps)
    }

    /// How a (batch, group, state, step) tensor is copied.
    fn copy_of_map(&self, map: &Projection<View<'_>>, geometry: Geometry) -> TileCopy {
        match map {
            Projection::Varying(view) => TileCopy::of(view, 2, 3, self.problem.dstate, geometry.steps),
            Projection::Constant(_) => TileCopy::Time,
        }
    }

    /// Bytes of shared memory: the sum of what `forward.cu` lays out.
    fn shared(&self, geometry: Geometry) -> usize {
        let p = self.problem;
        let Geometry { lanes, channels, steps } = geometry;
        let line = 4 * (steps + 4);
        let pairs = channels * 8 * (steps + 2) + 16;
        let gain = if self.gain_step() { channels * line } else { 0 };
        let partial = if self.targets.y.is_some() { channels * lanes * line } else { 0 };
        let maps =
            [&p.b, &p.c].map(|map| if varies(map) { 4 * steps * p.dstate.max(1).next_multiple_of(lanes) * p.parts() } else { 0 });
        let change = if matches!(p.sequences, Sequences::SeqIdx(_)) { 4 * steps } else { 0 };
        let timed = [Some(p.x), Some(p.dt), p.dt_a, p.z];
        let raw =
            timed.iter().flatten().map(|view| self.copy_of(view, geometry).bytes(view.dtype(), channels, steps)).sum::<usize>();
        let raw_maps = [&p.b, &p.c]
            .into_iter()
            .filter(|map| varies(map))
            .map(|map| self.copy_of_map(map, geometry).bytes(view_of(map).dtype(), p.dstate, steps));
        pairs + gain + partial + maps[0] + maps[1] + change + 2 * (raw + raw_maps.sum::<usize>())
    }

    fn config(&self, plan: &Plan, pass: Pass) -> Config {
        let (p, geometry) = (self.problem, plan.geometry);
        let field = if p.complex { DType::Complex64 } else { DType::F32 };
        let of = |view: &Option<View<'_>>| view.map_or(DType::F32, |v| v.dtype());
        let state = |dtype: Option<DType>| dtype.unwrap_or(field);
        let timed = |view: Option<View<'_>>| Value::Copy(view.map_or(TileCopy::Time, |v| self.copy_of(&v, geometry)));
        let target = |view: &Option<RawViewMut>| view.as_ref().map(|v| v.as_read());
        let y = target(&self.targets.y);
        let numbered = matches!(p.sequences, Sequences::SeqIdx(_)) && p.segments.states_have_sequences();
        let sequences = match p.sequences {
            Sequences::Whole => "Whole",
            Sequences::CuSeqlens(_) => "Bounds",
            Sequences::SeqIdx(_) => "Index",
        };
        let method = match p.discretization {
            Discretization::Mamba => "Mamba",
            Discretization::Zoh => "Zoh",
            Discretization::Bilinear => "Bilinear",
            Discretization::Dirac => "Dirac",
        };
        let pass = match pass {
            Pass::Whole => "Whole",
            Pass::Ends => "Ends",
            Pass::Rest => "Rest",
        };
        Config::default()
            .dtype("X", p.x.dtype())
            .dtype("DT", p.dt.dtype())
            .dtype("Z", of(&p.z))
            .dtype("OWN_STEP", of(&p.dt_a))
            .dtype("Y", of(&y))
            .dtype("B", view_of(&p.b).dtype())
            .dtype("C", view_of(&p.c).dtype())
            .dtype("A", p.a.dtype())
            .dtype("SKIP", of(&p.d))
            .dtype("BIAS", of(&p.dt_bias))
            .dtype("INITIAL", state(p.initial_state.map(|v| v.dtype())))
            .dtype("FINAL", state(self.targets.final_state.as_ref().map(|v| v.dtype())))
            .dtype("INDEX", self.sequences.map_or(DType::I32, |v| v.dtype()))
            .set("X_COPY", timed(Some(p.x)))
            .set("DT_COPY", timed(Some(p.dt)))
            .set("Z_COPY", timed(p.z))
            .set("OWN_STEP_COPY", timed(p.dt_a))
            .set("B_COPY", Value::Copy(self.copy_of_map(&p.b, geometry)))
            .set("C_COPY", Value::Copy(self.copy_of_map(&p.c, geometry)))
            .flag("Y_BY_TIME", y.is_none_or(|v| self.copy_of(&v, geometry).by_time()))
            .flag("Y_VECTOR", y.is_some_and(|v| TileCopy::has_quads(&v, 2)))
            .flag("COMPLEX", p.complex)
            .set("METHOD", Value::Name("Discretization", method))
            .set("PASS", Value::Name("Pass", pass))
            .set("SEQUENCES", Value::Name("Sequences", sequences))
            .flag("NUMBERED", numbered)
            .flag("REVERSE", p.reverse)
            .flag("SOFTPLUS", p.dt_softplus)
            .flag("HAS_Z", p.z.is_some())
            .flag("HAS_OWN_STEP", p.dt_a.is_some())
            .flag("HAS_Y", y.is_some())
            .flag("HAS_SKIP", p.d.is_some())
            .flag("HAS_BIAS", p.dt_bias.is_some())
            .flag("HAS_LIMIT", p.dt_limit != (f64::NEG_INFINITY, f64::INFINITY))
            .flag("HAS_INITIAL", p.initial_state.is_some())
            .flag("HAS_FINAL", self.targets.final_state.is_some())
            .flag("HAS_CHECKPOINTS", self.targets.checkpoints.is_some())
            .flag("B_VARIES", varies(&p.b))
            .flag("C_VARIES", varies(&p.c))
            .int("CHECKPOINT", CHECKPOINT)
            .int("DSTATE", p.dstate)
            .int("LANES", geometry.lanes)
            .int("CHANNELS", geometry.channels)
            .int("STEPS", geometry.steps)
            .int("RESIDENT", plan.resident)
            .int("UNROLL", plan.unroll)
            .int("SHARED", plan.launch.shared as usize)
    }

    fn params(&self, plan: &Plan) -> Params {
        let p = self.problem;
        let states = [p.initial_state, self.targets.final_state.as_ref().map(|v| v.as_read())];
        Params {
            x: Strided::of(&p.x),
            dt: Strided::of(&p.dt),
            z: Strided::of_option(&p.z),
            own_step: Strided::of_option(&p.dt_a),
            y: Strided::of_target(&self.targets.y),
            b: Strided::of(view_of(&p.b)),
            c: Strided::of(view_of(&p.c)),
            a: Strided::of(&p.a),
            skip: Strided::of_option(&p.d),
            bias: Strided::of_option(&p.dt_bias),
            initial: Strided::of_option(&p.initial_state),
            last: Strided::of_target(&self.targets.final_state),
            sequences: Strided::of_option(&self.sequences),
            checkpoints: self.targets.checkpoints.as_ref().map_or(0, |v| v.as_mut_ptr() as u64),
            workspace: self.targets.workspace.as_ref().map_or(0, |v| v.as_mut_ptr() as u64),
            seqlen: p.seqlen as i64,
            dim: p.dim as i64,
            sequence_count: states.iter().flatten().map(|v| v.shape()[1]).max().unwrap_or(1) as i64,
            segment_steps: plan.cut.map_or(0, |cut| cut.steps as i64),
            last_segment: plan.cut.map_or(0, |cut| cut.together() as i64),
            segment_channels: (self.rows() * p.dim) as i64,
            unit: self.unit as i64,
            blocks_per_unit: plan.blocks_per_unit as i32,
            blocks_per_row: plan.blocks_per_row as i32,
            blocks_per_segment: (self.rows() * plan.blocks_per_row) as i32,
            channels_per_b: self.channels_per(&p.b) as i64,
            channels_per_c: self.channels_per(&p.c) as i64,
            dt_low: p.dt_limit.0 as f32,
            dt_high: p.dt_limit.1 as f32,
        }
    }
}
