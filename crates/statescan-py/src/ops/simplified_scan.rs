//! `simplified_scan_fn` and `s5_inner_fn`: one operation with two heads.

use crate::call::{Arguments, Keep};
use crate::exec::Place;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use statescan::View;
use statescan::ops::simplified_scan::{Args, Cotangents, Gradients, Head, Outputs, backward, checkpoints_len, forward};

/// Takes the options `real` and `conj_sym`.
pub fn head<'a>(call: &mut Arguments<'a, '_>, d: Option<View<'a>>) -> PyResult<Head<'a>> {
    let (real, conj_sym) = (call.value("real")?, call.value("conj_sym")?);
    Ok(if real { Head::Real { conj_sym, d } } else { Head::Complex })
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

#[pyfunction]
pub fn simplified_scan_forward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<()> {
    let keep = Keep::default();
    let mut call = Arguments::new("simplified_scan", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let mut out = Outputs {
        y: call.output_option("y")?,
        last_state: call.output_option("last_state")?,
        checkpoints: call.saved_output(|| checkpoints_len(&args))?,
    };
    call.run(|exec| forward(exec, &args, &mut out))
}

#[pyfunction]
pub fn simplified_scan_backward(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<()> {
    let keep = Keep::default();
    let mut call = Arguments::new("simplified_scan", inputs, outputs, &place, &keep)?;
    let args = args(&mut call)?;
    let checkpoints = call.saved(|| checkpoints_len(&args))?;
    let cotangents = Cotangents { y: call.option("grad of y")?, last_state: call.option("grad of last_state")? };
    let mut grads = Gradients {
        u: call.output_option("grad of u")?,
        delta: call.output_option("grad of delta")?,
        a: call.output_option("grad of A")?,
        b: call.output_option("grad of B")?,
        c: call.output_option("grad of C")?,
        d: call.output_option("grad of D")?,
        delta_a: call.output_option("grad of deltaA")?,
        initial_state: call.output_option("grad of initial_state")?,
    };
    call.run(|exec| backward(exec, &args, checkpoints, &cotangents, &mut grads))
}
