//! [`Array`], [`ArrayMut`] and [`Cells`]: elements that kernels on the CPU read and write, in scratch memory or in a tensor. A strided part of
//! a tensor goes by a [`Plane`](super::tile::Plane).

use super::simd::{Field, Isa, Real, V};
use super::sizes::MAX_LANES;
use crate::tensor::{Element, RawViewMut, View};
use core::marker::PhantomData;
use half::bf16;

/// Elements that lie one after the other, borrowed for `'m`. In debug builds an array knows how many there are and checks every access;
/// release builds check nothing, and whoever makes an array or moves its start answers for what is accessed to lie inside.
///
/// As with slices the compiler sees to it that nobody reads what somebody else may write: an array that is read is `Copy`, one that is written
/// is not, and what is made of it borrows it.
#[derive(Debug)]
pub(crate) struct ArrayOf<'m, T, A> {
    start: *mut T,
    /// Elements before the start, and from it on; one of them is negative where the start lies outside.
    #[cfg(debug_assertions)]
    around: [isize; 2],
    memory: PhantomData<(&'m mut T, A)>,
}

/// An array that is only read, as a `&[T]`.
pub(crate) type Array<'m, T> = ArrayOf<'m, T, Shared>;
/// An array that is written by nobody else, as a `&mut [T]`.
pub(crate) type ArrayMut<'m, T> = ArrayOf<'m, T, Exclusive>;
/// An array that one thread reads and writes by several names, as a `&[Cell<T>]`: element by element or in vectors, never as a slice.
pub(crate) type Cells<'m, T> = ArrayOf<'m, T, Celled>;

/// See [`Array`].
#[derive(Debug)]
pub(crate) enum Shared {}
/// See [`ArrayMut`].
#[derive(Debug)]
pub(crate) enum Exclusive {}
/// See [`Cells`].
#[derive(Debug)]
pub(crate) enum Celled {}

/// Ways to hold elements of which there may be several at once.
pub(crate) trait Alias {}
impl Alias for Shared {}
impl Alias for Celled {}

impl<T, A: Alias> Clone for ArrayOf<'_, T, A> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, A: Alias> Copy for ArrayOf<'_, T, A> {}

// SAFETY: a shared borrow of elements.
unsafe impl<T: Sync> Send for Array<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Array<'_, T> {}
// SAFETY: an exclusive borrow of elements.
unsafe impl<T: Send> Send for ArrayMut<'_, T> {}
// SAFETY: through a shared reference it is only read.
unsafe impl<T: Sync> Sync for ArrayMut<'_, T> {}

impl<T, A> PartialEq for ArrayOf<'_, T, A> {
    fn eq(&self, other: &Self) -> bool {
        self.start == other.start
    }
}

impl<'m, T, A> ArrayOf<'m, T, A> {
    /// So many elements, if they are there; to be used they must be, for as long as the array's kind of borrow asks for.
    #[inline(always)]
    pub(super) fn new(start: *mut T, len: usize) -> Self {
        Self::amid(start, [0, len as isize])
    }

    /// With so many elements before the start, and from it on.
    #[inline(always)]
    fn amid(start: *mut T, around: [isize; 2]) -> Self {
        let _ = around;
        ArrayOf {
            start,
            #[cfg(debug_assertions)]
            around,
            memory: PhantomData,
        }
    }

    /// The same elements held in another way, or for a shorter time: whoever asks for that sees to it that both ways go together.
    #[inline(always)]
    pub(super) fn again<'s, B>(&self) -> ArrayOf<'s, T, B> {
        ArrayOf {
            start: self.start,
            #[cfg(debug_assertions)]
            around: self.around,
            memory: PhantomData,
        }
    }

    /// Whether `count` elements from `at` on lie inside; only debug builds know.
    #[inline(always)]
    pub(crate) fn has(&self, at: usize, count: usize) -> bool {
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
    pub(crate) fn ptr(&self) -> *const T {
        self.start
    }

    /// The address of `count` elements from `at` on.
    #[inline(always)]
    pub(crate) fn at(&self, at: usize, count: usize) -> *const T {
        self.place(at, count)
    }

    #[inline(always)]
    fn place(&self, at: usize, count: usize) -> *mut T {
        debug_assert!(self.has(at, count), "elements {at} and the {count} from there on lie inside the array");
        self.start.wrapping_add(at)
    }

    /// The array from an element on, of those that are left.
    #[inline(always)]
    pub(crate) fn starting(self, at: usize) -> Self {
        #[cfg(debug_assertions)]
        assert!(at as isize <= self.around[1], "element {at} lies inside the array");
        self.moved(at as isize)
    }

    /// The array from an element on that may lie before its start, or outside: only what is used must be there.
    #[inline(always)]
    pub(crate) fn moved(self, by: isize) -> Self {
        ArrayOf {
            start: self.start.wrapping_offset(by),
            #[cfg(debug_assertions)]
            around: [self.around[0].saturating_add(by), self.around[1].saturating_sub(by)],
            memory: PhantomData,
        }
    }
}

impl<T, A: Alias> ArrayOf<'_, T, A> {
    /// The array from an element on.
    #[inline(always)]
    pub(crate) fn from(self, at: usize) -> Self {
        self.starting(at)
    }
}

impl<'m, T> Array<'m, T> {
    /// The elements of a slice.
    pub(crate) fn of(slice: &'m [T]) -> Self {
        Self::new(slice.as_ptr().cast_mut(), slice.len())
    }

