//! Causal depthwise convolution over time, the short filter in front of a scan.
//!
//! ```text
//! pre[t] = bias + sum_k weight[k] x[t - (W - 1) + k]        y[t] = pre[t] or silu(pre[t])
//! ```
//!
//! for each channel; B batch, D dim (channels), L seqlen, W width (2 to 8). Before the first step of a sequence the inputs are those of
//! `initial_states`, or zero; no tap reaches into another sequence.
//!
//! | argument | shape | type |
//! |---|---|---|
//! | x | (B, D, L) | real |
//! | weight | (D, W) | real |
//! | bias | (D,) | real |
//! | initial_states | (B, D, W-1), see [`Sequences`] for packed rows | real; the inputs before the first step, the latest last |
//! | -> y | (B, D, L) | real |
//! | -> final_states | as initial_states | real; the last W-1 inputs, counting the initial states |
//!
//! Each argument may have its own storage type and any strides; sums are `f32`, or `f64` where `x` is. A reversed convolution looks ahead
//! instead of back: its states are in the order in which it walks.
//!
//! **Padding.** Steps whose `seq_idx` is negative belong to no sequence: their `y` is zero (without bias), their inputs reach nothing, and the
//! states of the row belong to its first and last real sequence. Where states are numbered, (batch, sequences, ..), there is no padding.
//!
//! **Backward.** With `p[t] = dy[t] act'(pre[t])` (`pre` is computed again) and `u` the initial states followed by `x`,
//!
//! ```text
//! du[t] = sum_k weight[k] p[t + (W - 1) - k] (+ the final states' cotangent)   dweight[k] = sum_bt p[t] u[t - (W - 1) + k]   dbias = sum_bt p[t]
//! ```
//!
//! Sums over batch and time are made in two stages whose order depends on the shapes alone. Gradients overwrite. One step at a time:
//! [`update`].
//!
//! **CUDA.** Everything runs there but an `x` in `f64`. Sums are `f32`; arguments in wider types are rounded. Bounds and indices of packed
//! sequences are read by the device only: wrong values cannot be reported, they give wrong results and touch no memory outside of the tensors.
//! The order of the filters' sums depends on the device and on whether there is a workspace too.

mod cpu;
mod cuda;
pub(crate) mod dynamic;
mod problem;
pub mod reference;
mod signature;
mod targets;
pub mod update;

use super::check::{Checker, Kind};
use super::sequences::Sequences;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::ops::builder::builder;
use crate::tensor::{Shape, View, ViewMut};
pub(crate) use problem::Problem;
pub use signature::SIGNATURE;
pub(crate) use targets::{GradientTargets, Sources, Targets};

const OP: &str = SIGNATURE.name;

/// The largest filter width.
pub const MAX_WIDTH: usize = 8;

/// What follows the convolution.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `v * sigmoid(v)`, also called swish.
    Silu,
}

impl Activation {
    /// That of a word of the option.
    pub(crate) fn of_word(word: Option<usize>) -> Self {
        word.map_or(Activation::None, |_| Activation::Silu)
    }
}

builder! {
    /// The arguments of a causal convolution; see the [module](self) for shapes and types.
    #[derive(Debug, Clone, Copy)]
    pub struct Args<'a> {
        /// Input, (B, D, L).
        pub x: View<'a>,
        /// Filters, (D, W); the last tap is the present.
        pub weight: View<'a>,
        /// Added to the sum, (D,).
        pub bias: Option<View<'a>>,
        /// What follows the sum.
        pub activation: Activation,
        /// Inputs before the first step, (B, D, W-1).
        pub initial_states: Option<View<'a>>,
        /// How the time axis divides into sequences.
        pub sequences: Sequences<'a>,
        /// Whether to convolve from the last step to the first.
        pub reverse: bool,
    }
}

impl<'a> Args<'a> {
    /// The two required arguments, and no option: `Args::new(x, weight).bias(bias)`.
    pub fn new(x: View<'a>, weight: View<'a>) -> Self {
        Args {
            x,
            weight,
            bias: None,
            activation: Activation::None,
            initial_states: None,
            sequences: Sequences::Whole,
            reverse: false,
        }
    }
}

builder! {
    /// What a forward pass writes; what is `None` is not computed.
    #[derive(Debug, Default)]
    pub struct Outputs<'a> {
        /// Output, (B, D, L).
        pub y: Option<ViewMut<'a>>,
        /// The last inputs, shaped as the initial states.
        pub final_states: Option<ViewMut<'a>>,
    }
}

