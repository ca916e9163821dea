//! Simplified scan (S5): a diagonal complex state between two dense maps, and `s5_inner`, the same with a real output.
//!
//! ```text
//! x[t] = Abar[t] x[t-1] + Bbar[t] (B u[t])        y[t] = C x[t]                              (Smith, Warrington and Linderman 2023)
//! s5_inner: y[t] = f Re(C x[t]) + D Re(u[t]),  f = 2 if conj_sym (only one of each conjugate pair of states is kept), else 1
//! ```
//!
//! B batch, H dim, P dstate, L seqlen; Abar and Bbar are diagonal, made from `a` and the step sizes by a [`Discretization`].
//!
//! | argument | shape | type |
//! |---|---|---|
//! | u | (B, H, L) | real or complex; a real one halves the work of its product |
//! | delta | (B, P, L), or (P,) where it does not depend on time | real |
//! | a | (P,) or (P, 1) | real or complex |
//! | b, c | (P, H), (H, P) | real or complex |
//! | delta_a | as delta | real; a step of its own for the decay (`deltaA`: asynchronous input) |
//! | initial_state | (B, P), see [`Sequences`] for packed rows | real or complex |
//! | head | [`Head`] | |
//! | -> y | (B, H, L) | complex; real for [`Head::Real`] |
//! | -> last_state | as initial_state | complex |
//!
//! Each argument may have its own storage type and any strides. The state is complex. Carried values are `f32`, or `f64` where `u` is.
//!
//! **Backward.** With `p[t]` the cotangent of `C x[t]`, `g[t]` the gradient of `x[t]`, `v[t] = B u[t]`, `s = conj`, `z = deltaA A`:
//!
//! ```text
//! g[t] = C^H p[t] + s(Abar[t+1]) g[t+1]         dC = sum_t p[t] x[t]^H       dv[t] = s(Bbar[t]) g[t]
//! du[t] = B^H dv[t]                             dB = sum_t dv[t] u[t]^H      dAbar = g[t] s(x[t-1])       dBbar = g[t] s(v[t])
//! dA = sum_t dAbar s(Abar'(z)) deltaA + dBbar s(dBbar/dA)
//! ddeltaA = Re(dAbar s(Abar'(z) A))             ddelta = Re(dBbar s(dBbar/ddelta))
//! ```
//!
//! States are recomputed from checkpoints, one for each [`CHECKPOINT`](super::CHECKPOINT) steps and row. Gradients overwrite. Besides them, forward and
//! backward use workspaces for a bounded number of steps (see `cpu/plan.rs`), and the maps packed as real matrices.
//!
//! **CUDA.** Everything runs there but a `u` in `f64`. The workspace has one complex (B, P, L) forward and two backward; a state is saved for each 128
//! steps. Products are computed as three terms of bf16, to the accuracy of f32. Only the device reads bounds and indices of sequences.

pub(crate) mod cpu;
mod cuda;
pub(crate) mod dynamic;
mod problem;
pub mod reference;
mod signature;
mod summary;
mod targets;
pub mod update;

use super::check::{Checker, Kind};
use super::discretization::Discretization;
use super::sequences::Sequences;
use super::signature::Signature;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::ops::builder::builder;
use crate::tensor::{Device, RawViewMut, Shape, View, ViewMut};
pub(crate) use problem::{Problem, Step};
pub use signature::{INNER, SIGNATURE};
pub use summary::{summary, summary_workspace_len};
use targets::{GradientTargets, Sources, Targets};

/// What becomes of `C x`.
#[derive(Debug, Clone, Copy, Default)]
pub enum Head<'a> {
    /// `y = C x`, complex (`simplified_scan`).
    #[default]
    Complex,
    /// `y = f Re(C x) + D Re(u)`, real (`s5_inner`).
    Real {
        /// Whether the states stand for conjugate pairs: `f` is 2, else 1.
        conj_sym: bool,
        /// Skip, (H,).
        d: Option<View<'a>>,
    },
}

impl<'a> Head<'a> {
    /// The operation as data.
    pub(crate) fn signature(&self) -> &'static Signature {
        match self {
            Head::Complex => &SIGNATURE,
            Head::Real { .. } => &INNER,
        }
    }

    /// The name under which errors are reported.
    fn op(&self) -> &'static str {
        self.signature().name
    }

    /// The factor of the real part, if only that is asked for, and the skip.
    pub(crate) fn parts(self) -> (Option<f64>, Option<View<'a>>) {
        match self {
            Head::Complex => (None, None),
            Head::Real { conj_sym, d } => (Some(if conj_sym { 2.0 } else { 1.0 }), d),
        }
    }
}

