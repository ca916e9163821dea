//! The way back to the table of an embedding.

use super::super::rows::Rows;
use crate::cuda::{Address, COMMON, Config, Kernel, Launch, Program, params};
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::check::{Checker, Kind};
use crate::tensor::{DType, Tensor, View, ViewMut};

const OP: &str = "embedding_backward";
const THREADS: usize = 128;

pub(super) static EMBEDDING: Program<Params> = Program::new(OP, &[COMMON], include_str!("embedding.cu"));

params! {
    /// Parameters of `embedding_backward`.
    pub(super) struct Params {
        dy: Address<f32>,
        table: Address<f32>,
        tokens: Address<i32>,
        starts: Address<i32>,
        order: Address<i32>,
        rows: i64,
        columns: i64,
        dy_pitch: i64,
        pitch: i64,
        vocab: i64,
    }
}

/// Which rows have which token, on a device.
pub struct TokenRows {
    /// The tokens that there are, each once.
    tokens: Tensor,
    /// Where the rows of each begin in the order, and the end.
    starts: Tensor,
    /// Rows, by their tokens.
    order: Tensor,
}

impl TokenRows {
    /// Sorts rows by their tokens, and copies that to the executor's device.
    ///
    /// # Errors
    /// A device without room.
    pub fn new(exec: &Exec, tokens: &[u32]) -> Result<Self> {
        let mut order: Vec<i32> = (0..tokens.len() as i32).collect();
        order.sort_by_key(|&row| tokens[row as usize]);
        let (mut distinct, mut starts) = (Vec::new(), Vec::new());
        for (at, &row) in order.iter().enumerate() {
            let token = tokens[row as usize] as i32;
            if distinct.last() != Some(&token) {
                distinct.push(token);
                starts.push(at as i32);
            }
        }
        starts.push(tokens.len() as i32);
        let upload = |numbers: &[i32]| Tensor::from_slice(exec, numbers, &[numbers.len()]);
        Ok(TokenRows { tokens: upload(&distinct)?, starts: upload(&starts)?, order: upload(&order)? })
    }
}

/// Adds row i of `dy`, (rows, columns) in f32, to the row of its token in `table`, (vocab, columns) in f32.
///
/// # Errors
/// Arguments of wrong shapes, types or devices, rows that are not neighbours, a table that overlaps them; an executor that is not a CUDA one. Nothing
/// is written then.
pub fn embedding_backward(exec: &Exec, rows: &TokenRows, dy: View<'_>, table: &mut ViewMut<'_>) -> Result<()> {
    let stream = exec.cuda_only()?;
    let result = table.as_view();
    let (of_dy, of_table) = (Rows::of(OP, "dy", &dy)?, Rows::of(OP, "table", &result)?);
    let mut checker = Checker::new(OP, exec.device());
    checker.read("dy", &dy, Kind::Exact(DType::F32), &[rows.order.shape()[0], of_table.columns])?;
    checker.write("table", table, Kind::Exact(DType::F32), &[of_table.rows, of_table.columns])?;
    checker.finish()?;
    let lists = [&rows.tokens, &rows.starts, &rows.order].map(|list| list.view().as_ptr() as u64);
    let kernel = kernel(&of_dy, &of_table, lists, rows.tokens.shape()[0])?;
    // SAFETY: as in `rms_norm_backward`; the lists have the lengths that they say.
    unsafe { kernel.launch(stream, &EMBEDDING) }
}

pub(super) fn kernel(dy: &Rows, table: &Rows, lists: [u64; 3], distinct: usize) -> Result<Kernel<Params>> {
    let line = Launch::new(OP, Some(distinct), THREADS)?;
    let launch = Launch { grid: [line.grid[0], table.columns.div_ceil(THREADS) as u32, 1], ..line };
    let [tokens, starts, order] = lists.map(Address::new);
    let params = Params {
        dy: Address::new(dy.address),
        table: Address::new(table.address),
        tokens,
        starts,
        order,
        rows: dy.rows as i64,
        columns: table.columns as i64,
        dy_pitch: dy.pitch as i64,
        pitch: table.pitch as i64,
        vocab: table.rows as i64,
    };
    Ok(Kernel { config: Config::default().int("THREADS", THREADS), launch, params })
}
