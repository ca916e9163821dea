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
//! | initial_state | (B, P), see [`Sequences`](crate::Sequences) for packed rows | real or complex |
//! | d, conj_sym | (H,), flag | skip; with it `y` is real (`s5_inner`), and `f` is 2 with `conj_sym`, else 1 |
//! | -> y | (B, H, L) | complex; real with `d` |
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
mod passes;
mod problem;
pub mod reference;
mod summary;
pub mod update;

use super::discretization::Discretization;
use super::prepared;
use super::signature::*;
use crate::cuda::{Numbers, PlannedLaunch};
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::call::Call;
use crate::ops::pool;
use crate::ops::states::NO_STATES;
use crate::ops::table::operation;
use crate::tensor::{Shape, View};
pub(crate) use problem::{Problem, Step};
pub use summary::{summary, summary_workspace_len};

const STEP: &[&str] = &["P", "BPL"];
const STATE: &[&str] = &["BP", "BSP"];
const DECAY: Output = state_beside("u", STATE).complex(Complex::As(&["A"])).field("decay", "grad of decay");
/// The position of the skip.
const SKIP: usize = 5;

operation! {
    /// Both operations: with a skip it is `s5_inner`, without it `simplified_scan`.
    TABLE = Signature {
        name: "simplified_scan",
        about: "S5: x[t] = Abar x[t-1] + Bbar B u[t], y = C x, complex",
        sizes: &[BATCH, ('H', "dim"), SEQLEN, ('P', "dstate"), SEQUENCES, BOUNDS, SLOTS, PIECES],
        leaders: &[0, 2],
        saved: Saved::States { layout: "P", padded: Some('P'), each_step: "", complex: Complex::Always, on_cuda: true },
        decay: Some(&DECAY),
        limit: Limit {
            names: "batch x dim x max(seqlen, sequences) x dstate",
            bytes: 7,
            what: "512 steps of inputs, states and outputs, where the other sizes count 2^12; on CUDA two rows of states for each batch x dstate",
        },
        ..SCAN
    };
    facts = Facts {
        state_steps: "BPL",
        // a scan between two dense products, whose oracle takes two for each step
        forward: Cost { flops: &[(14.0, "BPL"), (12.0, "BPLH")], exps: &[(3.0, "BPL")] },
        backward: Cost { flops: &[(50.0, "BPL"), (28.0, "BPLH")], exps: &[(3.0, "BPL")] },
        oracle: &[(1.0, "BPL"), (0.5, "BPLH")],
        independent: &[('B', None)],
        tensor_cores: TensorCores::Tf32,
        small: &[('B', 1), ('H', 64), ('P', 64), ('L', 512)],
        hardest: Some((Hardest::StrongDecays, 1.03)),
        ..Facts::NONE
    };
    /// The arguments of a simplified scan; see the [module](self) for shapes and types.
    Args;
    required {
        /// Input, (B, H, L).
        u: timed = activation(&["BHL"]).alias(&["x"]).complex(Complex::Always),
        /// Step sizes, (B, P, L) or (P,).
        delta: step = activation(STEP).alias(&["dt"]),
        /// State matrix, diagonal, (P,) or (P, 1).
        a: diagonal = parameter(&["P", "P1"]).named("A").complex(Complex::Always),
        /// Input map, (P, H).
        b: plain = parameter(&["PH"]).named("B").complex(Complex::Always),
        /// Output map, (H, P).
        c: plain = parameter(&["HP"]).named("C").complex(Complex::Always),
    }
    optional {
        /// Skip, (H,). With it `y = f Re(C x) + D Re(u)`, real (`s5_inner`); without it `y = C x`, complex (`simplified_scan`).
        d: plain = parameter(&["H"]).named("D"),
        /// The decay's own step sizes, (B, P, L) or (P,).
        delta_a: step = activation(STEP).named("deltaA").alias(&["dt_a"]),
        /// State before the first step, (B, P).
        initial_state: state = state(STATE).alias(&["initial_states"]).complex(Complex::Always),
    }
    sequences {
        /// How the time axis divides into sequences.
        sequences,
    }
    options {
        /// How (A, B) become a recurrence.
        discretization: Discretization = discretization(2),
        /// Whether to scan from the last step to the first.
        reverse: bool = REVERSE,
        /// Whether the states of a real result stand for conjugate pairs: `f` is 2, else 1.
        conj_sym: bool = OptionSpec::new(Choice::Flag(true)),
    }
    results {
        /// Output, (B, H, L).
        y: timed = like("u", &["BHL"]).alias(&["out"]).complex(Complex::Without("D")),
        /// State after the last step, shaped as the initial state.
        last_state: state = state_beside("u", STATE).alias(&["final_state", "final_states"]).complex(Complex::Always),
    }
    saved {
        /// Saved states for the backward pass: dense, of [`checkpoints_len`] elements, f32 (f64 where u is).
        checkpoints,
    }
    workspace {
        /// Scratch memory: dense, f32, of [`workspace_len`] elements. Needed on CUDA.
        workspace,
    }
    backward_workspace {
        /// Scratch memory: dense, f32, of [`backward_workspace_len`] elements. Needed on CUDA.
    }
}