builder! {
    /// The arguments of a simplified scan; see the [module](self) for shapes and types.
    #[derive(Debug, Clone, Copy)]
    pub struct Args<'a> {
        /// Input, (B, H, L).
        pub u: View<'a>,
        /// Step sizes, (B, P, L) or (P,).
        pub delta: View<'a>,
        /// State matrix, diagonal, (P,) or (P, 1).
        pub a: View<'a>,
        /// Input map, (P, H).
        pub b: View<'a>,
        /// Output map, (H, P).
        pub c: View<'a>,
        /// The decay's own step sizes, (B, P, L) or (P,).
        pub delta_a: Option<View<'a>>,
        /// State before the first step, (B, P).
        pub initial_state: Option<View<'a>>,
        /// How the time axis divides into sequences.
        pub sequences: Sequences<'a>,
        /// Whether to scan from the last step to the first.
        pub reverse: bool,
        /// How (A, B) become a recurrence.
        pub discretization: Discretization,
        /// What becomes of `C x`.
        pub head: Head<'a>,
    }
}

impl<'a> Args<'a> {
    /// `simplified_scan`: the five required arguments, bilinear, complex output.
    pub fn new(u: View<'a>, delta: View<'a>, a: View<'a>, b: View<'a>, c: View<'a>) -> Self {
        Args {
            u,
            delta,
            a,
            b,
            c,
            delta_a: None,
            initial_state: None,
            sequences: Sequences::Whole,
            reverse: false,
            discretization: Discretization::Bilinear,
            head: Head::Complex,
        }
    }

    /// `s5_inner`: a skip, real output, conjugate pairs unless `head` is set otherwise.
    pub fn inner(u: View<'a>, delta: View<'a>, a: View<'a>, b: View<'a>, c: View<'a>, d: View<'a>) -> Self {
        Args { head: Head::Real { conj_sym: true, d: Some(d) }, ..Self::new(u, delta, a, b, c) }
    }
}

builder! {
    /// What a forward pass writes; what is `None` is not computed.
    #[derive(Debug, Default)]
    pub struct Outputs<'a> {
        /// Output, (B, H, L).
        pub y: Option<ViewMut<'a>>,
        /// State after the last step, shaped as the initial state.
        pub last_state: Option<ViewMut<'a>>,
        /// Saved states for the backward pass: dense, of [`checkpoints_len`] elements, f32 (f64 where u is).
        pub checkpoints: Option<ViewMut<'a>>,
        /// Scratch memory: dense, f32, of [`workspace_len`] elements. Needed on CUDA.
        pub workspace: Option<ViewMut<'a>>,
    }
}

builder! {
    /// Cotangents: the gradients of a loss by the outputs. What is `None` counts as zero.
    #[derive(Debug, Default, Clone, Copy)]
    pub struct Cotangents<'a> {
        /// By `y`, (B, H, L).
        pub y: Option<View<'a>>,
        /// By `last_state`.
        pub last_state: Option<View<'a>>,
    }
}

builder! {
    /// What a backward pass writes (it overwrites); what is `None` is not computed. Each has the shape of its argument; complex arguments
    /// have complex gradients (conjugate cotangents, as PyTorch's), real ones real gradients.
    #[derive(Debug, Default)]
    pub struct Gradients<'a> {
        /// By `u`.
        pub u: Option<ViewMut<'a>>,
        /// By `delta`.
        pub delta: Option<ViewMut<'a>>,
        /// By `a`.
        pub a: Option<ViewMut<'a>>,
        /// By `b`.
        pub b: Option<ViewMut<'a>>,
        /// By `c`.
        pub c: Option<ViewMut<'a>>,
        /// By the skip of [`Head::Real`].
        pub d: Option<ViewMut<'a>>,
        /// By `delta_a`.
        pub delta_a: Option<ViewMut<'a>>,
        /// By `initial_state`, whether it was given or left at zero.
        pub initial_state: Option<ViewMut<'a>>,
        /// Scratch memory: dense, f32, of [`backward_workspace_len`] elements. Needed on CUDA.
        pub workspace: Option<ViewMut<'a>>,
    }
}

/// Number of `f32` (`f64` where u is) elements that `Outputs::checkpoints` must have.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn checkpoints_len(args: &Args<'_>) -> Result<usize> {
    Ok(saved_len(&Problem::new(args, &mut Checker::new(args.head.op(), args.u.device()), &[])?))
}

/// Elements of the saved states of a forward pass.
fn saved_len(problem: &Problem<'_>) -> usize {
    match problem.u.device() {
        Device::Cpu => cpu::checkpoints_len(problem),
        _ => cuda::checkpoints_len(problem),
    }
}

