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
//! | initial_state | (B, H, P, N), see [`Sequences`](crate::Sequences) for packed rows | |
//! | chunk_size | at least 1 | checked; results do not depend on it |
//! | -> y | (B, L, H, P) | |
//! | -> final_state | as initial_state | |
//!
//! Everything is real. Each argument may have its own storage type and any strides, so tensors whose heads come before time go in as permuted
//! views. Carried values are `f32`, or `f64` where `x` is.
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
//! Zeros of `M` multiply what is not finite: a NaN or an infinity in `x` also reaches the earlier steps of its own chunk, in its own column of its
//! own head and nowhere else, and gradients in its own row and head.
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
mod passes;
mod problem;
pub mod reference;
mod summary;

use crate::cuda::{Numbers, PlannedLaunch};
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::call::Call;
use crate::ops::pool;
use crate::ops::prepared;
use crate::ops::signature::*;
use crate::ops::states::NO_STATES;
use crate::ops::table::operation;
use crate::step_size::StepSize;
use crate::tensor::Shape;
use problem::Problem;
pub use summary::{summary, summary_workspace_len};

const OP: &str = SIGNATURE.name;

const MAPS: &[&str] = &["BLN", "BLGN"];
const STATE: &[&str] = &["BHPN", "BSHPN"];
const DECAY: Output = state_beside("x", &["BH", "BSH"]).field("decay", "grad of decay");

operation! {
    /// SSD as data, in the layout of models: x is (batch, seqlen, nheads, headdim).
    pub SIGNATURE = Signature {
        name: "ssd",
        about: "Mamba-2's scan with one decay for each head, as matrix products of chunks",
        sizes: &[BATCH, SEQLEN, ('H', "nheads"), ('P', "headdim"), NGROUPS, DSTATE, SEQUENCES, BOUNDS, SLOTS, PIECES],
        free: "G",
        saved: Saved::States { layout: "HPN", padded: None, each_step: "", complex: Complex::Never, on_cuda: false },
        decay: Some(&DECAY),
        limit: Limit {
            names: "batch x max(seqlen, sequences) x nheads x headdim x dstate",
            bytes: 3,
            what: "twenty tiles of 64 steps and all columns of all heads, where batch, steps and states count 2^12",
        },
        ..SCAN
    };
    facts = Facts {
        state_steps: "BLHPN",
        // matrix products over chunks of 64 steps: a triangle has 32 pairs for each step
        forward: Cost { flops: &[(4.0, "BLHPN"), (64.0, "BLHP"), (64.0, "BLGN")], exps: &[(32.0, "BLH")] },
        backward: Cost { flops: &[(14.0, "BLHPN"), (192.0, "BLHP"), (192.0, "BLGN")], exps: &[(32.0, "BLH")] },
        oracle: &[(1.0, "BLHPN")],
        independent: &[('B', None), ('H', Some('G')), ('P', None)],
        tensor_cores: TensorCores::Always,
        small: &[('B', 1), ('L', 256), ('H', 4), ('P', 64), ('N', 64)],
        hardest: Some((Hardest::StrongDecays, 1.03)),
        chunked: true,
        ..Facts::NONE
    };
    /// The arguments of SSD; see the [module](self) for shapes and types.
    Args;
    required {
        /// Input, (B, L, H, P).
        x: timed = activation(&["BLHP"]).alias(&["u"]),
        /// Step sizes, (B, L, H).
        dt: timed = activation(&["BLH"]).alias(&["delta"]),
        /// The decay rate of each head, (H,).
        a: plain = parameter(&["H"]).named("A"),
        /// Input map, (B, L, G, N) or (B, L, N).
        b: map = activation(MAPS).named("B"),
        /// Output map, (B, L, G, N) or (B, L, N).
        c: map = activation(MAPS).named("C"),
    }
    optional {
        /// Skip, (H,) or (H, P).
        d: plain = parameter(&["H", "HP"]).named("D"),
        /// Gate, (B, L, H, P).
        z: timed = activation(&["BLHP"]),
        /// Added to `dt`, (H,).
        dt_bias: plain = parameter(&["H"]).alias(&["delta_bias"]),
        /// A step of its own for the decay, (B, L, H).
        dt_a: timed = activation(&["BLH"]).alias(&["delta_a", "deltaA"]),
        /// State before the first step, (B, H, P, N).
        initial_state: state = state(STATE).alias(&["initial_states"]),
    }
    sequences {
        /// How the time axis divides into sequences.
        sequences,
    }
    options {
        /// Whether `dt` goes through softplus after the bias.
        dt_softplus: bool = DT_SOFTPLUS,
        /// Lowest and highest step, applied last.
        dt_limit: (f64, f64) = DT_LIMIT,
        /// A hint, at least 1: the kernels choose their own.
        chunk_size: usize = OptionSpec::new(Choice::Count(128)),
        /// Whether to scan from the last step to the first.
        reverse: bool = REVERSE,
    }
    results {
        /// Output, (B, L, H, P). CUDA multiplies its cotangent as exactly as `x`, B and C ask for.
        y: timed = like("x", &["BLHP"]).alias(&["out"]),
        /// State after the last step, shaped as the initial state.
        final_state: state = state_beside("x", STATE).alias(&["final_states", "last_state"]),
    }
    saved {
        /// Saved states for the backward pass: dense, of [`checkpoints_len`] elements, f32 (f64 where x is).
        checkpoints,
    }
    workspace {
        /// Scratch memory: dense, f32, of [`workspace_len`] elements. Without it long rows of few heads are slower on CUDA.
        workspace,
    }
    backward_workspace {
        /// Scratch memory: dense, f32, of [`backward_workspace_len`] elements. Needed on CUDA.
    }
}

