//! One adapter for each operation: its table, and how named tensors become the library's arguments.

mod causal_conv1d;
mod causal_conv1d_update;
mod common;
mod linear_scan;
mod selective_scan;
mod selective_state_update;
mod simplified_scan;
mod simplified_state_update;
mod ssd;

use crate::call::Operation;
use crate::error::{Error, Result};

/// Every adapter, in the order of the documentation.
static ALL: [&dyn Operation; 9] = [
    &selective_scan::SelectiveScan,
    &ssd::Ssd { heads_first: false },
    &simplified_scan::SimplifiedScan { inner: false },
    &simplified_scan::SimplifiedScan { inner: true },
    &linear_scan::LinearScan,
    &causal_conv1d::CausalConv1d,
    &selective_state_update::SelectiveStateUpdate,
    &simplified_state_update::SimplifiedStateUpdate,
    &causal_conv1d_update::CausalConv1dUpdate,
];

/// Every operation.
pub fn all() -> &'static [&'static dyn Operation] {
    &ALL
}

/// The operation of a name.
///
/// # Errors
/// [`Error::UnknownOperation`].
pub fn find(name: &str) -> Result<&'static dyn Operation> {
    all().iter().copied().find(|op| op.name() == name).ok_or_else(|| Error::UnknownOperation {
        got: name.to_string(),
        known: all().iter().map(|op| op.name()).collect::<Vec<_>>().join(", "),
    })
}
