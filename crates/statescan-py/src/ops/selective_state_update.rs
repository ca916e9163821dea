//! `selective_state_update`.

use crate::call::{Arguments, Keep, Made};
use crate::exec::Place;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use statescan::ops::selective_scan::update::{Args, update};

#[pyfunction]
pub fn selective_state_update(inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>, place: Place<'_>) -> PyResult<Made> {
    let keep = Keep::default();
    let mut call = Arguments::new("selective_state_update", inputs, outputs, &place, &keep)?;
    let args = Args {
        x: call.tensor("x")?,
        dt: call.tensor("dt")?,
        a: call.tensor("A")?,
        b: call.tensor("B")?,
        c: call.tensor("C")?,
        d: call.option("D")?,
        z: call.option("z")?,
        dt_bias: call.option("dt_bias")?,
        dt_a: call.option("deltaA")?,
        state_batch_indices: call.option("state_batch_indices")?,
        dt_softplus: call.value("dt_softplus")?,
        dt_limit: call.interval("dt_limit")?,
        discretization: call.discretization()?,
    };
    let mut state = call.state("state")?;
    let mut y = call.step_result(&args.x, args.x.dtype())?;
    call.run(|exec| update(exec, &args, &mut state, &mut y))
}
