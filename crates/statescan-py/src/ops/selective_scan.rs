//! `selective_scan`.

use crate::call::{Arguments, Keep};
use crate::exec::Place;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use statescan::ops::selective_scan::{
    Args, Cotangents, Gradients, Outputs, backward, backward_workspace_len, checkpoints_len, forward, workspace_len,
};

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

#[pyfunction]
pub fn selective_scan_forward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<()> {
    let keep = Keep::default();
    let mut call = Arguments::new("selective_scan", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let mut out = Outputs {
        y: call.output_option("y")?,
        final_state: call.output_option("final_state")?,
        checkpoints: call.saved_output(|| checkpoints_len(&args))?,
        workspace: call.scratch(|exec| workspace_len(exec, &args))?,
    };
    call.run(|exec| forward(exec, &args, &mut out))
}

#[pyfunction]
pub fn selective_scan_backward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<()> {
    let keep = Keep::default();
    let mut call = Arguments::new("selective_scan", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let checkpoints = call.saved(|| checkpoints_len(&args))?;
    let cotangents = Cotangents { y: call.option("grad of y")?, final_state: call.option("grad of final_state")? };
    let mut grads = Gradients {
        x: call.output_option("grad of x")?,
        dt: call.output_option("grad of dt")?,
        a: call.output_option("grad of A")?,
        b: call.output_option("grad of B")?,
        c: call.output_option("grad of C")?,
        d: call.output_option("grad of D")?,
        z: call.output_option("grad of z")?,
        dt_bias: call.output_option("grad of dt_bias")?,
        dt_a: call.output_option("grad of deltaA")?,
        initial_state: call.output_option("grad of initial_state")?,
        workspace: call.scratch(|exec| backward_workspace_len(exec, &args, checkpoints.is_some()))?,
    };
    call.run(|exec| backward(exec, &args, checkpoints, &cotangents, &mut grads))
}
