//! The cross entropy of logits.

use super::super::rows::Rows;
use core::ffi::c_void;
use statescan::Exec;
use statescan::error::Result;
use statescan::ops::check::{Checker, Kind};
use statescan::tensor::{DType, View, ViewMut};
use statescan_cuda::{Address, AsStream, COMMON, Config, Kernel, Launch, Program, params};

const OP: &str = "cross_entropy";
const THREADS: usize = 1024;

pub(super) static ENTROPY: Program<Params> = Program::new(OP, &[COMMON], include_str!("entropy.cu"));

params! {
    /// Parameters of `cross_entropy`.
    pub(super) struct Params {
        logits: Address<f32>,
        targets: Address<i32>,
        losses: Address<f32>,
        gradient: Address<c_void>,
        pitch: i64,
        gradient_pitch: i64,
        columns: u32,
        scale: f32,
        /// Divides logits.
        divisor: f32,
    }
}

/// The cross entropy of each row of logits, divided by `divisor`, with its target, in nats, and `scale` times its gradient: logits (rows, vocab) in f32, targets (rows) in
/// i32, losses (rows) in f32, gradient (rows, vocab) of any real type. A target beyond the vocabulary has a loss that is NaN.
///
/// # Errors
/// Arguments of wrong shapes, types or devices, rows that are not neighbours, results that overlap something; an executor that is not a CUDA one.
/// Nothing is written then.
pub fn cross_entropy(
    exec: &Exec,
    logits: View<'_>,
    targets: View<'_>,
    [scale, divisor]: [f32; 2],
    losses: &mut ViewMut<'_>,
    gradient: &mut ViewMut<'_>,
) -> Result<()> {
    let stream = exec.as_stream()?;
    let result = gradient.as_view();
    let (of_logits, of_gradient) = (Rows::of(OP, "logits", &logits)?, Rows::of(OP, "gradient", &result)?);
    let shape = [of_logits.rows, of_logits.columns];
    let mut checker = Checker::new(OP, exec.device());
    checker.read("logits", &logits, Kind::Exact(DType::F32), &shape)?;
    checker.read("targets", &targets, Kind::Exact(DType::I32), &shape[..1])?;
    checker.dense("targets", Some(targets))?;
    checker.write("losses", losses, Kind::Exact(DType::F32), &shape[..1])?;
    checker.dense("losses", Some(losses.as_view()))?;
    checker.write("gradient", gradient, Kind::Real, &shape)?;
    checker.finish()?;
    let [targets, losses] = [targets.as_ptr() as u64, losses.as_view().as_ptr() as u64];
    let kernel = kernel([&of_logits, &of_gradient], [targets, losses], [scale, divisor])?;
    // SAFETY: as in `column_sums`.
    unsafe { kernel.launch(stream, &ENTROPY) }.map_err(Into::into)
}

pub(super) fn kernel(
    [logits, gradient]: [&Rows; 2],
    [targets, losses]: [u64; 2],
    [scale, divisor]: [f32; 2],
) -> Result<Kernel<Params>> {
    let params = Params {
        logits: Address::new(logits.address),
        targets: Address::new(targets),
        losses: Address::new(losses),
        gradient: Address::new(gradient.address),
        pitch: logits.pitch as i64,
        gradient_pitch: gradient.pitch as i64,
        columns: logits.columns as u32,
        scale,
        divisor,
    };
    // neighbours in one access where every row of both begins so, and ends
    let fits = |count: usize, rows: &Rows| {
        let bytes = count * rows.dtype.size();
        bytes <= 16 && rows.pitch.is_multiple_of(count) && rows.address.is_multiple_of(bytes as u64)
    };
    let fit = |count: &usize| logits.columns.is_multiple_of(*count) && fits(*count, logits) && fits(*count, gradient);
    let piece = [4, 2].into_iter().find(fit).unwrap_or(1);
    let config =
        Config::default().dtype("DX", gradient.dtype).int("THREADS", THREADS).int("PIECE", piece).flag("DIVIDES", divisor != 1.0);
    Ok(Kernel { config, launch: Launch::new(OP, Some(logits.rows), THREADS)?, params })
}
