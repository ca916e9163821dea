//! `linear_scan`.

use crate::call::{Arguments, Keep, Made, carried};
use crate::exec::Place;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use statescan::DType;
use statescan::ops::linear_scan::{
    Args, Cotangents, Gradients, Outputs, backward, backward_workspace_len, forward, workspace_len,
};
use statescan::tensor::Shape;

/// The type that holds the values of both.
fn common(a: DType, b: DType) -> DType {
    match a == b {
        true => a,
        false => carried(if a.is_double() { a } else { b }, a.is_complex() || b.is_complex()),
    }
}

fn args<'a>(call: &mut Arguments<'a, '_>) -> PyResult<Args<'a>> {
    let args = Args::new(call.tensor("a")?, call.tensor("b")?);
    Ok(Args { initial_state: call.option("initial_state")?, reverse: call.value("reverse")?, ..args })
}

#[pyfunction]
pub fn linear_scan_forward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<Made> {
    let keep = Keep::default();
    let mut call = Arguments::new("linear_scan", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let (dtype, shape) = (common(args.a.dtype(), args.b.dtype()), args.b.shape());
    let rows = shape.split_last().map_or(&[][..], |(_, rows)| rows);
    let mut out = Outputs {
        h: call.result_like("h", (1, &args.b), dtype)?,
        final_state: call.result("final_state", carried(dtype, dtype.is_complex()), || Shape::new(rows))?,
        workspace: call.scratch(|exec| workspace_len(exec, &args))?,
        ..Outputs::default()
    };
    call.run(|exec| forward(exec, &args, &mut out))
}

#[pyfunction]
pub fn linear_scan_backward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<Made> {
    let keep = Keep::default();
    let mut call = Arguments::new("linear_scan", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let h = call.option("h")?;
    let cotangents = Cotangents { h: call.option("grad of h")?, final_state: call.option("grad of final_state")? };
    let mut grads = Gradients {
        a: call.gradient("grad of a")?,
        b: call.gradient("grad of b")?,
        initial_state: call.gradient("grad of initial_state")?,
        workspace: call.scratch(|exec| backward_workspace_len(exec, &args, h.is_some()))?,
    };
    call.run(|exec| backward(exec, &args, h, &cotangents, &mut grads))
}
