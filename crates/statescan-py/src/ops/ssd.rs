//! `ssd`: in Python heads come before time, and a state is (dstate, headdim). The library sees the same memory through permuted views.

use crate::call::{Arguments, Keep};
use crate::exec::Place;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use statescan::ops::ssd::{Args, Cotangents, Gradients, Outputs, backward, checkpoints_len, forward};
use statescan::tensor::{MAX_RANK, Shape};
use statescan::{View, ViewMut};

/// The order of axes that turns Python's layout of an argument into the library's; it is its own inverse. None where they are the same,
/// or the rank is wrong and the library will say so.
fn exchange(argument: &str, rank: usize) -> Option<&'static [usize]> {
    match (argument.strip_prefix("grad of ").unwrap_or(argument), rank) {
        ("x" | "z" | "y", 4) => Some(&[0, 2, 1, 3]),
        ("dt", 3) => Some(&[0, 2, 1]),
        ("initial_state" | "final_state", 4) => Some(&[0, 1, 3, 2]),
        ("initial_state" | "final_state", 5) => Some(&[0, 1, 2, 4, 3]),
        _ => None,
    }
}

/// A shape of the library's as Python has it, and the other way round.
pub fn heads_first(argument: &str, shape: Shape) -> Shape {
    let Some(order) = exchange(argument, shape.len()) else { return shape };
    let mut sizes = [0; MAX_RANK];
    for (to, &from) in order.iter().enumerate() {
        sizes[to] = shape[from];
    }
    Shape::new(&sizes[..order.len()]).unwrap_or(shape)
}

fn time_first<'a>(argument: &str, view: View<'a>) -> View<'a> {
    exchange(argument, view.rank()).map_or(view, |order| view.permute(order))
}

impl<'a> Arguments<'a, '_> {
    fn timed(&mut self, name: &str) -> PyResult<View<'a>> {
        Ok(time_first(name, self.tensor(name)?))
    }

    fn timed_option(&mut self, name: &str) -> PyResult<Option<View<'a>>> {
        Ok(self.option(name)?.map(|view| time_first(name, view)))
    }

    fn timed_output(&mut self, name: &str) -> PyResult<Option<ViewMut<'a>>> {
        let permuted = |view: ViewMut<'a>| match exchange(name, view.shape().len()) {
            Some(order) => view.permute(order),
            None => view,
        };
        Ok(self.output_option(name)?.map(permuted))
    }
}

fn args<'a>(call: &mut Arguments<'a, '_>) -> PyResult<Args<'a>> {
    let args = Args::new(call.timed("x")?, call.timed("dt")?, call.tensor("A")?, call.tensor("B")?, call.tensor("C")?);
    Ok(Args {
        d: call.option("D")?,
        z: call.timed_option("z")?,
        dt_bias: call.option("dt_bias")?,
        initial_state: call.timed_option("initial_state")?,
        causal_mask: call.option("causal_mask")?,
        sequences: call.sequences()?,
        dt_softplus: call.value("dt_softplus")?,
        dt_limit: call.interval("dt_limit")?,
        chunk_size: call.value("chunk_size")?,
        reverse: call.value("reverse")?,
        ..args
    })
}

#[pyfunction]
pub fn ssd_forward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<()> {
    let keep = Keep::default();
    let mut call = Arguments::new("ssd", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let mut out = Outputs {
        y: call.timed_output("y")?,
        final_state: call.timed_output("final_state")?,
        checkpoints: call.saved_output(|| checkpoints_len(&args))?,
    };
    call.run(|exec| forward(exec, &args, &mut out))
}

#[pyfunction]
pub fn ssd_backward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<()> {
    let keep = Keep::default();
    let mut call = Arguments::new("ssd", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let checkpoints = call.saved(|| checkpoints_len(&args))?;
    let cotangents = Cotangents { y: call.timed_option("grad of y")?, final_state: call.timed_option("grad of final_state")? };
    let mut grads = Gradients {
        x: call.timed_output("grad of x")?,
        dt: call.timed_output("grad of dt")?,
        a: call.output_option("grad of A")?,
        b: call.output_option("grad of B")?,
        c: call.output_option("grad of C")?,
        d: call.output_option("grad of D")?,
        z: call.timed_output("grad of z")?,
        dt_bias: call.output_option("grad of dt_bias")?,
        initial_state: call.timed_output("grad of initial_state")?,
    };
    call.run(|exec| backward(exec, &args, checkpoints, &cotangents, &mut grads))
}
