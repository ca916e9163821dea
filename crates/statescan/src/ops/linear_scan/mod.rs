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
//! where `a` or `b` is. `decay` joins scans of pieces: a piece scanned from zero that is entered by a state `s` ends in
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
pub mod reference;

use super::check::{Checker, Kind, limit_sizes};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::tensor::{DType, Device, MAX_RANK, RawViewMut, Shape, View, ViewMut};

const OP: &str = "linear_scan";

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

impl<'a> Args<'a> {
    /// The required arguments, and no option.
    pub fn new(a: View<'a>, b: View<'a>) -> Self {
        Args { a, b, initial_state: None, reverse: false }
    }
}

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

/// Cotangents: the gradients of a loss by the outputs. What is `None` counts as zero.
#[derive(Debug, Default, Clone, Copy)]
pub struct Cotangents<'a> {
    /// By `h`, (.., L).
    pub h: Option<View<'a>>,
    /// By `final_state`, (..).
    pub final_state: Option<View<'a>>,
}

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

/// Computes the states, the final state and the total decay: whichever are asked for.
///
/// # Errors
/// Any argument of a wrong shape, type or device, outputs that overlap. Nothing is written then.
pub fn forward(exec: &Exec, args: &Args<'_>, out: &mut Outputs<'_>) -> Result<()> {
    let problem = Problem::new(args)?;
    let mut checker = problem.checker(args, exec.device())?;
    let (shape, kind) = (args.b.shape(), Kind::exactly(problem.complex));
    let state = &shape[..shape.len() - 1];
    checker.write_if("h", &out.h, kind, &shape)?;
    checker.write_if("final_state", &out.final_state, kind, state)?;
    checker.write_if("decay", &out.decay, kind, state)?;
    if out.workspace.is_some() {
        checker.write_if("workspace", &out.workspace, Kind::Exact(DType::F32), &[problem.workspace_len(exec)])?;
        checker.dense("workspace", out.workspace.as_ref().map(|v| v.as_view()))?;
    }
    checker.finish()?;
    let targets = Targets {
        h: out.h.as_mut().map(|v| problem.timed_target(v)),
        final_state: out.final_state.as_mut().map(|v| problem.state_target(v)),
        decay: out.decay.as_mut().map(|v| problem.state_target(v)),
        workspace: out.workspace.as_mut().map(|v| v.raw()),
    };
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
    let problem = Problem::new(args)?;
    let mut checker = problem.checker(args, exec.device())?;
    let (shape, kind) = (args.b.shape(), Kind::float(problem.complex));
    let state = &shape[..shape.len() - 1];
    checker.read_if("h", &h, Kind::exactly(problem.complex), &shape)?;
    checker.read_if("grad of h", &cotangents.h, kind, &shape)?;
    checker.read_if("grad of final_state", &cotangents.final_state, kind, state)?;
    let like = |view: &View<'_>| Kind::exactly(view.dtype().is_complex());
    checker.write_if("grad of a", &grads.a, like(&args.a), &shape)?;
    checker.write_if("grad of b", &grads.b, like(&args.b), &shape)?;
    let initial = args.initial_state.map_or(Kind::exactly(problem.complex), |v| like(&v));
    checker.write_if("grad of initial_state", &grads.initial_state, initial, state)?;
    let workspace = [problem.backward_workspace_len(exec, h.is_some())];
    checker.write_if("workspace", &grads.workspace, Kind::Exact(DType::F32), &workspace)?;
    checker.dense("workspace", grads.workspace.as_ref().map(|v| v.as_view()))?;
    checker.finish()?;
    let sources = Sources {
        h: h.map(|v| problem.timed(v)),
        by_h: cotangents.h.map(|v| problem.timed(v)),
        by_final_state: cotangents.final_state.map(|v| problem.state(v)),
    };
    let targets = GradientTargets {
        a: grads.a.as_mut().map(|v| problem.timed_target(v)),
        b: grads.b.as_mut().map(|v| problem.timed_target(v)),
        initial_state: grads.initial_state.as_mut().map(|v| problem.state_target(v)),
        workspace: grads.workspace.as_mut().map(|v| v.raw()),
    };
    match exec.stream() {
        Some(stream) => cuda::backward(stream, &problem, &sources, &targets),
        None => {
            cpu::backward(exec, &problem, &sources, &targets);
            Ok(())
        }
    }
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
    let problem = Problem::new(args)?;
    problem.checker(args, exec.device())?;
    Ok(problem.workspace_len(exec))
}

