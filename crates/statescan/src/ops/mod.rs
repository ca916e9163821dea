//! The operations, one folder each: `mod.rs` (mathematics, arguments, checks), `reference.rs` (the float64 oracle), `plan.rs` (problem to
//! plan), `cpu.rs` (kernels).
//!
//! **Sizes.** A view with strides of 0 can claim any size. The sizes of a call (batch, channels, steps, states), each counted as at least
//! 16, may multiply to 2^52 at most, which is more than any machine has memory for, and a channel of a selective scan may have 2^20 states.
//! Other calls are an [`Error::Value`](crate::Error::Value).

pub mod causal_conv1d;
pub(crate) mod check;
pub mod discretization;
pub mod linear_scan;
pub(crate) mod rules;
pub mod selective_scan;
pub mod selective_state_update;
pub(crate) mod sequences;
pub mod simplified_scan;
pub mod simplified_state_update;
pub mod ssd;

pub use discretization::Discretization;
pub use sequences::Sequences;
