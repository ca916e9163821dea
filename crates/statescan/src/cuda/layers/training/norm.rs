//! The way back through RMSNorm.

use super::super::LAYERS;
use super::super::rows::Rows;
use super::columns::{self, Times, column_sums_workspace_len};
use crate::cuda::{Address, COMMON, Config, Kernel, Launch, Program, STEP_SIZE, params};
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::check::{Checker, Kind, check_groups};
use crate::tensor::{DType, View, ViewMut};
use core::ffi::c_void;

const OP: &str = "rms_norm_backward";
const THREADS: usize = 256;

pub(super) static NORM: Program<Params> = Program::new(OP, &[COMMON, STEP_SIZE, LAYERS], include_str!("norm.cu"));

params! {
    /// Parameters of `rms_norm_backward`.
    pub(super) struct Params {
        x: Address<c_void>,
        dy: Address<c_void>,
        dx: Address<c_void>,
        weight: Address<f32>,
        /// Dense (row, group).
        factors: Address<f32>,
        rows: i64,
        groups: i64,
        x_pitch: i64,
        dy_pitch: i64,
        dx_pitch: i64,
        group: u32,
        eps: f32,
    }
}

/// Number of `f32` elements of scratch memory that [`rms_norm_backward`] wants where there are weights.
pub fn rms_norm_backward_workspace_len(rows: usize, columns: usize, groups: usize) -> usize {
    rows.saturating_mul(groups).saturating_add(column_sums_workspace_len(rows, columns))
}

/// What a norm was taken of: so many groups of the columns of some rows.
#[derive(Debug, Clone, Copy)]
pub struct Normed<'x> {
    /// (rows, columns), of any real type.
    pub x: View<'x>,
    /// Groups of columns, each normed by itself.
    pub groups: usize,
    /// Is added to the mean square.
    pub eps: f32,
}

/// Gradients of [`rms_norm`](super::super::rms_norm) from those by its results, `dy`: by its rows to `dx`, or with `add` added to it, and by its
/// weights where it has any, (columns) in f32. x, dy and dx are (rows, columns), each of any real type.
///
/// # Errors
/// Arguments of wrong shapes, types or devices, groups that do not divide the columns, rows that are not neighbours, a workspace that is too small,
/// results that overlap something; an executor that is not a CUDA one. Nothing is written then.
pub fn rms_norm_backward(
    exec: &Exec,
    normed: Normed<'_>,
    weight: Option<(View<'_>, &mut ViewMut<'_>, &mut ViewMut<'_>)>,
    dy: View<'_>,
    dx: &mut ViewMut<'_>,
    add: bool,
) -> Result<()> {
    let Normed { x, groups, eps } = normed;
    let stream = exec.cuda_only()?;
    let result = dx.as_view();
    let (of_x, of_dy, of_dx) = (Rows::of(OP, "x", &x)?, Rows::of(OP, "dy", &dy)?, Rows::of(OP, "dx", &result)?);
    check_groups(OP, "groups", groups, of_x.columns)?;
    let mut checker = Checker::new(OP, exec.device());
    checker.read("x", &x, Kind::Real, &x.shape())?;
    checker.read("dy", &dy, Kind::Real, &x.shape())?;
    checker.write("dx", dx, Kind::Real, &x.shape())?;
    let mut addresses = None;
    if let Some((weight, dweight, workspace)) = &weight {
        checker.read("weight", weight, Kind::Exact(DType::F32), &[of_x.columns])?;
        checker.write("dweight", dweight, Kind::Exact(DType::F32), &[of_x.columns])?;
        let len = rms_norm_backward_workspace_len(of_x.rows, of_x.columns, groups);
        checker.write("workspace", workspace, Kind::Exact(DType::F32), &[len])?;
        checker.dense("workspace", Some(workspace.as_view()))?;
        let row = Rows::row(OP, "weight", weight, of_x.columns)?;
        addresses = Some([row.address, workspace.as_view().as_ptr() as u64]);
    }
    checker.finish()?;
    let kernel = kernel([&of_x, &of_dy, &of_dx], addresses, groups, eps, add)?;
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configuration describes
    // their types, and the factors are written before they are read.
    unsafe {
        kernel.launch(stream, &NORM)?;
        let Some(((_, dweight, _), [_, factors])) = weight.zip(addresses) else { return Ok(()) };
        let terms = factors + 4 * (of_x.rows * groups) as u64;
        columns::launch(stream, &of_dy, Some(Times { x: of_x, factors, groups }), dweight.raw(), terms)
    }
}

pub(super) fn kernel(
    [x, dy, dx]: [&Rows; 3],
    weight: Option<[u64; 2]>,
    groups: usize,
    eps: f32,
    add: bool,
) -> Result<Kernel<Params>> {
    let config = Config::default()
        .dtype("X", x.dtype)
        .dtype("DY", dy.dtype)
        .dtype("DX", dx.dtype)
        .flag("HAS_WEIGHT", weight.is_some())
        .flag("ADD", add)
        .int("THREADS", THREADS);
    let warps = x.rows.checked_mul(groups).map(|warps| warps.div_ceil(THREADS / 32));
    let launch = Launch::new(OP, if x.columns == 0 { Some(0) } else { warps }, THREADS)?;
    let [weight, factors] = weight.map_or([Address::NULL; 2], |addresses| addresses.map(Address::new));
    let params = Params {
        x: Address::new(x.address),
        dy: Address::new(dy.address),
        dx: Address::new(dx.address),
        weight,
        factors,
        rows: x.rows as i64,
        groups: groups as i64,
        x_pitch: x.pitch as i64,
        dy_pitch: dy.pitch as i64,
        dx_pitch: dx.pitch as i64,
        group: (x.columns / groups) as u32,
        eps,
    };
    Ok(Kernel { config, launch, params })
}
