//! The gate of a feed-forward layer.

use super::super::rows::Rows;
use core::ffi::c_void;
use statescan::Exec;
use statescan::cuda::STEP_SIZE;
use statescan::error::Result;
use statescan::ops::check::{Checker, Kind};
use statescan::tensor::{View, ViewMut};
use statescan_cuda::{Address, AsStream, COMMON, Config, Kernel, Launch, Program, params};

const OP: &str = "gate";
const THREADS: usize = 256;

pub(super) static GATE: Program<Params> = Program::new(OP, &[COMMON, STEP_SIZE], include_str!("gate.cu"));
pub(super) static GATE_BACKWARD: Program<Params> =
    Program::new("gate_backward", &[COMMON, STEP_SIZE], include_str!("gate_backward.cu"));

params! {
    /// Parameters of `gate`, and of `gate_backward`, where y is the gradient by the results.
    pub(super) struct Params {
        x: Address<c_void>,
        y: Address<c_void>,
        rows: i64,
        /// Columns of y.
        columns: i64,
        x_pitch: i64,
        y_pitch: i64,
        dx: Address<c_void>,
        dx_pitch: i64,
    }
}

/// `y = silu(gates) ups`, (rows, columns), from rows `x`, (rows, 2 x columns), that have gates and ups behind one another; both are of one real type.
///
/// # Errors
/// Arguments of wrong shapes, types or devices, rows that are not neighbours, results that overlap something; an executor that is not a CUDA one.
/// Nothing is written then.
pub fn gate(exec: &Exec, x: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
    let stream = exec.as_stream()?;
    let result = y.as_view();
    let [of_x, of_y] = [Rows::of(OP, "x", &x)?, Rows::of(OP, "y", &result)?];
    let shape = result.shape();
    let lead = &shape[..shape.len() - 1];
    let mut checker = Checker::new(OP, exec.device());
    checker.read("x", &x, Kind::Real, &[lead, &[2 * of_y.columns]].concat())?;
    checker.write("y", y, Kind::Exact(x.dtype()), &shape)?;
    checker.finish()?;
    if result.is_empty() {
        return Ok(());
    }
    // SAFETY: as in `row_product`.
    unsafe { kernel(&of_x, &of_y, None)?.launch(stream, &GATE) }.map_err(Into::into)
}

/// Writes the gradients by gates and ups, `dx`, (rows, 2 x columns), from rows `x` that have both behind one another and the gradients `dy`, (rows,
/// columns), by `silu(gates) ups`; all are of one real type.
///
/// # Errors
/// As [`gate`].
pub fn gate_backward(exec: &Exec, x: View<'_>, dy: View<'_>, dx: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "gate_backward";
    let stream = exec.as_stream()?;
    let (result, shape) = (dx.as_view(), x.shape());
    let [of_x, of_dy, of_dx] = [Rows::of(OP, "x", &x)?, Rows::of(OP, "dy", &dy)?, Rows::of(OP, "dx", &result)?];
    let mut checker = Checker::new(OP, exec.device());
    checker.read("x", &x, Kind::Real, &[&shape[..shape.len() - 1], &[2 * of_dy.columns]].concat())?;
    checker.read("dy", &dy, Kind::Exact(x.dtype()), &[&shape[..shape.len() - 1], &[of_dy.columns]].concat())?;
    checker.write("dx", dx, Kind::Exact(x.dtype()), &shape)?;
    checker.finish()?;
    if result.is_empty() {
        return Ok(());
    }
    // SAFETY: as in `row_product`.
    unsafe { kernel(&of_x, &of_dy, Some(&of_dx))?.launch(stream, &GATE_BACKWARD) }.map_err(Into::into)
}

pub(super) fn kernel(x: &Rows, y: &Rows, dx: Option<&Rows>) -> Result<Kernel<Params>> {
    let params = Params {
        x: Address::new(x.address),
        y: Address::new(y.address),
        rows: y.rows as i64,
        columns: y.columns as i64,
        x_pitch: x.pitch as i64,
        y_pitch: y.pitch as i64,
        dx: dx.map_or(Address::NULL, |dx| Address::new(dx.address)),
        dx_pitch: dx.map_or(0, |dx| dx.pitch as i64),
    };
    let config = Config::default().dtype("X", x.dtype).int("THREADS", THREADS);
    Ok(Kernel { config, launch: Launch::elementwise(OP, y.rows.checked_mul(y.columns), THREADS)?, params })
}
