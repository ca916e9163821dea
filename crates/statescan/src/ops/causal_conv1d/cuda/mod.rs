//! The convolution on CUDA: a checked problem becomes a plan, a configuration and the parameters of launches.

mod params;
mod plan;
#[cfg(all(test, feature = "cuda"))]
mod tests;

use super::{GradientTargets, OP, Problem, Sources, Targets};
use crate::cuda::{
    Address, COMMON, Config, Header, Kernel, Launch, Numbers, Program, Queue, RUNS, SLOTS, STEP_SIZE, Stream, Strided, are_runs,
    header, neighbours,
};
use crate::error::Result;
use crate::ops::on_cuda::{SlotTypes, Slots, dtype, read, single_only};
use crate::ops::sequences::Sequences;
use crate::tensor::{DType, RawViewMut, View};
use params::{BackwardParams, Conv, ForwardParams, StatesParams, SumsParams};
use plan::{Geometry, Plan, Shape, THREADS};

const WINDOW: Header = header!("window.cuh");
static FORWARD: Program<ForwardParams> =
    Program::new("causal_conv1d_forward", &[COMMON, STEP_SIZE], include_str!("forward.cu")).including(&[RUNS, SLOTS, WINDOW]);
static BACKWARD: Program<BackwardParams> =
    Program::new("causal_conv1d_backward", &[COMMON, STEP_SIZE], include_str!("backward.cu")).including(&[SLOTS, WINDOW]);
static STATES: Program<StatesParams> =
    Program::new("causal_conv1d_states", &[COMMON, STEP_SIZE], include_str!("states.cu")).including(&[SLOTS, WINDOW]);
static SUMS: Program<SumsParams> = Program::new("causal_conv1d_sums", &[COMMON], include_str!("sums.cu"));

pub(super) fn forward(queue: &Queue<'_>, problem: &Problem<'_>, targets: &Targets) -> Result<()> {
    let call = Call::new(problem)?;
    // whoever has the end of a row has its state; those of several sequences are found by a launch of their own, and so are those of a pool, whose slots
    // are read before
    let along = targets.y.is_some() && call.sequences.is_none() && problem.seqlen > 0 && problem.pool.is_none();
    let (with, apart) = if along { (&targets.final_states, &None) } else { (&None, &targets.final_states) };
    if let Some(y) = &targets.y {
        let plan = queue.find(|| call.forward_plan(queue.numbers()))?;
        let kernel = call.forward(&plan, y, with);
        // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configuration
        // describes their types and layouts, and the parameters are those of the program.
        unsafe { kernel.launch(queue, &FORWARD)? };
    }
    if let Some(last) = apart {
        let kernel = call.final_states(last)?;
        // SAFETY: as above.
        unsafe { kernel.launch(queue, &STATES)? };
    }
    Ok(())
}

pub(super) fn backward(queue: &Queue<'_>, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) -> Result<()> {
    let call = Call::new(problem)?;
    if targets.x.is_some() || targets.weight.is_some() || targets.bias.is_some() {
        let plan = queue.find(|| call.backward_plan(queue.numbers(), targets))?;
        let kernel = call.backward(&plan, sources, targets);
        // SAFETY: as in `forward`; a workspace has the elements that the plan with it needs.
        unsafe { kernel.launch(queue, &BACKWARD)? };
        if plan.splits > 1 && sums(targets) {
            let kernel = call.sums(&plan, targets)?;
            // SAFETY: as above.
            unsafe { kernel.launch(queue, &SUMS)? };
        }
    }
    if let Some(initial) = &targets.initial_states {
        let kernel = call.initial_states(sources, initial)?;
        // SAFETY: as in `forward`.
        unsafe { kernel.launch(queue, &STATES)? };
    }
    Ok(())
}

/// Elements of the workspace that a backward pass wants: the filters' gradients by each split.
pub(super) fn backward_workspace_len(stream: &Stream, problem: &Problem<'_>) -> usize {
    let plan = Call::new(problem).ok().and_then(|call| Plan::backward(&call.shape(), stream.numbers(), true, true).ok());
    plan.filter(|plan| plan.splits > 1).map_or(0, |plan| plan.splits * problem.dim * (problem.width + 1))
}

/// Whether filters have gradients.
fn sums(targets: &GradientTargets) -> bool {
    targets.weight.is_some() || targets.bias.is_some()
}

/// A call as the kernels see it.
struct Call<'p, 'a> {
    problem: &'p Problem<'a>,
    /// Bounds, or the sequence of each step in the direction of the convolution.
    sequences: Option<View<'a>>,
}

impl<'p, 'a> Call<'p, 'a> {
    fn new(problem: &'p Problem<'a>) -> Result<Self> {
        single_only(problem.double, "causal_conv1d in f64")?;
        Ok(Call { problem, sequences: problem.sequences.along(problem.reverse) })
    }

