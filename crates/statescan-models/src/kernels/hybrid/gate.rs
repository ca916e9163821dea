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

params! {
    /// Parameters of `gate`.
    pub(super) struct Params {
        x: Address<c_void>,
        y: Address<c_void>,
        rows: i64,
        /// Columns of y.
        columns: i64,
        x_pitch: i64,
        y_pitch: i64,
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
    unsafe { kernel(&of_x, &of_y)?.launch(stream, &GATE) }.map_err(Into::into)
}

pub(super) fn kernel(x: &Rows, y: &Rows) -> Result<Kernel<Params>> {
    let params = Params {
        x: Address::new(x.address),
        y: Address::new(y.address),
        rows: y.rows as i64,
        columns: y.columns as i64,
        x_pitch: x.pitch as i64,
        y_pitch: y.pitch as i64,
    };
    let config = Config::default().dtype("X", x.dtype).int("THREADS", THREADS);
    Ok(Kernel { config, launch: Launch::elementwise(OP, y.rows.checked_mul(y.columns), THREADS)?, params })
}
