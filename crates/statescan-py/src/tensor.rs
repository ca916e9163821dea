//! The result of both doors: the parts of a tensor, checked before they become a view.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use statescan::tensor::MAX_RANK;
use statescan::{DType, Device, View, ViewMut};

/// Types by the names that PyTorch, NumPy and JAX have for them.
pub const DTYPES: [(&str, DType); 8] = [
    ("float32", DType::F32),
    ("float64", DType::F64),
    ("bfloat16", DType::BF16),
    ("float16", DType::F16),
    ("complex64", DType::Complex64),
    ("complex128", DType::Complex128),
    ("int32", DType::I32),
    ("int64", DType::I64),
];

/// A tensor as its owner describes it.
#[derive(Clone, Copy)]
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
    #[inline]
    fn check(&self, argument: &str) -> PyResult<()> {
        if self.shape[..self.rank].contains(&0) {
            return Ok(());
        }
        let fail = |why: &str| Err(PyValueError::new_err(format!("`{argument}` {why}")));
        if self.address == 0 {
            return fail("has elements and a null address");
        }
        if !self.address.is_multiple_of(alignment(self.dtype)) {
            return fail("must be aligned to its elements; copy it first");
        }
        match self.reach() {
            Some((low, _)) if low >= 0 => Ok(()),
            _ => fail("reaches beyond all memory"),
        }
    }

    /// The addresses of the first byte and past the last one, unless there are no such addresses.
    fn reach(&self) -> Option<(isize, isize)> {
        let (size, start) = (self.dtype.size() as isize, isize::try_from(self.address).ok()?);
        let (mut low, mut high) = (start, start.checked_add(size)?);
        for (&count, &stride) in self.shape[..self.rank].iter().zip(&self.strides[..self.rank]) {
            let bytes = isize::try_from(count - 1).ok()?.checked_mul(stride)?.checked_mul(size)?;
            let end = if bytes < 0 { &mut low } else { &mut high };
            *end = end.checked_add(bytes)?;
        }
        Some((low, high))
    }

    /// The tensor, read only.
    ///
    /// # Safety
    /// The parts describe memory that stays valid for `'a`.
    #[inline(always)]
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
    #[inline]
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
    // all frameworks' types have the same names
    let got = got.to_string();
    let got = got.trim_start_matches("torch.");
    PyTypeError::new_err(format!("`{argument}` must have elements of type {expected}, got {got}"))
}

/// The error for too many axes.
pub fn too_many_axes(argument: &str, got: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("`{argument}` must have at most {MAX_RANK} axes, got {got}"))
}
