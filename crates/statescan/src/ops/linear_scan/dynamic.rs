//! Calls by position.

use super::{Args, Cotangents, Gradients, Outputs};
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::call::{Call, Given, Written};
use crate::ops::passes::{Exact, Passes};
use crate::ops::summary::Summary;
use crate::tensor::Shape;

pub(crate) struct LinearScan;

fn args<'a>(call: &Call<'a>) -> Args<'a> {
    Args { initial_state: call.views[2], reverse: call.flag(0), ..Args::new(call.need(0), call.need(1)) }
}

fn cotangents<'a>(given: &Given<'a>) -> Cotangents<'a> {
    let [h, final_state] = given.cotangents;
    Cotangents { h, final_state }
}

impl Passes for LinearScan {
    fn forward(&self, exec: &Exec, call: &Call<'_>, out: &mut Written<'_>) -> Result<()> {
        let [h, final_state, decay] = out.take();
        super::forward(exec, &args(call), &mut Outputs { h, final_state, decay, workspace: out.workspace.take() })
    }

    fn backward(&self, exec: &Exec, call: &Call<'_>, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()> {
        let [a, b, initial_state] = grads.take();
        let mut grads = Gradients { a, b, initial_state, workspace: grads.workspace.take() };
        super::backward(exec, &args(call), given.saved, &cotangents(given), &mut grads)
    }

    fn state_shape(&self, call: &Call<'_>) -> Result<Shape> {
        super::final_state_shape(&args(call))
    }

    fn workspace_len(&self, exec: &Exec, call: &Call<'_>) -> Result<usize> {
        super::workspace_len(exec, &args(call))
    }

    fn backward_workspace_len(&self, exec: &Exec, call: &Call<'_>, has_saved: bool) -> Result<usize> {
        super::backward_workspace_len(exec, &args(call), has_saved)
    }

    fn summary(&self, exec: &Exec, call: &Call<'_>, out: &mut Summary<'_>) -> Result<()> {
        super::summary(exec, &args(call), out)
    }

    fn summary_workspace_len(&self, exec: &Exec, call: &Call<'_>) -> Result<usize> {
        super::summary_workspace_len(exec, &args(call))
    }

    fn reference(&self, call: &Call<'_>) -> Result<Exact> {
        let exact = super::reference::forward(&args(call))?;
        Ok(vec![("h", exact.h), ("final_state", exact.final_state), ("decay", exact.decay)])
    }

    fn reference_backward(&self, call: &Call<'_>, given: &Given<'_>) -> Result<Exact> {
        let exact = super::reference::backward(&args(call), &cotangents(given))?;
        Ok(vec![("a", exact.a), ("b", exact.b), ("initial_state", exact.initial_state)])
    }
}
