//! [`ViewMut`]: what operations write.

use super::view::View;
use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::shape::{Shape, Strides};
use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use half::{bf16, f16};
use num_complex::{Complex, Complex64};

/// A strided tensor of known element type that an operation writes.
pub struct ViewMut<'a> {
    view: View<'a>,
    lifetime: PhantomData<&'a mut [u8]>,
}

impl<'a> ViewMut<'a> {
    /// A dense row-major view of a slice.
    ///
    /// # Errors
    /// As [`View::new`].
    pub fn new<T: Element>(data: &'a mut [T], shape: &[usize]) -> Result<Self> {
        let available = data.len();
        let shape = Shape::new(shape)?;
        let strides = shape.row_major();
        if shape.checked_len() != Some(available) {
            return Err(Error::Bounds { shape, strides: strides.to_vec(), offset: 0, available });
        }
        Self::strided(data, 0, &shape, &strides)
    }

    /// A view of a slice with any strides (in elements), whose element (0, .., 0) is `data[offset]`.
    ///
    /// # Errors
    /// As [`View::strided`]. That elements are distinct is checked by the operation that writes.
    pub fn strided<T: Element>(data: &'a mut [T], offset: usize, shape: &[usize], strides: &[isize]) -> Result<Self> {
        let ptr = data.as_mut_ptr();
        let view = View::strided(data, offset, shape, strides)?;
        // the pointer is taken from the exclusive borrow, so that writing through it is allowed
        Ok(Self::wrap(view.at_address(ptr.wrapping_add(offset).cast())))
    }

    /// A view from its parts.
    ///
    /// # Errors
    /// As [`View::from_raw_parts`].
    ///
    /// # Safety
    /// As [`View::from_raw_parts`], and nothing else may read or write those elements for `'a`.
    #[inline]
    pub unsafe fn from_raw_parts(ptr: *mut u8, dtype: DType, device: Device, shape: &[usize], strides: &[isize]) -> Result<Self> {
        // SAFETY: the caller's contract includes that of the shared view.
        Ok(Self::wrap(unsafe { View::from_raw_parts(ptr, dtype, device, shape, strides) }?))
    }

    #[inline]
    fn wrap(view: View<'a>) -> Self {
        ViewMut { view, lifetime: PhantomData }
    }

    /// The elements for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut::wrap(self.view)
    }

    /// The elements, read only.
    pub fn as_view(&self) -> View<'_> {
        self.view
    }

    /// Borrows the view that is shared with readers.
    pub(crate) fn shared(&self) -> &View<'a> {
        &self.view
    }

    /// The axes in another order (see [`View::permute`]).
    pub fn permute(self, order: &[usize]) -> Self {
        Self::wrap(self.view.permute(order))
    }

    /// A range of one axis (see [`View::slice`]).
    pub fn slice(self, axis: usize, range: Range<usize>) -> Self {
        Self::wrap(self.view.slice(axis, range))
    }

    /// One index of an axis; the axis disappears (see [`View::index`]).
    pub fn index(self, axis: usize, at: usize) -> Self {
        Self::wrap(self.view.index(axis, at))
    }

    /// One axis as two (see [`View::split`]).
    pub fn split(self, axis: usize, outer: usize) -> Self {
        Self::wrap(self.view.split(axis, outer))
    }

    /// A new axis of size 1.
    pub fn unsqueeze(self, axis: usize) -> Self {
        Self::wrap(self.view.expand(axis, 1))
    }

    /// The elements with one axis walked backwards (see [`View::flip`]).
    pub fn flip(self, axis: usize) -> Self {
        Self::wrap(self.view.flip(axis))
    }

    /// The storage type.
    pub fn dtype(&self) -> DType {
        self.view.dtype()
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> Shape {
        self.view.shape()
    }

    /// The part before an index of an axis, and the rest.
    ///
    /// # Panics
    /// If there is no such axis or no such index.
    pub fn split_at(self, axis: usize, at: usize) -> (Self, Self) {
        let whole = self.view.shape()[axis];
        // the two views have no element in common
        (Self::wrap(self.view.slice(axis, 0..at)), Self::wrap(self.view.slice(axis, at..whole)))
    }

    /// Address of element (0, .., 0).
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.view.as_ptr().cast_mut()
    }

    /// Copies the elements of a view of this shape and type, on the host: runs of those that lie side by side in both, one after another.
    pub(crate) fn copy_from(self, from: View<'_>) {
        let host = from.device() == Device::Cpu && self.view.device() == Device::Cpu;
        assert!(
            host && from.shape() == self.shape() && from.dtype() == self.dtype(),
            "elements of one shape and type on the host"
        );
        if from.is_empty() {
            return;
        }
        let mut order: Vec<usize> = (0..from.rank()).collect();
        order.sort_by_key(|&axis| core::cmp::Reverse(from.strides()[axis].unsigned_abs()));
        let (mut from, mut to, mut run) = (from.permute(&order), self.view.permute(&order), 1);
        while let Some(axis) = from.rank().checked_sub(1) {
            let size = from.shape()[axis];
            if size > 1 && [&from, &to].iter().any(|view| view.strides()[axis] != run as isize) {
                break;
            }
            (from, to, run) = (from.index(axis, 0), to.index(axis, 0), run * size);
        }
        let mut places = Vec::with_capacity(to.len());
        to.for_each_offset(|offset| places.push(to.offset_bytes(offset).cast_mut()));
        let mut places = places.into_iter();
        from.for_each_offset(|offset| {
            let place = places.next().expect("as many runs as the other view has");
            // SAFETY: a run lies inside of both views, whose offsets these are: its axes have their elements side by side. `self` is borrowed alone.
            unsafe { core::ptr::copy_nonoverlapping(from.offset_bytes(offset), place, run * from.dtype().size()) };
        });
    }

    /// The shared description that kernels carry to their threads. It is for one call, which holds the borrow that `self` has.
    pub(crate) fn raw(&mut self) -> RawViewMut {
        // SAFETY: only the lifetime is erased; a kernel ends before the borrow that `self` holds.
        RawViewMut { view: unsafe { core::mem::transmute::<View<'_>, View<'static>>(self.view) } }
    }
}

