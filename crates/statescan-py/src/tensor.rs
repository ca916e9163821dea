//! What both doors hand over: the parts of a tensor, checked before they become a view.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use statescan::tensor::MAX_RANK;
use statescan::{DType, Device, View, ViewMut};

/// A tensor as its owner describes it.
pub struct Parts {
    pub address: usize,
    pub dtype: DType,
    pub device: Device,
    pub rank: usize,
    /// The first `rank` are meant.
    pub shape: [usize; MAX_RANK],
    /// In elements; the first `rank` are meant.
    pub strides: [isize; MAX_RANK],
}

/// Alignment that kernels rely on: that of a component.
fn alignment(dtype: DType) -> usize {
    dtype.real().size()
}

impl Parts {
    /// Refuses descriptions that no allocation can have.
    fn check(&self, argument: &str) -> PyResult<()> {
        let (shape, strides) = (&self.shape[..self.rank], &self.strides[..self.rank]);
        if shape.contains(&0) {
            return Ok(());
        }
        let fail = |why: &str| Err(PyValueError::new_err(format!("`{argument}` {why}")));
        if self.address == 0 {
            return fail("has elements and a null address");
        }
        if !self.address.is_multiple_of(alignment(self.dtype)) {
            return fail("must be aligned to its elements; copy it first");
        }
        // the addresses of its first and last element, as exact numbers
        let mut reach = (self.address as i128, self.address as i128 + self.dtype.size() as i128);
        for (&size, &stride) in shape.iter().zip(strides) {
            let span = (size as i128 - 1) * stride as i128;
            let Some(bytes) = span.checked_mul(self.dtype.size() as i128) else {
                return fail("reaches beyond all memory");
            };
            let end = if bytes < 0 { &mut reach.0 } else { &mut reach.1 };
            *end = end.saturating_add(bytes);
        }
        if reach.0 < 0 || reach.1 > isize::MAX as i128 {
            return fail("reaches beyond all memory");
        }
        Ok(())
    }

    /// The tensor, read only.
    ///
    /// # Safety
    /// What the parts describe is memory that stays valid for `'a`.
    pub unsafe fn view<'a>(&self, argument: &str) -> PyResult<View<'a>> {
        self.check(argument)?;
        let (shape, strides) = (&self.shape[..self.rank], &self.strides[..self.rank]);
        // SAFETY: the caller's contract; addresses neither wrap nor are misaligned.
        let view = unsafe { View::from_raw_parts(self.address as *const u8, self.dtype, self.device, shape, strides) };
        view.map_err(|error| PyValueError::new_err(format!("`{argument}`: {error}")))
    }

    /// The tensor, writable.
    ///
    /// # Safety
    /// As [`Parts::view`], and nothing else uses that memory for `'a`.
    pub unsafe fn view_mut<'a>(&self, argument: &str) -> PyResult<ViewMut<'a>> {
        self.check(argument)?;
        let (shape, strides) = (&self.shape[..self.rank], &self.strides[..self.rank]);
        // SAFETY: as in `view`, and the memory is not used by others.
        let view = unsafe { ViewMut::from_raw_parts(self.address as *mut u8, self.dtype, self.device, shape, strides) };
        view.map_err(|error| PyValueError::new_err(format!("`{argument}`: {error}")))
    }
}

/// The error for an element type that no operation takes.
pub fn unknown_dtype(argument: &str, got: impl std::fmt::Display) -> PyErr {
    let expected = "float32, float64, bfloat16, float16, complex64, complex128, int32 or int64";
    PyTypeError::new_err(format!("`{argument}` must have elements of type {expected}, got {got}"))
}

/// The error for too many axes.
pub fn too_many_axes(argument: &str, got: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("`{argument}` must have at most {MAX_RANK} axes, got {got}"))
}
