//! SSD (Mamba-2): the recurrence of the selective scan with one decay for each head, computed chunk by chunk with matrix products.
//!
//! ```text
//! h[t] = exp(dt[t] A) h[t-1] + dt[t] x[t] B[t]^T        y[t] = h[t] C[t] + D x[t]        (Dao and Gu 2024, section 6)
//! ```
//!
//! B batch, L seqlen, H nheads, P headdim, G ngroups, N dstate; `h` has shape (B, H, P, N), and H/G neighbouring heads share `B` and `C`.
//!
//! | argument | shape | note |
//! |---|---|---|
//! | x, z | (B, L, H, P) | z: gate, after the skip: `y * silu(z)` |
//! | dt | (B, L, H) | |
//! | a | (H,) | |
//! | b, c | (B, L, G, N), or (B, L, N) for one group | |
//! | d | (H,) or (H, P) | skip: `y += D x` |
//! | dt_bias, dt_softplus, dt_limit | (H,), flag, (low, high) | in that order: add, softplus (the identity above 20), clamp |
//! | dt_a | (B, L, H) | a step of its own for the decay, `exp(dt_a A)`, used as it is; with A = 1 it is the decay's logarithm |
//! | initial_state | (B, H, P, N), see [`Sequences`] for packed rows | |
//! | chunk_size, causal_mask | at least 1; (Q, Q) | checked; results do not depend on them |
//! | -> y | (B, L, H, P) | |
//! | -> final_state | as initial_state | |
//!
//! Everything is real. Each argument may have its own storage type and any strides, so heads may as well come before time: see
//! [`Args::from_heads_first`]. Carried values are `f32`, or `f64` where `x` is.
//!
//! **Forward.** In a chunk of Q steps that starts from the state `S` (N, P), with `cs[i]` the sum of `dt A` up to and with step i,
//!
//! ```text
//! M[i,j] = <C[i], B[j]> exp(cs[i] - cs[j]) dt[j], j <= i      w[j] = exp(cs[Q-1] - cs[j]) dt[j]
//! y = M x + diag(exp(cs)) C S                                 S' = exp(cs[Q-1]) S + B^T diag(w) x
//! ```
//!
//! `<C[i], B[j]>` is shared by the heads of a group, and `C S` and `B^T (..)` are one product for several heads. Only differences of `cs`
//! with i >= j are exponentiated, and `cs` is kept as an unevaluated sum of two numbers, so that a difference is right to the last digit
//! however far the sum has run. A decay below 1e-30 (1e-243 in `f64`) within a chunk counts as 0: it would only bring denormal numbers.
//! A NaN or an infinity in `x` also reaches the earlier steps of its own chunk, in its own column of its own head and nowhere else.
//!
//! **Backward.** With `p` the gradient of `y` before the gate, `R` that of `S'`, and `E[i,j] = <p[i], x[j]>`,
//!
//! ```text
//! dx = M^T p + diag(w) B R + D p             dS = exp(cs[Q-1]) R + C^T diag(exp(cs)) p
//! K[i,j] = E[i,j] exp(cs[i] - cs[j]) dt[j]   T[i,j] = K[i,j] <C[i], B[j]>
//! dC = K B + diag(exp(cs)) p S^T             dB = K^T C + diag(w) x R^T                   both summed over the heads of a group
//! r[i] = exp(cs[i]) <p[i], C[i] S>           v[j] = w[j] <x[j], B[j] R>
//! d(dt[t] A) = sum_{j < t <= i} T[i,j] + sum_{i >= t} r[i] + sum_{j < t} v[j] + exp(cs[Q-1]) <S, R>
//! d(dt[t])   = (sum_i T[i,t] + v[t]) / dt[t] + A d(dt[t] A)          (the quotient is taken before dt is multiplied in)
//! ```
//! With `dt_a` the last term is its gradient instead, and stands in the place of `dt` wherever A does.
//!
//! The sum in `d(dt A)` is over the pairs that a step lies between: it is what row sums minus column sums, summed from the end, would give
//! after cancelling. States come from checkpoints, one for each [`CHECKPOINT`](super::CHECKPOINT) steps, or are computed again. Gradients overwrite.

mod cpu;
mod cuda;
pub(crate) mod dynamic;
mod problem;
pub mod reference;
mod signature;
mod summary;
mod targets;

use super::check::{Checker, Kind};
use super::sequences::Sequences;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::ops::builder::builder;
use crate::tensor::{Device, Shape, View, ViewMut};
use problem::Problem;
pub use signature::{HEADS_FIRST, SIGNATURE};
pub use summary::{summary, summary_workspace_len};
use targets::{GradientTargets, Sources, Targets};

const OP: &str = SIGNATURE.name;

