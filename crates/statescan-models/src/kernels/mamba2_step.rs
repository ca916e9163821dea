//! One step of Mamba-2 between its projections.

use super::LAYERS;
use super::dense::check_dense;
use super::row_product::{Conv, ConvParams};
use statescan::Exec;
use statescan::cuda::STEP_SIZE;
use statescan::error::{Error, Result};
use statescan::ops::check::{Checker, check_groups};
use statescan::tensor::{View, ViewMut};
use statescan_cuda::{Address, AsStream, COMMON, Config, Kernel, Launch, Program, params};

const OP: &str = "mamba2_step";
const THREADS: usize = 256;
/// Channels of a block.
const CHANNELS: usize = 16;
/// The most states that fit into registers.
const MOST: usize = 512;

pub(super) static MAMBA2_STEP: Program<Params> = Program::new(OP, &[COMMON, STEP_SIZE, LAYERS], include_str!("mamba2_step.cu"));

params! {
    /// Parameters of `mamba2_step`.
    pub(super) struct Params {
        conv: ConvParams,
        dt: Address<f32>,
        dt_bias: Address<f32>,
        a: Address<f32>,
        d: Address<f32>,
        z: Address<f32>,
        state: Address<f32>,
        y: Address<f32>,
        inner: u32,
        groups: u32,
        heads_of_group: u32,
        low: f32,
        high: f32,
    }
}

/// The arguments of [`mamba2_step`]: H heads of P channels, G groups, N states. Everything is dense and in f32.
#[derive(Debug, Clone, Copy)]
pub struct Mamba2Step<'a> {
    /// The convolution of x, B and C, (H P + 2 G N) channels.
    pub conv: Conv<'a>,
    /// Its state, (channels, width - 1), which stays as it is.
    pub conv_state: View<'a>,
    /// Step sizes, (H).
    pub dt: View<'a>,
    /// Added to them before softplus, (H).
    pub dt_bias: View<'a>,
    /// Lowest and highest step.
    pub dt_limit: (f64, f64),
    /// Decay rates, (H).
    pub a: View<'a>,
    /// Skip, (H).
    pub d: View<'a>,
    /// Gate, (H P).
    pub z: View<'a>,
    /// Groups that B and C have.
    pub groups: usize,
}

/// Moves the scan's state, (H P, N), on by one step and writes `y`, (H P).
///
/// # Errors
/// Arguments of wrong shapes, types or devices or that are not dense, what is written overlapping something, over 512 states; an executor that is not
/// a CUDA one. Nothing is written then.
pub fn mamba2_step(exec: &Exec, args: &Mamba2Step<'_>, state: &mut ViewMut<'_>, y: &mut ViewMut<'_>) -> Result<()> {
    let stream = exec.as_stream()?;
    let mut checker = Checker::new(OP, exec.device());
    let [channels, width] = args.conv.check(OP, &mut checker)?;
    let (heads, inner, groups) = (args.a.len(), args.z.len(), args.groups);
    check_groups(OP, "groups", groups, heads)?;
    check_groups(OP, "dt", heads, inner)?;
    let states = channels.saturating_sub(inner) / (2 * groups);
    if !(1..=MOST).contains(&states) || channels != inner + 2 * groups * states {
        return Err(Error::Unavailable {
            what: OP,
            why: "it has 2 groups (1 to 512 states) channels of a convolution beside those of heads",
        });
    }
    let read = [
        ("conv_state", &args.conv_state, &[channels, width - 1][..]),
        ("dt", &args.dt, &[heads]),
        ("dt_bias", &args.dt_bias, &[heads]),
        ("a", &args.a, &[heads]),
        ("d", &args.d, &[heads]),
        ("z", &args.z, &[inner]),
    ];
    check_dense(&mut checker, &read, &[("state", state, &[inner, states]), ("y", y, &[inner])])?;
    checker.finish()?;
    let kernel = kernel(args, [inner, width, states], [state.as_view(), y.as_view()])?;
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configuration describes
    // their sizes.
    unsafe { stream.launch_early(&MAMBA2_STEP, &kernel.config, kernel.launch, &kernel.params) }.map_err(Into::into)
}

pub(super) fn kernel(
    args: &Mamba2Step<'_>,
    [inner, width, states]: [usize; 3],
    [state, y]: [View<'_>; 2],
) -> Result<Kernel<Params>> {
    let heads = args.a.len();
    let headdim = inner / heads;
    let (low, high) = args.dt_limit;
    let config = Config::default()
        .int("HEADDIM", headdim)
        .int("STATES", states)
        .int("CHANNELS", CHANNELS)
        .int("THREADS", THREADS)
        .int("WIDTH", width)
        .flag("HAS_LIMIT", (low, high) != (0.0, f64::INFINITY));
    let address = |view: View<'_>| view.as_ptr() as u64;
    let params = Params {
        conv: args.conv.params(args.conv_state),
        dt: Address::new(address(args.dt)),
        dt_bias: Address::new(address(args.dt_bias)),
        a: Address::new(address(args.a)),
        d: Address::new(address(args.d)),
        z: Address::new(address(args.z)),
        state: Address::new(address(state)),
        y: Address::new(address(y)),
        inner: inner as u32,
        groups: args.groups as u32,
        heads_of_group: (heads / args.groups) as u32,
        low: low as f32,
        high: high as f32,
    };
    let launch = Launch::new(OP, Some(heads * headdim.div_ceil(CHANNELS)), THREADS)?;
    Ok(Kernel { config, launch, params })
}
