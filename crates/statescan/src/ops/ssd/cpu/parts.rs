//! Vectors of which a part is loaded or stored, at the ends of rows.

use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::MAX_LANES;

/// `len` elements from `src`, the rest of the vector 0.
///
/// # Safety
/// - `len` elements can be read.
/// - They are at most a vector.
#[inline(always)]
pub(super) unsafe fn load_part<T: Real, S: Isa>(simd: S, src: *const T, len: usize) -> V<T, S> {
    // SAFETY: the caller's contract; the array is as wide as the widest vector.
    unsafe {
        if len == T::lanes::<S>() {
            return V::load(simd, src);
        }
        let mut lanes = [T::default(); MAX_LANES];
        core::ptr::copy_nonoverlapping(src, lanes.as_mut_ptr(), len);
        V::load(simd, lanes.as_ptr())
    }
}

/// Stores the first `len` elements of a vector.
///
/// # Safety
/// - `len` elements can be written by this thread.
/// - They are at most a vector.
#[inline(always)]
pub(super) unsafe fn store_part<T: Real, S: Isa>(value: V<T, S>, dst: *mut T, len: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        if len == T::lanes::<S>() {
            return value.store(dst);
        }
        let mut lanes = [T::default(); MAX_LANES];
        value.store(lanes.as_mut_ptr());
        core::ptr::copy_nonoverlapping(lanes.as_ptr(), dst, len);
    }
}
