//! `simplified_state_update`.

use super::simplified_scan::{head, result_dtype};
use crate::call::{Arguments, Keep, Made};
use crate::exec::Place;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use statescan::ops::simplified_scan::Head;
use statescan::ops::simplified_scan::update::{Args, update};

#[pyfunction]
pub fn simplified_state_update(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<Made> {
    let keep = Keep::default();
    let mut call = Arguments::new("simplified_state_update", inputs, outputs, &place, &keep)?;
    let (u, delta) = (call.tensor("u")?, call.tensor("delta")?);
    let args = Args::new(u, delta, call.tensor("A")?, call.tensor("B")?, call.tensor("C")?);
    let d = call.option("D")?;
    let args = Args {
        delta_a: call.option("deltaA")?,
        state_batch_indices: call.option("state_batch_indices")?,
        discretization: call.discretization()?,
        head: head(&mut call, d)?,
        ..args
    };
    let complex = matches!(args.head, Head::Complex);
    let mut state = call.state("state")?;
    let mut y = call.step_result(&args.u, result_dtype(args.u.dtype(), complex))?;
    call.run(|exec| update(exec, &args, &mut state, &mut y))
}
