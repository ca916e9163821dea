//! Shares of what rows attend to.

use super::super::rows::Rows;
use statescan::Exec;
use statescan::error::{Error, Result};
use statescan::ops::check::{Checker, Kind};
use statescan::tensor::{DType, View, ViewMut};
use statescan_cuda::{Address, AsStream, COMMON, Config, Kernel, Launch, Program, params};

const OP: &str = "softmax";
const THREADS: usize = 256;

pub(super) static SOFTMAX: Program<Params> = Program::new(OP, &[COMMON], include_str!("softmax.cu"));
pub(super) static SOFTMAX_BACKWARD: Program<BackwardParams> =
    Program::new("softmax_backward", &[COMMON], include_str!("softmax_backward.cu"));

params! {
    /// Parameters of `softmax`.
    pub(super) struct Params {
        scores: Address<f32>,
        columns: i64,
        pitch: i64,
        /// Columns that the first row sees.
        seen: i64,
        /// Multiplies scores, which are exponents of two then.
        scale: f32,
    }
}

params! {
    /// Parameters of `softmax_backward`.
    pub(super) struct BackwardParams {
        gradients: Address<f32>,
        shares: Address<f32>,
        columns: i64,
        pitch: i64,
        shares_pitch: i64,
        scale: f32,
    }
}

/// Makes scores, (rows, columns) in f32, the shares of what each row attends to: the softmax of `scale` times them, over the first `seen` columns in the
/// first row and one more in each that follows. The shares of others are zero.
///
/// # Errors
/// Scores of a wrong type or device or that are not rows of neighbours, fewer columns than rows see; an executor that is not a CUDA one. Nothing is
/// written then.
pub fn softmax(exec: &Exec, scores: &mut ViewMut<'_>, seen: usize, scale: f32) -> Result<()> {
    let stream = exec.as_stream()?;
    let view = scores.as_view();
    let rows = Rows::of(OP, "scores", &view)?;
    let mut checker = Checker::new(OP, exec.device());
    checker.write("scores", scores, Kind::Exact(DType::F32), &view.shape())?;
    checker.finish()?;
    if rows.rows == 0 {
        return Ok(());
    }
    if seen == 0 || seen.saturating_add(rows.rows - 1) > rows.columns {
        let expected = "from 1 to as many columns as the last row sees";
        return Err(Error::Value { op: OP, argument: "seen", expected, got: seen as f64 });
    }
    // SAFETY: as in `row_product`.
    unsafe { kernel(&rows, seen, scale)?.launch(stream, &SOFTMAX) }.map_err(Into::into)
}

pub(super) fn kernel(scores: &Rows, seen: usize, scale: f32) -> Result<Kernel<Params>> {
    let params = Params {
        scores: Address::new(scores.address),
        columns: scores.columns as i64,
        pitch: scores.pitch as i64,
        seen: seen as i64,
        scale: scale * core::f32::consts::LOG2_E,
    };
    Ok(Kernel { config: Config::default().int("THREADS", THREADS), launch: Launch::new(OP, Some(scores.rows), THREADS)?, params })
}

/// Makes gradients by shares, (rows, columns) in f32, those by the scores of which [`softmax`] made these shares.
///
/// # Errors
/// Arguments of wrong shapes, types or devices or that are not rows of neighbours, shares that overlap the gradients; an executor that is not a CUDA
/// one. Nothing is written then.
pub fn softmax_backward(exec: &Exec, gradients: &mut ViewMut<'_>, shares: View<'_>, scale: f32) -> Result<()> {
    const OP: &str = "softmax_backward";
    let stream = exec.as_stream()?;
    let view = gradients.as_view();
    let rows = [Rows::of(OP, "gradients", &view)?, Rows::of(OP, "shares", &shares)?];
    let mut checker = Checker::new(OP, exec.device());
    checker.read("shares", &shares, Kind::Exact(DType::F32), &view.shape())?;
    checker.write("gradients", gradients, Kind::Exact(DType::F32), &view.shape())?;
    checker.finish()?;
    if view.is_empty() {
        return Ok(());
    }
    // SAFETY: as in `row_product`.
    unsafe { backward_kernel(&rows, scale)?.launch(stream, &SOFTMAX_BACKWARD) }.map_err(Into::into)
}

pub(super) fn backward_kernel([gradients, shares]: &[Rows; 2], scale: f32) -> Result<Kernel<BackwardParams>> {
    let params = BackwardParams {
        gradients: Address::new(gradients.address),
        shares: Address::new(shares.address),
        columns: gradients.columns as i64,
        pitch: gradients.pitch as i64,
        shares_pitch: shares.pitch as i64,
        scale,
    };
    let launch = Launch::new(OP, Some(gradients.rows), THREADS)?;
    Ok(Kernel { config: Config::default().int("THREADS", THREADS), launch, params })
}
