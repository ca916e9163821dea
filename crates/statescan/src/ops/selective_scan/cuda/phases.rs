//! Passes in two phases: the first one scans segments on their own and puts together what they do, the second one scans them from what enters.

use super::backward::{Backward, Layout, Places};
use super::forward::Forward;
use super::plan::Cut;
use super::{Call, Inputs, RAW_TILE, TILES};
use crate::cuda::{Address, COMMON, Config, DISCRETIZATION, Launch, Program, Queue, SLOTS, STEP_SIZE, Stream, Strided, params};
use crate::error::Result;
use crate::ops::call::{Given, Written};
use crate::ops::on_cuda::{Pass, dtype, read, single_only, type_of};
use crate::ops::op::TwoPhase;
use crate::ops::selective_scan::{GradientTargets, Problem, Sources, Targets};
use crate::ops::summary::Summary;
use crate::tensor::{RawViewMut, View};

pub(super) static ENDS: Program<EndsParams> =
    Program::new("selective_scan_ends", &[COMMON, STEP_SIZE, DISCRETIZATION], include_str!("ends.cu"))
        .including(&[SLOTS, RAW_TILE, TILES]);

const THREADS: usize = 256;

params! {
    /// Parameters of `selective_scan_ends`.
    pub(super) struct EndsParams(inputs: Inputs) {
        /// The states that the walk starts from, (row, sequence, channel, state).
        start: Strided,
        state: Strided,
        decay: Strided,
        /// As segments have left it: dense (segment, row, channel, state), then sums of decay steps.
        ends: Address<f32>,
    }
}

impl TwoPhase for Problem<'_> {
    fn ends_len(&self, stream: &Stream) -> [usize; 2] {
        let (call, numbers) = (Call::new(self), stream.numbers());
        let forward = Cut::new(&call.shape(), numbers).map(|cut| cut.in_two_phases(self.seqlen));
        let (sources, targets) = (Sources::default(), GradientTargets::default());
        let backward = Backward { call, sources: &sources, targets: &targets, two_phase: true };
        let backward = backward.plan_for(numbers, self.x.dtype()).and_then(|plan| plan.cut);
        [forward, backward].map(|cut| cut.filter(|_| self.dstate > 0).map_or(0, |cut| call.ends_len(&cut)))
    }

    fn forward_ends(&self, queue: &Queue<'_>, ends: RawViewMut, out: Summary<'_>) -> Result<()> {
        let [state, decay] = [out.state, out.decay].map(|view| view.map(|mut view| self.state(view.raw())));
        let targets = Targets::default();
        let pass = Forward { ends: Some(ends.as_mut_ptr() as u64), ..Forward::new(self, &targets) };
        let plan = pass.launch(queue, |_| &[Pass::Ends])?;
        let states = [&state, &decay].map(read);
        let inputs = pass.call.inputs(plan.blocks_per_unit, plan.blocks_per_row, plan.cut, &states);
        let config = || pass.config(&plan, Pass::Ends);
        Together { problem: self, start: self.initial_state, state, decay, backwards: false }.launch(queue, inputs, ends, config)
    }

    fn forward_rest(&self, queue: &Queue<'_>, ends: &View<'_>, out: &mut Written<'_>) -> Result<()> {
        let targets = Targets::new(self, out);
        let pass = Forward { ends: Some(ends.as_ptr() as u64), ..Forward::new(self, &targets) };
        pass.launch(queue, |_| &[Pass::Rest]).map(drop)
    }

    fn backward_ends(&self, queue: &Queue<'_>, given: &Given<'_>, ends: RawViewMut, entering: RawViewMut) -> Result<()> {
        single_only(self.double, "selective_scan in f64")?;
        let (sources, targets) = (Sources::new(self, given), GradientTargets::default());
        let pass = Backward { call: Call::new(self), sources: &sources, targets: &targets, two_phase: true };
        let plan = pass.find_plan(queue)?;
        // nothing of a workspace is touched
        let layout = Layout::new(&pass.call, &plan, false);
        let places = Places { checkpoints: 0, ends: ends.as_mut_ptr() as u64, layout: &layout };
        pass.launch_passes(queue, &plan, &[Pass::Ends], false, &pass.params(&plan, places, |_| 0))?;
        let (start, state) = (sources.final_state, Some(self.state(entering)));
        let inputs = pass.call.inputs(plan.blocks_per_unit, plan.blocks_per_row, plan.cut, &[start, read(&state)]);
        let config = || pass.config(&plan, Pass::Ends, false);
        Together { problem: self, start, state, decay: None, backwards: true }.launch(queue, inputs, ends, config)
    }

    fn backward_rest(&self, queue: &Queue<'_>, ends: &View<'_>, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()> {
        let (sources, targets) = (Sources::new(self, given), GradientTargets::new(self, grads));
        Backward { call: Call::new(self), sources: &sources, targets: &targets, two_phase: true }.run(queue, Some(ends))
    }
}

/// The launch that puts together what segments do.
#[derive(Clone, Copy)]
pub(super) struct Together<'t> {
    pub problem: &'t Problem<'t>,
    pub start: Option<View<'t>>,
    pub state: Option<RawViewMut>,
    pub decay: Option<RawViewMut>,
    pub backwards: bool,
}

impl Together<'_> {
    /// The constants beside those of the pass whose segments they are.
    pub fn config(&self, pass: Config) -> Config {
        pass.dtype("START", dtype(&self.start))
            .dtype("STATE", type_of(&self.state))
            .dtype("DECAY", type_of(&self.decay))
            .flag("HAS_START", self.start.is_some())
            .flag("HAS_STATE", self.state.is_some())
            .flag("HAS_DECAY", self.decay.is_some())
            .flag("BACKWARDS", self.backwards)
            .int("ENDS_THREADS", THREADS)
    }

    fn launch(&self, queue: &Queue<'_>, inputs: Inputs, ends: RawViewMut, config: impl Fn() -> Config) -> Result<()> {
        let params = EndsParams {
            inputs,
            start: Strided::of_option(&self.start),
            state: Strided::of_option(&self.state),
            decay: Strided::of_option(&self.decay),
            ends: Address::new(ends.as_mut_ptr() as u64),
        };
        // a row is one sequence
        let states = self.problem.batch * self.problem.dim * self.problem.dstate;
        let launch = Launch::line(states.div_ceil(THREADS) as u32, THREADS as u32, 0);
        // SAFETY: the views were checked against each other, and the launch before this one has written the ends.
        unsafe { queue.launch(&ENDS, || self.config(config()), launch, &params) }.map_err(Into::into)
    }
}
