//! Calls by position.

use super::{Args, Cotangents, Gradients, Outputs};
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::call::{Call, Given, Written};
use crate::ops::passes::{Exact, Passes};
use crate::ops::summary::Summary;
use crate::tensor::Shape;

pub(crate) struct Ssd;

fn args<'a>(call: &Call<'a>) -> Args<'a> {
    let [_, _, _, _, _, d, z, dt_bias, dt_a, initial_state, _, _, causal_mask, ..] = call.views;
    Args {
        d,
        z,
        dt_bias,
        dt_softplus: call.flag(0),
        dt_limit: call.interval(1),
        dt_a,
        initial_state,
        sequences: call.sequences(10),
        reverse: call.flag(3),
        chunk_size: call.count(2),
        causal_mask,
        ..Args::new(call.need(0), call.need(1), call.need(2), call.need(3), call.need(4))
    }
}

fn cotangents<'a>(given: &Given<'a>) -> Cotangents<'a> {
    let [y, final_state] = given.cotangents;
    Cotangents { y, final_state }
}

impl Passes for Ssd {
    fn forward(&self, exec: &Exec, call: &Call<'_>, out: &mut Written<'_>) -> Result<()> {
        let [y, final_state] = out.take();
        super::forward(
            exec,
            &args(call),
            &mut Outputs { y, final_state, checkpoints: out.saved.take(), workspace: out.workspace.take() },
        )
    }

    fn backward(&self, exec: &Exec, call: &Call<'_>, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()> {
        let [x, dt, a, b, c, d, z, dt_bias, dt_a, initial_state] = grads.take();
        let workspace = grads.workspace.take();
        let mut grads = Gradients { x, dt, a, b, c, d, z, dt_bias, dt_a, initial_state, workspace };
        super::backward(exec, &args(call), given.saved, &cotangents(given), &mut grads)
    }

    fn state_shape(&self, call: &Call<'_>) -> Result<Shape> {
        super::final_state_shape(&args(call))
    }

    fn saved_len(&self, call: &Call<'_>) -> Result<usize> {
        super::checkpoints_len(&args(call))
    }

    fn workspace_len(&self, exec: &Exec, call: &Call<'_>) -> Result<usize> {
        super::workspace_len(exec, &args(call))
    }

    fn backward_workspace_len(&self, exec: &Exec, call: &Call<'_>, _has_saved: bool) -> Result<usize> {
        super::backward_workspace_len(exec, &args(call))
    }

    fn summary(&self, exec: &Exec, call: &Call<'_>, out: &mut Summary<'_>) -> Result<()> {
        super::summary(exec, &args(call), out)
    }

    fn summary_workspace_len(&self, exec: &Exec, call: &Call<'_>) -> Result<usize> {
        super::summary_workspace_len(exec, &args(call))
    }

    fn reference(&self, call: &Call<'_>) -> Result<Exact> {
        let exact = super::reference::forward(&args(call))?;
        Ok(vec![("y", exact.y), ("final_state", exact.final_state)])
    }

    fn reference_backward(&self, call: &Call<'_>, given: &Given<'_>) -> Result<Exact> {
        let g = super::reference::backward(&args(call), &cotangents(given))?;
        let mut all = vec![("x", g.x), ("dt", g.dt), ("A", g.a), ("B", g.b), ("C", g.c), ("initial_state", g.initial_state)];
        let optional = [("D", g.d), ("z", g.z), ("dt_bias", g.dt_bias), ("dt_a", g.dt_a)];
        all.extend(optional.into_iter().filter_map(|(name, grad)| Some((name, grad?))));
        Ok(all)
    }
}
