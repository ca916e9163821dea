//! `selective_scan`.

use crate::call::{Arguments, Keep, Made, carried};
use crate::exec::Place;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use statescan::Sequences;
use statescan::ops::selective_scan::{
    Args, Cotangents, Gradients, Outputs, backward, backward_workspace_len, checkpoints_len, final_state_shape, forward,
    workspace_len,
};
use statescan::tensor::Shape;

fn args<'a>(call: &mut Arguments<'a, '_>) -> PyResult<Args<'a>> {
    Ok(Args {
        x: call.tensor("x")?,
        dt: call.tensor("dt")?,
        a: call.tensor("A")?,
        b: call.tensor("B")?,
        c: call.tensor("C")?,
        d: call.option("D")?,
        z: call.option("z")?,
        dt_bias: call.option("dt_bias")?,
        dt_a: call.option("deltaA")?,
        initial_state: call.option("initial_state")?,
        sequences: call.sequences()?,
        dt_softplus: call.value("dt_softplus")?,
        dt_limit: call.interval("dt_limit")?,
        discretization: call.discretization()?,
        reverse: call.value("reverse")?,
    })
}

/// Known at once where no sequences are packed.
fn state_shape(args: &Args<'_>) -> statescan::Result<Shape> {
    match (&args.sequences, &args.x.shape()[..], &args.a.shape()[..]) {
        (Sequences::Whole, &[batch, dim, _], &[_, dstate]) => Shape::new(&[batch, dim, dstate]),
        _ => final_state_shape(args),
    }
}

#[pyfunction]
pub fn selective_scan_forward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<Made> {
    let keep = Keep::default();
    let mut call = Arguments::new("selective_scan", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let state = carried(args.x.dtype(), args.a.dtype().is_complex());
    let mut out = Outputs {
        y: call.result_like("y", (0, &args.x), args.x.dtype())?,
        final_state: call.result("final_state", state, || state_shape(&args))?,
        checkpoints: call.saved_output(|| checkpoints_len(&args))?,
        workspace: call.scratch(|exec| workspace_len(exec, &args))?,
    };
    call.run(|exec| forward(exec, &args, &mut out))
}

#[pyfunction]
pub fn selective_scan_backward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<Made> {
    let keep = Keep::default();
    let mut call = Arguments::new("selective_scan", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let checkpoints = call.saved(|| checkpoints_len(&args))?;
    let cotangents = Cotangents { y: call.option("grad of y")?, final_state: call.option("grad of final_state")? };
    let mut grads = Gradients {
        x: call.gradient("grad of x")?,
        dt: call.gradient("grad of dt")?,
        a: call.gradient("grad of A")?,
        b: call.gradient("grad of B")?,
        c: call.gradient("grad of C")?,
        d: call.gradient("grad of D")?,
        z: call.gradient("grad of z")?,
        dt_bias: call.gradient("grad of dt_bias")?,
        dt_a: call.gradient("grad of deltaA")?,
        initial_state: call.gradient("grad of initial_state")?,
        workspace: call.scratch(|exec| backward_workspace_len(exec, &args, checkpoints.is_some()))?,
    };
    call.run(|exec| backward(exec, &args, checkpoints, &cotangents, &mut grads))
}
