//! The gated delta rule (GDN), with one decay for each head or, as in Kimi Delta Attention (KDA), one for each key channel.
//!
//! ```text
//! S' = exp(g[t]) S[t-1]        d[t] = beta[t] (v[t] - S'^T k[t])        S[t] = S' + k[t] d[t]^T        y[t] = scale S[t]^T q[t]
//! ```
//!
//! (Yang, Kautz and Hatamizadeh 2024; Kimi Team 2025). B batch, L seqlen, H heads of keys, J heads of values, N key width, P value width, both at
//! most 256; the state `S` has shape (B, J, N, P), and J/H neighbouring heads of values share the query and the key of a head.
//!
//! | argument | shape | note |
//! |---|---|---|
//! | q, k | (B, L, H, N) | |
//! | v | (B, L, J, P) | |
//! | g | (B, L, J) or (B, L, J, N) | logarithm of the decay, or with A_log what it is made from; without it nothing decays |
//! | beta | (B, L, J) | 1 where it is not given |
//! | a_log | (J,) | `g` is raw then: the logarithm is `-exp(A_log) softplus(g + dt_bias)`, or see lower_bound |
//! | dt_bias | (J,), or (J, N) beside a `g` for each channel | added to a raw `g` |
//! | initial_state | (B, J, N, P), see [`Sequences`](crate::Sequences) for packed rows | |
//! | scale | number | 0 stands for `1/sqrt(N)` |
//! | qk_l2norm | flag | q and k are divided by their lengths first, `x / sqrt(sum x^2 + 1e-6)` |
//! | lower_bound | number, 0 for none | with A_log and below 0: the logarithm is `lower_bound sigmoid(exp(A_log) (g + dt_bias))` |
//! | beta_sigmoid, allow_neg_eigval | flags | `beta` goes through a sigmoid, and is doubled then |
//! | -> y | (B, L, J, P) | |
//! | -> final_state | as initial_state | |
//!
//! Everything is real. Each argument may have its own storage type and any strides: q, k and v as parts of a tensor whose channels come before time, or
//! states with their last two axes exchanged, cost next to nothing. Carried values are `f32`, or `f64` where `v` is. A logarithm above 0 is a growth,
//! and is taken as it is.
//!
//! **Forward.** Columns of the state do not depend on each other, so a block of them stays in the first-level cache while time passes: a step reads and
//! writes it once, the update of the step before and both products of this one together. Lengths of q and k, their product and the decays of a tile of
//! 64 steps are made beforehand. Each step takes the same sums in the same order wherever a call begins, on any number of threads and, where `g` is the
//! logarithm itself, with AVX2 or AVX-512: a text gives the same bits in one call, in several or in [steps](update).
//!
//! **Backward.** With `u[t] = v[t] - S'^T k[t]` from the forward pass, `D` the gradient of `S[t]` and, for one step,
//!
//! ```text
//! D += scale q dy^T        dv = beta D^T k       dbeta = <D^T k, u>       dq = scale S[t] dy       dk = D d - S' dv
//! D' = D - k dv^T          dg = sum over columns of S' D' (and over channels, for one decay)       dS[t-1] = exp(g) D'
//! ```
//!
//! which is computed for chunks of 64 steps as matrix products. With `G[i,j]` the decay from step j to step i >= j of a chunk, `e[i]` that from its start
//! and `f[i]` that to its end, all of them products of decays and never differences of sums, with `S` the state before the chunk and `R` the gradient of
//! the state after it:
//!
//! ```text
//! A[i,j] = G[i,j] <q[i], k[j]>, i >= j             M[i,j] = beta[i] G[i,j] <k[i], k[j]>, i > j              (q with the scale)
//! X = (I + M)^-T (A^T dy + diag(f) k R)            dv = diag(beta) X          a[i,j] = <dy[i], d[j]>         m[i,j] = -<dv[i], d[j]>
//! dq = diag(e) dy S^T + (a G) k                    dk read = -diag(e) dv S^T + (m G) k         dk written = diag(f) d R^T + (a G)^T q + (m G)^T k
//! dS = e[end] R + (e q)^T dy - (e k)^T dv
//! d(sum of g up to i) = q dq + k dk read - k dk written, and at the end + sum_i f[i] k[i] d[i] R^T + e[end] S R
//! ```
//!
//! States before every chunk and `u` come from the forward pass, or are computed again. Gradients overwrite.
//!
//! **CUDA.** The forward pass takes the same steps in the same order, with the state in registers: what it computes is `f32` whatever an argument is
//! stored as. On Hopper calls in bf16 with 64 or 128 keys and a multiple of 64 values are computed in chunks of 64 steps as products of tensor cores, whose
//! factors are bf16: the inverses of all chunks beside each other, then the chain of states. A decay for each channel is at least `exp(-16)` a step
//! there. That takes a workspace, which also has copies of what the copy engine cannot read as it lies, such as parts of a tensor whose channels come
//! before time.
//!
//! Rows of one token that have an initial state, and packed sequences of as few tokens as there are of them, go by the kernel of the [step](update) and have
//! its bits, where both states are `f32` and lie alike: it reads the one and writes the other.
//!
//! The backward pass computes the states again, and takes chunks of 16 to 64 steps as products on tensor cores: of `bf16` where q, k and v are,
//! of tf32 where they are `f16`, else of `f32` with its own accuracy. Two walks over the chunks, one forwards with the state and one backwards with its
//! gradient, run at the same time, on Hopper by products of warpgroups where a call is in bf16 with one decay a head and 128 keys. States of each sequence of `seq_idx` have gradients there where the initial state is given. There are no kernels for
//! `f64`.

