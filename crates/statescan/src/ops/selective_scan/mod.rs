//! Selective scan (Mamba-1, S6): a diagonal recurrence whose step, input and output maps depend on the input.
//!
//! ```text
//! h[t] = exp(dt[t] A) h[t-1] + dt[t] B[t] x[t]        y[t] = <C[t], h[t]> + D x[t]        (Gu and Dao 2023, algorithm 2)
//! ```
//!
//! B batch, D dim (channels), L seqlen, N dstate, G ngroups; `h` has shape (B, D, N).
//!
//! | argument | shape | type |
//! |---|---|---|
//! | x, dt | (B, D, L) | real |
//! | a | (D, N) | real or complex; complex: `y = 2 Re(sum_n C h)` |
//! | b, c | (B, N, L), (B, G, N, L), or constant (D, N) | real, or complex where a is |
//! | d | (D,) | skip: `y += D x` |
//! | z | (B, D, L) | gate, after the skip: `y * silu(z)` |
//! | dt_bias, dt_softplus, dt_limit | (D,), flag, (low, high) | in that order: add, softplus (the identity above 20), clamp |
//! | dt_a | (B, D, L) | a step of its own for the decay (`deltaA`), used as it is |
//! | initial_state | (B, D, N), see [`Sequences`] for packed rows | real, or complex where a is |
//! | -> y | (B, D, L) | any real type |
//! | -> final_state | as initial_state | real or complex, as a |
//!
//! Each argument may have its own storage type and any strides. Carried values are `f32`, or `f64` where `x` is.
//!
//! **Backward.** With `g[t]` the gradient of `h[t]`, `p[t]` that of `y` before the gate, `s = conj`, `z = dt A` and, for complex `a`, `p`
//! doubled:
//!
//! ```text
//! g[t] = p[t] s(C[t]) + s(Abar[t+1]) g[t+1]      dC[t] = sum_d p[t] s(h[t])           dB[t] = sum_d g[t] s(Bbar[t]) x[t]
//! dx[t] = Re sum_n g[t] s(Bbar[t] B[t]) + D p[t]  dAbar = g[t] s(h[t-1])               dBbar = g[t] s(B[t]) x[t]
//! dA = sum_t dAbar s(Abar'(z)) dt + dBbar s(dBbar/dA)      ddt = Re sum_n dAbar s(Abar'(z) A) + dBbar s(dBbar/ddt)
//! ```
//!
//! States are recomputed from checkpoints, one for each [`CHECKPOINT`](super::CHECKPOINT) steps and channel. Gradients overwrite.
//!
//! **CUDA.** Both passes run there, with every option. States are `f32` or complex64; arguments stored in wider types are rounded, and an
//! `x` in `f64` is refused. Bounds and indices of packed sequences are read by the device only, so that wrong values cannot be reported:
//! they give wrong results and touch no memory outside of the tensors.

mod cpu;
mod cuda;
pub(crate) mod dynamic;
mod problem;
pub mod reference;
mod signature;
pub(crate) mod summary;
mod targets;
pub mod update;

use super::check::{Checker, Kind};
use super::discretization::Discretization;
use super::sequences::Sequences;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::ops::builder::builder;
use crate::tensor::{Shape, View, ViewMut};
pub(crate) use problem::{Problem, Projection};
pub use signature::SIGNATURE;
pub use summary::{summary, summary_workspace_len};
pub(crate) use targets::{GradientTargets, Sources, Targets};

const OP: &str = SIGNATURE.name;

builder! {
    /// The arguments of a selective scan; see the [module](self) for shapes and types.
    #[derive(Debug, Clone, Copy)]
    pub struct Args<'a> {
        /// Input, (B, D, L).
        pub x: View<'a>,
        /// Step sizes, (B, D, L).
        pub dt: View<'a>,
        /// State matrix, diagonal, (D, N).
        pub a: View<'a>,
        /// Input map, (B, N, L), (B, G, N, L) or (D, N).
        pub b: View<'a>,
        /// Output map, (B, N, L), (B, G, N, L) or (D, N).
        pub c: View<'a>,
        /// Skip, (D,).
        pub d: Option<View<'a>>,
        /// Gate, (B, D, L).
        pub z: Option<View<'a>>,
        /// Added to `dt`, (D,).
        pub dt_bias: Option<View<'a>>,
        /// Whether `dt` goes through softplus after the bias.
        pub dt_softplus: bool,
        /// Lowest and highest step, applied last.
        pub dt_limit: (f64, f64),
        /// The decay's own step (`deltaA`), (B, D, L).
        pub dt_a: Option<View<'a>>,
        /// State before the first step, (B, D, N).
        pub initial_state: Option<View<'a>>,
        /// How the time axis divides into sequences.
        pub sequences: Sequences<'a>,
        /// Whether to scan from the last step to the first.
        pub reverse: bool,
        /// How (A, B) become a recurrence.
        pub discretization: Discretization,
    }
}