    fn shape(&self) -> Shape {
        let p = self.problem;
        let [_, channel, step] = p.x.strides()[..] else { unreachable!("x has three axes") };
        let (channel, step) = (channel.unsigned_abs(), step.unsigned_abs());
        // short rows would leave threads without work
        let by_channel = channel == 1 && (step != 1 || p.seqlen < 16);
        let by_time = !by_channel && (step == 1 || step <= channel);
        Shape {
            batch: p.batch,
            dim: p.dim,
            seqlen: p.seqlen,
            by_time,
            size: p.x.dtype().size(),
            width: p.width,
            packed: self.sequences.is_some(),
            aligned: neighbours(&p.x, if by_time { 2 } else { 1 }, 2) > 1,
        }
    }

    fn numbered(&self) -> bool {
        self.problem.sequences.are_numbered(&self.problem.segments)
    }

    /// How many neighbours of a (batch, channel, step) tensor a thread reads or writes at once.
    fn vector(&self, view: Option<View<'_>>, geometry: Geometry) -> usize {
        let (axis, most) = if self.shape().by_time { (2, geometry.steps) } else { (1, geometry.channels) };
        view.map_or(1, |view| neighbours(&view, axis, most))
    }

    /// Whether a forward pass reads and writes rows as runs: of 16-bit numbers that begin anywhere. Wider ones gain little or lose.
    fn has_runs(&self, y: View<'_>, geometry: Geometry) -> bool {
        let views = [self.problem.x, y];
        let narrow = |view: &View<'_>| neighbours(view, 2, geometry.steps) * view.dtype().size() < 16;
        let runs = |view: &View<'_>| view.dtype().size() == 2 && are_runs(view, 2, geometry.steps);
        self.shape().by_time && self.sequences.is_none() && views.iter().all(runs) && views.iter().any(narrow)
    }

    fn conv(&self, states: Option<View<'_>>) -> Conv {
        let p = self.problem;
        let sequence_count = match p.sequences {
            Sequences::CuSeqlens(bounds) => bounds.len() - 1,
            _ => p.initial_states.or(states).map_or(1, |v| v.shape()[1]),
        };
        Conv {
            x: Strided::of(&p.x),
            weight: Strided::of(&p.weight),
            bias: Strided::of_option(&p.bias),
            initial: Strided::of_option(&p.initial_states),
            sequences: Strided::of_option(&self.sequences),
            slots: Slots::of(&p.pool),
            batch: p.batch as i64,
            dim: p.dim as i64,
            seqlen: p.seqlen as i64,
            sequence_count: sequence_count as i64,
        }
    }

    /// The constants of `window.cuh`.
    fn config(&self, geometry: Geometry, by_time: bool) -> Config {
        let p = self.problem;
        Config::default()
            .with(&SlotTypes::of(&p.pool))
            .dtype("X", p.x.dtype())
            .dtype("WEIGHT", p.weight.dtype())
            .dtype("BIAS", dtype(&p.bias))
            .dtype("INITIAL", dtype(&p.initial_states))
            .dtype("INDEX", self.sequences.map_or(DType::I32, |v| v.dtype()))
            .set("SEQUENCES", p.sequences.value())
            .flag("NUMBERED", self.numbered())
            .flag("REVERSE", p.reverse)
            .flag("SILU", p.silu)
            .flag("HAS_BIAS", p.bias.is_some())
            .flag("HAS_INITIAL", p.initial_states.is_some())
            .flag("BY_TIME", by_time)
            .int("WIDTH", p.width)
            .int("STEPS", geometry.steps)
            .int("RESIDENT", geometry.resident)
            .int("CHANNELS", geometry.channels)
            .int("CHANNEL_LANES", geometry.channel_lanes)
            .int("TIME_LANES", geometry.time_lanes)
    }

    fn forward_plan(&self, numbers: Numbers) -> Result<Plan> {
        Plan::forward(&self.shape(), numbers)
    }

    fn forward(&self, plan: &Plan, y: &RawViewMut, last: &Option<RawViewMut>) -> Kernel<ForwardParams, impl Fn() -> Config> {
        let (y, last, geometry) = (y.as_read(), read(last), plan.geometry);
        let config = move || {
            let runs = self.has_runs(y, geometry);
            self.config(geometry, self.shape().by_time)
                .dtype("Y", y.dtype())
                .dtype("LAST", dtype(&last))
                .flag("HAS_LAST", last.is_some())
                .flag("RUNS", runs)
                .int("ROUNDS", plan.rounds)
                .int("X_VECTOR", if runs { geometry.steps } else { self.vector(Some(self.problem.x), geometry) })
                .int("Y_VECTOR", self.vector(Some(y), geometry))
        };
        let [channel_blocks, time_blocks] = [plan.channel_blocks as u32, plan.time_blocks as u32];
        let params = ForwardParams {
            conv: self.conv(None),
            y: Strided::of(&y),
            last: Strided::of_option(&last),
            channel_blocks,
            time_blocks,
        };
        Kernel { config, launch: plan.launch, params }
    }