mod cpu;
mod cuda;
mod gates;
mod passes;
mod problem;
pub mod reference;
pub mod update;

use crate::cuda::{Numbers, PlannedLaunch};
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::call::Call;
use crate::ops::pool;
use crate::ops::prepared;
use crate::ops::signature::*;
use crate::ops::states::NO_STATES;
use crate::ops::table::operation;
use crate::tensor::Shape;
pub(crate) use gates::Gates;
use problem::Problem;

const OP: &str = SIGNATURE.name;

/// Keys and values are at most so wide.
pub(crate) const MOST_WIDTH: usize = 256;
/// The number that is added to the square of a length.
pub(crate) const EPS: f64 = 1e-6;

const STATE: &[&str] = &["BJNP", "BSJNP"];
/// Names of heads and widths.
const HEADS: (char, &str) = ('H', "heads");
const VALUE_HEADS: (char, &str) = ('J', "value_heads");
const KEY_WIDTH: (char, &str) = ('N', "key_width");
const VALUE_WIDTH: (char, &str) = ('P', "value_width");

/// The factor of the output; 0 stands for the inverse root of the key width.
const SCALE: OptionSpec = OptionSpec::new(Choice::Number(0.0));
/// Whether queries and keys get the length 1.
const QK_L2NORM: OptionSpec = OptionSpec::new(Choice::Flag(false)).alias(&["use_qk_l2norm_in_kernel"]);
/// The lowest logarithm of a raw gate, 0 for none.
const LOWER_BOUND: OptionSpec = OptionSpec::new(Choice::Number(0.0));
/// Whether beta goes through a sigmoid.
const BETA_SIGMOID: OptionSpec = OptionSpec::new(Choice::Flag(false)).alias(&["use_beta_sigmoid_in_kernel"]);
/// Whether it is doubled then.
const ALLOW_NEG_EIGVAL: OptionSpec = OptionSpec::new(Choice::Flag(false));

