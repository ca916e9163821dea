//! The operations: each file takes the arguments of one in the order of `operations.py`.

pub mod causal_conv1d;
pub mod linear_scan;
pub mod selective_scan;
pub mod selective_state_update;
pub mod simplified_scan;
pub mod simplified_state_update;
pub mod ssd;
