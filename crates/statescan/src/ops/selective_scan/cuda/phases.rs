//! Passes in two phases: the first one scans segments on their own and puts together what they do, the second one scans them from what enters.

use super::backward::{Backward, Layout, Places};
use super::forward::Forward;
use super::plan::Cut;
use super::{Call, Inputs, RAW_TILE, TILES};
use crate::cuda::{Address, COMMON, Config, DISCRETIZATION, Launch, Program, Queue, STEP_SIZE, Stream, Strided, params};
use crate::error::Result;
use crate::ops::on_cuda::{Pass, dtype, read, single_only, type_of};
use crate::ops::op::SummaryTargets;
use crate::ops::selective_scan::{GradientTargets, Problem, Sources, Targets};
use crate::tensor::{RawViewMut, View};

pub(super) static ENDS: Program<EndsParams> =
    Program::new("selective_scan_ends", &[COMMON, STEP_SIZE, DISCRETIZATION], include_str!("ends.cu"))
        .including(&[RAW_TILE, TILES]);

const THREADS: usize = 256;

params! {
    /// Parameters of `selective_scan_ends`.
    pub(super) struct EndsParams(inputs: Inputs) {
        /// What the walk starts from, (row, sequence, channel, state).
        start: Strided,
        state: Strided,
        decay: Strided,
        /// As segments have left it: dense (segment, row, channel, state), then sums of decay steps.
        ends: Address<f32>,
    }
}

/// Numbers that the first phases of a forward and of a backward pass keep; none where rows are not cut.
pub(crate) fn ends_len(stream: &Stream, problem: &Problem<'_>) -> [usize; 2] {
    let (call, numbers) = (Call::new(problem), stream.numbers());
    let forward = Cut::new(&call.shape(), numbers).map(|cut| cut.in_two_phases(problem.seqlen));
    let (sources, targets) = (Sources::default(), GradientTargets::default());
    let backward = Backward { call, sources: &sources, targets: &targets, two_phase: true };
    let backward = backward.plan_for(numbers, problem.x.dtype()).and_then(|plan| plan.cut);
    [forward, backward].map(|cut| cut.filter(|_| problem.dstate > 0).map_or(0, |cut| call.ends_len(&cut)))
}

pub(crate) fn forward_ends(queue: &Queue<'_>, problem: &Problem<'_>, ends: RawViewMut, out: &SummaryTargets) -> Result<()> {
    let targets = Targets::default();
    let pass = Forward { ends: Some(ends.as_mut_ptr() as u64), ..Forward::new(problem, &targets) };
    let plan = pass.launch(queue, |_| &[Pass::Ends])?;
    let states = [&out.state, &out.decay].map(read);
    let inputs = pass.call.inputs(plan.blocks_per_unit, plan.blocks_per_row, plan.cut, &states);
    let config = || pass.config(&plan, Pass::Ends);
    Together { problem, start: problem.initial_state, out, backwards: false }.launch(queue, inputs, ends, config)
}

pub(crate) fn forward_rest(queue: &Queue<'_>, problem: &Problem<'_>, ends: &View<'_>, targets: &Targets) -> Result<()> {
    let pass = Forward { ends: Some(ends.as_ptr() as u64), ..Forward::new(problem, targets) };
    pass.launch(queue, |_| &[Pass::Rest]).map(drop)
}

pub(crate) fn backward_ends(
    queue: &Queue<'_>,
    problem: &Problem<'_>,
    sources: &Sources<'_>,
    ends: RawViewMut,
    entering: RawViewMut,
) -> Result<()> {
    single_only(problem.double, "selective_scan in f64")?;
    let targets = GradientTargets::default();
    let pass = Backward { call: Call::new(problem), sources, targets: &targets, two_phase: true };
    let plan = pass.find_plan(queue)?;
    // nothing of a workspace is touched
    let layout = Layout::new(&pass.call, &plan, false);
    let places = Places { checkpoints: 0, ends: ends.as_mut_ptr() as u64, layout: &layout };
    pass.launch_passes(queue, &plan, &[Pass::Ends], false, &pass.params(&plan, places, |_| 0))?;
    let out = SummaryTargets { state: Some(entering), decay: None };
    let inputs = pass.call.inputs(plan.blocks_per_unit, plan.blocks_per_row, plan.cut, &[sources.final_state, read(&out.state)]);
    let config = || pass.config(&plan, Pass::Ends, false);
    Together { problem, start: sources.final_state, out: &out, backwards: true }.launch(queue, inputs, ends, config)
}

pub(crate) fn backward_rest(
    queue: &Queue<'_>,
    problem: &Problem<'_>,
    ends: &View<'_>,
    sources: &Sources<'_>,
    targets: &GradientTargets,
) -> Result<()> {
    Backward { call: Call::new(problem), sources, targets, two_phase: true }.run(queue, Some(ends))
}

/// The launch that puts together what segments do.
#[derive(Clone, Copy)]
pub(super) struct Together<'t> {
    pub problem: &'t Problem<'t>,
    pub start: Option<View<'t>>,
    pub out: &'t SummaryTargets,
    pub backwards: bool,
}

impl Together<'_> {
    /// The constants beside those of the pass whose segments they are.
    pub fn config(&self, pass: Config) -> Config {
        pass.dtype("START", dtype(&self.start))
            .dtype("STATE", type_of(&self.out.state))
            .dtype("DECAY", type_of(&self.out.decay))
            .flag("HAS_START", self.start.is_some())
            .flag("HAS_STATE", self.out.state.is_some())
            .flag("HAS_DECAY", self.out.decay.is_some())
            .flag("BACKWARDS", self.backwards)
            .int("ENDS_THREADS", THREADS)
    }

    fn launch(&self, queue: &Queue<'_>, inputs: Inputs, ends: RawViewMut, config: impl Fn() -> Config) -> Result<()> {
        let params = EndsParams {
            inputs,
            start: Strided::of_option(&self.start),
            state: Strided::of_option(&self.out.state),
            decay: Strided::of_option(&self.out.decay),
            ends: Address::new(ends.as_mut_ptr() as u64),
        };
        // a row is one sequence
        let states = self.problem.batch * self.problem.dim * self.problem.dstate;
        let launch = Launch::line(states.div_ceil(THREADS) as u32, THREADS as u32, 0);
        // SAFETY: the views were checked against each other, and the launch before this one has written the ends.
        unsafe { queue.launch(&ENDS, || self.config(config()), launch, &params) }.map_err(Into::into)
    }
}
