//! The summary of a slice of a sequence, computed by the kernels of the forward pass.
//!
//! The state is a final state from zero. The decay of an exponential rule is `exp(A T)` with `T` the sum of steps: a scan of two states that do
//! not decay gives `T`, from 0, and from 1 whether the state gets through at all; a scan of one step makes the decay of both. Of the
//! bilinear rule it is what becomes of ones without an input.

use super::{Args, OP, Outputs, Problem, SIGNATURE, forward};
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::check::{Checker, Kind};
use crate::ops::discretization::Discretization;
use crate::ops::op::wanted;
use crate::ops::states::{NO_STATES, States};
use crate::ops::summary::{Scratch, Summary};
use crate::step_size::StepSize;
use crate::tensor::{Shape, ViewMut};

/// Number of `f32` elements that `Summary::workspace` must have; none on the CPU.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn summary_workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    workspace_len(exec, &Problem::new(args, exec.device(), NO_STATES)?)
}

fn workspace_len(exec: &Exec, problem: &Problem<'_>) -> Result<usize> {
    Ok(wanted(exec, problem)?.max(decay_workspace_len(exec, &problem.state_shape)))
}

/// The final state of the slice from zero, and its total decay: whichever are asked for. Of the initial state the shape counts only.
///
/// # Errors
/// As [`forward`].
pub fn summary(exec: &Exec, args: &Args<'_>, out: &mut Summary<'_>) -> Result<()> {
    let states = States::of_shapes([&out.state, &out.decay].map(|view| view.as_ref().map(|view| view.shape())));
    let (problem, views) = (Problem::new(args, exec.device(), states)?, args.views());
    let mut checker = Checker::of(OP, exec.device(), &SIGNATURE, &views);
    let (state, kind) = (problem.state_shape, Kind::exactly(problem.complex));
    checker.write_if("state", &out.state, kind, &state)?;
    checker.write_if("decay", &out.decay, kind, &state)?;
    checker.needed_workspace(&out.workspace, workspace_len(exec, &problem)?)?;
    checker.finish()?;
    let (len, double) = (wanted(exec, &problem)?, problem.double);
    let args = Args { initial_state: None, ..*args };
    if let Some(target) = &mut out.state {
        let workspace = out.workspace.as_mut().filter(|_| len > 0).map(|view| view.reborrow().slice(0, 0..len));
        forward(exec, &args, &mut Outputs { final_state: Some(target.reborrow()), workspace, ..Outputs::default() })?;
    }
    if let Some(target) = &mut out.decay {
        write_decay(exec, &args, double, state, target.reborrow(), out.workspace.as_mut())?;
    }
    Ok(())
}

/// Numbers beside the constants: a sum of steps and a flag for each channel of a state.
fn room(state: &Shape) -> usize {
    2 * state[..state.len() - 1].iter().product::<usize>()
}

/// Elements of `f32` that [`write_decay`] needs for states of a shape; none on the CPU.
pub(crate) fn decay_workspace_len(exec: &Exec, state: &Shape) -> usize {
    Scratch::workspace_len(exec, room(state))
}

/// The total decay of a checked call whose states have this shape, (.., D, N), computed in `f64` or `f32`. Arguments that have no part in it are
/// not looked at.
pub(crate) fn write_decay(
    exec: &Exec,
    args: &Args<'_>,
    double: bool,
    state: Shape,
    mut target: ViewMut<'_>,
    workspace: Option<&mut ViewMut<'_>>,
) -> Result<()> {
    let scratch = &Scratch::new(exec, double, room(&state), workspace)?;
    let (&[.., batch, dim, dstate], per_row) = (&state[..], state.len() == 4) else { unreachable!("a state has three axes") };
    let (timed, nothing) = (args.dt.shape(), scratch.zeros(&[dim, dstate])?);
    if args.discretization == Discretization::Bilinear {
        let args = Args { x: scratch.zeros(&timed)?, b: nothing, c: nothing, d: None, z: None, ..*args };
        let args = args.initial_state(scratch.ones(&state)?);
        return forward(exec, &args, &mut Outputs::default().final_state(target));
    }
    // a decay's own step is used as it is
    let (dt, dt_bias, how) = match args.dt_a {
        Some(dt_a) => (dt_a, None, StepSize::PLAIN),
        None => (args.dt, args.dt_bias, args.step_size()),
    };
    let (sums, no_decay) = (Shape::concat(&[&state[..state.len() - 1], &[2]]), scratch.zeros(&[dim, 2])?);
    let steps = Args::new(scratch.ones(&timed)?, dt, no_decay, scratch.pair(true, &[dim, 2])?, no_decay);
    let steps = Args { dt_bias, sequences: args.sequences, reverse: args.reverse, ..steps.with_steps(how) };
    let steps = steps.initial_state(scratch.pair(false, &sums)?);
    // SAFETY: the room is as large as the sums, and read only when they are there.
    let room = unsafe { scratch.room_mut(&sums)? };
    forward(exec, &steps, &mut Outputs::default().final_state(room))?;
    // the sequences of a row, or the rows, become a batch of one step each
    for row in 0..if per_row { state[0] } else { 1 } {
        let (from, pitch) = (row * batch * dim * 2, 2 * dim as isize);
        // SAFETY: both lie within the sums.
        let (total, through) = unsafe {
            (
                scratch.room(from, &[batch, dim, 1], &[pitch, 2, 1])?,
                scratch.room(from + 1, &[batch, dim, dstate], &[pitch, 2, 0])?,
            )
        };
        let step = Args::new(scratch.zeros(&[batch, dim, 1])?, total, args.a, nothing, nothing).initial_state(through);
        let target = if per_row { target.reborrow().index(0, row) } else { target.reborrow() };
        forward(exec, &step, &mut Outputs::default().final_state(target))?;
    }
    Ok(())
}
