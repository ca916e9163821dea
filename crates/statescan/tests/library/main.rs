//! The tests of the library from outside. They are one program, because each program is linked with all kernels, and the next one starts when the
//! last test of the one before has ended: `cargo test --test library ssd::` runs those of one module.

mod causal_conv1d;
mod causal_conv1d_update;
mod checksums;
#[path = "../common/mod.rs"]
mod common;
mod gated_delta_rule;
mod linear;
mod linear_scan;
mod norm;
mod operations;
mod owned;
mod pools;
mod ranks;
#[cfg(debug_assertions)]
mod scratch;
mod selective_scan;
mod selective_state_update;
mod simplified_scan;
mod simplified_state_update;
mod simplified_vectors;
mod slots;
mod ssd;
mod tables;
mod tensor;