impl<'a> Args<'a> {
    /// The five required arguments, and no option: `Args::new(x, dt, a, b, c).z(z).dt_softplus(true)`.
    pub fn new(x: View<'a>, dt: View<'a>, a: View<'a>, b: View<'a>, c: View<'a>) -> Self {
        Args {
            x,
            dt,
            a,
            b,
            c,
            d: None,
            z: None,
            dt_bias: None,
            dt_softplus: false,
            dt_limit: (f64::NEG_INFINITY, f64::INFINITY),
            dt_a: None,
            initial_state: None,
            sequences: Sequences::Whole,
            reverse: false,
            discretization: Discretization::Mamba,
        }
    }
}

/// The options of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Options {
    pub dt_softplus: bool,
    pub dt_limit: (f64, f64),
    pub reverse: bool,
    pub discretization: Discretization,
}

impl Args<'_> {
    fn options(&self) -> Options {
        let &Args { dt_softplus, dt_limit, reverse, discretization, .. } = self;
        Options { dt_softplus, dt_limit, reverse, discretization }
    }
}

builder! {
    /// What a forward pass writes; what is `None` is not computed.
    #[derive(Debug, Default)]
    pub struct Outputs<'a> {
        /// Output, (B, D, L).
        pub y: Option<ViewMut<'a>>,
        /// State after the last step, shaped as the initial state.
        pub final_state: Option<ViewMut<'a>>,
        /// Saved states for the backward pass: dense, of [`checkpoints_len`] elements, f32 (f64 where x is).
        pub checkpoints: Option<ViewMut<'a>>,
        /// Scratch memory: dense, f32, of [`workspace_len`] elements. Without it long rows of few channels are slower on CUDA.
        pub workspace: Option<ViewMut<'a>>,
    }
}

builder! {
    /// Cotangents: the gradients of a loss by the outputs. What is `None` counts as zero.
    #[derive(Debug, Default, Clone, Copy)]
    pub struct Cotangents<'a> {
        /// By `y`, (B, D, L).
        pub y: Option<View<'a>>,
        /// By `final_state`.
        pub final_state: Option<View<'a>>,
    }
}

builder! {
    /// What a backward pass writes (it overwrites); what is `None` is not computed. Each has the shape of its argument; complex arguments
    /// have complex gradients (conjugate cotangents, as PyTorch's).
    #[derive(Debug, Default)]
    pub struct Gradients<'a> {
        /// By `x`.
        pub x: Option<ViewMut<'a>>,
        /// By `dt`.
        pub dt: Option<ViewMut<'a>>,
        /// By `a`.
        pub a: Option<ViewMut<'a>>,
        /// By `b`.
        pub b: Option<ViewMut<'a>>,
        /// By `c`.
        pub c: Option<ViewMut<'a>>,
        /// By `d`.
        pub d: Option<ViewMut<'a>>,
        /// By `z`.
        pub z: Option<ViewMut<'a>>,
        /// By `dt_bias`.
        pub dt_bias: Option<ViewMut<'a>>,
        /// By `dt_a`.
        pub dt_a: Option<ViewMut<'a>>,
        /// By `initial_state`.
        pub initial_state: Option<ViewMut<'a>>,
        /// Scratch memory: dense, f32, of [`backward_workspace_len`] elements. Needed on CUDA.
        pub workspace: Option<ViewMut<'a>>,
    }
}

/// Number of `f32` (`f64` where x is) elements that `Outputs::checkpoints` must have.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn checkpoints_len(args: &Args<'_>) -> Result<usize> {
    let problem = Problem::new(args, &mut Checker::new(OP, args.x.device()), &[])?;
    Ok(problem.checkpoints_len())
}

