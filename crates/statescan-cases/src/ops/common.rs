//! What the adapters share.

use crate::call::{Call, Operation, Planned};
use crate::error::{Error, Result};
use crate::table::Setting;
use crate::tensors::Tensors;
use statescan::tensor::Shape;
use statescan::{DType, Sequences};

pub(super) const fn setting(name: &'static str) -> Setting {
    Setting { name, aliases: &[] }
}

pub(super) fn planned(name: &'static str, dtype: DType, shape: &[usize]) -> Result<Planned> {
    Ok(Planned { name, dtype, shape: Shape::new(shape)? })
}

/// The type of carried values for an input of a type.
pub(super) fn carried(input: DType, complex: bool) -> DType {
    match (input.is_double(), complex) {
        (false, false) => DType::F32,
        (false, true) => DType::Complex64,
        (true, false) => DType::F64,
        (true, true) => DType::Complex128,
    }
}

/// What an operation in place has for gradients.
pub(super) fn no_gradients<T>(op: &dyn Operation) -> Result<T> {
    Err(Error::NoGradients { op: op.name() })
}

/// Starts a state that is updated in place from the argument of the same name.
pub(super) fn start_state(name: &'static str, call: &Call, out: &mut Tensors) -> Result<()> {
    call.need(name)?;
    if let Some(input) = call.input(name) {
        out.copy_from(name, &input.buffer);
    }
    Ok(())
}

/// How the time axis of a call divides.
pub(super) fn sequences(call: &Call) -> Result<Sequences<'_>> {
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
