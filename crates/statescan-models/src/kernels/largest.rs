//! The most likely token.

use super::LAYERS;
use super::rows::Rows;
use statescan::Exec;
use statescan::cuda::STEP_SIZE;
use statescan::error::Result;
use statescan::ops::check::{Checker, Kind};
use statescan::tensor::{DType, View, ViewMut};
use statescan_cuda::{Address, AsStream, COMMON, Config, Kernel, Launch, Program, params};

const OP: &str = "largest";
const THREADS: usize = 1024;

pub(super) static LARGEST: Program<Params> = Program::new(OP, &[COMMON, STEP_SIZE, LAYERS], include_str!("largest.cu"));

params! {
    /// Parameters of `largest`.
    pub(super) struct Params {
        x: Address<f32>,
        at: Address<i32>,
        pitch: i64,
        columns: u32,
    }
}

/// The position of the largest number of each row, the first one of equals, or -1 where it is infinite or a number is NaN: x (rows, columns) in f32, at (rows) in i32.
///
/// # Errors
/// Arguments of wrong shapes, types or devices, rows without numbers or that are not neighbours, positions that are not dense or overlap the rows; an
/// executor that is not a CUDA one. Nothing is written then.
pub fn largest(exec: &Exec, x: View<'_>, at: &mut ViewMut<'_>) -> Result<()> {
    let stream = exec.as_stream()?;
    let rows = Rows::of(OP, "x", &x)?;
    let mut checker = Checker::new(OP, exec.device());
    checker.read("x", &x, Kind::Exact(DType::F32), &[rows.rows, rows.columns.max(1)])?;
    checker.write("at", at, Kind::Exact(DType::I32), &[rows.rows])?;
    checker.dense("at", Some(at.as_view()))?;
    checker.finish()?;
    let kernel = kernel(&rows, at.as_view().as_ptr() as u64)?;
    match kernel.launch.blocks() {
        0 => Ok(()),
        // SAFETY: as in `row_product`.
        _ => unsafe { stream.launch_early(&LARGEST, &kernel.config, kernel.launch, &kernel.params) }.map_err(Into::into),
    }
}

/// Sets one token, (1) in i32, in the order of the stream.
///
/// # Errors
/// A view of another shape, type or device; an executor that is not a CUDA one.
pub fn set_token(exec: &Exec, at: &mut ViewMut<'_>, token: i32) -> Result<()> {
    let stream = exec.as_stream()?;
    let mut checker = Checker::new("set_token", exec.device());
    checker.write("at", at, Kind::Exact(DType::I32), &[1])?;
    checker.finish()?;
    // SAFETY: the view is one element of four bytes, and those who made it vouch for the memory behind it.
    unsafe { stream.fill_words(at.as_view().as_ptr() as u64, token as u32, 1) }.map_err(Into::into)
}

pub(super) fn kernel(x: &Rows, at: u64) -> Result<Kernel<Params>> {
    let params = Params { x: Address::new(x.address), at: Address::new(at), pitch: x.pitch as i64, columns: x.columns as u32 };
    // four neighbours in one access where every row begins so
    let piece = if x.address.is_multiple_of(16) && x.pitch.is_multiple_of(4) { 4 } else { 1 };
    Ok(Kernel {
        config: Config::default().int("THREADS", THREADS).int("PIECE", piece),
        launch: Launch::new(OP, Some(x.rows), THREADS)?,
        params,
    })
}
