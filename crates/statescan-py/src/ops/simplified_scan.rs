//! `simplified_scan_fn` and `s5_inner_fn`: one operation with two heads.

use crate::call::{Arguments, Keep, Made, carried};
use crate::exec::Place;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use statescan::ops::simplified_scan::{
    Args, Cotangents, Gradients, Head, Outputs, backward, checkpoints_len, forward, last_state_shape,
};
use statescan::tensor::Shape;
use statescan::{DType, Sequences, View};

/// Takes the options `real` and `conj_sym`.
pub fn head<'a>(call: &mut Arguments<'a, '_>, d: Option<View<'a>>) -> PyResult<Head<'a>> {
    let (real, conj_sym) = (call.value("real")?, call.value("conj_sym")?);
    Ok(if real { Head::Real { conj_sym, d } } else { Head::Complex })
}

/// The type of a result beside inputs of type `u`: theirs, if both are complex or both are real.
pub fn result_dtype(u: DType, is_complex: bool) -> DType {
    if u.is_complex() == is_complex { u } else { carried(u, is_complex) }
}

fn args<'a>(call: &mut Arguments<'a, '_>) -> PyResult<Args<'a>> {
    let (u, delta) = (call.tensor("u")?, call.tensor("delta")?);
    let args = Args::new(u, delta, call.tensor("A")?, call.tensor("B")?, call.tensor("C")?);
    let d = call.option("D")?;
    Ok(Args {
        delta_a: call.option("deltaA")?,
        initial_state: call.option("initial_state")?,
        sequences: call.sequences()?,
        discretization: call.discretization()?,
        reverse: call.value("reverse")?,
        head: head(call, d)?,
        ..args
    })
}

/// Known at once where no sequences are packed.
fn state_shape(args: &Args<'_>) -> statescan::Result<Shape> {
    match (&args.sequences, args.u.shape().first(), args.a.shape().first()) {
        (Sequences::Whole, Some(&batch), Some(&dstate)) => Shape::new(&[batch, dstate]),
        _ => last_state_shape(args),
    }
}

#[pyfunction]
pub fn simplified_scan_forward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<Made> {
    let keep = Keep::default();
    let mut call = Arguments::new("simplified_scan", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let complex = matches!(args.head, Head::Complex);
    let state = carried(args.u.dtype(), true);
    let mut out = Outputs {
        y: call.result_like("y", (0, &args.u), result_dtype(args.u.dtype(), complex))?,
        last_state: call.result("last_state", state, || state_shape(&args))?,
        checkpoints: call.saved_output(|| checkpoints_len(&args))?,
    };
    call.run(|exec| forward(exec, &args, &mut out))
}

#[pyfunction]
pub fn simplified_scan_backward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<Made> {
    let keep = Keep::default();
    let mut call = Arguments::new("simplified_scan", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let checkpoints = call.saved(|| checkpoints_len(&args))?;
    let cotangents = Cotangents { y: call.option("grad of y")?, last_state: call.option("grad of last_state")? };
    let mut grads = Gradients {
        u: call.gradient("grad of u")?,
        delta: call.gradient("grad of delta")?,
        a: call.gradient("grad of A")?,
        b: call.gradient("grad of B")?,
        c: call.gradient("grad of C")?,
        d: call.gradient("grad of D")?,
        delta_a: call.gradient("grad of deltaA")?,
        initial_state: call.gradient("grad of initial_state")?,
    };
    call.run(|exec| backward(exec, &args, checkpoints, &cotangents, &mut grads))
}
