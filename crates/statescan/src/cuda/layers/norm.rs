//! RMSNorm of rows.

use super::LAYERS;
use super::rows::Rows;
use crate::cuda::{Address, COMMON, Config, Kernel, Launch, Program, STEP_SIZE, params};
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::check::{Checker, Kind, check_groups};
use crate::tensor::{DType, View, ViewMut};
use core::ffi::c_void;

const OP: &str = "rms_norm";
const THREADS: usize = 256;

pub(super) static NORM: Program<Params> = Program::new(OP, &[COMMON, STEP_SIZE, LAYERS], include_str!("norm.cu"));

params! {
    /// Parameters of `rms_norm`.
    pub(super) struct Params {
        x: Address<c_void>,
        y: Address<c_void>,
        weight: Address<f32>,
        rows: i64,
        groups: i64,
        x_pitch: i64,
        y_pitch: i64,
        group: u32,
        eps: f32,
    }
}

/// Divides each of so many groups of a row's columns by the root of its mean square plus `eps`, and multiplies by the weights, (columns) in f32: x and
/// y are (rows, columns) of any real type.
///
/// # Errors
/// Arguments of wrong shapes, types or devices, groups that do not divide the columns, rows that are not neighbours, a `y` that overlaps something; an
/// executor that is not a CUDA one. Nothing is written then.
pub fn rms_norm(exec: &Exec, x: View<'_>, weight: Option<View<'_>>, groups: usize, eps: f32, y: &mut ViewMut<'_>) -> Result<()> {
    let stream = exec.cuda_only()?;
    let result = y.as_view();
    let (of_x, of_y) = (Rows::of(OP, "x", &x)?, Rows::of(OP, "y", &result)?);
    check_groups(OP, "groups", groups, of_x.columns)?;
    let mut checker = Checker::new(OP, exec.device());
    checker.read("x", &x, Kind::Real, &x.shape())?;
    checker.read_if("weight", &weight, Kind::Exact(DType::F32), &[of_x.columns])?;
    checker.write("y", y, Kind::Real, &x.shape())?;
    checker.finish()?;
    let of_weight = weight.map(|weight| Rows::row(OP, "weight", &weight, of_x.columns)).transpose()?;
    let kernel = kernel(&of_x, of_weight.map(|rows| rows.address), groups, eps, &of_y)?;
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configuration describes
    // their types.
    unsafe { kernel.launch(stream, &NORM) }
}

pub(super) fn kernel(x: &Rows, weight: Option<u64>, groups: usize, eps: f32, y: &Rows) -> Result<Kernel<Params>> {
    let config =
        Config::default().dtype("X", x.dtype).dtype("Y", y.dtype).flag("HAS_WEIGHT", weight.is_some()).int("THREADS", THREADS);
    let warps = x.rows.checked_mul(groups).map(|warps| warps.div_ceil(THREADS / 32));
    let launch = Launch::new(OP, if x.columns == 0 { Some(0) } else { warps }, THREADS)?;
    let params = Params {
        x: Address::new(x.address),
        y: Address::new(y.address),
        weight: weight.map_or(Address::NULL, Address::new),
        rows: x.rows as i64,
        groups: groups as i64,
        x_pitch: x.pitch as i64,
        y_pitch: y.pitch as i64,
        group: (x.columns / groups) as u32,
        eps,
    };
    Ok(Kernel { config, launch, params })
}
