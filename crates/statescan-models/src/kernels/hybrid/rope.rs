//! Heads of rows turned by their positions.

use super::super::rows::Rows;
use super::ROTATION;
use core::ffi::c_void;
use statescan::Exec;
use statescan::error::{Error, Result};
use statescan::ops::check::{Checker, Kind, check_groups};
use statescan::tensor::{DType, View, ViewMut};
use statescan_cuda::{Address, AsStream, COMMON, Config, Kernel, Launch, Program, params};

const OP: &str = "rope";
const THREADS: usize = 256;

pub(super) static ROPE: Program<Params> = Program::new(OP, &[COMMON, ROTATION], include_str!("rope.cu"));

params! {
    /// Parameters of `rope`.
    pub(super) struct Params {
        x: Address<c_void>,
        y: Address<c_void>,
        angles: Address<f32>,
        rows: i64,
        columns: i64,
        x_pitch: i64,
        y_pitch: i64,
        /// The position of the first row.
        first: i64,
        headdim: u32,
        pairs: u32,
        /// -1 to turn back.
        sign: f32,
    }
}

/// How the heads of rows are turned.
#[derive(Debug, Clone, Copy)]
pub struct Heads<'h> {
    /// Numbers of a head.
    pub headdim: usize,
    /// Radians for each position, (pairs) in f32, dense: number i of a head is turned with number i + pairs. Without them rows are copied.
    pub angles: Option<View<'h>>,
    /// The position of the first row; the others follow it.
    pub first: usize,
    /// Whether heads are turned back: the transpose of the rotation, for gradients.
    pub back: bool,
}

impl Heads<'_> {
    /// Pairs that are turned.
    pub(super) fn pairs(&self, op: &'static str) -> Result<usize> {
        let pairs = self.angles.map_or(0, |angles| angles.len());
        match 2 * pairs <= self.headdim {
            true => Ok(pairs),
            false => {
                Err(Error::Presence { op, argument: "angles", expected: "must have one for two of a head's numbers at most" })
            }
        }
    }
}

/// Rows `x`, (rows, columns) of any real type, as rows `y` of the same shape and any real type, with each head turned by its position.
///
/// # Errors
/// Arguments of wrong shapes, types or devices, rows that are not neighbours or no whole heads, results that overlap something; an executor that is not
/// a CUDA one. Nothing is written then.
pub fn rope(exec: &Exec, x: View<'_>, of: &Heads<'_>, y: &mut ViewMut<'_>) -> Result<()> {
    let stream = exec.as_stream()?;
    let (result, pairs) = (y.as_view(), of.pairs(OP)?);
    let rows = [Rows::of(OP, "x", &x)?, Rows::of(OP, "y", &result)?];
    let mut checker = Checker::new(OP, exec.device());
    checker.read("x", &x, Kind::Real, &x.shape())?;
    checker.read_if("angles", &of.angles, Kind::Exact(DType::F32), &[pairs])?;
    checker.dense("angles", of.angles)?;
    checker.write("y", y, Kind::Real, &x.shape())?;
    checker.finish()?;
    check_groups(OP, "headdim", of.headdim, rows[0].columns)?;
    if x.is_empty() {
        return Ok(());
    }
    // SAFETY: as in `row_product`.
    unsafe { kernel(&rows, of, pairs)?.launch(stream, &ROPE) }.map_err(Into::into)
}

/// Rows `x` as rows `y`, as [`rope`] without angles: in another type.
///
/// # Errors
/// As [`rope`].
pub fn cast(exec: &Exec, x: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
    let headdim = x.shape().last().copied().unwrap_or(1).max(1);
    rope(exec, x, &Heads { headdim, angles: None, first: 0, back: false }, y)
}

pub(super) fn kernel([x, y]: &[Rows; 2], of: &Heads<'_>, pairs: usize) -> Result<Kernel<Params>> {
    let params = Params {
        x: Address::new(x.address),
        y: Address::new(y.address),
        angles: of.angles.map_or(Address::NULL, |angles| Address::new(angles.as_ptr() as u64)),
        rows: x.rows as i64,
        columns: x.columns as i64,
        x_pitch: x.pitch as i64,
        y_pitch: y.pitch as i64,
        first: of.first as i64,
        headdim: of.headdim as u32,
        pairs: pairs as u32,
        sign: if of.back { -1.0 } else { 1.0 },
    };
    let config = Config::default().dtype("X", x.dtype).dtype("Y", y.dtype).int("THREADS", THREADS);
    Ok(Kernel { config, launch: Launch::elementwise(OP, x.rows.checked_mul(x.columns), THREADS)?, params })
}
