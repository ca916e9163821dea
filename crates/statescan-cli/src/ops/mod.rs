//! One adapter for each operation: its table, and how named tensors become the library's arguments.

mod causal_conv1d;
mod causal_conv1d_update;
mod linear_scan;
mod selective_scan;
mod selective_state_update;
mod simplified_scan;
mod simplified_state_update;
mod ssd;

use crate::call::Call;
use crate::error::{Error, Result};
use crate::operation::{Operation, Planned, Setting};
use statescan::tensor::Shape;
use statescan::{DType, Sequences};

/// Every adapter, in the order of the documentation.
pub(crate) static ALL: [&dyn Operation; 9] = [
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

const fn setting(name: &'static str) -> Setting {
    Setting { name, aliases: &[] }
}

fn planned(name: &'static str, dtype: DType, shape: &[usize]) -> Result<Planned> {
    Ok(Planned { name, dtype, shape: Shape::new(shape)? })
}

/// The type of carried values for an input of a type.
fn carried(input: DType, complex: bool) -> DType {
    match (input.is_double(), complex) {
        (false, false) => DType::F32,
        (false, true) => DType::Complex64,
        (true, false) => DType::F64,
        (true, true) => DType::Complex128,
    }
}

/// What an operation in place has for gradients.
fn no_gradients<T>(op: &dyn Operation) -> Result<T> {
    Err(Error::NoGradients { op: op.name() })
}

/// How the time axis of a call divides.
fn sequences(call: &Call) -> Result<Sequences<'_>> {
    match (call.view("cu_seqlens"), call.view("seq_idx")) {
        (None, None) => Ok(Sequences::Whole),
        (Some(bounds), None) => Ok(Sequences::CuSeqlens(bounds)),
        (None, Some(index)) => Ok(Sequences::SeqIdx(index)),
        (Some(_), Some(_)) => {
            let expected = "excludes `cu_seqlens`: both divide the time axis";
            Err(statescan::Error::Presence { op: call.op.name(), argument: "seq_idx", expected }.into())
        }
    }
}