    fn backward_plan(&self, numbers: Numbers, targets: &GradientTargets) -> Result<Plan> {
        Plan::backward(&self.shape(), numbers, sums(targets), targets.workspace.is_some())
    }

    fn backward(
        &self,
        plan: &Plan,
        sources: &Sources<'_>,
        targets: &GradientTargets,
    ) -> Kernel<BackwardParams, impl Fn() -> Config> {
        let [dx, dweight, dbias] = [&targets.x, &targets.weight, &targets.bias].map(read);
        let geometry = plan.geometry;
        let config = move || {
            self.config(geometry, self.shape().by_time)
                .dtype("DY", dtype(&sources.y))
                .dtype("DX", dtype(&dx))
                .dtype("LAST", dtype(&sources.final_states))
                .dtype("DWEIGHT", dtype(&dweight))
                .dtype("DBIAS", dtype(&dbias))
                .int("X_VECTOR", self.vector(Some(self.problem.x), geometry))
                .int("DY_VECTOR", self.vector(sources.y, geometry))
                .int("DX_VECTOR", self.vector(dx, geometry))
                .flag("HAS_DY", sources.y.is_some())
                .flag("HAS_DX", dx.is_some())
                .flag("HAS_LAST", sources.final_states.is_some())
                .flag("HAS_DWEIGHT", dweight.is_some())
                .flag("HAS_DBIAS", dbias.is_some())
        };
        let params = BackwardParams {
            conv: self.conv(sources.final_states),
            dy: Strided::of_option(&sources.y),
            dx: Strided::of_option(&dx),
            last: Strided::of_option(&sources.final_states),
            dweight: Strided::of_option(&dweight),
            dbias: Strided::of_option(&dbias),
            partial: targets.workspace.as_ref().map_or(Address::NULL, |v| Address::new(v.as_mut_ptr() as u64)),
            channel_blocks: plan.channel_blocks as u32,
            time_blocks: plan.time_blocks as u32,
            splits: plan.splits as u32,
            items: plan.items as u32,
        };
        Kernel { config, launch: plan.launch, params }
    }

    fn sums(&self, plan: &Plan, targets: &GradientTargets) -> Result<Kernel<SumsParams, impl Fn() -> Config>> {
        let p = self.problem;
        let [dweight, dbias] = [&targets.weight, &targets.bias].map(read);
        let config = move || {
            Config::default()
                .dtype("DWEIGHT", dtype(&dweight))
                .dtype("DBIAS", dtype(&dbias))
                .flag("HAS_DWEIGHT", dweight.is_some())
                .flag("HAS_DBIAS", dbias.is_some())
                .int("WIDTH", p.width)
                .int("THREADS", THREADS)
        };
        let params = SumsParams {
            partial: targets.workspace.as_ref().map_or(Address::NULL, |v| Address::new(v.as_mut_ptr() as u64)),
            dweight: Strided::of_option(&dweight),
            dbias: Strided::of_option(&dbias),
            dim: p.dim as i64,
            splits: plan.splits as i64,
        };
        let launch = Launch::elementwise(OP, p.dim.checked_mul(p.width + 1), THREADS)?;
        Ok(Kernel { config, launch, params })
    }

    fn final_states(&self, last: &RawViewMut) -> Result<Kernel<StatesParams, impl Fn() -> Config>> {
        self.states(Sources { y: None, final_states: None }, last, false)
    }

    fn initial_states(&self, sources: &Sources<'_>, initial: &RawViewMut) -> Result<Kernel<StatesParams, impl Fn() -> Config>> {
        self.states(*sources, initial, true)
    }

    fn states(
        &self,
        sources: Sources<'_>,
        out: &RawViewMut,
        gradient: bool,
    ) -> Result<Kernel<StatesParams, impl Fn() -> Config>> {
        let out = out.as_read();
        let (p, sequences) = (self.problem, out.shape()[1]);
        let rows = p.pool.map_or(out.shape()[0], |pool| pool.write.len());
        let config = move || {
            self.config(Geometry { channels: 1, channel_lanes: 1, time_lanes: THREADS, steps: 8, resident: 1 }, true)
                .dtype("DY", dtype(&sources.y))
                .dtype("LAST", dtype(&sources.final_states))
                .dtype("OUT", out.dtype())
                .flag("GRADIENT", gradient)
                .flag("HAS_DY", sources.y.is_some())
                .flag("HAS_LAST", sources.final_states.is_some())
        };
        let params = StatesParams {
            conv: self.conv(Some(out)),
            dy: Strided::of_option(&sources.y),
            last: Strided::of_option(&sources.final_states),
            out: Strided::of(&out),
            rows: rows as i64,
            sequences: sequences as i64,
        };
        let channels = rows.checked_mul(sequences).and_then(|rows| rows.checked_mul(p.dim));
        Ok(Kernel { config, launch: Launch::elementwise(OP, channels, THREADS)?, params })
    }
}
