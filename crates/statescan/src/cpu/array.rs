//! [`Array`]: where elements lie, in scratch memory or in a tensor. What kernels on the CPU read and write goes by it, or by a
//! [`Plane`](super::tile::Plane).

use super::simd::{Field, Isa, Real, V};
use super::sizes::MAX_LANES;
use crate::tensor::{Element, RawViewMut, View};
use half::bf16;

/// The address of elements that lie one after the other, in scratch memory or in a tensor. In debug builds it knows how many there are and
/// checks every access.
///
/// Making one is what takes care. It comes from a slice or a view, from a plan of scratch memory, or by [`Array::from_raw`], and whoever
/// makes it promises for all uses: the memory stays borrowed as long as the array is used; the elements that are used lie inside; no other
/// thread writes them meanwhile, and what this thread holds as a slice it does not write in another way. Its methods are safe to call where
/// that holds.
#[derive(Debug)]
pub(crate) struct Array<T> {
    start: *mut T,
    /// Elements before the start, and from it on; one of them is negative where the start lies outside.
    #[cfg(debug_assertions)]
    around: [isize; 2],
}

impl<T> Clone for Array<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Array<T> {}
// SAFETY: only an address; every use says which elements it owns.
unsafe impl<T> Send for Array<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Array<T> {}

impl<T> PartialEq for Array<T> {
    fn eq(&self, other: &Self) -> bool {
        self.start == other.start
    }
}

impl<T> Array<T> {
    /// So many elements, if they are there; to be used they must be.
    #[inline(always)]
    pub(super) fn new(start: *mut T, len: usize) -> Self {
        Self::amid(start, [0, len as isize])
    }

    /// With so many elements before the start, and from it on.
    #[inline(always)]
    fn amid(start: *mut T, around: [isize; 2]) -> Self {
        let _ = around;
        Array {
            start,
            #[cfg(debug_assertions)]
            around,
        }
    }

    /// Memory of someone else.
    ///
    /// # Safety
    /// The promises of [`Array`].
    pub(crate) unsafe fn from_raw(start: *mut T, len: usize) -> Self {
        debug_assert!(len == 0 || (!start.is_null() && start.is_aligned()), "an array of elements");
        Self::new(start, len)
    }

    /// The elements of a slice, for as long as that is borrowed.
    pub(crate) fn of(slice: &mut [T]) -> Self {
        Self::new(slice.as_mut_ptr(), slice.len())
    }

    /// The same of a slice that is only read.
    pub(crate) fn of_shared(slice: &[T]) -> Self {
        Self::new(slice.as_ptr().cast_mut(), slice.len())
    }

    /// Whether `count` elements from `at` on lie inside; only debug builds know.
    #[inline(always)]
    pub(crate) fn has(self, at: usize, count: usize) -> bool {
        #[cfg(debug_assertions)]
        return isize::try_from(at).is_ok_and(|at| at.saturating_add(self.around[0]) >= 0)
            && at.checked_add(count).is_some_and(|end| end as isize <= self.around[1] && end <= isize::MAX as usize)
            || count == 0;
        #[cfg(not(debug_assertions))]
        {
            let _ = (at, count);
            true
        }
    }

    /// The first element, for code that checks nothing.
    #[inline(always)]
    pub(crate) fn ptr(self) -> *mut T {
        self.start
    }

    /// The address of `count` elements from `at` on.
    #[inline(always)]
    pub(crate) fn at(self, at: usize, count: usize) -> *mut T {
        debug_assert!(self.has(at, count), "elements {at} and the {count} from there on lie inside the array");
        self.start.wrapping_add(at)
    }

    /// The array from an element on.
    #[inline(always)]
    pub(crate) fn from(self, at: usize) -> Self {
        #[cfg(debug_assertions)]
        assert!(at as isize <= self.around[1], "element {at} lies inside the array");
        self.moved(at as isize)
    }