/// The shape of `final_state`: that of the initial state where there is one.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn final_state_shape(args: &Args<'_>) -> Result<Shape> {
    let problem = Problem::new(args, &mut Checker::new(OP, args.x.device()), &[])?;
    Ok(problem.state_shape)
}

/// Number of `f32` elements that `Outputs::workspace` must have if it is given; none on the CPU, and none for short rows.
///
/// # Errors
/// Those of [`forward`] that concern the arguments, unless none is needed whatever they are.
pub fn workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    let short = args.x.shape().last().is_some_and(|&seqlen| seqlen < cuda::SHORTEST_CUT);
    if short || exec.stream().is_none() {
        return Ok(0);
    }
    let problem = Problem::new(args, &mut Checker::new(OP, exec.device()), &[])?;
    Ok(problem.workspace_len(exec))
}

/// Number of `f32` elements that `Gradients::workspace` must have, none on the CPU; more of them if the saved states are not given.
///
/// # Errors
/// Those of [`forward`] that concern the arguments; [`Error::Unavailable`] for more states than a device's kernels can hold.
pub fn backward_workspace_len(exec: &Exec, args: &Args<'_>, has_checkpoints: bool) -> Result<usize> {
    let problem = Problem::new(args, &mut Checker::new(OP, exec.device()), &[])?;
    problem.backward_workspace_len(exec, !has_checkpoints)
}

/// Computes `y`, the final state, and the saved states: whichever are asked for.
///
/// # Errors
/// Any argument of a wrong shape, type or device, bad sequence bounds, outputs that overlap. Nothing is written then.
pub fn forward(exec: &Exec, args: &Args<'_>, out: &mut Outputs<'_>) -> Result<()> {
    let mut checker = Checker::new(OP, exec.device());
    let state = out.final_state.as_ref().map(|s| s.shape());
    let problem = Problem::new(args, &mut checker, state.as_slice())?;
    checker.write_if("y", &out.y, Kind::Real, &args.x.shape())?;
    checker.write_if("final_state", &out.final_state, Kind::exactly(problem.complex), &problem.state_shape)?;
    checker.write_if("checkpoints", &out.checkpoints, Kind::Exact(problem.real_dtype()), &[problem.checkpoints_len()])?;
    checker.dense("checkpoints", out.checkpoints.as_ref().map(|v| v.as_view()))?;
    if out.workspace.is_some() {
        checker.workspace(&out.workspace, problem.workspace_len(exec))?;
    }
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

/// Computes the gradients that are asked for. `checkpoints` are those of a forward pass with the same arguments; without them the states
/// are computed again.
///
/// # Errors
/// As [`forward`]; also a gradient of an argument that was not given.
pub fn backward(
    exec: &Exec,
    args: &Args<'_>,
    checkpoints: Option<View<'_>>,
    cotangents: &Cotangents<'_>,
    grads: &mut Gradients<'_>,
) -> Result<()> {
    let mut checker = Checker::new(OP, exec.device());
    let states = [cotangents.final_state.map(|s| s.shape()), grads.initial_state.as_ref().map(|s| s.shape())];
    let problem = Problem::new(args, &mut checker, &states.into_iter().flatten().collect::<Vec<_>>())?;
    let (views, state) = (args.views(), problem.state_shape);
    checker.read_if("checkpoints", &checkpoints, Kind::Exact(problem.real_dtype()), &[problem.checkpoints_len()])?;
    checker.dense("checkpoints", checkpoints)?;
    checker.read_if("grad of y", &cotangents.y, Kind::Real, &args.x.shape())?;
    checker.read_if("grad of final_state", &cotangents.final_state, Kind::float(problem.complex), &state)?;
    checker.gradients(&SIGNATURE, &views, (Kind::exactly(problem.complex), &state), &grads.by_position())?;
    checker.workspace(&grads.workspace, problem.backward_workspace_len(exec, checkpoints.is_none())?)?;
    checker.finish()?;
    let (sources, targets) = (Sources::new(&problem, checkpoints, cotangents), GradientTargets::new(&problem, grads));
    match exec.stream() {
        Some(stream) => {
            let missing = Error::Presence { op: OP, argument: "workspace", expected: "is needed for gradients on CUDA" };
            let workspace = grads.workspace.as_mut().ok_or(missing)?.raw();
            cuda::backward(stream, &problem, &sources, &targets, &workspace)
        }
        None => {
            cpu::backward(exec, &problem, &sources, &targets);
            Ok(())
        }
    }
}
