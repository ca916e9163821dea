//! Numbers one by one: random zeros, sums, products.

use core::ffi::c_void;
use statescan::Exec;
use statescan::error::{Error, Result};
use statescan::ops::check::{Checker, Kind};
use statescan::tensor::{DType, View, ViewMut};
use statescan_cuda::{Address, AsStream, COMMON, Config, Kernel, Launch, Program, params};

const OP: &str = "dropout";
const THREADS: usize = 256;

pub(super) static DROPOUT: Program<Params> = Program::new(OP, &[COMMON], include_str!("dropout.cu"));
pub(super) static SCALE: Program<ScaleParams> = Program::new("scale_by", &[COMMON], include_str!("scale.cu"));

params! {
    /// Parameters of `dropout`.
    pub(super) struct Params {
        x: Address<c_void>,
        y: Address<c_void>,
        count: i64,
        seed: i64,
        least: u32,
        scale: f32,
    }
}

params! {
    /// Parameters of `scale_by`.
    pub(super) struct ScaleParams {
        x: Address<f32>,
        y: Address<f32>,
        count: i64,
        /// From number to number of x: none if it is one number.
        step: i64,
    }
}

/// Random zeros.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Zeros {
    /// The share of zeros, from 0 to below 1, in steps of 1 / 65536; everything else is divided by what is left.
    pub share: f64,
    /// The zeros are drawn from it: each four numbers by 64 bits of Splitmix64, the first number by the lowest 16.
    pub seed: u64,
}

/// `y = factor x` with random zeros, or with `add` that added to `y`: x and y have one shape, are dense, and each of any real type. Without zeros it
/// converts or adds.
///
/// # Errors
/// Arguments of wrong shapes, types or devices, that are not dense or overlap, a share out of range; an executor that is not a CUDA one. Nothing is
/// written then.
pub fn dropout(exec: &Exec, x: View<'_>, (zeros, factor): (Option<Zeros>, f32), y: &mut ViewMut<'_>, add: bool) -> Result<()> {
    let stream = exec.as_stream()?;
    let mut checker = Checker::new(OP, exec.device());
    checker.read("x", &x, Kind::Real, &x.shape())?;
    checker.dense("x", Some(x))?;
    checker.write("y", y, Kind::Real, &x.shape())?;
    checker.dense("y", Some(y.as_view()))?;
    checker.finish()?;
    if zeros.is_some_and(|zeros| !(0.0..1.0).contains(&zeros.share)) {
        return Err(Error::Presence { op: OP, argument: "zeros", expected: "must have a share from 0 to below 1" });
    }
    let result = y.as_view();
    let addresses = [x.as_ptr() as u64, result.as_ptr() as u64];
    let kernel = kernel([x.dtype(), result.dtype()], addresses, x.len(), (zeros, factor), add)?;
    // SAFETY: as in `column_sums`.
    unsafe { kernel.launch(stream, &DROPOUT) }.map_err(Into::into)
}

/// Sets numbers of any type to zero; they are dense.
///
/// # Errors
/// As [`dropout`].
pub fn clear(exec: &Exec, y: &mut ViewMut<'_>) -> Result<()> {
    let stream = exec.as_stream()?;
    let view = y.as_view();
    let mut checker = Checker::new("clear", exec.device());
    checker.write("y", y, Kind::Exact(view.dtype()), &view.shape())?;
    checker.dense("y", Some(view))?;
    checker.finish()?;
    // SAFETY: the view is dense, and those who made it vouch for the memory behind it.
    unsafe { stream.fill(view.as_ptr() as u64, 0, view.len() * view.dtype().size()) }.map_err(Into::into)
}

/// `y = y x`, number by number, or with one number: x has the shape of y or (1), both are dense, and f32.
///
/// # Errors
/// As [`dropout`].
pub fn scale_by(exec: &Exec, y: &mut ViewMut<'_>, x: View<'_>) -> Result<()> {
    let stream = exec.as_stream()?;
    let mut checker = Checker::new("scale_by", exec.device());
    let view = y.as_view();
    let (one, shape) = (x.shape()[..] == [1], view.shape());
    checker.read("x", &x, Kind::Exact(DType::F32), if one { &[1] } else { &shape })?;
    checker.dense("x", Some(x))?;
    checker.write("y", y, Kind::Exact(DType::F32), &view.shape())?;
    checker.dense("y", Some(view))?;
    checker.finish()?;
    let kernel = scale([x.as_ptr() as u64, view.as_ptr() as u64], view.len(), one)?;
    // SAFETY: as in `column_sums`.
    unsafe { kernel.launch(stream, &SCALE) }.map_err(Into::into)
}

pub(super) fn kernel(
    [x_type, y_type]: [DType; 2],
    [x, y]: [u64; 2],
    count: usize,
    (zeros, factor): (Option<Zeros>, f32),
    add: bool,
) -> Result<Kernel<Params>> {
    let config = Config::default()
        .dtype("X", x_type)
        .dtype("Y", y_type)
        .flag("ZEROS", zeros.is_some())
        .flag("ADD", add)
        .int("THREADS", THREADS);
    let Zeros { share, seed } = zeros.unwrap_or(Zeros { share: 0.0, seed: 0 });
    let params = Params {
        x: Address::new(x),
        y: Address::new(y),
        count: count as i64,
        seed: seed as i64,
        least: (share * 65536.0) as u32,
        scale: (f64::from(factor) / (1.0 - share)) as f32,
    };
    Ok(Kernel { config, launch: Launch::elementwise(OP, Some(count.div_ceil(4)), THREADS)?, params })
}

pub(super) fn scale([x, y]: [u64; 2], count: usize, one: bool) -> Result<Kernel<ScaleParams>> {
    let params = ScaleParams { x: Address::new(x), y: Address::new(y), count: count as i64, step: i64::from(!one) };
    Ok(Kernel {
        config: Config::default().int("THREADS", THREADS),
        launch: Launch::elementwise("scale_by", Some(count), THREADS)?,
        params,
    })
}
