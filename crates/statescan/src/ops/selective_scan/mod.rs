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
//! | initial_state | (B, D, N), see [`Sequences`](crate::Sequences) for packed rows | real, or complex where a is |
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
mod passes;
mod problem;
pub mod reference;
pub(crate) mod summary;
pub mod update;

use super::discretization::Discretization;
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::call::Call;
use crate::ops::pool;
use crate::ops::prepared;
use crate::ops::signature::*;
use crate::ops::table::operation;
use crate::step_size::StepSize;
use crate::tensor::Shape;
pub(crate) use problem::{Problem, Projection};
pub use summary::{summary, summary_workspace_len};

const OP: &str = SIGNATURE.name;

const MAPS: &[&str] = &["DN", "BNL", "BGNL"];
const STATE: &[&str] = &["BDN", "BSDN"];
const AS_A: Complex = Complex::As(&["A"]);
const DECAY: Output = state_beside("x", STATE).complex(AS_A).field("decay", "grad of decay");

operation! {
    /// A selective scan as data.
    pub SIGNATURE = Signature {
        name: "selective_scan",
        about: "Mamba's scan: h[t] = exp(dt A) h[t-1] + dt B x, y = <C, h> + D x, gated by silu(z)",
        sizes: &[BATCH, DIM, SEQLEN, DSTATE, NGROUPS, SEQUENCES, BOUNDS, SLOTS, PIECES],
        free: "G",
        saved: Saved::States { layout: "DN", padded: Some('D'), each_step: "", complex: AS_A, on_cuda: true },
        decay: Some(&DECAY),
        limit: Limit {
            names: "batch x dim x max(seqlen, sequences) x dstate",
            bytes: 6,
            what: "partial gradients of B and C, each of two parts, by batch, channel, step and state",
        },
        ..SCAN
    };
    facts = Facts {
        state_steps: "BDLN",
        // dt A, the decayed state plus the input, the output's sum
        forward: Cost { flops: &[(6.0, "BDLN")], exps: &[(1.0, "BDLN")] },
        // the states again, then the gradient of the state, of B, C, A, and the two sums over states
        backward: Cost { flops: &[(22.0, "BDLN")], exps: &[(1.0, "BDLN")] },
        oracle: &[(1.0, "BDLN")],
        independent: &[('B', None), ('D', Some('G'))],
        tensor_cores: TensorCores::Never,
        small: &[('B', 1), ('D', 128), ('L', 512), ('N', 16)],
        many_channels: Some(&[('B', 1), ('D', 320), ('L', 256), ('N', 16)]),
        // an exponential that may leave the range of f32 takes nineteen instructions instead of ten
        hardest: Some((Hardest::StrongDecays, 1.5)),
        ..Facts::NONE
    };
    /// The arguments of a selective scan; see the [module](self) for shapes and types.
    Args;
    required {
        /// Input, (B, D, L).
        x: timed = activation(&["BDL"]).alias(&["u"]),
        /// Step sizes, (B, D, L).
        dt: timed = activation(&["BDL"]).alias(&["delta"]),
        /// State matrix, diagonal, (D, N).
        a: plain = parameter(&["DN"]).named("A").complex(Complex::Always),
        /// Input map, (B, N, L), (B, G, N, L) or (D, N).
        b: map as Projection = activation(MAPS).named("B").complex(AS_A),
        /// Output map, (B, N, L), (B, G, N, L) or (D, N).
        c: map as Projection = activation(MAPS).named("C").complex(AS_A),
    }
    optional {
        /// Skip, (D,).
        d: plain = parameter(&["D"]).named("D"),
        /// Gate, (B, D, L).
        z: timed = activation(&["BDL"]),
        /// Added to `dt`, (D,).
        dt_bias: plain = parameter(&["D"]).alias(&["delta_bias"]),
        /// The decay's own step (`deltaA`), (B, D, L).
        dt_a: timed = activation(&["BDL"]).named("deltaA").alias(&["delta_a"]),
        /// State before the first step, (B, D, N).
        initial_state: state = state(STATE).alias(&["initial_states"]).complex(AS_A).carried_gradient(),
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
        /// How (A, B) become a recurrence.
        discretization: Discretization = discretization(0),
        /// Whether to scan from the last step to the first.
        reverse: bool = REVERSE,
    }
    results {
        /// Output, (B, D, L).
        y: timed = like("x", &["BDL"]).alias(&["out"]),
        /// State after the last step, shaped as the initial state.
        final_state: state = state_beside("x", STATE).alias(&["last_state", "final_states"]).complex(AS_A),
    }
    saved {
        /// Saved states for the backward pass: dense, of [`checkpoints_len`] elements, f32 (f64 where x is).
        checkpoints,
    }
    workspace {
        /// Scratch memory: dense, f32, of [`workspace_len`] elements. Without it long rows of few channels are slower on CUDA.
        workspace,
    }
    backward_workspace {
        /// Scratch memory: dense, f32, of [`backward_workspace_len`] elements. Needed on CUDA.
    }
}

/// States of a pool, (slots, dim, dstate).
static POOL: Argument = pool::state_pool(&["UDN"]);
static POOL_ARGUMENTS: [Argument; ARGUMENTS.len() + 2] = pool::with_slots(ARGUMENTS);

/// The operation with states in a [pool].
pub static POOLED: Signature = pool::pooled(&SIGNATURE, "selective_scan_pooled", &POOL, &POOL_ARGUMENTS);

/// The operation on a pool of states.
pub(super) static IN_POOL: pool::Pooled = pool::Pooled { op: &Table, signature: &SIGNATURE, by_level: true };

impl pool::InPool for Args<'_> {
    fn in_pool(&self) -> (Call<'_>, &'static pool::Pooled) {
        (Call { signature: &POOLED, ..self.call() }, &IN_POOL)
    }
}

/// The options of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Options {
    pub step_size: StepSize,
    pub reverse: bool,
    pub discretization: Discretization,
}

impl Args<'_> {
    fn options(&self) -> Options {
        Options { step_size: self.step_size(), reverse: self.reverse, discretization: self.discretization }
    }

    fn step_size(&self) -> StepSize {
        StepSize { softplus: self.dt_softplus, limit: self.dt_limit }
    }

    /// Returns the arguments with another way of making steps.
    pub(crate) fn with_steps(self, steps: StepSize) -> Self {
        Args { dt_softplus: steps.softplus, dt_limit: steps.limit, ..self }
    }
}

/// Number of `f32` (`f64` where x is) elements that `Outputs::checkpoints` must have.
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
    let short = args.x.shape().last().is_some_and(|&seqlen| seqlen < cuda::SHORTEST_CUT);
    if short || exec.stream().is_none() { Ok(0) } else { prepare(exec, args)?.workspace_len() }
}

/// Number of `f32` elements that `Gradients::workspace` must have, none on the CPU; more of them if the saved states are not given.
///
/// # Errors
/// Those of [`forward`] that concern the arguments; [`Error::Unavailable`](crate::Error::Unavailable) for more states than a device's kernels can hold.
pub fn backward_workspace_len(exec: &Exec, args: &Args<'_>, has_checkpoints: bool) -> Result<usize> {
    prepare(exec, args)?.backward_workspace_len(has_checkpoints)
}
