//! What the tests of kernels without a GPU are made of: tensors that nobody reads, and compilation for every architecture.

mod device;
mod hopper;
mod suite;
mod tensor_cores;

pub(crate) use suite::Suite;

use super::nvrtc;
use crate::ViewMut;
use crate::tensor::{DType, RawViewMut, View};

/// A dense tensor in a device's memory that nobody reads.
pub(crate) fn tensor(dtype: DType, shape: &[usize]) -> View<'static> {
    super::nowhere(dtype, shape).unwrap()
}

/// A view to be written, which nobody does.
pub(crate) fn target(view: View<'_>) -> RawViewMut {
    // SAFETY: nothing writes through the view.
    let mut view =
        unsafe { ViewMut::from_raw_parts(view.as_ptr().cast_mut(), view.dtype(), view.device(), &view.shape(), &view.strides()) };
    view.as_mut().unwrap().raw()
}

/// Whether NVRTC is there; without it the test says so, unless it must not be skipped.
pub(crate) fn ready() -> bool {
    match nvrtc::version() {
        Ok(_) => true,
        Err(error) if std::env::var_os("STATESCAN_REQUIRE_NVRTC").is_none() => {
            println!("skipped: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}
