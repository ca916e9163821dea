//! Answers about a call whose tensors are described, and are not there yet.

use super::handler::numbers;
use crate::call::{Arguments, Keep};
use crate::described::{APART, Described};
use crate::error::to_python;
use crate::exec::Place;
use crate::passes::{operation, take};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use statescan::ops::call::{Call, Written};
use statescan::{Device, Exec, ViewMut};

/// The device of the tensors of a call that is only checked.
const ANYWHERE: Device = Device::Cuda(0);

/// Works with the call whose tensors are described.
fn described<T>(
    number: usize,
    inputs: &Bound<'_, PyTuple>,
    ordinal: i32,
    work: impl FnOnce(&Call<'_>) -> PyResult<T>,
) -> PyResult<T> {
    let signature = operation(number)?.signature;
    let (place, keep, exec) = (Place::of_device(ordinal), Keep::default(), Exec::cpu(1));
    let outputs = PyTuple::empty(inputs.py());
    let mut arguments = Arguments::new(signature.name, inputs, &outputs, &place, &exec, &keep);
    work(&take(&mut arguments, signature)?)
}

/// Checks a call, whose inputs are descriptions and options, and gives its options as numbers. A step has a state.
#[pyfunction]
pub fn plan(number: usize, inputs: &Bound<'_, PyTuple>, state: Option<PyRef<'_, Described>>) -> PyResult<Vec<f64>> {
    described(number, inputs, 0, |call| {
        let mut out = Written::default();
        if let (Some(state), Some(argument)) = (state, call.signature.in_place) {
            let parts = state.parts(argument.name, 2 + call.views.len(), ANYWHERE)?;
            // SAFETY: nobody reads or writes what is described.
            out.state = Some(unsafe { parts.view_mut(argument.name) }?);
            out.views[0] = Some(result_of_step(call)?);
        }
        operation(number)?.check(call, &out).map_err(to_python)?;
        Ok(numbers(call))
    })
}

/// The result of a step, which has the shape of an argument.
fn result_of_step<'a>(call: &Call<'_>) -> PyResult<ViewMut<'a>> {
    let like = call.signature.results[0].like.and_then(|name| call.signature.argument(name)).unwrap_or(0);
    let shape = call.views[like].as_ref().expect("that argument is required").shape();
    let strides = shape.row_major();
    let address = (APART * (1 + call.views.len())) as *mut u8;
    // SAFETY: as in `plan`.
    let view = unsafe { ViewMut::from_raw_parts(address, call.result_type(0), ANYWHERE, &shape, &strides) };
    view.map_err(to_python)
}

/// Elements of `float32` that a pass wants as scratch memory on a CUDA device, a backward pass with or without what the forward pass kept.
#[pyfunction]
pub fn scratch(number: usize, inputs: &Bound<'_, PyTuple>, is_backward: bool, has_saved: bool, ordinal: i32) -> PyResult<usize> {
    let exec = Place::of_device(ordinal).exec()?;
    described(number, inputs, ordinal, |call| {
        let prepared = operation(number)?.prepare(&exec, call).map_err(to_python)?;
        let len = if is_backward { prepared.backward_workspace_len(has_saved) } else { prepared.workspace_len() };
        len.map_err(to_python)
    })
}