    /// The array from an element on that may lie before its start, or outside: only what is used must be there.
    #[inline(always)]
    pub(crate) fn moved(self, by: isize) -> Self {
        Array {
            start: self.start.wrapping_offset(by),
            #[cfg(debug_assertions)]
            around: [self.around[0].saturating_add(by), self.around[1].saturating_sub(by)],
        }
    }

    /// Elements that are only read, as a slice.
    #[inline(always)]
    pub(crate) fn shared<'s>(self, at: usize, count: usize) -> &'s [T] {
        // SAFETY: the promises of `Array`: the elements lie inside, which debug builds check, and nobody writes them.
        unsafe { core::slice::from_raw_parts(self.at(at, count), count) }
    }

    /// Elements as a slice.
    #[inline(always)]
    pub(crate) fn slice<'s>(self, at: usize, count: usize) -> &'s mut [T] {
        // SAFETY: the promises of `Array`: the elements lie inside, which debug builds check, and are this thread's.
        unsafe { core::slice::from_raw_parts_mut(self.at(at, count), count) }
    }
}

impl<T: Element> Array<T> {
    /// The elements of a view of this type, from element (0, .., 0) on. It has the promises of a [`Plane`](super::tile::Plane).
    pub(crate) fn of_view(view: &View<'_>) -> Self {
        debug_assert!(view.dtype() == T::DTYPE, "elements of the view's type");
        Self::amid(view.as_ptr().cast_mut().cast(), view.around())
    }

    /// The same of a view that is written.
    pub(crate) fn of_view_mut(view: &RawViewMut) -> Self {
        debug_assert!(view.dtype() == T::DTYPE, "elements of the view's type");
        Self::amid(view.as_mut_ptr().cast(), view.around())
    }
}

impl Array<u8> {
    /// The bytes of a view, from element (0, .., 0) on.
    pub(crate) fn bytes_of(view: &View<'_>) -> Self {
        Self::amid(view.as_ptr().cast_mut(), view.around().map(|count| count * view.dtype().size() as isize))
    }

    /// The same of a view that is written.
    pub(crate) fn bytes_of_mut(view: &RawViewMut) -> Self {
        Self::amid(view.as_mut_ptr(), view.around().map(|count| count * view.dtype().size() as isize))
    }

    /// The elements that the bytes are.
    #[inline(always)]
    pub(crate) fn elements<T: Element>(self) -> Array<T> {
        debug_assert!(self.start.cast::<T>().is_aligned(), "elements are aligned");
        Array {
            start: self.start.cast(),
            #[cfg(debug_assertions)]
            around: self.around.map(|count| count / size_of::<T>() as isize),
        }
    }
}

impl<T: Copy> Array<T> {
    /// An element.
    #[inline(always)]
    pub(crate) fn get(self, at: usize) -> T {
        // SAFETY: the promises of `Array`: the element lies inside, which debug builds check.
        unsafe { *self.at(at, 1) }
    }

    /// Writes an element.
    #[inline(always)]
    pub(crate) fn set(self, at: usize, value: T) {
        // SAFETY: the promises of `Array`: the element lies inside, which debug builds check, and is this thread's.
        unsafe { *self.at(at, 1) = value };
    }

    /// Neighbours from element `at` on.
    #[inline(always)]
    pub(crate) fn group<const N: usize>(self, at: usize) -> [T; N] {
        // SAFETY: as in `get`; an array is aligned as its elements are.
        unsafe { self.at(at, N).cast::<[T; N]>().read() }
    }

    /// Writes neighbours from element `at` on.
    #[inline(always)]
    pub(crate) fn set_group<const N: usize>(self, at: usize, group: [T; N]) {
        // SAFETY: as in `set`; an array is aligned as its elements are.
        unsafe { self.at(at, N).cast::<[T; N]>().write(group) };
    }
}

