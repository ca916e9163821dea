//! Linear scan: a diagonal first-order recurrence, the primitive under S5, LRU, RG-LRU, HGRN and S7.
//!
//! ```text
//! h[t] = a[t] h[t-1] + b[t]
//! ```
//!
//! | argument | shape | type |
//! |---|---|---|
//! | a, b | (.., L), up to four leading axes | real or complex, each on its own |
//! | initial_state | (..) | real, or complex where a or b is |
//! | reverse | flag: the scan runs from t = L - 1 down | |
//! | -> h | (.., L) | complex where a or b is, else real |
//! | -> final_state, decay | (..) | as h; `decay` is the product of all a |
//!
//! Each argument may have its own storage type and any strides; `a` may be expanded along any axis. Carried values are `f32`, or `f64`
//! where `a` or `b` is. `decay` joins scans of slices: a slice scanned from zero that is entered by a state `s` ends in
//! `final_state + decay s`.
//!
//! `a[t] = 0` restarts a channel from `b[t]` as long as its state is finite; a NaN or an infinity times zero stays NaN. Operations that
//! take [`crate::Sequences`] have hard resets.
//!
//! **Backward.** With `g[t]` the gradient of `h[t]`, `p[t]` the cotangent of `h[t]` (that of the final state added at the last step) and
//! `s = conj`:
//!
//! ```text
//! g[t] = p[t] + s(a[t+1]) g[t+1]      db = g      da[t] = g[t] s(h[t-1])      d initial_state = s(a[0]) g[0]
//! ```
//!
//! Nothing but `h` is needed, and that is recomputed tile by tile (with one state kept for each 64 steps) where the caller gives none.
//! Gradients overwrite.
//!
//! **CUDA.** Everything runs there but an `a` or `b` in `f64`. Steps are composed in threads before states are known, so that a product of
//! decays that leaves the range of `f32` takes what is not zero with it. Where `h` is not given it is computed again as a whole, in a workspace.

mod cpu;
mod cuda;
pub(crate) mod dynamic;
mod problem;
pub mod reference;
mod signature;
mod summary;
mod targets;

use super::check::{Checker, Kind};
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::builder::builder;
use crate::tensor::{Shape, View, ViewMut};
use problem::Problem;
pub use signature::SIGNATURE;
pub use summary::{summary, summary_workspace_len};
use targets::{GradientTargets, Sources, Targets};

const OP: &str = SIGNATURE.name;

builder! {
    /// The arguments of a linear scan; see the [module](self) for shapes and types.
    #[derive(Debug, Clone, Copy)]
    pub struct Args<'a> {
        /// Decay, (.., L).
        pub a: View<'a>,
        /// Input, (.., L).
        pub b: View<'a>,
        /// State before the first step, (..).
        pub initial_state: Option<View<'a>>,
        /// Whether to scan from the last step to the first.
        pub reverse: bool,
    }
}

impl<'a> Args<'a> {
    /// The required arguments, and no option.
    pub fn new(a: View<'a>, b: View<'a>) -> Self {
        Args { a, b, initial_state: None, reverse: false }
    }
}

builder! {
    /// What a forward pass writes; what is `None` is not computed.
    #[derive(Debug, Default)]
    pub struct Outputs<'a> {
        /// States, (.., L).
        pub h: Option<ViewMut<'a>>,
        /// State after the last step, (..).
        pub final_state: Option<ViewMut<'a>>,
        /// Product of all `a`, (..); 1 for no steps.
        pub decay: Option<ViewMut<'a>>,
        /// Scratch memory: dense, f32, of [`workspace_len`] elements. Without it long rows of few channels are slower on CUDA.
        pub workspace: Option<ViewMut<'a>>,
    }
}

builder! {
    /// Cotangents: the gradients of a loss by the outputs. What is `None` counts as zero.
    #[derive(Debug, Default, Clone, Copy)]
    pub struct Cotangents<'a> {
        /// By `h`, (.., L).
        pub h: Option<View<'a>>,
        /// By `final_state`, (..).
        pub final_state: Option<View<'a>>,
    }
}

