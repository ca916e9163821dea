//! Scratch memory of jobs: arrays by name.
//!
//! One function names the arrays and says how long each is. It runs twice, first to count and then to hand out, so that no sum of lengths
//! stands anywhere that could disagree with another. In debug builds an [`Array`] knows its length and checks every access, and a zone that
//! nobody may write to lies behind each array: [`Arena::check`] looks at the zones after a job.

use super::kept;
use super::simd::{Field, Isa, Real, V};
use super::sizes::MAX_LANES;
use crate::tensor::{Element, RawViewMut, View};
use core::marker::PhantomData;
use core::ops::Range;
use half::bf16;

/// Arrays start on cache lines: a vector that lies across two of them takes two accesses.
const LINE: usize = 64;
/// Bytes of the zone behind an array, beyond the end of its last line.
const ZONE: usize = if cfg!(debug_assertions) { LINE } else { 0 };
/// What is in a zone: no number, whether it is read as one `f64` or as two `f32`.
const UNTOUCHED: u64 = 0x7ff5_a5a5_7ff5_a5a5;

/// The address of elements that lie one after the other, in scratch memory or in a tensor. In debug builds it knows how many there are and
/// checks every access.
///
/// Making one is what takes care: whoever does it, by [`Array::from_raw`] or by a plan of scratch memory, answers for all uses. The memory
/// is there as long as the array is used; the elements that are used lie inside; no other thread writes them meanwhile, and what this thread
/// holds as a slice it does not write in another way. Its methods are safe to call where that holds.
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
    #[inline(always)]
    fn new(start: *mut T, len: usize) -> Self {
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
        F::load(simd, self, at)
    }

    /// Stores numbers of a field from element `at` on.
    #[inline(always)]
    pub(crate) fn store_field<S: Isa, F: Field<T, S>>(self, at: usize, value: F) {
        value.store(self, at);
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

    /// `count` numbers of a field over and over, the parts `step` elements apart, see [`Field::cycle`].
    #[inline(always)]
    pub(crate) fn cycle_field<S: Isa, F: Field<T, S>>(self, simd: S, at: usize, step: usize, count: usize) -> F {
        F::cycle(simd, self, at, step, count)
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

/// Arrays of one length, one behind the other.
#[derive(Debug)]
pub(crate) struct Arrays<T> {
    first: Array<T>,
    /// Elements of one, and in tests what is left of it; see [`shortened`].
    len: usize,
    #[cfg(debug_assertions)]
    usable: usize,
}

impl<T> Clone for Arrays<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Arrays<T> {}

impl<T> Arrays<T> {
    /// The array of a number.
    #[inline(always)]
    pub(crate) fn of(self, i: usize) -> Array<T> {
        #[cfg(debug_assertions)]
        let usable = self.usable;
        #[cfg(not(debug_assertions))]
        let usable = self.len;
        Array::new(self.first.at(i * pitch::<T>(self.len), usable), usable)
    }

    /// The same arrays with a length that the compiler knows, and so their distances.
    #[inline(always)]
    pub(crate) fn of_len(self, len: usize) -> Self {
        debug_assert_eq!(self.len, len);
        Arrays { len, ..self }
    }
}

/// Elements from an array to the next one.
#[inline(always)]
fn pitch<T>(len: usize) -> usize {
    let line = LINE / size_of::<T>();
    len.div_ceil(line) * line + ZONE / size_of::<T>()
}

/// Counts arrays, or hands them out.
pub(crate) struct Room<T> {
    /// Null while arrays are counted.
    start: *mut T,
    used: usize,
    /// Where nobody may write; empty in release builds.
    zones: Vec<Range<usize>>,
}

impl<T: Real> Room<T> {
    /// One array of arbitrary contents.
    pub(crate) fn array(&mut self, len: usize) -> Array<T> {
        self.arrays(1, len).of(0)
    }

    /// `count` arrays of one length.
    pub(crate) fn arrays(&mut self, count: usize, len: usize) -> Arrays<T> {
        let usable = shortened(len, self.start.is_null());
        let first = Array::new(self.start.wrapping_add(self.used), count.saturating_mul(pitch::<T>(len)));
        let all = len.checked_add(2 * LINE).and_then(|_| pitch::<T>(len).checked_mul(count));
        let end = all.and_then(|all| self.used.checked_add(all)).filter(|&end| end <= isize::MAX as usize / size_of::<T>());
        let end = end.expect("sizes are limited");
        if ZONE > 0 && !self.start.is_null() {
            let zone = |i: usize| self.used + i * pitch::<T>(len) + usable..self.used + (i + 1) * pitch::<T>(len);
            self.zones.extend((0..count).map(zone));
        }
        self.used = end;
        Arrays {
            first,
            len,
            #[cfg(debug_assertions)]
            usable,
        }
    }
}

/// The memory of one thread, or of one job: arrays that are laid out anew for each call, in memory that stays.
pub(crate) struct Arena<T> {
    memory: Vec<u64>,
    /// Elements before the first array.
    before: usize,
    zones: Vec<Range<usize>>,
    element: PhantomData<T>,
}

impl<T: Real> Default for Arena<T> {
    fn default() -> Self {
        Arena { memory: kept::take(), before: 0, zones: Vec::new(), element: PhantomData }
    }
}

impl<T> Drop for Arena<T> {
    fn drop(&mut self) {
        kept::give_back(core::mem::take(&mut self.memory));
    }
}

impl<T: Real> Arena<T> {
    /// Lays arrays out, replacing those of the last time. `name` is called twice and must name the same arrays.
    pub(crate) fn lay_out<A>(&mut self, name: impl Fn(&mut Room<T>) -> A) -> A {
        let mut counted = Room { start: core::ptr::null_mut(), used: 0, zones: Vec::new() };
        name(&mut counted);
        let words = (counted.used * size_of::<T>() + LINE).div_ceil(size_of::<u64>());
        if self.memory.len() < words {
            self.memory = vec![0; words];
        }
        let base = self.memory.as_mut_ptr().cast::<T>();
        self.before = base.align_offset(LINE).min(LINE / size_of::<T>());
        self.zones.clear();
        let mut room = Room { start: base.wrapping_add(self.before), used: 0, zones: core::mem::take(&mut self.zones) };
        debug_assert!(room.start.addr().is_multiple_of(LINE), "arrays start on cache lines");
        let arrays = name(&mut room);
        assert_eq!(room.used, counted.used, "the same arrays are named both times");
        self.zones = room.zones;
        self.paint();
        arrays
    }

    /// Lays arrays out, does work with them, and checks in debug builds that it kept to them.
    #[inline(always)]
    pub(crate) fn lend<A, R>(&mut self, name: impl Fn(&mut Room<T>) -> A, work: impl FnOnce(A) -> R) -> R {
        let result = work(self.lay_out(name));
        self.check();
        result
    }

    fn paint(&mut self) {
        let Arena { memory, before, zones, .. } = self;
        let elements = bytemuck::cast_slice_mut::<u64, T>(memory);
        for zone in zones.iter() {
            elements[*before + zone.start..*before + zone.end].fill(untouched());
        }
    }

    /// Checks in debug builds that nobody wrote between the arrays.
    ///
    /// # Panics
    /// If somebody did.
    pub(crate) fn check(&self) {
        let elements = bytemuck::cast_slice::<u64, T>(&self.memory);
        let same = |x: &T| bytemuck::bytes_of(x) == bytemuck::bytes_of(&untouched::<T>());
        for zone in &self.zones {
            let kept = elements[self.before + zone.start..self.before + zone.end].iter().all(same);
            assert!(kept, "scratch memory behind an array was written to");
        }
    }
}

fn untouched<T: Real>() -> T {
    bytemuck::pod_read_unaligned(&bytemuck::bytes_of(&UNTOUCHED)[..size_of::<T>()])
}

/// The length of the next array: one element less for the one that a test has chosen.
#[cfg(not(test))]
#[inline(always)]
fn shortened(len: usize, _counting: bool) -> usize {
    len
}

#[cfg(test)]
use tests::shortened;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use core::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    thread_local! {
        /// Calls of [`Room::arrays`] with elements so far, and which of them is to be too short.
        static SHORT: Cell<(usize, Option<usize>)> = const { Cell::new((0, None)) };
    }

    pub(super) fn shortened(len: usize, counting: bool) -> usize {
        let (number, short) = SHORT.get();
        if counting || len == 0 {
            return len;
        }
        SHORT.set((number + 1, short));
        len - usize::from(short == Some(number))
    }

    /// Runs a call, on this thread alone, once for each array that it lays out, with that array one element short: each time it is found
    /// out. Gives how many there are.
    #[cfg(debug_assertions)]
    pub(crate) fn every_array_is_needed_to_its_end(name: &str, call: impl Fn()) -> usize {
        SHORT.set((0, None));
        call();
        let count = SHORT.get().0;
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let unnoticed: Vec<_> = (0..count)
            .filter(|&number| {
                SHORT.set((0, Some(number)));
                catch_unwind(AssertUnwindSafe(&call)).is_ok()
            })
            .collect();
        std::panic::set_hook(hook);
        SHORT.set((0, None));
        assert!(unnoticed.is_empty(), "{name}: of {count} arrays, these could be an element shorter: {unnoticed:?}");
        count
    }

    #[test]
    fn arrays_are_aligned_and_apart() {
        let mut arena = Arena::<f32>::default();
        let name = |room: &mut Room<f32>| ([3, 0, 17, 16, 1].map(|len| (room.array(len), len)), room.arrays(3, 5));
        for _ in 0..2 {
            let (arrays, several) = arena.lay_out(name);
            let all = || arrays.into_iter().chain((0..3).map(|i| (several.of(i), 5)));
            for (i, (array, len)) in all().enumerate() {
                assert!(array.ptr().addr().is_multiple_of(LINE));
                array.slice(0, len).fill(i as f32);
            }
            for (i, (array, len)) in all().enumerate() {
                assert!(array.slice(0, len).iter().all(|&x| x == i as f32));
            }
            arena.check();
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    fn what_is_written_behind_an_array_is_found() {
        for len in [0usize, 1, 15, 16, 17] {
            let mut arena = Arena::<f64>::default();
            let array = arena.lay_out(|room| [room.array(len), room.array(1)])[0];
            arena.check();
            // SAFETY: the arena's memory, though not the array's.
            unsafe { *array.ptr().wrapping_add(len) = 1.0 };
            assert!(catch_unwind(AssertUnwindSafe(|| arena.check())).is_err(), "{len} elements");
            assert!(catch_unwind(|| array.at(len, 1)).is_err() && catch_unwind(|| array.from(len + 1)).is_err());
        }
    }

    #[test]
    fn lengths_never_wrap_around() {
        for (count, len) in [(1, usize::MAX), (1, usize::MAX - 15), (4, 1 << 59), (usize::MAX, 1)] {
            let huge = || Arena::<f64>::default().lay_out(|room| room.arrays(count, len).len);
            assert!(catch_unwind(huge).is_err(), "{count} of {len}");
        }
    }
}