impl Array<bf16> {
    /// Twice as many numbers as there are lanes from element `at` on, those at even places and those at odd ones.
    #[inline(always)]
    pub(crate) fn load_pairs<S: Isa>(self, simd: S, at: usize) -> [V<f32, S>; 2] {
        V::load_pairs(simd, self.shared(at, 2 * S::F32_LANES))
    }

    /// The inverse of [`Array::load_pairs`].
    #[inline(always)]
    pub(crate) fn store_pairs<S: Isa>(self, at: usize, pairs: [V<f32, S>; 2]) {
        V::store_pairs(pairs, self.slice(at, 2 * S::F32_LANES));
    }
}

impl<T: Real> Array<T> {
    /// The same array as one of f32, which it is.
    #[inline(always)]
    pub(crate) fn as_f32(self) -> Array<f32> {
        assert!(!T::DOUBLE, "elements are f32");
        Array {
            start: self.start.cast(),
            #[cfg(debug_assertions)]
            around: self.around,
        }
    }

    /// A vector from element `at` on.
    #[inline(always)]
    pub(crate) fn load<S: Isa>(self, simd: S, at: usize) -> V<T, S> {
        // SAFETY: the promises of `Array`: a whole vector lies inside, which debug builds check.
        unsafe { V::load(simd, self.at(at, T::lanes::<S>())) }
    }

    /// Stores a vector from element `at` on.
    #[inline(always)]
    pub(crate) fn store<S: Isa>(self, at: usize, value: V<T, S>) {
        // SAFETY: as in `load`, and the elements are this thread's.
        unsafe { value.store(self.at(at, T::lanes::<S>())) }
    }

    /// Stores a vector past the caches from element `at` on, a multiple of its size; see [`Isa::stream_f32`].
    #[inline(always)]
    pub(crate) fn stream<S: Isa>(self, at: usize, value: V<T, S>) {
        // SAFETY: as in `store`; that the place is aligned is checked in debug builds too.
        unsafe { value.stream(self.at(at, T::lanes::<S>())) }
    }

    /// Numbers of a field, each part a vector, from element `at` on.
    #[inline(always)]
    pub(crate) fn load_field<S: Isa, F: Field<T, S>>(self, simd: S, at: usize) -> F {
        let real = self.load(simd, at);
        F::of_parts([real, if F::PARTS > 1 { self.load(simd, at + T::lanes::<S>()) } else { real }])
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

    /// The sums over lanes of rows, `step` apart, as many as a vector has lanes, see [`V::sum_rows`].
    #[inline(always)]
    pub(crate) fn sum_rows<S: Isa>(self, simd: S, at: usize, step: usize) -> V<T, S> {
        // SAFETY: as in `load`, for every row.
        unsafe { V::sum_rows(simd, self.rows::<S>(at, step), step) }
    }

    /// The sums over every second lane of rows, see [`V::sum_pairs`].
    #[inline(always)]
    pub(crate) fn sum_pairs<S: Isa>(self, simd: S, at: usize, step: usize) -> [V<T, S>; 2] {
        // SAFETY: as in `load`, for every row.
        unsafe { V::sum_pairs(simd, self.rows::<S>(at, step), step) }
    }

    /// The sums over every `APART`-th lane of rows, see [`V::sum_rows_apart`].
    #[inline(always)]
    pub(crate) fn sum_rows_apart<S: Isa, const APART: usize>(self, simd: S, at: usize, step: usize) -> [V<T, S>; MAX_LANES] {
        // SAFETY: as in `load`, for every row.
        unsafe { V::sum_rows_apart::<APART>(simd, self.rows::<S>(at, step), step) }
    }

    /// Where as many vectors as one has lanes begin, `step` apart.
    #[inline(always)]
    fn rows<S: Isa>(self, at: usize, step: usize) -> *mut T {
        self.at(at, (T::lanes::<S>() - 1) * step + T::lanes::<S>())
    }

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

    /// Makes the first elements 0.
    #[inline(always)]
    pub(crate) fn clear(self, count: usize) {
        self.slice(0, count).fill(T::default());
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