builder! {
    /// What a backward pass writes (it overwrites); what is `None` is not computed. A complex argument has a complex gradient (conjugate
    /// cotangents, as PyTorch's), a real one a real gradient.
    #[derive(Debug, Default)]
    pub struct Gradients<'a> {
        /// By `a`, (.., L).
        pub a: Option<ViewMut<'a>>,
        /// By `b`, (.., L).
        pub b: Option<ViewMut<'a>>,
        /// By `initial_state`, (..), whether it was given or left at zero; real for a real initial state.
        pub initial_state: Option<ViewMut<'a>>,
        /// Scratch memory: dense, f32, of [`backward_workspace_len`] elements. CUDA needs it for the gradient by `a` where `h` is not given.
        pub workspace: Option<ViewMut<'a>>,
    }
}

/// Computes the states, the final state and the total decay: whichever are asked for.
///
/// # Errors
/// Any argument of a wrong shape, type or device, outputs that overlap. Nothing is written then.
pub fn forward(exec: &Exec, args: &Args<'_>, out: &mut Outputs<'_>) -> Result<()> {
    let mut checker = Checker::new(OP, exec.device());
    let problem = Problem::new(args, &mut checker, &[])?;
    let kind = Kind::exactly(problem.complex);
    checker.write_if("h", &out.h, kind, &args.b.shape())?;
    checker.write_if("final_state", &out.final_state, kind, &problem.state_shape)?;
    checker.write_if("decay", &out.decay, kind, &problem.state_shape)?;
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

/// Computes the gradients that are asked for. `h` is the output of a forward pass with the same arguments; without it the states are
/// computed again (exactly, where `h` was rounded to a 16-bit type).
///
/// # Errors
/// As [`forward`].
pub fn backward(
    exec: &Exec,
    args: &Args<'_>,
    h: Option<View<'_>>,
    cotangents: &Cotangents<'_>,
    grads: &mut Gradients<'_>,
) -> Result<()> {
    let mut checker = Checker::new(OP, exec.device());
    let problem = Problem::new(args, &mut checker, &[])?;
    let (views, state) = (args.views(), problem.state_shape);
    let kind = Kind::float(problem.complex);
    checker.read_if("h", &h, Kind::exactly(problem.complex), &args.b.shape())?;
    checker.read_if("grad of h", &cotangents.h, kind, &args.b.shape())?;
    checker.read_if("grad of final_state", &cotangents.final_state, kind, &state)?;
    let initial = args.initial_state.map_or(problem.complex, |v| v.dtype().is_complex());
    checker.gradients(&SIGNATURE, &views, (Kind::exactly(initial), &state), &[&grads.a, &grads.b, &grads.initial_state])?;
    checker.workspace(&grads.workspace, problem.backward_workspace_len(exec, h.is_some()))?;
    checker.finish()?;
    let (sources, targets) = (Sources::new(&problem, h, cotangents), GradientTargets::new(&problem, grads));
    match exec.stream() {
        Some(stream) => cuda::backward(stream, &problem, &sources, &targets),
        None => {
            cpu::backward(exec, &problem, &sources, &targets);
            Ok(())
        }
    }
}

/// The shape of `final_state` and `decay`.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn final_state_shape(args: &Args<'_>) -> Result<Shape> {
    Ok(Problem::new(args, &mut Checker::new(OP, args.b.device()), &[])?.state_shape)
}

/// Number of `f32` elements that `Outputs::workspace` must have if it is given; none on the CPU, and none for short rows.
///
/// # Errors
/// Those of [`forward`] that concern the arguments, unless none is needed whatever they are.
pub fn workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    let short = args.b.shape().last().is_some_and(|&seqlen| seqlen <= cuda::LONGEST_WHOLE);
    if short || exec.stream().is_none() {
        return Ok(0);
    }
    Ok(Problem::new(args, &mut Checker::new(OP, exec.device()), &[])?.workspace_len(exec))
}

/// Number of `f32` elements that `Gradients::workspace` must have if it is given; none on the CPU. Where `h` is not given, they have room
/// for it.
///
/// # Errors
/// Those of [`backward`] that concern the arguments.
pub fn backward_workspace_len(exec: &Exec, args: &Args<'_>, h_is_given: bool) -> Result<usize> {
    Ok(Problem::new(args, &mut Checker::new(OP, exec.device()), &[])?.backward_workspace_len(exec, h_is_given))
}
