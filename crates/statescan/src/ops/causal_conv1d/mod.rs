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
//! | initial_states | (B, D, W-1), see [`Sequences`](crate::Sequences) for packed rows | real; the inputs before the first step, the latest last |
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
mod passes;
mod problem;
pub mod reference;
pub mod update;

use super::call::{Call, Value};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::ops::pool;
use crate::ops::prepared;
use crate::ops::signature::*;
use crate::ops::table::{OptionField, operation};
use crate::tensor::Shape;
pub(crate) use problem::Problem;

const OP: &str = SIGNATURE.name;

/// The largest filter width.
pub const MAX_WIDTH: usize = 8;

/// The function after the convolution.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `v * sigmoid(v)`, also called swish.
    Silu,
}

impl OptionField for Activation {
    fn of(value: Value) -> Self {
        if let Value::Word(Some(_)) = value { Activation::Silu } else { Activation::None }
    }
    fn value(self) -> Value {
        Value::Word((self == Activation::Silu).then_some(0))
    }
}

/// The option that says it.
const ACTIVATION: OptionSpec = OptionSpec::new(Choice::Word(&["silu", "swish"], None));

const STATE: &[&str] = &["BDV", "BSDV"];

operation! {
    /// A causal convolution as data.
    pub SIGNATURE = Signature {
        name: "causal_conv1d",
        about: "depthwise causal convolution over time, the short filter in front of a scan",
        sizes: &[BATCH, DIM, SEQLEN, ('W', "width"), ('V', "width - 1"), SEQUENCES, BOUNDS, SLOTS, PIECES],
        limit: Limit {
            names: "batch x dim x max(seqlen, sequences)",
            bytes: 9,
            what: "nine sums of a channel for each group of slices, of which there are three for each step at most",
        },
        ..SCAN
    };
    facts = Facts {
        state_steps: "BDLW",
        // each tap, and a sigmoid for each output
        forward: Cost { flops: &[(2.0, "BDLW")], exps: &[(1.0, "BDL")] },
        backward: Cost { flops: &[(6.0, "BDLW")], exps: &[(1.0, "BDL")] },
        oracle: &[(1.0, "BDLW")],
        independent: &[('B', None), ('D', None)],
        tensor_cores: TensorCores::Never,
        small: &[('B', 1), ('D', 128), ('L', 1024), ('W', 4)],
        hardest: Some((Hardest::LargeInputs, 1.25)),
        ..Facts::NONE
    };
    /// The arguments of a causal convolution; see the [module](self) for shapes and types.
    Args;
    required {
        /// Input, (B, D, L).
        x: timed = activation(&["BDL"]),
        /// Filters, (D, W); the last tap is the present.
        weight: plain = parameter(&["DW"]),
    }
    optional {
        /// Added to the sum, (D,).
        bias: plain = parameter(&["D"]),
        /// Inputs before the first step, (B, D, W-1).
        initial_states: state = state(STATE).alias(&["initial_state"]),
    }
    sequences {
        /// How the time axis divides into sequences.
        sequences,
    }
    options {
        /// The function after the sum.
        activation: Activation = ACTIVATION,
        /// Whether to convolve from the last step to the first.
        reverse: bool = REVERSE,
    }
    results {
        /// Output, (B, D, L).
        y: timed = like("x", &["BDL"]).alias(&["out"]),
        /// The last inputs, shaped as the initial states.
        final_states: state = state_beside("x", STATE).alias(&["final_state"]).dtype(ResultType::Of("x")),
    }
    backward_workspace {
        /// Scratch memory: dense, f32, of [`backward_workspace_len`] elements. Without it the gradients of few filters are slower on CUDA.
    }
}

/// States of a pool, (slots, dim, width - 1).
static POOL: Argument = pool::state_pool(&["UDV"]);
static POOL_ARGUMENTS: [Argument; ARGUMENTS.len() + 2] = pool::with_slots(ARGUMENTS);

/// The operation with states in a [pool].
pub static POOLED: Signature = pool::pooled(&SIGNATURE, "causal_conv1d_pooled", &POOL, &POOL_ARGUMENTS);

/// The operation on a pool of states.
pub(super) static IN_POOL: pool::Pooled = pool::Pooled { op: &Table, signature: &SIGNATURE, by_level: true };

impl pool::InPool for Args<'_> {
    fn in_pool(&self) -> (Call<'_>, &'static pool::Pooled) {
        (Call { signature: &POOLED, ..self.call() }, &IN_POOL)
    }
}

/// The shape of `final_states`: that of the initial states where there are some.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn final_states_shape(args: &Args<'_>) -> Result<Shape> {
    prepared::state_shape(&Table, &args.call())
}

/// Number of `f32` elements that `Gradients::workspace` must have if it is given; none on the CPU.
///
/// # Errors
/// Those of [`backward`] that concern the arguments.
pub fn backward_workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    prepare(exec, args)?.backward_workspace_len(false)
}

/// Refuses widths that there are no kernels for.
fn check_width(op: &'static str, width: usize) -> Result<()> {
    let expected = "of a width from 2 to 8";
    match (2..=MAX_WIDTH).contains(&width) {
        true => Ok(()),
        false => Err(Error::Value { op, argument: "weight", expected, got: width as f64 }),
    }
}
