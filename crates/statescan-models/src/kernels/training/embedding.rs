//! The way back to the table of an embedding.

use super::super::rows::Rows;
use statescan::Exec;
use statescan::error::Result;
use statescan::ops::check::{Checker, Kind};
use statescan::tensor::{DType, Tensor, View, ViewMut};
use statescan_cuda::{Address, AsStream, COMMON, Config, Kernel, Launch, Program, params};

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
        factor: f32,
    }
}

/// Which rows have which token, on a device.
#[derive(Debug)]
pub struct TokenRows {
    exec: Exec,
    /// The tokens that there are, each once; where the rows of each begin in the order, and the end; rows, by their tokens.
    lists: Tensor,
    distinct: usize,
    rows: usize,
}

impl TokenRows {
    /// Room for so many rows, of which none is known yet.
    ///
    /// # Errors
    /// An executor that is not a CUDA one; a device without room.
    pub fn new(exec: &Exec, most: usize) -> Result<Self> {
        exec.as_stream()?;
        let len = most.saturating_mul(3).saturating_add(1);
        Ok(TokenRows { exec: exec.clone(), lists: Tensor::zeros(exec, DType::I32, &[len])?, distinct: 0, rows: 0 })
    }

    /// Sorts rows by their tokens, and copies that to the device in the order of the stream; memory grows where there is too little.
    ///
    /// # Errors
    /// A device without room.
    pub fn sort(&mut self, tokens: &[u32]) -> Result<()> {
        let mut order: Vec<i32> = (0..tokens.len() as i32).collect();
        order.sort_by_key(|&row| tokens[row as usize]);
        let (mut lists, mut starts) = (Vec::with_capacity(3 * tokens.len() + 1), Vec::new());
        for (at, &row) in order.iter().enumerate() {
            let token = tokens[row as usize] as i32;
            if lists.last() != Some(&token) {
                lists.push(token);
                starts.push(at as i32);
            }
        }
        starts.push(tokens.len() as i32);
        let distinct = lists.len();
        lists.append(&mut starts);
        lists.append(&mut order);
        if self.lists.shape()[0] < lists.len() {
            *self = Self::new(&self.exec, tokens.len())?;
        }
        self.lists.write(&lists)?;
        (self.distinct, self.rows) = (distinct, tokens.len());
        Ok(())
    }
}

/// Adds `factor` times row i of `dy`, (rows, columns) in f32, to the row of its token in `table`, (vocab, columns) in f32.
///
/// # Errors
/// Arguments of wrong shapes, types or devices, rows that are not neighbours, a table that overlaps them; an executor that is not a CUDA one. Nothing
/// is written then.
pub fn embedding_backward(exec: &Exec, rows: &TokenRows, dy: View<'_>, factor: f32, table: &mut ViewMut<'_>) -> Result<()> {
    let stream = exec.as_stream()?;
    let result = table.as_view();
    let (of_dy, of_table) = (Rows::of(OP, "dy", &dy)?, Rows::of(OP, "table", &result)?);
    let mut checker = Checker::new(OP, exec.device());
    checker.read("dy", &dy, Kind::Exact(DType::F32), &[rows.rows, of_table.columns])?;
    checker.write("table", table, Kind::Exact(DType::F32), &[of_table.rows, of_table.columns])?;
    checker.finish()?;
    let lists = rows.lists.view().as_ptr() as u64;
    let lists = [0, rows.distinct, 2 * rows.distinct + 1].map(|before| lists + 4 * before as u64);
    let kernel = kernel([&of_dy, &of_table], lists, rows.distinct, factor)?;
    // SAFETY: as in `column_sums`; the lists have the lengths that they say.
    unsafe { kernel.launch(stream, &EMBEDDING) }.map_err(Into::into)
}

pub(super) fn kernel([dy, table]: [&Rows; 2], lists: [u64; 3], distinct: usize, factor: f32) -> Result<Kernel<Params>> {
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
        factor,
    };
    Ok(Kernel { config: Config::default().int("THREADS", THREADS), launch, params })
}