operation! {
    /// The gated delta rule as data.
    pub SIGNATURE = Signature {
        name: "gated_delta_rule",
        about: "the gated delta rule: S' = exp(g) S, S = S' + k (beta (v - S'^T k))^T, y = S^T q",
        sizes: &[BATCH, SEQLEN, HEADS, VALUE_HEADS, KEY_WIDTH, VALUE_WIDTH, SEQUENCES, BOUNDS, SLOTS, PIECES],
        leaders: &[2, 0],
        saved: Saved::States { layout: "JNP", padded: None, each_step: "JP", complex: Complex::Never, on_cuda: false },
        limit: Limit {
            names: "batch x max(seqlen, sequences) x value_heads x key_width x value_width",
            bytes: 4,
            what: "a state of f64 for every row and head of values, and its gradient, where steps count 2^4",
        },
        ..SCAN
    };
    facts = Facts {
        state_steps: "BLJNP",
        // the decay, the update, and the products with the key and the query
        forward: Cost { flops: &[(7.0, "BLJNP")], exps: &[(1.0, "BLJ")] },
        // six products with states, and triangles of 32 pairs for each step
        backward: Cost { flops: &[(12.0, "BLJNP"), (320.0, "BLJN"), (320.0, "BLJP")], exps: &[(1.0, "BLJ")] },
        oracle: &[(2.0, "BLJNP")],
        independent: &[('B', None), ('J', Some('H')), ('P', None)],
        tensor_cores: TensorCores::Always,
        small: &[('B', 1), ('L', 128), ('H', 2), ('J', 2), ('N', 64), ('P', 64)],
        chunked: true,
        ..Facts::NONE
    };
    /// The arguments of the gated delta rule; see the [module](self) for shapes and types.
    Args;
    required {
        /// Queries, (B, L, H, N).
        q: timed = activation(&["BLHN"]).alias(&["query"]),
        /// Keys, (B, L, H, N).
        k: timed = activation(&["BLHN"]).alias(&["key"]),
        /// Values, (B, L, J, P).
        v: timed = activation(&["BLJP"]).alias(&["value"]),
    }
    optional {
        /// Logarithms of decays, (B, L, J) or (B, L, J, N).
        g: timed = activation(&["BLJ", "BLJN"]).alias(&["decay"]),
        /// How much of a value is written, (B, L, J).
        beta: timed = activation(&["BLJ"]),
        /// Logarithm of the rate of a raw gate, (J,).
        a_log: plain = parameter(&["J"]).named("A_log"),
        /// Added to a raw gate, (J,) or (J, N).
        dt_bias: plain = parameter(&["J", "JN"]),
        /// State before the first step, (B, J, N, P).
        initial_state: state = state(STATE).alias(&["initial_states"]),
    }
    sequences {
        /// How the time axis divides into sequences.
        sequences,
    }
    options {
        /// The factor of the output; 0 stands for `1/sqrt(N)`.
        scale: f64 = SCALE,
        /// Whether q and k are divided by their lengths.
        qk_l2norm: bool = QK_L2NORM,
        /// The lowest logarithm of a raw gate, which is a sigmoid then; 0 for none.
        lower_bound: f64 = LOWER_BOUND,
        /// Whether `beta` goes through a sigmoid.
        beta_sigmoid: bool = BETA_SIGMOID,
        /// Whether it is doubled then.
        allow_neg_eigval: bool = ALLOW_NEG_EIGVAL,
        /// Whether to scan from the last step to the first.
        reverse: bool = REVERSE,
    }
    results {
        /// Output, (B, L, J, P).
        y: timed = like("v", &["BLJP"]).alias(&["o", "out"]),
        /// State after the last step, shaped as the initial state.
        final_state: state = state_beside("v", STATE).alias(&["final_states", "last_state"]),
    }
    saved {
        /// Saved states for the backward pass: dense, of [`checkpoints_len`] elements, f32 (f64 where v is).
        checkpoints,
    }
    workspace {
        /// Scratch memory: dense, f32, of [`workspace_len`] elements. Without it calls on CUDA may be slower.
        workspace,
    }
    backward_workspace {
        /// Scratch memory: dense, f32, of [`backward_workspace_len`] elements, of which the CPU needs none.
    }
}

/// States of a pool, (slots, value_heads, key_width, value_width).
static POOL: Argument = pool::state_pool(&["UJNP"]);
static POOL_ARGUMENTS: [Argument; ARGUMENTS.len() + 2] = pool::with_slots(ARGUMENTS);

/// The operation with states in a [pool].
pub static POOLED: Signature = pool::pooled(&SIGNATURE, "gated_delta_rule_pooled", &POOL, &POOL_ARGUMENTS);

/// The operation on a pool of states.
pub(super) static IN_POOL: pool::Pooled = pool::Pooled { op: &Table, signature: &SIGNATURE, by_level: true };

impl pool::InPool for Args<'_> {
    fn in_pool(&self) -> (Call<'_>, &'static pool::Pooled) {
        (Call { signature: &POOLED, ..self.call() }, &IN_POOL)
    }
}

/// Number of `f32` (`f64` where v is) elements that `Outputs::checkpoints` must have: none on CUDA, where states are computed again.
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

/// Number of `f32` elements that `Outputs::workspace` must have if it is given; none on the CPU.
///
/// # Errors
/// Those of [`forward`] that concern the arguments, unless none is needed whatever they are.
pub fn workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    if exec.stream().is_none() { Ok(0) } else { prepare(exec, args)?.workspace_len() }
}

/// Number of `f32` elements that `Gradients::workspace` must have, none on the CPU.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn backward_workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    prepare(exec, args)?.backward_workspace_len(true)
}

/// The kernels of the forward pass on a GPU.
pub(super) fn plan(args: &Args<'_>, numbers: Numbers) -> Result<Vec<PlannedLaunch>> {
    cuda::plan(&Problem::new(args, args.v.device(), NO_STATES)?, numbers)
}
