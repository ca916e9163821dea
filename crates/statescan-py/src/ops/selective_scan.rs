//! `selective_scan`.

use crate::call::{Arguments, Keep, used};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use statescan::ops::selective_scan::{Args, Cotangents, Gradients, Outputs, backward, checkpoints_len, forward};

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
pub fn selective_scan_forward(
    inputs: &Bound<'_, PyTuple>,
    outputs: &Bound<'_, PyTuple>,
    device: i32,
    queue: usize,
) -> PyResult<()> {
    let keep = Keep::default();
    let mut call = Arguments::new("selective_scan", inputs, outputs, device, queue, &keep);
    let args = args(&mut call)?;
    let mut out = Outputs {
        y: call.output_option("y")?,
        final_state: call.output_option("final_state")?,
        checkpoints: None,
        workspace: None,
    };
    if let Some(buffer) = call.output_option("checkpoints")? {
        let part = used(buffer.shape(), checkpoints_len(&args))?;
        out.checkpoints = Some(buffer.slice(0, part));
    }
    call.run(|exec| forward(exec, &args, &mut out))
}

#[pyfunction]
pub fn selective_scan_backward(
    inputs: &Bound<'_, PyTuple>,
    outputs: &Bound<'_, PyTuple>,
    device: i32,
    queue: usize,
) -> PyResult<()> {
    let keep = Keep::default();
    let mut call = Arguments::new("selective_scan", inputs, outputs, device, queue, &keep);
    let args = args(&mut call)?;
    let mut checkpoints = call.option("checkpoints")?;
    if let Some(buffer) = checkpoints {
        checkpoints = Some(buffer.slice(0, used(buffer.shape(), checkpoints_len(&args))?));
    }
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
        workspace: None,
    };
    call.run(|exec| backward(exec, &args, checkpoints, &cotangents, &mut grads))
}
