//! Calls by position.

use super::Args;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::ops::call::{Call, Written};
use crate::ops::discretization::Discretization;
use crate::ops::passes::{Exact, Passes};
use crate::ops::simplified_scan::Head;
use crate::tensor::{Shape, View, ViewMut};

pub(crate) struct Update;

fn args<'a>(call: &Call<'a>) -> Args<'a> {
    let [_, _, _, _, _, d, delta_a, state_batch_indices, ..] = call.views;
    Args {
        delta_a,
        discretization: Discretization::of_word(call.word(0)),
        head: if call.flag(1) { Head::Real { conj_sym: call.flag(2), d } } else { Head::Complex },
        state_batch_indices,
        ..Args::new(call.need(0), call.need(1), call.need(2), call.need(3), call.need(4))
    }
}

/// The state, and room for `y`.
fn targets<'w, 'a>(call: &Call<'_>, out: &'w mut Written<'a>) -> Result<(&'w mut ViewMut<'a>, &'w mut ViewMut<'a>)> {
    let missing = |argument| Error::Presence { op: call.signature.name, argument, expected: "is written and must be there" };
    let state = out.state.as_mut().ok_or_else(|| missing("state"))?;
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
        Ok(vec![("y", y), ("state", next)])
    }
}

/// The state before the step.
fn state<'a>(call: &Call<'a>) -> Result<View<'a>> {
    let missing = Error::Presence { op: call.signature.name, argument: "state", expected: "must be there" };
    call.state.ok_or(missing)
}
