//! Vectors of which a part is loaded or stored, at the ends of rows.

use super::simd::{Isa, Real, V};
use super::sizes::MAX_LANES;
use super::{Array, ArrayMut};

/// The first `len` elements, at most a vector; the rest of it 0.
#[inline(always)]
pub(crate) fn load_part<T: Real, S: Isa>(simd: S, from: Array<'_, T>, len: usize) -> V<T, S> {
    debug_assert!(len <= T::lanes::<S>(), "at most a vector");
    if len == T::lanes::<S>() {
        return from.load(simd, 0);
    }
    let mut lanes = [T::default(); MAX_LANES];
    lanes[..len].copy_from_slice(from.shared(0, len));
    V::from_array(simd, &lanes)
}

/// Stores the first `len` elements of a vector, at most all of it.
#[inline(always)]
pub(crate) fn store_part<T: Real, S: Isa>(value: V<T, S>, mut to: ArrayMut<'_, T>, len: usize) {
    debug_assert!(len <= T::lanes::<S>(), "at most a vector");
    if len == T::lanes::<S>() {
        return to.store(0, value);
    }
    to.slice(0, len).copy_from_slice(&value.to_array()[..len]);
}