/// Number of `f32` elements that `Gradients::workspace` must have if it is given; none on the CPU. Where `h` is not given, they have room
/// for it.
///
/// # Errors
/// Those of [`backward`] that concern the arguments.
pub fn backward_workspace_len(exec: &Exec, args: &Args<'_>, h_is_given: bool) -> Result<usize> {
    let problem = Problem::new(args)?;
    problem.checker(args, exec.device())?;
    Ok(problem.backward_workspace_len(exec, h_is_given))
}

/// Where a forward pass writes, in normal form.
pub(crate) struct Targets {
    pub h: Option<RawViewMut>,
    pub final_state: Option<RawViewMut>,
    pub decay: Option<RawViewMut>,
    pub workspace: Option<RawViewMut>,
}

/// What a backward pass reads besides the arguments, in normal form.
pub(crate) struct Sources<'a> {
    pub h: Option<View<'a>>,
    pub by_h: Option<View<'a>>,
    pub by_final_state: Option<View<'a>>,
}

/// Where a backward pass writes, in normal form.
pub(crate) struct GradientTargets {
    pub a: Option<RawViewMut>,
    pub b: Option<RawViewMut>,
    pub initial_state: Option<RawViewMut>,
    pub workspace: Option<RawViewMut>,
}

/// A checked call in normal form: at least one leading axis, time runs forwards.
#[derive(Debug)]
pub(crate) struct Problem<'a> {
    pub a: View<'a>,
    pub b: View<'a>,
    /// Without the time axis.
    pub initial_state: Option<View<'a>>,
    pub seqlen: usize,
    pub complex: bool,
    pub double: bool,
    pub reverse: bool,
    /// Whether a leading axis was added.
    bare: bool,
}

impl<'a> Problem<'a> {
    fn new(args: &Args<'a>) -> Result<Self> {
        let rank = args.b.rank();
        if !(1..MAX_RANK).contains(&rank) {
            let expected = "a time axis and at most four leading axes";
            return Err(Error::Rank { op: OP, argument: "b", expected, got: args.b.shape() });
        }
        if args.a.rank() != rank {
            return Err(Error::Rank { op: OP, argument: "a", expected: "the shape of b", got: args.a.shape() });
        }
        let seqlen = args.b.shape()[rank - 1];
        // an axis without an index makes no row, however many the others claim
        let rows = args.b.shape()[..rank - 1].iter().fold(1usize, |n, &size| n.saturating_mul(size.max(1)));
        limit_sizes(OP, "rows x seqlen", [rows, seqlen])?;
        let mut problem = Problem {
            a: args.a,
            b: args.b,
            initial_state: None,
            seqlen,
            complex: args.a.dtype().is_complex() || args.b.dtype().is_complex(),
            double: args.a.dtype().is_double() || args.b.dtype().is_double(),
            reverse: args.reverse,
            bare: rank == 1,
        };
        (problem.a, problem.b) = (problem.timed(args.a), problem.timed(args.b));
        problem.initial_state = args.initial_state.map(|v| problem.state(v));
        Ok(problem)
    }

    /// Checks the arguments that are read, and remembers them for the overlap test.
    fn checker<'c>(&self, args: &'c Args<'a>, device: Device) -> Result<Checker<'c>> {
        let mut checker = Checker::new(OP, device);
        let shape = args.b.shape();
        checker.read("b", &args.b, Kind::Float, &shape)?;
        checker.read("a", &args.a, Kind::Float, &shape)?;
        checker.read_if("initial_state", &args.initial_state, Kind::float(self.complex), &shape[..shape.len() - 1])?;
        Ok(checker)
    }

    /// Elements of scratch memory that a forward pass wants.
    fn workspace_len(&self, exec: &Exec) -> usize {
        exec.stream().map_or(0, |stream| cuda::workspace_len(stream, self))
    }

    /// Elements of scratch memory that a backward pass wants.
    fn backward_workspace_len(&self, exec: &Exec, h_is_given: bool) -> usize {
        exec.stream().map_or(0, |stream| cuda::backward_workspace_len(stream, self, h_is_given))
    }

    /// Sizes of the leading axes.
    pub(crate) fn leading(&self) -> Shape {
        let shape = self.b.shape();
        Shape::of(&shape[..shape.len() - 1])
    }

    fn state<'v>(&self, view: View<'v>) -> View<'v> {
        if self.bare { view.expand(0, 1) } else { view }
    }

    fn timed<'v>(&self, view: View<'v>) -> View<'v> {
        let view = self.state(view);
        if self.reverse { view.flip(view.rank() - 1) } else { view }
    }

    fn state_target(&self, view: &mut ViewMut<'_>) -> RawViewMut {
        if self.bare { view.raw().expand(0, 1) } else { view.raw() }
    }

    fn timed_target(&self, view: &mut ViewMut<'_>) -> RawViewMut {
        let view = self.state_target(view);
        if self.reverse { view.flip(view.shape().len() - 1) } else { view }
    }
}
