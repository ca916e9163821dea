//! Elements and vectors read from arrays and written to them.

use super::{Array, ArrayMut, ArrayOf, Cells};
use crate::cpu::simd::{Field, Isa, Real, V};
use crate::cpu::sizes::MAX_LANES;
use half::bf16;

impl<T: Copy, A> ArrayOf<'_, T, A> {
    /// An element.
    #[inline(always)]
    pub(crate) fn get(&self, at: usize) -> T {
        // SAFETY: the element is borrowed, and lies inside, which debug builds check.
        unsafe { *self.at(at, 1) }
    }

    /// Neighbours from element `at` on.
    #[inline(always)]
    pub(crate) fn group<const N: usize>(&self, at: usize) -> [T; N] {
        // SAFETY: as in `get`; an array is aligned as its elements are.
        unsafe { self.at(at, N).cast::<[T; N]>().read() }
    }
}

impl<T: Copy> Cells<'_, T> {
    /// Writes an element.
    #[inline(always)]
    pub(crate) fn set(self, at: usize, value: T) {
        // SAFETY: the element is this thread's, of which nobody has a reference, and lies inside, which debug builds check.
        unsafe { *self.place(at, 1) = value };
    }

    /// Writes neighbours from element `at` on.
    #[inline(always)]
    pub(crate) fn set_group<const N: usize>(self, at: usize, group: [T; N]) {
        // SAFETY: as in `set`; an array is aligned as its elements are.
        unsafe { self.place(at, N).cast::<[T; N]>().write(group) };
    }
}

impl<T: Copy> ArrayMut<'_, T> {
    /// Writes an element.
    #[inline(always)]
    pub(crate) fn set(&mut self, at: usize, value: T) {
        self.cells().set(at, value);
    }

    /// Writes neighbours from element `at` on.
    #[inline(always)]
    pub(crate) fn set_group<const N: usize>(&mut self, at: usize, group: [T; N]) {
        self.cells().set_group(at, group);
    }
}

impl Array<'_, bf16> {
    /// Twice as many numbers as there are lanes from element `at` on, those at even places and those at odd ones.
    #[inline(always)]
    pub(crate) fn load_pairs<S: Isa>(self, simd: S, at: usize) -> [V<f32, S>; 2] {
        V::load_pairs(simd, self.shared(at, 2 * S::F32_LANES))
    }
}

impl ArrayMut<'_, bf16> {
    /// The inverse of [`Array::load_pairs`].
    #[inline(always)]
    pub(crate) fn store_pairs<S: Isa>(&mut self, at: usize, pairs: [V<f32, S>; 2]) {
        V::store_pairs(pairs, self.slice(at, 2 * S::F32_LANES));
    }
}

impl<'m, T: Real, A> ArrayOf<'m, T, A> {
    /// A vector from element `at` on.
    #[inline(always)]
    pub(crate) fn load<S: Isa>(&self, simd: S, at: usize) -> V<T, S> {
        // SAFETY: the elements are borrowed, and a whole vector lies inside, which debug builds check.
        unsafe { V::load(simd, self.at(at, T::lanes::<S>())) }
    }

    /// Numbers of a field, each part a vector, from element `at` on.
    #[inline(always)]
    pub(crate) fn load_field<S: Isa, F: Field<T, S>>(&self, simd: S, at: usize) -> F {
        let real = self.load(simd, at);
        F::of_parts([real, if F::PARTS > 1 { self.load(simd, at + T::lanes::<S>()) } else { real }])
    }

    /// The sums over lanes of rows, `step` apart, as many as a vector has lanes, see [`V::sum_rows`].
    #[inline(always)]
    pub(crate) fn sum_rows<S: Isa>(&self, simd: S, at: usize, step: usize) -> V<T, S> {
        // SAFETY: as in `load`, for every row.
        unsafe { V::sum_rows(simd, self.rows::<S>(at, step), step) }
    }

    /// The sums over every second lane of rows, see [`V::sum_pairs`].
    #[inline(always)]
    pub(crate) fn sum_pairs<S: Isa>(&self, simd: S, at: usize, step: usize) -> [V<T, S>; 2] {
        // SAFETY: as in `load`, for every row.
        unsafe { V::sum_pairs(simd, self.rows::<S>(at, step), step) }
    }

