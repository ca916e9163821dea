//! Helpers of tests of kernels without a GPU: tensors that nobody reads, and compilation for every architecture.

pub(crate) use statescan_cuda::testing::Suite;

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
