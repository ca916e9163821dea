//! RMS norm and layer norm of rows, with what models put around them: a residual sum before, a gate before or after.
//!
//! ```text
//! s = x + residual_scale residual
//! u = s                   with norm_before_gate, or without a gate
//!     s silu(z)           otherwise
//! c = u                   kind "rms"
//!     u - mean(u)         kind "layer"
//! n = c / sqrt(mean(c^2) + eps)
//!     u                   kind "none"
//! o = weight n + bias
//! y = o silu(z)           with norm_before_gate and a gate
//!     o                   otherwise
//! ```
//!
//! Means are over the channels of a row, or over each of `groups` equal groups of neighbouring channels.
//!
//! | argument | shape | type |
//! |---|---|---|
//! | x | (.., D), up to three leading axes | real |
//! | weight, bias | (D,) | real; 1 and 0 where they are not given |
//! | z | (.., D) | real: the gate |
//! | residual | (.., D) | real |
//! | residual_scale | (.., 1) | real: a number for each row, 1 where it is not given |
//! | kind | [`Kind`] | |
//! | eps | number, 0 or more | |
//! | groups | a divisor of D | |
//! | norm_before_gate | flag | |
//! | -> y | (.., D) | real |
//! | -> sum | (.., D) | real: s, for the next residual sum |
//!
//! Each argument may have its own storage type and any strides. Rows are computed in `f32`, or in `f64` where `x` is. RMS norm is Zhang and
//! Sennrich, "Root Mean Square Layer Normalization" (2019); layer norm is Ba, Kiros and Hinton, "Layer Normalization" (2016); the gate is
//! that of Dao and Gu, "Transformers are SSMs" (2024), section 7.
//!
//! **Backward.** With r = 1 / sqrt(mean(c^2) + eps), f the residual's scale, g = silu(z), dy and dsum the cotangents, and means over a group:
//!
//! ```text
//! do = dy g or dy         dz = dy o silu'(z)                                  (norm_before_gate)
//! dweight = sum do n      dbias = sum do         dn = weight do
//! du = r (dn - n mean(dn n))                     kind "rms"
//!      r (dn - mean(dn) - n mean(dn n))          kind "layer"
//!      dn                                        kind "none"
//! ds = du g + dsum        dz = du s silu'(z)                                  (gate before the norm)
//! dx = ds                 dresidual = f ds        dresidual_scale = sum of ds residual over the row
//! ```
//!
//! Nothing is saved: a row is read again and its mean computed again. Gradients overwrite. Sums over rows have an order that depends on the
//! sizes of the call, and on CUDA on the device, and on nothing else.
//!
//! **CUDA.** Everything runs there but an `x` in `f64`, and 2^31 rows and more.

mod cpu;
mod cuda;
mod passes;
mod problem;
pub mod reference;

use super::call::Value;
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::signature::*;
use crate::ops::table::{OptionField, operation};
use problem::Problem;

const OP: &str = SIGNATURE.name;

/// Which norm is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kind {
    /// Root mean square: the mean is not subtracted.
    #[default]
    Rms,
    /// Mean and variance.
    Layer,
    /// The row stays as it is: what is left are the sum, the gate and the weights.
    None,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Rms, Kind::Layer, Kind::None];
}

impl OptionField for Kind {
    fn of(value: Value) -> Self {
        if let Value::Word(Some(word)) = value { Self::ALL[word] } else { Self::default() }
    }
    fn value(self) -> Value {
        Value::Word(Some(self as usize))
    }
}

const ROWS: &[&str] = &["D", "LD", "BLD", "BELD"];
const SCALES: &[&str] = &["1", "L1", "BL1", "BEL1"];
const KIND: OptionSpec = OptionSpec::new(Choice::Word(&["rms", "layer", "none"], Some(0)));
const EPS: OptionSpec = OptionSpec::new(Choice::Number(1e-5));
const GROUPS: OptionSpec = OptionSpec::new(Choice::Count(1)).alias(&["ngroups"]);
const NORM_BEFORE_GATE: OptionSpec = OptionSpec::new(Choice::Flag(false));

operation! {
    /// A norm as data.
    pub SIGNATURE = Signature {
        name: "norm",
        about: "RMS or layer norm of rows, or none, with a residual sum before it and a gate before or after it",
        sizes: &[BATCH, ('E', "axis 1"), SEQLEN, DIM],
        limit: Limit { names: "rows x dim", bytes: 6, what: "two sums of a channel for each slice of rows" },
        ..SCAN
    };
    facts = Facts {
        state_steps: "BELD",
        // a square and its sum, twice a factor
        forward: Cost { flops: &[(4.0, "BELD")], exps: &[] },
        // the norm again, two factors and their sum, the gradient by x, and the sum by weight
        backward: Cost { flops: &[(11.0, "BELD")], exps: &[] },
        oracle: &[(1.0, "BELD")],
        independent: &[('B', None)],
        tensor_cores: TensorCores::Never,
        small: &[('B', 2), ('E', 8), ('L', 64), ('D', 8)],
        ..Facts::NONE
    };
    /// The arguments of a norm; see the [module](self) for shapes and types.
    Args;
    required {
        /// Rows, (.., D).
        x: rows = activation(ROWS),
    }
    optional {
        /// Multiplies each channel, (D,).
        weight: plain = parameter(&["D"]),
        /// Is added to each channel, (D,).
        bias: plain = parameter(&["D"]),
        /// Gate, (.., D).
        z: rows = activation(ROWS).alias(&["gate"]),
        /// Is added to x first, (.., D). Its gradient has the numbers of that by x, times its scale.
        residual: rows = activation(ROWS),
        /// Multiplies each row of the residual, (.., 1). Groups have no scale of their own: it stands beside a single one.
        residual_scale: rows = activation(SCALES),
    }
    options {
        /// Which norm is taken.
        kind: Kind = KIND,
        /// Is added to the mean square.
        eps: f64 = EPS,
        /// Equal groups of neighbouring channels, each normed by itself.
        groups: usize = GROUPS,
        /// Whether the gate multiplies the normed row, and not what is normed.
        norm_before_gate: bool = NORM_BEFORE_GATE,
    }
    results {
        /// Normed rows, (.., D).
        y: rows = like("x", ROWS).alias(&["out"]),
        /// x + residual_scale residual, (.., D).
        sum: rows = like("x", ROWS).alias(&["residual_out"]).dtype(ResultType::OfFirst("residual", "x")).beside("residual"),
    }
    backward_workspace {
        /// Scratch memory: dense, f32, of [`backward_workspace_len`] elements. Needed on CUDA for the gradients by weight and bias.
    }
}

/// Number of `f32` elements that `Gradients::workspace` must have, none on the CPU.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn backward_workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    prepare(exec, args)?.backward_workspace_len(false)
}
