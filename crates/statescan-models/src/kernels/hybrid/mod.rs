//! The kernels of hybrids on a GPU beside products: the rotation of heads by their positions, the softmax of attention, the gate
//! of feed-forward layers, and attention's step of a decoded token.
//!
//! | call | what it computes |
//! |---|---|
//! | [`rotate`] | rows whose heads are turned by their positions, or copied |
//! | [`softmax`] | shares of what each row attends to, from scores |
//! | [`gate`] | `y = silu(gates) ups` |
//! | [`attention_step`] | attention of one row between its projections |
//!
//! Scores and what shares are multiplied with are products, one for each head. They take memory and time by the number of tokens, which is right for the
//! few layers of attention between scans, and not for long contexts.

mod gate;
mod rotate;
mod softmax;
mod step;
#[cfg(test)]
mod tests;

pub use gate::gate;
pub use rotate::{Heads, rotate};
pub use softmax::softmax;
pub use step::{AttentionStep, attention_step};

/// The header that kernels with rotations share.
const ROTATION: statescan_cuda::Header = statescan_cuda::header!("rotation.cuh");