/// A simplified scan as data.
pub static SIGNATURE: Signature = Signature { options: OPTIONS.split_at(2).0, ..TABLE }.resolved();

/// A simplified scan with a skip, and so with a real result, as data.
pub static INNER: Signature = Signature {
    name: "s5_inner",
    about: "S5's layer: the scan with y = f Re(C x) + D Re(u), real",
    arguments: &WITH_SKIP,
    options: OPTIONS,
    facts: Facts {
        forward: Cost { flops: &[(14.0, "BPL"), (8.0, "BPLH")], ..TABLE.facts.forward },
        backward: Cost { flops: &[(50.0, "BPL"), (20.0, "BPLH")], ..TABLE.facts.backward },
        hardest: None,
        ..TABLE.facts
    },
    ..TABLE
}
.resolved();

/// The arguments of a scan whose skip must be there.
static WITH_SKIP: [Argument; ARGUMENTS.len()] = {
    let (mut all, mut at) = ([ARGUMENTS[SKIP]; ARGUMENTS.len()], 0);
    while at < all.len() {
        all[at] = if at == SKIP { ARGUMENTS[at].required() } else { ARGUMENTS[at] };
        at += 1;
    }
    all
};

/// States of a pool, (slots, dstate).
static POOL: Argument = pool::state_pool(&["UP"]).complex(Complex::Always);
static POOL_ARGUMENTS: [Argument; ARGUMENTS.len() + 2] = pool::with_slots(ARGUMENTS);
static POOL_WITH_SKIP: [Argument; ARGUMENTS.len() + 2] = pool::with_slots(&WITH_SKIP);

/// A simplified scan whose states lie in a [pool].
pub static POOLED: Signature = pool::pooled(&SIGNATURE, "simplified_scan_pooled", &POOL, &POOL_ARGUMENTS);

/// A simplified scan with a skip whose states lie in a [pool].
pub static POOLED_INNER: Signature = pool::pooled(&INNER, "s5_inner_pooled", &POOL, &POOL_WITH_SKIP);

/// The operations on a pool of states.
pub(super) static IN_POOL: pool::Pooled = pool::Pooled { op: &Table, signature: &SIGNATURE, by_level: false };
pub(super) static INNER_IN_POOL: pool::Pooled = pool::Pooled { op: &Table, signature: &INNER, by_level: false };

impl pool::InPool for Args<'_> {
    fn in_pool(&self) -> (Call<'_>, &'static pool::Pooled) {
        let (signature, pooled) = if self.d.is_some() { (&POOLED_INNER, &INNER_IN_POOL) } else { (&POOLED, &IN_POOL) };
        (Call { signature, ..self.call() }, pooled)
    }
}

impl<'a> Args<'a> {
    /// `s5_inner`: a skip, real output, conjugate pairs unless `conj_sym` is set otherwise.
    pub fn inner(u: View<'a>, delta: View<'a>, a: View<'a>, b: View<'a>, c: View<'a>, d: View<'a>) -> Self {
        Args { d: Some(d), ..Self::new(u, delta, a, b, c) }
    }

    /// The name under which errors are reported.
    fn op(&self) -> &'static str {
        if self.d.is_some() { INNER.name } else { SIGNATURE.name }
    }
}

/// The kernels of both passes on a GPU.
pub(super) fn plan(args: &Args<'_>, numbers: Numbers) -> Result<Vec<PlannedLaunch>> {
    cuda::plan(&Problem::new(args, args.u.device(), NO_STATES)?, numbers)
}

/// Number of `f32` (`f64` where u is) elements that `Outputs::checkpoints` must have.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn checkpoints_len(args: &Args<'_>) -> Result<usize> {
    prepared::saved_len(&Table, &args.call())
}

/// The shape of `last_state`: that of the initial state where there is one.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn last_state_shape(args: &Args<'_>) -> Result<Shape> {
    prepared::state_shape(&Table, &args.call())
}

/// Number of `f32` elements that `Outputs::workspace` must have, none on the CPU.
///
/// # Errors
/// Those of [`forward`] that concern the arguments; on CUDA [`Error::Unavailable`](crate::Error::Unavailable) in double precision.
pub fn workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    prepare(exec, args)?.workspace_len()
}

/// Number of `f32` elements that `Gradients::workspace` must have, none on the CPU.
///
/// # Errors
/// As [`workspace_len`].
pub fn backward_workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    prepare(exec, args)?.backward_workspace_len(true)
}
