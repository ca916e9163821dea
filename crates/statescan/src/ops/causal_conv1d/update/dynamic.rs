//! Calls by position.

use super::Args;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::ops::call::{Call, Written};
use crate::ops::causal_conv1d::Activation;
use crate::ops::passes::{Exact, Passes};
use crate::tensor::{Shape, View, ViewMut};

pub(crate) struct Update;

fn args<'a>(call: &Call<'a>) -> Args<'a> {
    Args {
        bias: call.views[2],
        activation: Activation::of_word(call.word(0)),
        cache_seqlens: call.views[3],
        conv_state_indices: call.views[4],
        ..Args::new(call.need(0), call.need(1))
    }
}

/// The state, and room for `y`.
fn targets<'w, 'a>(call: &Call<'_>, out: &'w mut Written<'a>) -> Result<(&'w mut ViewMut<'a>, &'w mut ViewMut<'a>)> {
    let missing = |argument| Error::Presence { op: call.signature.name, argument, expected: "is written and must be there" };
    let state = out.state.as_mut().ok_or_else(|| missing("conv_state"))?;
    Ok((state, out.views[0].as_mut().ok_or_else(|| missing("y"))?))
}

impl Passes for Update {
    fn forward(&self, exec: &Exec, call: &Call<'_>, out: &mut Written<'_>) -> Result<()> {
        let (state, y) = targets(call, out)?;
        super::update(exec, &args(call), state, y)
    }

    fn state_shape(&self, call: &Call<'_>) -> Result<Shape> {
        Ok(state(call)?.shape())
    }

    fn reference(&self, call: &Call<'_>) -> Result<Exact> {
        let (y, next) = super::reference::update(&args(call), &state(call)?)?;
        Ok(vec![("y", y), ("conv_state", next)])
    }
}

/// The state before the step.
fn state<'a>(call: &Call<'a>) -> Result<View<'a>> {
    let missing = Error::Presence { op: call.signature.name, argument: "conv_state", expected: "must be there" };
    call.state.ok_or(missing)
}
