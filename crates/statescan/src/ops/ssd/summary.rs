//! The summary of a slice of a sequence. Its decay, one for each head, is that of a selective scan of one state.

use super::{Args, OP, Outputs, Problem, SIGNATURE, forward};
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::check::{Checker, Kind};
use crate::ops::op::wanted;
use crate::ops::selective_scan::{self, summary as decays};
use crate::ops::states::{NO_STATES, States};
use crate::ops::summary::Summary;
use crate::tensor::Shape;

/// Number of `f32` elements that `Summary::workspace` must have; none on the CPU.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn summary_workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    let problem = Problem::new(args, exec.device(), NO_STATES)?;
    Ok(wanted(exec, &problem)?.max(decays::decay_workspace_len(exec, &per_head(&problem.state_shape))))
}

/// The state of a selective scan that has one number for each head.
fn per_head(state: &Shape) -> Shape {
    Shape::concat(&[&state[..state.len() - 2], &[1]])
}

/// The final state of the slice from zero, and its total decay, (B, H): whichever are asked for. Of the initial state the shape counts only.
///
/// # Errors
/// As [`forward`].
pub fn summary(exec: &Exec, args: &Args<'_>, out: &mut Summary<'_>) -> Result<()> {
    let (problem, views) = (
        Problem::new(args, exec.device(), States::of_shapes([out.state.as_ref().map(|view| view.shape()), None]))?,
        args.views(),
    );
    let mut checker = Checker::of(OP, exec.device(), &SIGNATURE, &views);
    let (state, double) = (problem.state_shape, problem.double);
    let heads = per_head(&state);
    checker.write_if("state", &out.state, Kind::Real, &state)?;
    checker.write_if("decay", &out.decay, Kind::Real, &heads[..heads.len() - 1])?;
    let len = wanted(exec, &problem)?;
    checker.needed_workspace(&out.workspace, len.max(decays::decay_workspace_len(exec, &heads)))?;
    checker.finish()?;
    let whole = Args { initial_state: None, ..*args };
    if let Some(target) = &mut out.state {
        let workspace = out.workspace.as_mut().filter(|_| len > 0).map(|view| view.reborrow().slice(0, 0..len));
        forward(exec, &whole, &mut Outputs { final_state: Some(target.reborrow()), workspace, ..Outputs::default() })?;
    }
    if let Some(target) = &mut out.decay {
        let (dt, a) = (args.dt.permute(&[0, 2, 1]), args.a.expand(1, 1));
        let scan = selective_scan::Args {
            dt_a: args.dt_a.map(|steps| steps.permute(&[0, 2, 1])),
            dt_bias: args.dt_bias,
            sequences: args.sequences,
            reverse: args.reverse,
            ..selective_scan::Args::new(dt, dt, a, a, a).with_steps(args.step_size())
        };
        let target = target.reborrow().unsqueeze(heads.len() - 1);
        decays::write_decay(exec, &scan, double, heads, target, out.workspace.as_mut())?;
    }
    Ok(())
}
