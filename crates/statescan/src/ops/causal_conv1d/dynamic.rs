//! Calls by position.

use super::{Activation, Args, Cotangents, Gradients, Outputs};
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::call::{Call, Given, Written};
use crate::ops::passes::{Exact, Passes};
use crate::tensor::Shape;

pub(crate) struct CausalConv1d;

fn args<'a>(call: &Call<'a>) -> Args<'a> {
    Args {
        bias: call.views[2],
        activation: Activation::of_word(call.word(0)),
        initial_states: call.views[3],
        sequences: call.sequences(4),
        reverse: call.flag(1),
        ..Args::new(call.need(0), call.need(1))
    }
}

fn cotangents<'a>(given: &Given<'a>) -> Cotangents<'a> {
    let [y, final_states] = given.cotangents;
    Cotangents { y, final_states }
}

impl Passes for CausalConv1d {
    fn forward(&self, exec: &Exec, call: &Call<'_>, out: &mut Written<'_>) -> Result<()> {
        let [y, final_states] = out.take();
        super::forward(exec, &args(call), &mut Outputs { y, final_states })
    }

    fn backward(&self, exec: &Exec, call: &Call<'_>, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()> {
        let [x, weight, bias, initial_states] = grads.take();
        let mut grads = Gradients { x, weight, bias, initial_states, workspace: grads.workspace.take() };
        super::backward(exec, &args(call), &cotangents(given), &mut grads)
    }

    fn state_shape(&self, call: &Call<'_>) -> Result<Shape> {
        super::final_states_shape(&args(call))
    }

    fn backward_workspace_len(&self, exec: &Exec, call: &Call<'_>, _has_saved: bool) -> Result<usize> {
        super::backward_workspace_len(exec, &args(call))
    }

    fn reference(&self, call: &Call<'_>) -> Result<Exact> {
        let exact = super::reference::forward(&args(call))?;
        Ok(vec![("y", exact.y), ("final_states", exact.final_states)])
    }

    fn reference_backward(&self, call: &Call<'_>, given: &Given<'_>) -> Result<Exact> {
        let args = args(call);
        let g = super::reference::backward(&args, &cotangents(given))?;
        let mut all = vec![("x", g.x), ("weight", g.weight), ("initial_states", g.initial_states)];
        all.extend(args.bias.map(|_| ("bias", g.bias)));
        Ok(all)
    }
}
