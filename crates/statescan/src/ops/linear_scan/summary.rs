//! The summary of a slice of a sequence: its state and its decay are results of the forward pass.

use super::{Args, Outputs, forward, workspace_len};
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::summary::Summary;

/// Number of `f32` elements that `Summary::workspace` must have if it is given.
///
/// # Errors
/// As [`workspace_len`].
pub fn summary_workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    workspace_len(exec, args)
}

/// The final state of the slice from zero, and its total decay: whichever are asked for. The initial state is not looked at.
///
/// # Errors
/// As [`forward`].
pub fn summary(exec: &Exec, args: &Args<'_>, out: &mut Summary<'_>) -> Result<()> {
    let [final_state, decay, workspace] = [&mut out.state, &mut out.decay, &mut out.workspace].map(Option::take);
    let mut outputs = Outputs { h: None, final_state, decay, workspace };
    forward(exec, &Args { initial_state: None, ..*args }, &mut outputs)
}