    /// The sums over every `APART`-th lane of rows, see [`V::sum_rows_apart`].
    #[inline(always)]
    pub(crate) fn sum_rows_apart<S: Isa, const APART: usize>(&self, simd: S, at: usize, step: usize) -> [V<T, S>; MAX_LANES] {
        // SAFETY: as in `load`, for every row.
        unsafe { V::sum_rows_apart::<APART>(simd, self.rows::<S>(at, step), step) }
    }

    /// Returns the start of as many vectors as one has lanes, `step` apart.
    #[inline(always)]
    fn rows<S: Isa>(&self, at: usize, step: usize) -> *const T {
        self.at(at, (T::lanes::<S>() - 1) * step + T::lanes::<S>())
    }
}

impl<T: Real> Array<'_, T> {
    /// `count` numbers of a field over and over, see [`V::cycle`], the parts `step` elements apart.
    #[inline(always)]
    pub(crate) fn cycle_field<S: Isa, F: Field<T, S>>(self, simd: S, at: usize, step: usize, count: usize) -> F {
        let real = V::cycle(simd, self.shared(at, count));
        F::of_parts([real, if F::PARTS > 1 { V::cycle(simd, self.shared(at + step, count)) } else { real }])
    }

    /// A number of a field in every lane, the parts `step` elements apart.
    #[inline(always)]
    pub(crate) fn broadcast_field<S: Isa, F: Field<T, S>>(self, simd: S, at: usize, step: usize) -> F {
        self.cycle_field(simd, at, step, 1)
    }
}

impl<T: Real> Cells<'_, T> {
    /// Makes the first elements 0.
    #[inline(always)]
    pub(crate) fn clear(self, count: usize) {
        // SAFETY: as in `set`; 0 is zeros.
        unsafe { self.place(0, count).write_bytes(0, count) };
    }

    /// Stores a vector from element `at` on.
    #[inline(always)]
    pub(crate) fn store<S: Isa>(self, at: usize, value: V<T, S>) {
        // SAFETY: as in `set`, for a whole vector.
        unsafe { value.store(self.place(at, T::lanes::<S>())) }
    }

    /// Stores numbers of a field from element `at` on.
    #[inline(always)]
    pub(crate) fn store_field<S: Isa, F: Field<T, S>>(self, at: usize, value: F) {
        let [real, imaginary] = value.parts();
        self.store(at, real);
        if F::PARTS > 1 {
            self.store(at + T::lanes::<S>(), imaginary);
        }
    }

    /// Makes the first elements of several arrays 0, whole vectors of them. In one loop they are stores; each by itself would become a call
    /// of `memset`.
    #[inline(always)]
    pub(crate) fn clear_each<S: Isa, const N: usize>(simd: S, arrays: [Self; N], count: usize) {
        debug_assert!(count.is_multiple_of(T::lanes::<S>()), "whole vectors");
        for at in (0..count).step_by(T::lanes::<S>()) {
            for array in arrays {
                array.store(at, V::constant(simd, 0.0));
            }
        }
    }
}

impl<T: Real> ArrayMut<'_, T> {
    /// Stores a vector from element `at` on.
    #[inline(always)]
    pub(crate) fn store<S: Isa>(&mut self, at: usize, value: V<T, S>) {
        self.cells().store(at, value);
    }

    /// Stores a vector past the caches from element `at` on, a multiple of its size; see [`Isa::stream_f32`].
    #[inline(always)]
    pub(crate) fn stream<S: Isa>(&mut self, at: usize, value: V<T, S>) {
        // SAFETY: as in `slice`; that the place is aligned is checked in debug builds too.
        unsafe { value.stream(self.place(at, T::lanes::<S>())) }
    }

    /// Stores numbers of a field from element `at` on.
    #[inline(always)]
    pub(crate) fn store_field<S: Isa, F: Field<T, S>>(&mut self, at: usize, value: F) {
        self.cells().store_field(at, value);
    }

    /// Makes the first elements 0.
    #[inline(always)]
    pub(crate) fn clear(&mut self, count: usize) {
        self.slice(0, count).fill(T::default());
    }
}