/// The shape of `last_state`: that of the initial state where there is one.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn last_state_shape(args: &Args<'_>) -> Result<Shape> {
    Ok(Problem::new(args, &mut Checker::new(args.head.op(), args.u.device()), &[])?.state_shape)
}

/// Number of `f32` elements that `Outputs::workspace` must have, none on the CPU.
///
/// # Errors
/// Those of [`forward`] that concern the arguments; on CUDA [`Error::Unavailable`] in double precision.
pub fn workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    let problem = Problem::new(args, &mut Checker::new(args.head.op(), exec.device()), &[])?;
    exec.stream().map_or(Ok(0), |stream| cuda::workspace_len(stream, &problem))
}

/// Number of `f32` elements that `Gradients::workspace` must have, none on the CPU.
///
/// # Errors
/// As [`workspace_len`].
pub fn backward_workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    let problem = Problem::new(args, &mut Checker::new(args.head.op(), exec.device()), &[])?;
    exec.stream().map_or(Ok(0), |stream| cuda::backward_workspace_len(stream, &problem))
}

/// Computes `y`, the last state, and the saved states: whichever are asked for.
///
/// # Errors
/// Any argument of a wrong shape, type or device, bad sequence bounds, outputs that overlap; on CUDA double precision, and a workspace that is
/// missing. Nothing is written then.
pub fn forward(exec: &Exec, args: &Args<'_>, out: &mut Outputs<'_>) -> Result<()> {
    let mut checker = Checker::new(args.head.op(), exec.device());
    let state = out.last_state.as_ref().map(|s| s.shape());
    let problem = Problem::new(args, &mut checker, state.as_slice())?;
    checker.write_if("y", &out.y, Kind::exactly(problem.output_parts() == 2), &args.u.shape())?;
    checker.write_if("last_state", &out.last_state, Kind::Complex, &problem.state_shape)?;
    let saved = [saved_len(&problem)];
    checker.write_if("checkpoints", &out.checkpoints, Kind::Exact(problem.real_dtype()), &saved)?;
    checker.dense("checkpoints", out.checkpoints.as_ref().map(|v| v.as_view()))?;
    let workspace = exec.stream().map_or(Ok(0), |stream| cuda::workspace_len(stream, &problem))?;
    checker.workspace(&out.workspace, workspace)?;
    checker.finish()?;
    let targets = Targets::new(&problem, out);
    match exec.stream() {
        Some(stream) => cuda::forward(stream, &problem, &targets, &needed(args, &mut out.workspace)?),
        None => {
            cpu::forward(exec, &problem, &targets);
            Ok(())
        }
    }
}

/// Scratch memory that a call on CUDA cannot do without.
fn needed(args: &Args<'_>, workspace: &mut Option<ViewMut<'_>>) -> Result<RawViewMut> {
    let missing = Error::Presence { op: args.head.op(), argument: "workspace", expected: "is needed on CUDA" };
    Ok(workspace.as_mut().ok_or(missing)?.raw())
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
    let mut checker = Checker::new(args.head.op(), exec.device());
    let states = [cotangents.last_state.map(|s| s.shape()), grads.initial_state.as_ref().map(|s| s.shape())];
    let problem = Problem::new(args, &mut checker, &states.into_iter().flatten().collect::<Vec<_>>())?;
    let (views, state) = (args.views(), problem.state_shape);
    let saved = [saved_len(&problem)];
    checker.read_if("checkpoints", &checkpoints, Kind::Exact(problem.real_dtype()), &saved)?;
    checker.dense("checkpoints", checkpoints)?;
    checker.read_if("grad of y", &cotangents.y, Kind::float(problem.output_parts() == 2), &args.u.shape())?;
    checker.read_if("grad of last_state", &cotangents.last_state, Kind::Float, &state)?;
    let initial = Kind::exactly(args.initial_state.is_none_or(|v| v.dtype().is_complex()));
    checker.gradients(args.head.signature(), &views, (initial, &state), &grads.by_position(&args.head)?)?;
    let workspace = exec.stream().map_or(Ok(0), |stream| cuda::backward_workspace_len(stream, &problem))?;
    checker.workspace(&grads.workspace, workspace)?;
    checker.finish()?;
    let (sources, targets) = (Sources::new(&problem, checkpoints, cotangents), GradientTargets::new(&problem, grads));
    match exec.stream() {
        Some(stream) => {
            let workspace = needed(args, &mut grads.workspace)?;
            cuda::backward(stream, &problem, &sources, &targets, &workspace)
        }
        None => {
            cpu::backward(exec, &problem, &sources, &targets);
            Ok(())
        }
    }
}
