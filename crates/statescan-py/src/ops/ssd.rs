//! `ssd`: in Python heads come before time, and a state is (dstate, headdim). The library sees the same memory through permuted views.

use crate::call::{Arguments, Keep, Made, carried};
use crate::exec::Place;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use statescan::ops::ssd::{Args, Cotangents, Gradients, Outputs, backward, checkpoints_len, final_state_shape, forward};
use statescan::tensor::{MAX_RANK, Shape};
use statescan::{Sequences, View, ViewMut};

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

fn written_time_first<'a>(argument: &str, view: ViewMut<'a>) -> ViewMut<'a> {
    match exchange(argument, view.shape().len()) {
        Some(order) => view.permute(order),
        None => view,
    }
}

impl<'a> Arguments<'a, '_> {
    fn timed(&mut self, name: &str) -> PyResult<View<'a>> {
        Ok(time_first(name, self.tensor(name)?))
    }

    fn timed_option(&mut self, name: &str) -> PyResult<Option<View<'a>>> {
        Ok(self.option(name)?.map(|view| time_first(name, view)))
    }

    fn timed_gradient(&mut self, name: &str) -> PyResult<Option<ViewMut<'a>>> {
        Ok(self.gradient(name)?.map(|view| written_time_first(name, view)))
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

/// Known at once where no sequences are packed.
fn state_shape(args: &Args<'_>) -> statescan::Result<Shape> {
    match (&args.sequences, &args.x.shape()[..], args.b.shape().last()) {
        (Sequences::Whole, &[batch, _, nheads, headdim], Some(&dstate)) => Shape::new(&[batch, nheads, headdim, dstate]),
        _ => final_state_shape(args),
    }
}

#[pyfunction]
pub fn ssd_forward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<Made> {
    let keep = Keep::default();
    let mut call = Arguments::new("ssd", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let shape = || Ok(heads_first("final_state", state_shape(&args)?));
    let y = call.result_like("y", (0, &time_first("x", args.x)), args.x.dtype())?;
    let final_state = call.result("final_state", carried(args.x.dtype(), false), shape)?;
    let mut out = Outputs {
        y: y.map(|view| written_time_first("y", view)),
        final_state: final_state.map(|view| written_time_first("final_state", view)),
        checkpoints: call.saved_output(|| checkpoints_len(&args))?,
    };
    call.run(|exec| forward(exec, &args, &mut out))
}

#[pyfunction]
pub fn ssd_backward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<Made> {
    let keep = Keep::default();
    let mut call = Arguments::new("ssd", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let checkpoints = call.saved(|| checkpoints_len(&args))?;
    let cotangents = Cotangents { y: call.timed_option("grad of y")?, final_state: call.timed_option("grad of final_state")? };
    let mut grads = Gradients {
        x: call.timed_gradient("grad of x")?,
        dt: call.timed_gradient("grad of dt")?,
        a: call.gradient("grad of A")?,
        b: call.gradient("grad of B")?,
        c: call.gradient("grad of C")?,
        d: call.gradient("grad of D")?,
        z: call.timed_gradient("grad of z")?,
        dt_bias: call.gradient("grad of dt_bias")?,
        initial_state: call.timed_gradient("grad of initial_state")?,
    };
    call.run(|exec| backward(exec, &args, checkpoints, &cotangents, &mut grads))
}
