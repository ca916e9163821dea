//! Scratch memory on cache lines: a vector that lies across two of them takes two accesses.

use super::simd::Real;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::sync::Arc;

const LINE: usize = 64;

/// Elements that arrays of these lengths take together if each starts on a cache line, with what it takes to get to the first one.
///
/// # Panics
/// If no memory could have as many: the limits on sizes (see `ops/check.rs`) are far below.
pub(crate) fn in_lines<T>(lens: &[usize]) -> usize {
    let line = LINE / size_of::<T>();
    let total = lens.iter().try_fold(line, |sum, len| sum.checked_add(len.checked_next_multiple_of(line)?));
    total.filter(|&total| total <= isize::MAX as usize / size_of::<T>()).expect("sizes are limited")
}

/// A slice of a compute type that starts on a cache line.
pub(crate) struct Aligned<T> {
    start: NonNull<T>,
    len: usize,
    /// What the slice is a part of.
    _memory: Arc<Vec<T>>,
}

// SAFETY: a slice that this value alone refers to, in memory that nobody accesses as a whole.
unsafe impl<T: Send> Send for Aligned<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Aligned<T> {}

impl<T: Real> Aligned<T> {
    pub(crate) fn zeros(len: usize) -> Self {
        let [zeros] = Self::zeros_each([len]);
        zeros
    }

    /// Slices of these lengths in one piece of memory: asking for many, or for aligned ones, would take longer than a short call's work.
    pub(crate) fn zeros_each<const N: usize>(lens: [usize; N]) -> [Self; N] {
        let line = LINE / size_of::<T>();
        let mut memory = bytemuck::zeroed_vec::<T>(in_lines::<T>(&lens));
        let mut start = memory.as_mut_ptr();
        start = start.wrapping_add(start.align_offset(LINE).min(line));
        let memory = Arc::new(memory);
        lens.map(|len| {
            let slice = start;
            start = start.wrapping_add(len.next_multiple_of(line));
            let slice = NonNull::new(slice).expect("a place in an allocation");
            Aligned { start: slice, len, _memory: memory.clone() }
        })
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the slice lies in the memory, which lives as long as this value and is initialised; no other value's slice overlaps it.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and this value is borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_aligned_and_apart() {
        let mut slices = Aligned::<f32>::zeros_each([3, 0, 17, 16, 1]);
        for (i, slice) in slices.iter_mut().enumerate() {
            assert!(slice.as_ptr().cast::<u8>().addr().is_multiple_of(LINE) && slice.iter().all(|&x| x == 0.0));
            slice.fill(i as f32 + 1.0);
        }
        let [first, .., last] = slices;
        drop(first);
        assert_eq!(last[..], [5.0]);
    }

    #[test]
    fn lengths_never_wrap_around() {
        assert_eq!([in_lines::<f32>(&[3, 0, 16, 17]), in_lines::<f64>(&[])], [16 + 16 + 16 + 32, 8]);
        for lens in [[usize::MAX, 0], [usize::MAX - 15, 32], [1 << 62, 0], [1 << 59, 1 << 59]] {
            assert!(std::panic::catch_unwind(|| in_lines::<f64>(&lens)).is_err(), "{lens:?}");
        }
    }
}
