//! A matrix added to rows.

use super::super::rows::Rows;
use statescan::Exec;
use statescan::error::Result;
use statescan::ops::check::{Checker, Kind};
use statescan::tensor::{DType, View, ViewMut};
use statescan_cuda::{Address, AsStream, COMMON, Config, Kernel, Launch, Program, params};

const OP: &str = "accumulate";
const THREADS: usize = 256;

pub(super) static ACCUMULATE: Program<Params> = Program::new(OP, &[COMMON], include_str!("accumulate.cu"));

params! {
    /// Parameters of `accumulate`.
    pub(super) struct Params {
        x: Address<f32>,
        y: Address<f32>,
        rows: i64,
        columns: i64,
        pitch: i64,
        x_row: i64,
        x_column: i64,
    }
}

/// `y = y + x`: x is (rows, columns) in f32 with any strides, y has its shape and rows of neighbours.
///
/// # Errors
/// Arguments of wrong shapes, types or devices, rows that are not neighbours, results that overlap x; an executor that is not a CUDA one. Nothing is
/// written then.
pub fn accumulate(exec: &Exec, x: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
    let stream = exec.as_stream()?;
    let rows = Rows::of(OP, "y", &y.as_view())?;
    let mut checker = Checker::new(OP, exec.device());
    checker.read("x", &x, Kind::Exact(DType::F32), &[rows.rows, rows.columns])?;
    checker.write("y", y, Kind::Exact(DType::F32), &x.shape())?;
    checker.finish()?;
    if x.is_empty() {
        return Ok(());
    }
    let strides = [x.strides()[0], x.strides()[1]];
    // SAFETY: as in `row_product`.
    unsafe { kernel(x.as_ptr() as u64, strides, &rows)?.launch(stream, &ACCUMULATE) }.map_err(Into::into)
}

pub(super) fn kernel(x: u64, [x_row, x_column]: [isize; 2], y: &Rows) -> Result<Kernel<Params>> {
    let params = Params {
        x: Address::new(x),
        y: Address::new(y.address),
        rows: y.rows as i64,
        columns: y.columns as i64,
        pitch: y.pitch as i64,
        x_row: x_row as i64,
        x_column: x_column as i64,
    };
    let launch = Launch::elementwise(OP, y.rows.checked_mul(y.columns), THREADS)?;
    Ok(Kernel { config: Config::default().int("THREADS", THREADS), launch, params })
}
