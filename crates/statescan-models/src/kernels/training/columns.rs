//! Sums over rows.

use super::super::rows::Rows;
use core::ffi::c_void;
use statescan::Exec;
use statescan::error::Result;
use statescan::ops::check::{Checker, Kind};
use statescan::tensor::{DType, View, ViewMut};
use statescan_cuda::{Address, AsStream, COMMON, Config, Kernel, Launch, Program, Queue, Sum, params, sum_terms};

const OP: &str = "column_sums";
const THREADS: usize = 256;
/// Columns of a block, rows that are worth a slice, and the most slices.
const WIDE: usize = 32;
const ROWS: usize = 64;
const SLICES: usize = 64;

pub(super) static COLUMNS: Program<Params> = Program::new(OP, &[COMMON], include_str!("columns.cu"));

params! {
    /// Parameters of `column_sums`.
    pub(super) struct Params {
        y: Address<c_void>,
        /// Dense (slice, column).
        terms: Address<f32>,
        rows: i64,
        columns: i64,
        slices: i64,
        pitch: i64,
    }
}

fn slices(rows: usize) -> usize {
    rows.div_ceil(ROWS).clamp(1, SLICES)
}

/// Number of `f32` elements of scratch memory that [`column_sums`] wants for rows of so many columns.
pub fn column_sums_workspace_len(rows: usize, columns: usize) -> usize {
    slices(rows).saturating_mul(columns)
}

/// The sums over all rows: y (rows, columns) of any real type, sums (columns) in f32.
///
/// # Errors
/// Arguments of wrong shapes, types or devices, rows that are not neighbours, a workspace that is too small, results that overlap something; an
/// executor that is not a CUDA one. Nothing is written then.
pub fn column_sums(exec: &Exec, y: View<'_>, sums: &mut ViewMut<'_>, workspace: &mut ViewMut<'_>) -> Result<()> {
    let stream = exec.as_stream()?;
    let of_y = Rows::of(OP, "y", &y)?;
    let mut checker = Checker::new(OP, exec.device());
    checker.read("y", &y, Kind::Real, &y.shape())?;
    checker.write("sums", sums, Kind::Exact(DType::F32), &[of_y.columns])?;
    checker.write("workspace", workspace, Kind::Exact(DType::F32), &[column_sums_workspace_len(of_y.rows, of_y.columns)])?;
    checker.dense("workspace", Some(workspace.as_view()))?;
    checker.finish()?;
    let terms = workspace.as_view().as_ptr() as u64;
    let sum = Sum { to: sums.as_view(), terms, count: slices(of_y.rows) };
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; every term is written before
    // it is summed.
    unsafe {
        kernel(&of_y, terms)?.launch(stream, &COLUMNS)?;
        Ok(sum_terms(&Queue::new(stream, None), &[sum])?)
    }
}

pub(super) fn kernel(y: &Rows, terms: u64) -> Result<Kernel<Params>> {
    let line = Launch::new(OP, Some(y.columns.div_ceil(WIDE)), THREADS)?;
    let launch = Launch { grid: [line.grid[0], slices(y.rows) as u32, 1], ..line };
    let params = Params {
        y: Address::new(y.address),
        terms: Address::new(terms),
        rows: y.rows as i64,
        columns: y.columns as i64,
        slices: slices(y.rows) as i64,
        pitch: y.pitch as i64,
    };
    Ok(Kernel { config: Config::default().dtype("Y", y.dtype).int("THREADS", THREADS), launch, params })
}