/// States of a pool, (slots, nheads, headdim, dstate).
static POOL: Argument = pool::state_pool(&["UHPN"]);
static POOL_ARGUMENTS: [Argument; ARGUMENTS.len() + 2] = pool::with_slots(ARGUMENTS);

/// The operation with states in a [pool].
pub static POOLED: Signature = pool::pooled(&SIGNATURE, "ssd_pooled", &POOL, &POOL_ARGUMENTS);

/// The operation on a pool of states.
pub(super) static IN_POOL: pool::Pooled = pool::Pooled { op: &Table, signature: &SIGNATURE, by_level: true };

impl pool::InPool for Args<'_> {
    fn in_pool(&self) -> (Call<'_>, &'static pool::Pooled) {
        (Call { signature: &POOLED, ..self.call() }, &IN_POOL)
    }
}

impl Args<'_> {
    /// How steps are made.
    fn step_size(&self) -> StepSize {
        StepSize { softplus: self.dt_softplus, limit: self.dt_limit }
    }
}

/// Number of `f32` (`f64` where x is) elements that `Outputs::checkpoints` must have: none on CUDA, where states are computed again.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn checkpoints_len(args: &Args<'_>) -> Result<usize> {
    prepared::saved_len(&Table, &args.call())
}

/// The shape of `final_state`: that of the initial state where there is one.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn final_state_shape(args: &Args<'_>) -> Result<Shape> {
    prepared::state_shape(&Table, &args.call())
}

/// Number of `f32` elements that `Outputs::workspace` must have if it is given; none on the CPU, and none for short rows.
///
/// # Errors
/// Those of [`forward`] that concern the arguments, unless none is needed whatever they are.
pub fn workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    if exec.stream().is_none() { Ok(0) } else { prepare(exec, args)?.workspace_len() }
}

/// Number of `f32` elements that `Gradients::workspace` must have, none on the CPU.
///
/// # Errors
/// Those of [`forward`] that concern the arguments; [`Error::Unavailable`](crate::Error::Unavailable) for more states than a device's kernels can hold.
pub fn backward_workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    prepare(exec, args)?.backward_workspace_len(true)
}

/// The kernels of both passes on a GPU.
pub(super) fn plan(args: &Args<'_>, numbers: Numbers) -> Result<Vec<PlannedLaunch>> {
    cuda::plan(&Problem::new(args, args.x.device(), NO_STATES)?, numbers)
}
