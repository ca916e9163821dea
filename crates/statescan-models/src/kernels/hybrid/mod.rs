//! The kernels of hybrids on a GPU beside products: the rotation of heads by their positions, the softmax of attention, the gate
//! of feed-forward layers, and attention's step of a decoded token.
//!
//! | call | what it computes |
//! |---|---|
//! | [`rope`], [`cast`] | rows whose heads are turned by their positions (rotary positions), or back; rows in another type |
//! | [`softmax`], [`softmax_backward`] | shares of what each row attends to, from scores |
//! | [`gate`], [`gate_backward`] | `y = silu(gates) ups` |
//! | [`output_gate`], [`output_gate_backward`] | what heads attend to times the sigmoid of their gates |
//! | [`accumulate`] | a matrix added to rows |
//! | [`attention_step`] | attention of one row between its projections |
//!
//! Scores and what shares are multiplied with are products, one for each head. They take memory and time by the number of tokens, which is right for the
//! few layers of attention between scans, and not for long contexts.

mod accumulate;
mod gate;
mod output_gate;
mod rope;
mod softmax;
mod step;
#[cfg(test)]
mod tests;

pub use accumulate::accumulate;
pub use gate::{gate, gate_backward};
pub use output_gate::{output_gate, output_gate_backward};
pub use rope::{Heads, cast, rope};
pub use softmax::{softmax, softmax_backward};
pub use step::{AttentionStep, attention_step};

/// The header that kernels with rotations share.
const ROTATION: statescan_cuda::Header = statescan_cuda::header!("rotation.cuh");
