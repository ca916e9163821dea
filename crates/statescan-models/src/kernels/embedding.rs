//! Rows of an embedding.

use super::rows::Rows;
use core::ffi::c_void;
use statescan::Exec;
use statescan::error::Result;
use statescan::ops::check::{Checker, Kind};
use statescan::tensor::{DType, View, ViewMut};
use statescan_cuda::{Address, AsStream, COMMON, Config, Kernel, Launch, Program, params};

const OP: &str = "embedding";
const THREADS: usize = 256;

pub(super) static EMBEDDING: Program<Params> = Program::new(OP, &[COMMON], include_str!("embedding.cu"));

params! {
    /// Parameters of `embedding`.
    pub(super) struct Params {
        table: Address<c_void>,
        tokens: Address<i32>,
        y: Address<f32>,
        rows: i64,
        columns: i64,
        pitch: i64,
        vocab: i64,
        factor: f32,
    }
}

/// `factor` times row `tokens[i]` of a table (vocab, columns) of any real type as row i of `y`, (tokens, columns) in f32. Tokens are i32; what is no row
/// of the table gives zeros.
///
/// # Errors
/// Arguments of wrong shapes, types or devices, a `y` or tokens that are not dense, a `y` that overlaps something; an executor that is not a CUDA
/// one. Nothing is written then.
pub fn embedding(exec: &Exec, table: View<'_>, tokens: View<'_>, factor: f32, y: &mut ViewMut<'_>) -> Result<()> {
    let stream = exec.as_stream()?;
    let of_table = Rows::of(OP, "table", &table)?;
    let mut checker = Checker::new(OP, exec.device());
    checker.read("table", &table, Kind::Real, &[of_table.rows, of_table.columns])?;
    checker.read("tokens", &tokens, Kind::Exact(DType::I32), &[tokens.len()])?;
    checker.dense("tokens", Some(tokens))?;
    checker.write("y", y, Kind::Exact(DType::F32), &[tokens.len(), of_table.columns])?;
    checker.dense("y", Some(y.as_view()))?;
    checker.finish()?;
    let mut kernel = kernel(&of_table, tokens.as_ptr() as u64, tokens.len(), y.as_view().as_ptr() as u64)?;
    kernel.params.factor = factor;
    // SAFETY: as in `row_product`.
    unsafe { kernel.launch(stream, &EMBEDDING) }.map_err(Into::into)
}

pub(super) fn kernel(table: &Rows, tokens: u64, count: usize, y: u64) -> Result<Kernel<Params>> {
    let launch = Launch::elementwise(OP, count.checked_mul(table.columns), THREADS)?;
    let params = Params {
        table: Address::new(table.address),
        tokens: Address::new(tokens),
        y: Address::new(y),
        rows: count as i64,
        columns: table.columns as i64,
        pitch: table.pitch as i64,
        vocab: table.rows as i64,
        factor: 1.0,
    };
    Ok(Kernel { config: Config::default().dtype("W", table.dtype).int("THREADS", THREADS), launch, params })
}