builder! {
    /// The arguments of SSD; see the [module](self) for shapes and types.
    #[derive(Debug, Clone, Copy)]
    pub struct Args<'a> {
        /// Input, (B, L, H, P).
        pub x: View<'a>,
        /// Step sizes, (B, L, H).
        pub dt: View<'a>,
        /// The decay rate of each head, (H,).
        pub a: View<'a>,
        /// Input map, (B, L, G, N) or (B, L, N).
        pub b: View<'a>,
        /// Output map, (B, L, G, N) or (B, L, N).
        pub c: View<'a>,
        /// Skip, (H,) or (H, P).
        pub d: Option<View<'a>>,
        /// Gate, (B, L, H, P).
        pub z: Option<View<'a>>,
        /// Added to `dt`, (H,).
        pub dt_bias: Option<View<'a>>,
        /// Whether `dt` goes through softplus after the bias.
        pub dt_softplus: bool,
        /// Lowest and highest step, applied last.
        pub dt_limit: (f64, f64),
        /// A step of its own for the decay, (B, L, H).
        pub dt_a: Option<View<'a>>,
        /// State before the first step, (B, H, P, N).
        pub initial_state: Option<View<'a>>,
        /// How the time axis divides into sequences.
        pub sequences: Sequences<'a>,
        /// Whether to scan from the last step to the first.
        pub reverse: bool,
        /// A hint, at least 1: the kernels choose their own.
        pub chunk_size: usize,
        /// Ones on and below the diagonal, zeros above, (Q, Q): checked and not used.
        pub causal_mask: Option<View<'a>>,
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
            chunk_size: 128,
            causal_mask: None,
        }
    }

    /// As [`Args::new`] for tensors whose heads come before time: x (B, H, L, P), dt (B, H, L).
    ///
    /// It is the same memory through permuted views, and whatever else has such a layout is permuted by the caller in the same way: `z`,
    /// `y` and the gradients of `x` and `z` by `permute(&[0, 2, 1, 3])`, `dt_a` and the gradients of both steps by `permute(&[0, 2, 1])`, and
    /// states of shape (B, H, N, P) by `permute(&[0, 1, 3, 2])`. Views of other ranks are left as they are, for the checks to refuse.
    pub fn from_heads_first(x: View<'a>, dt: View<'a>, a: View<'a>, b: View<'a>, c: View<'a>) -> Self {
        let x = if x.rank() == 4 { x.permute(&[0, 2, 1, 3]) } else { x };
        let dt = if dt.rank() == 3 { dt.permute(&[0, 2, 1]) } else { dt };
        Self::new(x, dt, a, b, c)
    }
}

builder! {
    /// What a forward pass writes; what is `None` is not computed.
    #[derive(Debug, Default)]
    pub struct Outputs<'a> {
        /// Output, (B, L, H, P).
        pub y: Option<ViewMut<'a>>,
        /// State after the last step, shaped as the initial state.
        pub final_state: Option<ViewMut<'a>>,
        /// Saved states for the backward pass: dense, of [`checkpoints_len`] elements, f32 (f64 where x is).
        pub checkpoints: Option<ViewMut<'a>>,
        /// Scratch memory: dense, f32, of [`workspace_len`] elements. Without it long rows of few heads are slower on CUDA.
        pub workspace: Option<ViewMut<'a>>,
    }
}

builder! {
    /// Cotangents: the gradients of a loss by the outputs. What is `None` counts as zero.
    #[derive(Debug, Default, Clone, Copy)]
    pub struct Cotangents<'a> {
        /// By `y`, (B, L, H, P). CUDA multiplies it as exactly as `x`, B and C ask for.
        pub y: Option<View<'a>>,
        /// By `final_state`.
        pub final_state: Option<View<'a>>,
    }
}

builder! {
    /// What a backward pass writes (it overwrites); what is `None` is not computed. Each has the shape of its argument.
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

/// Number of `f32` (`f64` where x is) elements that `Outputs::checkpoints` must have: none on CUDA, where states are computed again.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn checkpoints_len(args: &Args<'_>) -> Result<usize> {
    Ok(saved_len(&Problem::new(args, &mut Checker::new(OP, args.x.device()), &[])?))
}

/// The shape of `final_state`: that of the initial state where there is one.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn final_state_shape(args: &Args<'_>) -> Result<Shape> {
    Ok(Problem::new(args, &mut Checker::new(OP, args.x.device()), &[])?.state_shape)
}

/// Number of `f32` elements that `Outputs::workspace` must have if it is given; none on the CPU, and none for short rows.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    match exec.stream() {
        Some(stream) => cuda::workspace_len(stream, &Problem::new(args, &mut Checker::new(OP, exec.device()), &[])?),
        None => Ok(0),
    }
}

/// Number of `f32` elements that `Gradients::workspace` must have, none on the CPU.
///
/// # Errors
/// Those of [`forward`] that concern the arguments; [`Error::Unavailable`] for more states than a device's kernels can hold.
pub fn backward_workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    backward_scratch_len(exec, &Problem::new(args, &mut Checker::new(OP, exec.device()), &[])?)
}

/// Elements of the saved states of a forward pass.
fn saved_len(problem: &Problem<'_>) -> usize {
    if problem.x.device() == Device::Cpu { cpu::Checkpoints::new(problem).len } else { 0 }
}

/// Elements of the workspace of a backward pass.
fn backward_scratch_len(exec: &Exec, problem: &Problem<'_>) -> Result<usize> {
    exec.stream().map_or(Ok(0), |stream| cuda::backward_workspace_len(stream, problem))
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
    checker.write_if("final_state", &out.final_state, Kind::Real, &problem.state_shape)?;
    checker.write_if("checkpoints", &out.checkpoints, Kind::Exact(problem.real_dtype()), &[saved_len(&problem)])?;
    checker.dense("checkpoints", out.checkpoints.as_ref().map(|v| v.as_view()))?;
    if out.workspace.is_some() {
        let len = exec.stream().map_or(Ok(0), |stream| cuda::workspace_len(stream, &problem))?;
        checker.workspace(&out.workspace, len)?;
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
    checker.read_if("checkpoints", &checkpoints, Kind::Exact(problem.real_dtype()), &[saved_len(&problem)])?;
    checker.dense("checkpoints", checkpoints)?;
    checker.read_if("grad of y", &cotangents.y, Kind::Real, &args.x.shape())?;
    checker.read_if("grad of final_state", &cotangents.final_state, Kind::Real, &state)?;
    checker.gradients(&SIGNATURE, &views, (Kind::Real, &state), &grads.by_position())?;
    checker.workspace(&grads.workspace, backward_scratch_len(exec, &problem)?)?;
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
