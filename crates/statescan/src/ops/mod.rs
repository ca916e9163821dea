//! The operations, one folder each: `mod.rs` (mathematics, arguments, checks), `reference.rs` (the float64 oracle), `plan.rs` (problem to
//! plan), `cpu.rs` (kernels).

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
