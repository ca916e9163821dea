//! Strided planes of tensors.

use crate::tensor::{DType, RawViewMut, View};

/// A two-dimensional strided part of a tensor: lanes x steps, real elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plane {
    pub(super) ptr: *mut u8,
    pub(super) dtype: DType,
    pub(super) lane_step: isize,
    pub(super) time_step: isize,
    pub(super) complex: bool,
}

// SAFETY: a plane is an address; whoever loads or stores through it answers for the access.
unsafe impl Send for Plane {}
// SAFETY: as above.
unsafe impl Sync for Plane {}

impl Plane {
    fn new(ptr: *mut u8, dtype: DType, strides: &[isize], lane_axis: usize, time_axis: usize) -> Self {
        Plane { ptr, dtype, lane_step: strides[lane_axis], time_step: strides[time_axis], complex: false }
    }

    /// A plane of a view that is read, with the other axes at index 0. A complex view gives its real parts; see [`Plane::imaginary`].
    pub(crate) fn of(view: &View<'_>, lane_axis: usize, time_axis: usize) -> Self {
        Self::new(view.as_ptr().cast_mut(), view.dtype(), &view.strides(), lane_axis, time_axis).real()
    }

    /// A plane with strides of its own, in elements of the view; it starts where the view does.
    pub(crate) fn strided(view: &View<'_>, lane_step: isize, time_step: isize) -> Self {
        Self::new(view.as_ptr().cast_mut(), view.dtype(), &[lane_step, time_step], 0, 1).real()
    }

    /// A plane of a view that is written.
    pub(crate) fn of_mut(view: &RawViewMut, lane_axis: usize, time_axis: usize) -> Self {
        Self::new(view.as_mut_ptr(), view.dtype(), &view.strides(), lane_axis, time_axis).real()
    }

    fn real(mut self) -> Self {
        if self.dtype.is_complex() {
            self.dtype = self.dtype.real();
            self.complex = true;
            self.lane_step *= 2;
            self.time_step *= 2;
        }
        self
    }

    /// The imaginary parts beside a plane made from a complex view.
    pub(crate) fn imaginary(self) -> Self {
        self.advance_bytes(self.dtype.size() as isize)
    }

    /// Both parts of a complex plane whose time is contiguous, as a real plane of twice the steps: a tile of that is a tile of both parts.
    pub(super) fn interleaved(self, parts: usize) -> Option<Self> {
        (parts == 2 && self.complex && self.time_step == 2).then_some(Plane { time_step: 1, complex: false, ..self })
    }

    /// Moves the origin by `count` indices of an axis that is not in the plane; `stride` is the view's, in its own elements.
    pub(crate) fn along(self, count: usize, stride: isize) -> Self {
        let size = self.dtype.size() * if self.complex { 2 } else { 1 };
        self.advance_bytes(count as isize * stride * size as isize)
    }

    /// The same elements with lanes and steps exchanged.
    pub(crate) fn transposed(self) -> Self {
        Plane { lane_step: self.time_step, time_step: self.lane_step, ..self }
    }

    /// Rows of f32 along time as rows of pairs, and the pairs from one to the next; nothing where that is no whole number.
    pub(crate) fn pairs(self) -> Option<(*mut f64, isize)> {
        let pairs = self.dtype == DType::F32 && self.time_step == 1 && self.lane_step % 2 == 0;
        pairs.then_some((self.ptr.cast(), self.lane_step / 2))
    }

    /// Moves the origin to a lane and a step.
    pub(crate) fn at(self, lane: usize, step: usize) -> Self {
        let elements = lane as isize * self.lane_step + step as isize * self.time_step;
        self.advance_bytes(elements * self.dtype.size() as isize)
    }

    fn advance_bytes(mut self, bytes: isize) -> Self {
        self.ptr = self.ptr.wrapping_offset(bytes);
        self
    }
}

/// Bytes in a cache line.
pub(crate) const LINE: usize = 64;

/// Prefetches the lines of a row of so many bytes, which may lie anywhere, into the second level of caches: rows a power of two apart would
/// push each other out of the first.
#[inline(always)]
pub(crate) fn prefetch_row(start: *const u8, bytes: usize) {
    prefetch::<SECOND>(start, bytes);
}

/// Prefetches the lines of so many bytes that other threads have written, to be changed soon.
#[inline(always)]
pub(crate) fn prefetch_own(start: *const u8, bytes: usize) {
    prefetch::<OWN>(start, bytes);
}

#[cfg(target_arch = "x86_64")]
const SECOND: i32 = core::arch::x86_64::_MM_HINT_T1;
#[cfg(target_arch = "x86_64")]
const OWN: i32 = core::arch::x86_64::_MM_HINT_ET0;
#[cfg(not(target_arch = "x86_64"))]
const SECOND: i32 = 0;
#[cfg(not(target_arch = "x86_64"))]
const OWN: i32 = 0;

#[inline(always)]
fn prefetch<const HINT: i32>(start: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(LINE) {
        let address = start.wrapping_add(at);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint; it has no effect that a program could observe, whatever the address.
        unsafe {
            core::arch::x86_64::_mm_prefetch::<HINT>(address.cast())
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = address;
    }
}
