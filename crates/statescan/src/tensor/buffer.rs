//! Owned tensors of any storage type, for callers that have no array library of their own.

use super::dense::Dense;
use super::dtype::DType;
use super::memory::{Line, Memory};
use super::shape::{Shape, Strides};
use super::view::{Device, View};
use super::view_mut::ViewMut;
use crate::error::{Error, Result};
use num_complex::Complex64;

/// A tensor in host memory whose storage type is a value.
#[derive(Debug, Clone)]
pub struct Buffer {
    lines: Memory,
    dtype: DType,
    shape: Shape,
    strides: Strides,
    offset: usize,
}

impl Buffer {
    /// A dense row-major tensor of zeros.
    ///
    /// # Errors
    /// [`Error::TooManyAxes`]; [`Error::Bounds`] if the size in bytes overflows.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Self> {
        let shape = Shape::new(shape)?;
        let strides = shape.row_major();
        let overflow = || Error::Bounds { shape, strides: strides.to_vec(), offset: 0, available: 0 };
        let bytes = shape.checked_len().and_then(|n| n.checked_mul(dtype.size())).filter(|&n| n <= isize::MAX as usize);
        let lines = bytes.ok_or_else(overflow)?.div_ceil(size_of::<Line>());
        Ok(Buffer { lines: Memory::zeroed(lines), dtype, shape, strides, offset: 0 })
    }

    /// Zeros with chosen strides (in elements), in memory that reaches `elements` elements; element (0, .., 0) is at `offset`.
    ///
    /// # Errors
    /// [`Error::Bounds`] if any element would lie outside.
    pub fn strided(dtype: DType, shape: &[usize], strides: &[isize], offset: usize, elements: usize) -> Result<Self> {
        let whole = Self::zeros(dtype, &[elements])?;
        let shape = Shape::new(shape)?;
        super::view::check_bounds(&shape, strides, offset, elements)?;
        Ok(Buffer { lines: whole.lines, dtype, shape, strides: Strides::of(strides), offset })
    }

    /// A dense copy of a tensor, rounded to a storage type.
    ///
    /// # Panics
    /// If the tensor is too large for memory.
    pub fn from_dense(dense: &Dense, dtype: DType) -> Self {
        let mut buffer = Self::zeros(dtype, &dense.shape()).expect("as large as an existing tensor");
        buffer.copy_from(dense);
        buffer
    }

    /// Overwrites every element.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn copy_from(&mut self, dense: &Dense) {
        assert_eq!(self.shape, dense.shape(), "shapes agree");
        let mut values = dense.data().iter();
        self.fill_with(|| *values.next().expect("as many elements"));
    }

    /// Overwrites every element, in row-major order, rounding to the storage type.
    pub fn fill_with(&mut self, mut value: impl FnMut() -> Complex64) {
        let target = self.view_mut().raw();
        // SAFETY: the offsets are the view's own, and the buffer is borrowed exclusively.
        target.as_read().for_each_offset(|offset| unsafe { target.write(offset, value()) });
    }

    /// Sets every byte of the memory behind the tensor, also where no element lies.
    pub fn fill_bytes(&mut self, byte: u8) {
        self.bytes_mut().fill(byte);
    }

    /// The memory behind the tensor.
    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.lines)
    }

    /// The memory behind the tensor, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.lines)
    }

    /// The storage type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The tensor, read only.
    pub fn view(&self) -> View<'_> {
        let origin = self.lines.as_ptr().cast::<u8>().wrapping_add(self.offset * self.dtype.size());
        // SAFETY: shape, strides and offset were checked against the memory when the buffer was made; every bit pattern is a value.
        let view = unsafe { View::from_raw_parts(origin, self.dtype, Device::Cpu, &self.shape, &self.strides) };
        view.expect("checked when the buffer was made")
    }

    /// The tensor, writable.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        let origin = self.lines.as_mut_ptr().cast::<u8>().wrapping_add(self.offset * self.dtype.size());
        // SAFETY: as in `view`, and the borrow is exclusive.
        let view = unsafe { ViewMut::from_raw_parts(origin, self.dtype, Device::Cpu, &self.shape, &self.strides) };
        view.expect("checked when the buffer was made")
    }

    /// A copy in complex `f64`.
    pub fn to_dense(&self) -> Dense {
        Dense::from_view(&self.view())
    }
}