    /// Elements as a slice.
    #[inline(always)]
    pub(crate) fn shared(self, at: usize, count: usize) -> &'m [T] {
        // SAFETY: the elements are borrowed, and lie inside, which debug builds check.
        unsafe { core::slice::from_raw_parts(self.at(at, count), count) }
    }
}

impl<'m, T> ArrayMut<'m, T> {
    /// The elements of a slice.
    pub(crate) fn of(slice: &'m mut [T]) -> Self {
        Self::new(slice.as_mut_ptr(), slice.len())
    }

    /// The same elements for a shorter time.
    #[inline(always)]
    pub(crate) fn reborrow(&mut self) -> ArrayMut<'_, T> {
        self.again()
    }

    /// The same elements, to be read.
    #[inline(always)]
    pub(crate) fn read(&self) -> Array<'_, T> {
        self.again()
    }

    /// The same elements, only read from now on.
    #[inline(always)]
    pub(crate) fn into_read(self) -> Array<'m, T> {
        self.again()
    }

    /// The same elements, to be used by several names.
    #[inline(always)]
    pub(crate) fn cells(&mut self) -> Cells<'_, T> {
        self.again()
    }

    /// The same, from now on.
    #[inline(always)]
    pub(crate) fn into_cells(self) -> Cells<'m, T> {
        self.again()
    }

    /// The array from an element on.
    #[inline(always)]
    pub(crate) fn from(&mut self, at: usize) -> ArrayMut<'_, T> {
        self.reborrow().starting(at)
    }

    /// Elements as a slice that is only read.
    #[inline(always)]
    pub(crate) fn shared(&self, at: usize, count: usize) -> &[T] {
        self.read().shared(at, count)
    }

    /// Elements as a slice.
    #[inline(always)]
    pub(crate) fn slice(&mut self, at: usize, count: usize) -> &mut [T] {
        // SAFETY: the elements are borrowed by this alone, and lie inside, which debug builds check.
        unsafe { core::slice::from_raw_parts_mut(self.place(at, count), count) }
    }

    /// The address of `count` elements from `at` on, to be written.
    #[inline(always)]
    pub(crate) fn at_mut(&mut self, at: usize, count: usize) -> *mut T {
        self.place(at, count)
    }
}

/// Elements that the jobs of several threads write, each its own: here work is divided, and what follows from a job's part is checked by the
/// compiler.
#[derive(Debug)]
pub(crate) struct Divided<'m, T>(Array<'m, T>);

impl<T> Clone for Divided<'_, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Divided<'_, T> {}

impl<'m, T> Divided<'m, T> {
    pub(crate) fn of(slice: &'m mut [T]) -> Self {
        Divided(ArrayMut::of(slice).into_read())
    }

    /// The elements from one on, to be divided further.
    #[inline(always)]
    pub(crate) fn from(self, at: usize) -> Self {
        Divided(self.0.from(at))
    }

    /// The elements from one on, which may lie outside as in [`ArrayOf::moved`], for the job that writes them.
    ///
    /// # Safety
    /// Until the job ends, the memory is borrowed (the call that made a [`RawViewMut`] goes on), nobody else uses what the job writes, and
    /// nobody else writes what it reads.
    #[inline(always)]
    pub(crate) unsafe fn part(&self, at: isize) -> ArrayMut<'m, T> {
        self.0.moved(at).again()
    }
}

impl<T: Element> Divided<'_, T> {
    /// The elements of a view of this type that is written, from element (0, .., 0) on.
    pub(crate) fn of_view(view: &RawViewMut) -> Self {
        debug_assert!(view.dtype() == T::DTYPE, "elements of the view's type");
        Divided(Array::amid(view.as_mut_ptr().cast(), view.around()))
    }
}

impl Divided<'_, u8> {
    /// The bytes of such a view.
    pub(crate) fn bytes_of(view: &RawViewMut) -> Self {
        Divided(Array::amid(view.as_mut_ptr(), view.around().map(|count| count * view.dtype().size() as isize)))
    }
}

impl<'m, T: Element> Array<'m, T> {
    /// The elements of a view of this type, from element (0, .., 0) on.
    pub(crate) fn of_view(view: &View<'m>) -> Self {
        debug_assert!(view.dtype() == T::DTYPE, "elements of the view's type");
        Self::amid(view.as_ptr().cast_mut().cast(), view.around())
    }
}

impl<'m> Array<'m, u8> {
    /// The bytes of a view, from element (0, .., 0) on.
    pub(crate) fn bytes_of(view: &View<'m>) -> Self {
        Self::amid(view.as_ptr().cast_mut(), view.around().map(|count| count * view.dtype().size() as isize))
    }
}

impl<'m, A> ArrayOf<'m, u8, A> {
    /// The elements that the bytes are.
    #[inline(always)]
    pub(crate) fn elements<T: Element>(self) -> ArrayOf<'m, T, A> {
        debug_assert!(self.start.cast::<T>().is_aligned(), "elements are aligned");
        ArrayOf {
            start: self.start.cast(),
            #[cfg(debug_assertions)]
            around: self.around.map(|count| count / size_of::<T>() as isize),
            memory: PhantomData,
        }
    }
}

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
    /// The same array as one of f32, which it is.
    #[inline(always)]
    pub(crate) fn as_f32(self) -> ArrayOf<'m, f32, A> {
        assert!(!T::DOUBLE, "elements are f32");
        ArrayOf {
            start: self.start.cast(),
            #[cfg(debug_assertions)]
            around: self.around,
            memory: PhantomData,
        }
    }

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

    /// Where as many vectors as one has lanes begin, `step` apart.
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