builder! {
    /// Cotangents: the gradients of a loss by the outputs. What is `None` counts as zero.
    #[derive(Debug, Default, Clone, Copy)]
    pub struct Cotangents<'a> {
        /// By `y`, (B, D, L).
        pub y: Option<View<'a>>,
        /// By `final_states`.
        pub final_states: Option<View<'a>>,
    }
}

builder! {
    /// What a backward pass writes (it overwrites); what is `None` is not computed. Each has the shape of its argument.
    #[derive(Debug, Default)]
    pub struct Gradients<'a> {
        /// By `x`.
        pub x: Option<ViewMut<'a>>,
        /// By `weight`.
        pub weight: Option<ViewMut<'a>>,
        /// By `bias`.
        pub bias: Option<ViewMut<'a>>,
        /// By `initial_states`.
        pub initial_states: Option<ViewMut<'a>>,
        /// Scratch memory: dense, f32, of [`backward_workspace_len`] elements. Without it the gradients of few filters are slower on CUDA.
        pub workspace: Option<ViewMut<'a>>,
    }
}

/// The shape of `final_states`: that of the initial states where there are some.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn final_states_shape(args: &Args<'_>) -> Result<Shape> {
    Ok(Problem::new(args, &mut Checker::new(OP, args.x.device()), &[])?.state_shape)
}

/// Number of `f32` elements that `Gradients::workspace` must have if it is given; none on the CPU.
///
/// # Errors
/// Those of [`backward`] that concern the arguments.
pub fn backward_workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    Ok(Problem::new(args, &mut Checker::new(OP, exec.device()), &[])?.backward_workspace_len(exec))
}

/// Computes `y` and the final states: whichever are asked for.
///
/// # Errors
/// Any argument of a wrong shape, type or device, bad sequence bounds, outputs that overlap. Nothing is written then.
pub fn forward(exec: &Exec, args: &Args<'_>, out: &mut Outputs<'_>) -> Result<()> {
    let mut checker = Checker::new(OP, exec.device());
    let state = out.final_states.as_ref().map(|s| s.shape());
    let problem = Problem::new(args, &mut checker, state.as_slice())?;
    checker.write_if("y", &out.y, Kind::Real, &args.x.shape())?;
    checker.write_if("final_states", &out.final_states, Kind::Real, &problem.state_shape)?;
    checker.finish()?;
    let targets = Targets::new(&problem, out);
    match exec.stream() {
        Some(stream) => cuda::forward(stream, &problem, &targets),
        None => {
            cpu::forward(exec, &problem, &targets);
            Ok(())
        }
    }
}

/// Computes the gradients that are asked for.
///
/// # Errors
/// As [`forward`]; also a gradient of an argument that was not given.
pub fn backward(exec: &Exec, args: &Args<'_>, cotangents: &Cotangents<'_>, grads: &mut Gradients<'_>) -> Result<()> {
    let mut checker = Checker::new(OP, exec.device());
    let states = [cotangents.final_states.map(|s| s.shape()), grads.initial_states.as_ref().map(|s| s.shape())];
    let problem = Problem::new(args, &mut checker, &states.into_iter().flatten().collect::<Vec<_>>())?;
    let (views, state) = (args.views(), problem.state_shape);
    checker.read_if("grad of y", &cotangents.y, Kind::Real, &args.x.shape())?;
    checker.read_if("grad of final_states", &cotangents.final_states, Kind::Real, &state)?;
    checker.gradients(&SIGNATURE, &views, (Kind::Real, &state), &grads.by_position())?;
    checker.workspace(&grads.workspace, problem.backward_workspace_len(exec))?;
    checker.finish()?;
    let (sources, targets) = (Sources::new(&problem, cotangents), GradientTargets::new(&problem, grads));
    match exec.stream() {
        Some(stream) => cuda::backward(stream, &problem, &sources, &targets),
        None => {
            cpu::backward(exec, &problem, &sources, &targets);
            Ok(())
        }
    }
}

/// Refuses widths that there are no kernels for.
fn check_width(op: &'static str, width: usize) -> Result<()> {
    let expected = "of a width between 2 and 8, the width";
    match (2..=MAX_WIDTH).contains(&width) {
        true => Ok(()),
        false => Err(Error::Value { op, argument: "weight", expected, got: width as f64 }),
    }
}
