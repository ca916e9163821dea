//! The gate of what heads attend to.

use super::super::rows::Rows;
use core::ffi::c_void;
use statescan::Exec;
use statescan::cuda::STEP_SIZE;
use statescan::error::Result;
use statescan::ops::check::{Checker, Kind, check_groups};
use statescan::tensor::{DType, View, ViewMut};
use statescan_cuda::{Address, AsStream, COMMON, Config, Kernel, Launch, Program, params};

const OP: &str = "output_gate";
const THREADS: usize = 256;

pub(super) static OUTPUT_GATE: Program<Params> = Program::new(OP, &[COMMON, STEP_SIZE], include_str!("output_gate.cu"));

params! {
    /// Parameters of `output_gate`, with gated rows and gradients by queries on the way back, where y is the gradient by gated rows.
    pub(super) struct Params {
        queries: Address<c_void>,
        y: Address<f32>,
        gated: Address<c_void>,
        dqueries: Address<c_void>,
        rows: i64,
        columns: i64,
        pitch: i64,
        y_pitch: i64,
        gated_pitch: i64,
        dpitch: i64,
        headdim: u32,
    }
}

/// `y = y sigmoid(gates)`, (rows, columns) in f32: heads of `headdim` numbers, whose gates lie behind as many of each head of `queries`, (rows, 2 x columns)
/// of one real type.
///
/// # Errors
/// Arguments of wrong shapes, types or devices, rows that are not neighbours, results that overlap something; an executor that is not a CUDA one.
/// Nothing is written then.
pub fn output_gate(exec: &Exec, queries: View<'_>, headdim: usize, y: &mut ViewMut<'_>) -> Result<()> {
    run(exec, queries, headdim, y, None)
}

/// From the gradients `dy`, (rows, columns) in f32, by the results of [`output_gate`] to those by what it multiplied, in place, and by gates, which lie in
/// `dqueries` as gates do in `queries`. The results are `gated`, (rows, columns); all but `dy` are of one real type.
///
/// # Errors
/// As [`output_gate`].
pub fn output_gate_backward(
    exec: &Exec,
    [queries, gated]: [View<'_>; 2],
    headdim: usize,
    dy: &mut ViewMut<'_>,
    dqueries: &mut ViewMut<'_>,
) -> Result<()> {
    run(exec, queries, headdim, dy, Some((gated, dqueries)))
}

fn run(
    exec: &Exec,
    queries: View<'_>,
    headdim: usize,
    y: &mut ViewMut<'_>,
    back: Option<(View<'_>, &mut ViewMut<'_>)>,
) -> Result<()> {
    let stream = exec.as_stream()?;
    let [of_queries, of_y] = [Rows::of(OP, "queries", &queries)?, Rows::of(OP, "y", &y.as_view())?];
    check_groups(OP, "headdim", headdim, of_y.columns)?;
    let (dtype, shape) = (Kind::Exact(queries.dtype()), [of_y.rows, of_y.columns]);
    let both = [shape[0], 2 * shape[1]];
    let mut checker = Checker::new(OP, exec.device());
    checker.read("queries", &queries, Kind::Real, &both)?;
    checker.write("y", y, Kind::Exact(DType::F32), &shape)?;
    let mut rows = None;
    if let Some((gated, dqueries)) = &back {
        checker.read("gated", gated, dtype, &shape)?;
        checker.write("dqueries", dqueries, dtype, &both)?;
        rows = Some([Rows::of(OP, "gated", gated)?, Rows::of(OP, "dqueries", &dqueries.as_view())?]);
    }
    checker.finish()?;
    if y.as_view().is_empty() {
        return Ok(());
    }
    // SAFETY: as in `row_product`.
    unsafe { kernel(&of_queries, &of_y, headdim, rows.as_ref())?.launch(stream, &OUTPUT_GATE) }.map_err(Into::into)
}

pub(super) fn kernel(queries: &Rows, y: &Rows, headdim: usize, back: Option<&[Rows; 2]>) -> Result<Kernel<Params>> {
    let [gated, dqueries] =
        [0, 1].map(|at| back.map_or((Address::NULL, 0), |rows| (Address::new(rows[at].address), rows[at].pitch as i64)));
    let params = Params {
        queries: Address::new(queries.address),
        y: Address::new(y.address),
        gated: gated.0,
        dqueries: dqueries.0,
        rows: y.rows as i64,
        columns: y.columns as i64,
        pitch: queries.pitch as i64,
        y_pitch: y.pitch as i64,
        gated_pitch: gated.1,
        dpitch: dqueries.1,
        headdim: headdim as u32,
    };
    let config = Config::default().dtype("X", queries.dtype).flag("BACK", back.is_some()).int("THREADS", THREADS);
    Ok(Kernel { config, launch: Launch::elementwise(OP, y.rows.checked_mul(y.columns), THREADS)?, params })
}
