//! The summary of a slice of a sequence. Its decay is that of a selective scan of one state for each channel.

use super::{Args, Outputs, Problem, TABLE, forward};
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::check::{Checker, Kind};
use crate::ops::op;
use crate::ops::op::wanted;
use crate::ops::selective_scan::{self, summary as decays};
use crate::ops::states::{NO_STATES, States};
use crate::ops::summary::Summary;
use crate::tensor::{Shape, View};

/// Number of `f32` elements that `Summary::workspace` must have; none on the CPU.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn summary_workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    let problem = Problem::new(args, exec.device(), NO_STATES)?;
    Ok(wanted(exec, &problem)?.max(decays::decay_workspace_len(exec, &channels(&problem.state_shape))))
}

/// The state of a selective scan that has one number for each channel.
fn channels(state: &Shape) -> Shape {
    Shape::concat(&[state, &[1]])
}

/// The last state of the slice from zero, and its total decay, which is complex where A is: whichever are asked for. Of the initial state the
/// shape counts only.
///
/// # Errors
/// As [`forward`].
pub fn summary(exec: &Exec, args: &Args<'_>, out: &mut Summary<'_>) -> Result<()> {
    let states = States::of_shapes([&out.state, &out.decay].map(|view| view.as_ref().map(|view| view.shape())));
    let (problem, views) = (Problem::new(args, exec.device(), states)?, args.views());
    let mut checker = Checker::of(op::Problem::op(&problem), exec.device(), &TABLE, &views);
    let (state, double) = (problem.state_shape, args.u.dtype().is_double());
    checker.write_if("state", &out.state, Kind::Complex, &state)?;
    checker.write_if("decay", &out.decay, Kind::exactly(args.a.dtype().is_complex()), &state)?;
    let len = wanted(exec, &problem)?;
    checker.needed_workspace(&out.workspace, len.max(decays::decay_workspace_len(exec, &channels(&state))))?;
    checker.finish()?;
    if let Some(target) = &mut out.state {
        let whole = Args { initial_state: None, ..*args };
        let workspace = out.workspace.as_mut().filter(|_| len > 0).map(|view| view.reborrow().slice(0, 0..len));
        forward(exec, &whole, &mut Outputs { last_state: Some(target.reborrow()), workspace, ..Outputs::default() })?;
    }
    if let Some(target) = &mut out.decay {
        let timed = |view| over_time(view, &args.u.shape());
        let a = if args.a.rank() == 1 { args.a.expand(1, 1) } else { args.a };
        let dt = timed(args.delta);
        let scan = selective_scan::Args {
            dt_a: args.delta_a.map(timed),
            sequences: args.sequences,
            reverse: args.reverse,
            discretization: args.discretization,
            ..selective_scan::Args::new(dt, dt, a, a, a)
        };
        let target = target.reborrow().unsqueeze(state.len());
        decays::write_decay(exec, &scan, double, channels(&state), target, out.workspace.as_mut())?;
    }
    Ok(())
}

/// Steps, or one that does not depend on time, beside inputs of a shape.
fn over_time<'v>(steps: View<'v>, inputs: &Shape) -> View<'v> {
    if steps.rank() == 1 { steps.expand(0, inputs[0]).expand(2, inputs[2]) } else { steps }
}