impl fmt::Debug for ViewMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.view, f)
    }
}

/// A writable view without a lifetime, shared by the threads of one call.
///
/// It is an address. Whoever uses it promises that the call that made it has not ended, that an element is written by one thread alone, and
/// that nobody else uses that element meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct RawViewMut {
    view: View<'static>,
}

impl RawViewMut {
    pub(crate) fn dtype(&self) -> DType {
        self.view.dtype()
    }

    pub(crate) fn shape(&self) -> Shape {
        self.view.shape()
    }

    pub(crate) fn strides(&self) -> Strides {
        self.view.strides()
    }

    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.view.as_ptr().cast_mut()
    }

    /// See [`View::around`].
    #[inline]
    pub(crate) fn around(&self) -> [isize; 2] {
        self.view.around()
    }

    /// Returns the elements, read only.
    pub(crate) fn as_read(&self) -> View<'_> {
        self.view
    }

    /// One index of an axis; the axis disappears.
    pub(crate) fn index(self, axis: usize, at: usize) -> Self {
        RawViewMut { view: self.view.index(axis, at) }
    }

    /// A range of one axis.
    pub(crate) fn slice(self, axis: usize, range: Range<usize>) -> Self {
        RawViewMut { view: self.view.slice(axis, range) }
    }

    /// A new axis of this size at a position (see [`View::expand`]); sizes above 1 would write elements twice.
    pub(crate) fn expand(self, axis: usize, size: usize) -> Self {
        RawViewMut { view: self.view.expand(axis, size) }
    }

    /// Returns the elements with one axis walked backwards.
    pub(crate) fn flip(self, axis: usize) -> Self {
        RawViewMut { view: self.view.flip(axis) }
    }

    /// Writes the element so many elements from the first one, rounded to the storage type; a real type takes the real part.
    pub(crate) fn write(&self, offset: isize, value: Complex64) {
        debug_assert!(offset >= -self.around()[0] && offset < self.around()[1], "the element lies inside");
        let at = self.view.offset_bytes(offset).cast_mut();
        // SAFETY: the promises of `RawViewMut`: the element lies inside, which debug builds check, and is this thread's.
        unsafe {
            match self.view.dtype() {
                DType::F32 => *at.cast::<f32>() = value.re as f32,
                DType::F64 => *at.cast::<f64>() = value.re,
                DType::BF16 => *at.cast::<bf16>() = bf16::from_f64(value.re),
                DType::F16 => *at.cast::<f16>() = f16::from_f64(value.re),
                DType::Complex64 => *at.cast::<Complex<f32>>() = Complex::new(value.re as f32, value.im as f32),
                DType::Complex128 => *at.cast::<Complex64>() = value,
                DType::I32 => *at.cast::<i32>() = value.re as i32,
                DType::I64 => *at.cast::<i64>() = value.re as i64,
            }
        }
    }
}
