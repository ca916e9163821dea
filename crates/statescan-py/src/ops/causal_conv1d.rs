//! `causal_conv1d` and its step.

use crate::call::{Arguments, Keep, Made};
use crate::exec::Place;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use statescan::Sequences;
use statescan::ops::causal_conv1d::{
    Args, Cotangents, Gradients, Outputs, backward, backward_workspace_len, final_states_shape, forward, update,
};
use statescan::tensor::Shape;

fn args<'a>(call: &mut Arguments<'a, '_>) -> PyResult<Args<'a>> {
    let args = Args::new(call.tensor("x")?, call.tensor("weight")?);
    Ok(Args {
        bias: call.option("bias")?,
        initial_states: call.option("initial_states")?,
        sequences: call.sequences()?,
        activation: call.activation()?,
        reverse: call.value("reverse")?,
        ..args
    })
}

/// Known at once where no sequences are packed.
fn state_shape(args: &Args<'_>) -> statescan::Result<Shape> {
    match (&args.sequences, &args.x.shape()[..], &args.weight.shape()[..]) {
        (Sequences::Whole, &[batch, dim, _], &[_, width]) if width > 0 => Shape::new(&[batch, dim, width - 1]),
        _ => final_states_shape(args),
    }
}

#[pyfunction]
pub fn causal_conv1d_forward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<Made> {
    let keep = Keep::default();
    let mut call = Arguments::new("causal_conv1d", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let mut out = Outputs {
        y: call.result_like("y", (0, &args.x), args.x.dtype())?,
        final_states: call.result("final_states", args.x.dtype(), || state_shape(&args))?,
    };
    call.run(|exec| forward(exec, &args, &mut out))
}

#[pyfunction]
pub fn causal_conv1d_backward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<Made> {
    let keep = Keep::default();
    let mut call = Arguments::new("causal_conv1d", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let cotangents = Cotangents { y: call.option("grad of y")?, final_states: call.option("grad of final_states")? };
    let mut grads = Gradients {
        x: call.gradient("grad of x")?,
        weight: call.gradient("grad of weight")?,
        bias: call.gradient("grad of bias")?,
        initial_states: call.gradient("grad of initial_states")?,
        workspace: call.scratch(|exec| backward_workspace_len(exec, &args))?,
    };
    call.run(|exec| backward(exec, &args, &cotangents, &mut grads))
}

#[pyfunction]
pub fn causal_conv1d_update(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<Made> {
    let keep = Keep::default();
    let mut call = Arguments::new("causal_conv1d_update", inputs, outputs, &place, &keep)?;
    let args = update::Args::new(call.tensor("x")?, call.tensor("weight")?);
    let args = update::Args {
        bias: call.option("bias")?,
        cache_seqlens: call.option("cache_seqlens")?,
        conv_state_indices: call.option("conv_state_indices")?,
        activation: call.activation()?,
        ..args
    };
    let mut state = call.state("conv_state")?;
    let mut y = call.step_result(&args.x, args.x.dtype())?;
    call.run(|exec| update::update(exec, &args, &mut state, &mut y))
}
