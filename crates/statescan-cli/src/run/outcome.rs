//! A case computed, timed and compared.

use crate::error::Result;
use statescan::Exec;
use statescan_cases::call::Call;
use statescan_cases::case::Case;
use statescan_cases::check::{self, Backward, Comparison};
use statescan_cases::compute;
use statescan_cases::measure::device;
use statescan_cases::measure::median::median;
use statescan_cases::memory::{self, CotangentKind, Limits};
use statescan_cases::on_device::{OnDevice, is_elsewhere};
use statescan_cases::ops;
use statescan_cases::part::Part;
use statescan_cases::pass;
use statescan_cases::tensors::Tensors;
use statescan_cases::work::{self, Work};
use std::time::Duration;

/// State-steps that the oracle does in a fraction of a second, forward and backward.
const ORACLE_BUDGET: f64 = 2e5;

/// How long and how often at most a pass is repeated to be timed.
const BUDGET: Duration = Duration::from_millis(300);
const MOST: usize = 50;

/// One pass and how long it took.
pub(super) struct Pass {
    pub name: &'static str,
    pub time: Duration,
    pub bytes: usize,
    pub work: Work,
}

impl Pass {
    pub fn per_state_step(&self) -> f64 {
        self.time.as_nanos() as f64 / self.work.state_steps.max(1.0)
    }
    pub fn rate(&self, amount: f64) -> f64 {
        amount / self.time.as_nanos().max(1) as f64
    }
}

/// A computed case.
#[derive(Default)]
pub(super) struct Outcome {
    pub passes: Vec<Pass>,
    pub results: Tensors,
    pub cotangents: Tensors,
    pub cotangents_from: &'static str,
    pub gradients: Tensors,
    pub part: Part,
    pub comparisons: Vec<Comparison>,
}

/// Computes a case, times its passes and compares what they give with the oracle.
pub(super) fn compute(exec: &Exec, case: &Case, grad: bool, kind: CotangentKind) -> Result<Outcome> {
    let call = &case.call;
    let (results, forward) = results(exec, call, grad)?;
    let mut outcome = Outcome { passes: vec![forward], results, ..Outcome::default() };
    if grad {
        (outcome.cotangents, outcome.cotangents_from) = cotangents(case, kind)?;
        let (gradients, backward) = gradients(exec, call, &outcome.results, &outcome.cotangents)?;
        outcome.gradients = gradients;
        outcome.passes.push(backward);
    }
    let backward = grad.then_some(Backward { cotangents: &outcome.cotangents, gradients: &outcome.gradients });
    (outcome.part, outcome.comparisons) = check::against_oracle(exec, call, &outcome.results, backward, ORACLE_BUDGET)?;
    Ok(outcome)
}

/// The results of a call and the time of its forward pass; with `save` also what the backward pass wants kept.
fn results(exec: &Exec, call: &Call, save: bool) -> Result<(Tensors, Pass)> {
    let mut results = memory::results(call, save, Limits::default())?;
    compute::forward(exec, call, &mut results)?;
    let time = match is_elsewhere(exec) {
        true => device::median(exec, &mut [OnDevice::new(exec, call, false)?], false, None)?,
        false => median(BUDGET, MOST, || pass::forward(exec, call, &mut results))?,
    };
    // states that are computed in place have moved on
    compute::forward(exec, call, &mut results)?;
    let pass = Pass {
        name: ops::pass_name(call.op),
        time,
        bytes: call.bytes() + results.bytes(),
        work: work::forward(call.op, &call.sizes()),
    };
    Ok((results, pass))
}

/// The cotangents of a case, or of a kind where it has none, and where they come from.
fn cotangents(case: &Case, kind: CotangentKind) -> Result<(Tensors, &'static str)> {
    if !case.cotangents.is_empty() {
        return Ok((case.cotangents.clone(), "the file's"));
    }
    let from = match kind {
        CotangentKind::Ones => "ones",
        CotangentKind::Random => "normal numbers from seed 1",
    };
    Ok((memory::cotangents(&case.call, kind, Limits::default())?, from))
}

/// The gradients of a call and the time of its backward pass.
fn gradients(exec: &Exec, call: &Call, saved: &Tensors, cotangents: &Tensors) -> Result<(Tensors, Pass)> {
    let mut gradients = memory::gradients(call, Limits::default())?;
    let bytes = call.bytes() + cotangents.bytes() + gradients.bytes();
    let time = match is_elsewhere(exec) {
        true => {
            compute::backward(exec, call, saved, cotangents, &mut gradients)?;
            let mut copy = OnDevice::new(exec, call, true)?.with_cotangents(exec, cotangents)?;
            copy.forward(exec)?;
            device::median(exec, &mut [copy], true, None)?
        }
        false => median(BUDGET, MOST, || compute::backward(exec, call, saved, cotangents, &mut gradients))?,
    };
    let pass = Pass { name: "backward", time, bytes, work: work::backward(call.op, &call.sizes()) };
    Ok((gradients, pass))
}
