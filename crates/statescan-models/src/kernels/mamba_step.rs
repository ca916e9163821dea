//! One step of Mamba between its projections.

use super::LAYERS;
use super::dense::check_dense;
use super::row_product::{Conv, ConvParams};
use super::rows::Rows;
use core::ffi::c_void;
use statescan::Exec;
use statescan::cuda::STEP_SIZE;
use statescan::error::{Error, Result};
use statescan::ops::check::{Checker, Kind};
use statescan::tensor::{View, ViewMut};
use statescan_cuda::{Address, AsStream, COMMON, Config, Kernel, Launch, Program, params};

const OP: &str = "mamba_step";
const THREADS: usize = 128;
/// The most states that fit into registers, and the largest rank that fits into shared memory.
const MOST: usize = 1024;

pub(super) static MAMBA_STEP: Program<Params> = Program::new(OP, &[COMMON, STEP_SIZE, LAYERS], include_str!("mamba_step.cu"));

params! {
    /// Parameters of `mamba_step`.
    pub(super) struct Params {
        conv: ConvParams,
        maps: Address<f32>,
        dt_weight: Address<c_void>,
        dt_bias: Address<f32>,
        a: Address<f32>,
        d: Address<f32>,
        z: Address<f32>,
        state: Address<f32>,
        y: Address<f32>,
        channels: u32,
        eps: f32,
        low: f32,
        high: f32,
    }
}

/// The arguments of [`mamba_step`]: D channels, N states, rank R of the step sizes. Everything is dense, and in f32 but `dt_weight`.
#[derive(Debug, Clone, Copy)]
pub struct MambaStep<'a> {
    /// The convolution whose results are scanned, of D channels.
    pub conv: Conv<'a>,
    /// Step sizes of low rank, B and C, (R + 2 N).
    pub maps: View<'a>,
    /// The epsilon of RMSNorms of these three, without weights; `None` if there is no such norm.
    pub norms: Option<f32>,
    /// From R to D, (D, R) in f32, bf16 or f16.
    pub dt_weight: View<'a>,
    /// Added to step sizes before softplus, (D).
    pub dt_bias: View<'a>,
    /// Lowest and highest step.
    pub dt_limit: (f64, f64),
    /// State matrix, (D, N).
    pub a: View<'a>,
    /// Skip, (D).
    pub d: View<'a>,
    /// Gate, (D).
    pub z: View<'a>,
}

/// Moves the scan's state, (D, N), and the convolution's, (D, width - 1), on by one step, and writes `y`, (D).
///
/// # Errors
/// Arguments of wrong shapes, types or devices or that are not dense, what is written overlapping something, over 1024 states or step sizes of a higher
/// rank; an executor that is not a CUDA one. Nothing is written then.
pub fn mamba_step(
    exec: &Exec,
    args: &MambaStep<'_>,
    conv_state: &mut ViewMut<'_>,
    state: &mut ViewMut<'_>,
    y: &mut ViewMut<'_>,
) -> Result<()> {
    let stream = exec.as_stream()?;
    let mut checker = Checker::new(OP, exec.device());
    let [channels, width] = args.conv.check(OP, &mut checker)?;
    let dt_weight = Rows::of(OP, "dt_weight", &args.dt_weight)?;
    let states = args.a.shape().last().copied().unwrap_or(0);
    let rank = dt_weight.columns;
    if !(1..=MOST).contains(&states) || !(1..=MOST).contains(&rank) {
        return Err(Error::Unavailable {
            what: OP,
            why: "it has from 1 to 1024 states, and step sizes of a rank from 1 to 1024",
        });
    }
    let read = [
        ("maps", &args.maps, &[rank + 2 * states][..]),
        ("dt_bias", &args.dt_bias, &[channels]),
        ("a", &args.a, &[channels, states]),
        ("d", &args.d, &[channels]),
        ("z", &args.z, &[channels]),
    ];
    let written =
        [("conv_state", &*conv_state, &[channels, width - 1][..]), ("state", state, &[channels, states]), ("y", y, &[channels])];
    checker.read("dt_weight", &args.dt_weight, Kind::Real, &[channels, rank])?;
    checker.dense("dt_weight", Some(args.dt_weight))?;
    check_dense(&mut checker, &read, &written)?;
    checker.finish()?;
    let written = [conv_state.as_view(), state.as_view(), y.as_view()];
    let kernel = kernel(args, [channels, width, rank, states], written)?;
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configuration describes
    // their types and sizes.
    unsafe { stream.launch_early(&MAMBA_STEP, &kernel.config, kernel.launch, &kernel.params) }.map_err(Into::into)
}

pub(super) fn kernel(
    args: &MambaStep<'_>,
    [channels, width, rank, states]: [usize; 4],
    [conv_state, state, y]: [View<'_>; 3],
) -> Result<Kernel<Params>> {
    let lanes = states.next_power_of_two().clamp(4, 32);
    let (low, high) = args.dt_limit;
    let config = Config::default()
        .dtype("W", args.dt_weight.dtype())
        .int("RANK", rank)
        .int("STATES", states)
        .int("LANES", lanes)
        .int("THREADS", THREADS)
        .int("WIDTH", width)
        .flag("NORMS", args.norms.is_some())
        .flag("HAS_LIMIT", (low, high) != (0.0, f64::INFINITY));
    let address = |view: View<'_>| view.as_ptr() as u64;
    let params = Params {
        conv: args.conv.params(conv_state),
        maps: Address::new(address(args.maps)),
        dt_weight: Address::new(address(args.dt_weight)),
        dt_bias: Address::new(address(args.dt_bias)),
        a: Address::new(address(args.a)),
        d: Address::new(address(args.d)),
        z: Address::new(address(args.z)),
        state: Address::new(address(state)),
        y: Address::new(address(y)),
        channels: channels as u32,
        eps: args.norms.unwrap_or(0.0),
        low: low as f32,
        high: high as f32,
    };
    let launch = Launch::new(OP, Some(channels.div_ceil(THREADS / lanes)), THREADS)?;
    Ok(Kernel { config, launch, params })
}
