//! One row of attention between its projections.

use super::super::LAYERS;
use super::super::dense::check_dense;
use super::ROTATION;
use super::rope::Heads;
use statescan::Exec;
use statescan::cuda::STEP_SIZE;
use statescan::error::{Error, Result};
use statescan::ops::check::{Checker, Kind, check_groups};
use statescan::tensor::{DType, View, ViewMut};
use statescan_cuda::{Address, AsStream, COMMON, Config, Kernel, Launch, Program, params};

const OP: &str = "attention_step";
const THREADS: usize = 256;
/// The largest head that fits into shared memory.
const MOST: usize = 512;

pub(super) static ATTENTION_STEP: Program<Params> =
    Program::new(OP, &[COMMON, STEP_SIZE, LAYERS, ROTATION], include_str!("step.cu"));

params! {
    /// Parameters of `attention_step`.
    pub(super) struct Params {
        queries: Address<f32>,
        keys: Address<f32>,
        values: Address<f32>,
        angles: Address<f32>,
        position: Address<i32>,
        all_keys: Address<f32>,
        all_values: Address<f32>,
        y: Address<f32>,
        /// Tokens that keys and values have room for, and columns of one.
        room: i64,
        columns: i64,
        /// Heads of queries that share one of keys and values.
        share: u32,
        pairs: u32,
        /// Multiplies scores, which are exponents of two then.
        scale: f32,
    }
}

/// The arguments of [`attention_step`]: H heads of queries and G of keys and values, of P numbers each. Everything is dense, and in f32 but the position.
#[derive(Debug, Clone, Copy)]
pub struct AttentionStep<'a> {
    /// Queries, keys and values as they are projected, (H P + 2 G P).
    pub projected: View<'a>,
    /// Radians for each position, as [`Heads::angles`](super::Heads::angles).
    pub angles: Option<View<'a>>,
    /// Tokens that came before, (1) in i32 in the memory of the device. Where there is no room for another one nothing is written.
    pub position: View<'a>,
    /// Numbers of a head.
    pub headdim: usize,
    /// Multiplies scores.
    pub scale: f32,
}

/// Puts the row's keys and values behind those of the tokens before it, both (room, G P), and writes what it attends to, `y`, (H P).
///
/// # Errors
/// Arguments of wrong shapes, types or devices or that are not dense, what is written overlapping something, heads of over 512 numbers; an executor that
/// is not a CUDA one. Nothing is written then.
pub fn attention_step(
    exec: &Exec,
    args: &AttentionStep<'_>,
    [keys, values]: [&mut ViewMut<'_>; 2],
    y: &mut ViewMut<'_>,
) -> Result<()> {
    let stream = exec.as_stream()?;
    let headdim = args.headdim;
    let pairs = Heads { headdim, angles: args.angles, first: 0, back: false }.pairs(OP)?;
    let [room, columns] = keys.shape()[..] else {
        return Err(Error::Rank {
            op: OP,
            argument: "keys",
            expected: "(room, columns)".into(),
            got: keys.shape(),
            help: String::new(),
        });
    };
    let wide = y.shape().iter().product();
    if !(1..=MOST).contains(&headdim) {
        return Err(Error::Unavailable { what: OP, why: "a head has 1 to 512 numbers" });
    }
    [columns, wide].into_iter().try_for_each(|columns| check_groups(OP, "headdim", headdim, columns))?;
    check_groups(OP, "heads of keys", columns / headdim, wide / headdim)?;
    let mut checker = Checker::new(OP, exec.device());
    check_dense(
        &mut checker,
        &[("projected", &args.projected, &[wide + 2 * columns])],
        &[("keys", keys, &[room, columns]), ("values", values, &[room, columns]), ("y", y, &[wide])],
    )?;
    if let Some(angles) = &args.angles {
        check_dense(&mut checker, &[("angles", angles, &[pairs])], &[])?;
    }
    checker.read("position", &args.position, Kind::Exact(DType::I32), &[1])?;
    checker.finish()?;
    let kernel = kernel(args, pairs, [keys.as_view(), values.as_view(), y.as_view()])?;
    // SAFETY: as in `mamba2_step`; positions beyond the room are left alone.
    unsafe { kernel.launch(stream, &ATTENTION_STEP) }.map_err(Into::into)
}

pub(super) fn kernel(args: &AttentionStep<'_>, pairs: usize, [keys, values, y]: [View<'_>; 3]) -> Result<Kernel<Params>> {
    let (headdim, wide, [room, columns]) = (args.headdim, y.len(), [keys.shape()[0], keys.shape()[1]]);
    let address = |view: View<'_>| Address::new(view.as_ptr() as u64);
    let part = |first: usize| Address::new(args.projected.as_ptr() as u64 + 4 * first as u64);
    let params = Params {
        queries: part(0),
        keys: part(wide),
        values: part(wide + columns),
        angles: args.angles.map_or(Address::NULL, address),
        position: Address::new(args.position.as_ptr() as u64),
        all_keys: address(keys),
        all_values: address(values),
        y: address(y),
        room: room as i64,
        columns: columns as i64,
        share: (wide / columns) as u32,
        pairs: pairs as u32,
        scale: args.scale * core::f32::consts::LOG2_E,
    };
    let config = Config::default().int("HEADDIM", headdim).int("THREADS", THREADS);
    Ok(Kernel { config, launch: Launch::new(OP, Some(wide / headdim), THREADS)?, params })
}
