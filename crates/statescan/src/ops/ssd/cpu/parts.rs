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
    debug_assert!(len <= T::lanes::<S>(), "at most a vector");
    // SAFETY: `len` elements can be read, by the contract above; the array is as wide as the widest vector.
    unsafe {
        if len == T::lanes::<S>() {
            return V::load(simd, src);
        }
        let mut lanes = [T::default(); MAX_LANES];
        core::ptr::copy_nonoverlapping(src, lanes.as_mut_ptr(), len);
        V::from_array(simd, &lanes)
    }
}

/// Stores the first `len` elements of a vector.
///
/// # Safety
/// - `len` elements can be written by this thread.
/// - They are at most a vector.
#[inline(always)]
pub(super) unsafe fn store_part<T: Real, S: Isa>(value: V<T, S>, dst: *mut T, len: usize) {
    debug_assert!(len <= T::lanes::<S>(), "at most a vector");
    // SAFETY: `len` elements can be written, by the contract above; the array is as wide as the widest vector.
    unsafe {
        if len == T::lanes::<S>() {
            return value.store(dst);
        }
        core::ptr::copy_nonoverlapping(value.to_array().as_ptr(), dst, len);
    }
}
