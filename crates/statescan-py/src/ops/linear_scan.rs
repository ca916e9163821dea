//! `linear_scan`.

use crate::call::{Arguments, Keep};
use crate::exec::Place;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use statescan::ops::linear_scan::{
    Args, Cotangents, Gradients, Outputs, backward, backward_workspace_len, forward, workspace_len,
};

fn args<'a>(call: &mut Arguments<'a, '_>) -> PyResult<Args<'a>> {
    let args = Args::new(call.tensor("a")?, call.tensor("b")?);
    Ok(Args { initial_state: call.option("initial_state")?, reverse: call.value("reverse")?, ..args })
}

#[pyfunction]
pub fn linear_scan_forward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<()> {
    let keep = Keep::default();
    let mut call = Arguments::new("linear_scan", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let mut out = Outputs {
        h: call.output_option("h")?,
        final_state: call.output_option("final_state")?,
        workspace: call.scratch(|exec| workspace_len(exec, &args))?,
        ..Outputs::default()
    };
    call.run(|exec| forward(exec, &args, &mut out))
}

#[pyfunction]
pub fn linear_scan_backward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<()> {
    let keep = Keep::default();
    let mut call = Arguments::new("linear_scan", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let h = call.option("h")?;
    let cotangents = Cotangents { h: call.option("grad of h")?, final_state: call.option("grad of final_state")? };
    let mut grads = Gradients {
        a: call.output_option("grad of a")?,
        b: call.output_option("grad of b")?,
        initial_state: call.output_option("grad of initial_state")?,
        workspace: call.scratch(|exec| backward_workspace_len(exec, &args, h.is_some()))?,
    };
    call.run(|exec| backward(exec, &args, h, &cotangents, &mut grads))
}
