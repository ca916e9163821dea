//! Borrowed, strided views over memory that the caller owns, and owned tensors for callers that have no array library of their own.
//!
//! A view is a pointer, a storage type, a device, a shape and strides (in elements, of any sign). It is checked once against its
//! buffer when it is made; the operations check shapes, types, devices and overlaps before a kernel runs, and kernels check nothing.

mod dense;
mod memory;
#[cfg(feature = "ndarray")]
mod ndarray;
mod overlap;
mod owned;
mod storage;
mod view;
mod view_mut;
mod workspace;

pub use crate::device::Device;
pub use crate::dtype::{DType, Element};
pub use crate::shape::{MAX_RANK, Shape, Strides, TooManyAxes};
pub use dense::{Dense, ErrorBound, difference, largest, max_errors};
pub(crate) use memory::{Line, Memory};
pub use owned::Tensor;
pub use view::View;
pub use view_mut::ViewMut;
pub use workspace::Workspace;

pub(crate) use overlap::{Argument, first_overlap, is_injective};
pub(crate) use view_mut::RawViewMut;
