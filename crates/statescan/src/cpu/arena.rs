//! Scratch memory of jobs: arrays by name.
//!
//! One function names the arrays and says how long each is. It runs twice, first to count and then to hand out, so that no sum of lengths
//! stands anywhere that could disagree with another. In debug builds an [`Array`] knows its length and checks every access, and a zone that
//! nobody may write to lies behind each array: [`Arena::check`] looks at the zones after a job.

use super::array::{Alias, Array, ArrayMut, ArrayOf, Celled, Divided, Exclusive};
use super::kept;
use super::simd::Real;
use core::marker::PhantomData;
use core::ops::Range;

/// Arrays start on cache lines: a vector that lies across two of them takes two accesses.
const LINE: usize = 64;
/// Bytes of the zone behind an array, beyond the end of its last line.
const ZONE: usize = if cfg!(debug_assertions) { LINE } else { 0 };
/// The contents of a zone: no number, whether it is read as one `f64` or as two `f32`.
const UNTOUCHED: u64 = 0x7ff5_a5a5_7ff5_a5a5;

/// Arrays of one length, one behind the other.
#[derive(Debug)]
pub(crate) struct ArraysOf<'m, T, A> {
    first: ArrayOf<'m, T, A>,
    len: Len,
}

/// Elements of one of several arrays, and in tests what is left of it; see [`shortened`].
#[derive(Debug, Clone, Copy)]
struct Len {
    all: usize,
    #[cfg(debug_assertions)]
    usable: usize,
}

impl Len {
    /// Returns the start and the length of array `i`.
    #[inline(always)]
    fn of<T>(self, i: usize) -> (usize, usize) {
        #[cfg(debug_assertions)]
        let usable = self.usable;
        #[cfg(not(debug_assertions))]
        let usable = self.all;
        (i * pitch::<T>(self.all), usable)
    }
}

/// Arrays that are written by nobody else.
pub(crate) type Arrays<'m, T> = ArraysOf<'m, T, Exclusive>;
/// Arrays that one thread uses by several names.
pub(crate) type CellArrays<'m, T> = ArraysOf<'m, T, Celled>;

impl<T, A: Alias> Clone for ArraysOf<'_, T, A> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, A: Alias> Copy for ArraysOf<'_, T, A> {}

impl<T, A> ArraysOf<'_, T, A> {
    /// Returns the arrays with a length that the compiler knows, and so their distances.
    #[inline(always)]
    pub(crate) fn of_len(mut self, len: usize) -> Self {
        debug_assert_eq!(self.len.all, len);
        self.len.all = len;
        self
    }
}

impl<'m, T, A: Alias> ArraysOf<'m, T, A> {
    /// The array of a number.
    #[inline(always)]
    pub(crate) fn of(self, i: usize) -> ArrayOf<'m, T, A> {
        let (at, len) = self.len.of::<T>(i);
        self.first.only(at, len)
    }
}

impl<'m, T> Arrays<'m, T> {
    /// The array of a number, to be read.
    #[inline(always)]
    pub(crate) fn read(&self, i: usize) -> Array<'_, T> {
        let (at, len) = self.len.of::<T>(i);
        self.first.read().only(at, len)
    }

    /// The array of a number.
    #[inline(always)]
    pub(crate) fn of(&mut self, i: usize) -> ArrayMut<'_, T> {
        let (at, len) = self.len.of::<T>(i);
        self.first.reborrow().only(at, len)
    }

    /// The first ones, each by itself.
    #[inline(always)]
    pub(crate) fn each<const N: usize>(&mut self) -> [ArrayMut<'_, T>; N] {
        let (first, len) = (Divided::of_array(self.first.reborrow()), self.len);
        core::array::from_fn(|i| {
            let (at, len) = len.of::<T>(i);
            // SAFETY: arrays of different numbers have no element in common.
            unsafe { first.part(at) }.only(0, len)
        })
    }

    /// Borrows the arrays for use by several names.
    #[inline(always)]
    pub(crate) fn cells(&mut self) -> CellArrays<'_, T> {
        ArraysOf { first: self.first.cells(), len: self.len }
    }

    /// Turns the arrays into ones for use by several names.
    #[inline(always)]
    pub(crate) fn into_cells(self) -> CellArrays<'m, T> {
        ArraysOf { first: self.first.into_cells(), len: self.len }
    }

    /// Returns the arrays once more, for a thread that takes turns with this one.
    ///
    /// # Safety
    /// While one thread uses an array, no other does.
    #[inline(always)]
    pub(crate) unsafe fn in_turns(&self) -> Self {
        // SAFETY: the contract above.
        ArraysOf { first: unsafe { self.first.in_turns() }, len: self.len }
    }
}

/// Elements from an array to the next one.
#[inline(always)]
fn pitch<T>(len: usize) -> usize {
    let line = LINE / size_of::<T>();
    len.div_ceil(line) * line + ZONE / size_of::<T>()
}

/// Counts arrays, or hands them out.
pub(crate) struct Room<'m, T> {
    /// Null while arrays are counted.
    start: *mut T,
    used: usize,
    /// Ranges that nobody may write; empty in release builds.
    zones: Vec<Range<usize>>,
    memory: PhantomData<&'m mut T>,
}

impl<'m, T: Real> Room<'m, T> {
    fn new(start: *mut T, zones: Vec<Range<usize>>) -> Self {
        Room { start, used: 0, zones, memory: PhantomData }
    }

    /// One array of arbitrary contents.
    pub(crate) fn array(&mut self, len: usize) -> ArrayMut<'m, T> {
        let Arrays { first, len } = self.arrays(1, len);
        first.only(0, len.of::<T>(0).1)
    }

    /// `count` arrays of one length.
    pub(crate) fn arrays(&mut self, count: usize, len: usize) -> Arrays<'m, T> {
        let usable = shortened(len, self.start.is_null());
        // SAFETY: the arena's memory, which is borrowed, and no part of it is handed out twice; while arrays are counted nobody uses them.
        let first = unsafe { ArrayMut::new(self.start.wrapping_add(self.used), count.saturating_mul(pitch::<T>(len))) };
        let all = len.checked_add(2 * LINE).and_then(|_| pitch::<T>(len).checked_mul(count));
        let end = all.and_then(|all| self.used.checked_add(all)).filter(|&end| end <= isize::MAX as usize / size_of::<T>());
        let end = end.expect("sizes are limited");
        if ZONE != 0 && !self.start.is_null() {
            let zone = |i: usize| self.used + i * pitch::<T>(len) + usable..self.used + (i + 1) * pitch::<T>(len);
            self.zones.extend((0..count).map(zone));
        }
        self.used = end;
        let len = Len {
            all: len,
            #[cfg(debug_assertions)]
            usable,
        };
        ArraysOf { first, len }
    }
}

/// The memory behind the arrays.
struct Zones<'z, T> {
    start: *mut T,
    ranges: &'z [Range<usize>],
}

impl<T: Real> Zones<'_, T> {
    fn each(&self) -> impl Iterator<Item = *mut T> {
        self.ranges.iter().cloned().flatten().map(|at| self.start.wrapping_add(at))
    }

    fn paint(&self) {
        // SAFETY: zones lie in the arena's memory, and no array has any of it.
        self.each().for_each(|at| unsafe { *at = untouched() });
    }

    fn check(&self) {
        let untouched = untouched::<T>();
        // SAFETY: as above.
        let kept = |at: *mut T| unsafe { bytemuck::bytes_of(&*at) == bytemuck::bytes_of(&untouched) };
        assert!(self.each().all(kept), "scratch memory behind an array was written to");
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
    pub(crate) fn lay_out<'m, A>(&'m mut self, name: impl Fn(&mut Room<'m, T>) -> A) -> A {
        self.arrange(name).0
    }

    fn arrange<'m, A>(&'m mut self, name: impl Fn(&mut Room<'m, T>) -> A) -> (A, Zones<'m, T>) {
        let mut counted = Room::new(core::ptr::null_mut(), Vec::new());
        name(&mut counted);
        let words = (counted.used * size_of::<T>() + LINE).div_ceil(size_of::<u64>());
        if self.memory.len() < words {
            self.memory = vec![0; words];
        }
        let base = self.memory.as_mut_ptr().cast::<T>();
        self.before = base.align_offset(LINE).min(LINE / size_of::<T>());
        self.zones.clear();
        let mut room = Room::new(base.wrapping_add(self.before), core::mem::take(&mut self.zones));
        debug_assert!(room.start.addr().is_multiple_of(LINE), "arrays start on cache lines");
        let arrays = name(&mut room);
        assert_eq!(room.used, counted.used, "the same arrays are named both times");
        self.zones = room.zones;
        let zones = Zones { start: room.start, ranges: &self.zones };
        zones.paint();
        (arrays, zones)
    }

    /// Lays arrays out, does work with them, and checks in debug builds that it kept to them.
    #[inline(always)]
    pub(crate) fn lend<'m, A, R>(&'m mut self, name: impl Fn(&mut Room<'m, T>) -> A, work: impl FnOnce(A) -> R) -> R {
        let (arrays, zones) = self.arrange(name);
        let result = work(arrays);
        zones.check();
        result
    }

    /// Checks in debug builds that nobody wrote between the arrays.
    ///
    /// # Panics
    /// If somebody did.
    pub(crate) fn check(&mut self) {
        Zones { start: self.memory.as_mut_ptr().cast::<T>().wrapping_add(self.before), ranges: &self.zones }.check();
    }
}

fn untouched<T: Real>() -> T {
    bytemuck::pod_read_unaligned(&bytemuck::bytes_of(&UNTOUCHED)[..size_of::<T>()])
}

/// The length of the next array: one element less for the one that a test has chosen.
#[cfg(not(feature = "testing"))]
#[inline(always)]
fn shortened(len: usize, _counting: bool) -> usize {
    len
}

#[cfg(feature = "testing")]
use crate::testing::shortened;

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn arrays_are_aligned_and_apart() {
        let mut arena = Arena::<f32>::default();
        for _ in 0..2 {
            let lens = [3, 0, 17, 16, 1];
            let (mut arrays, mut several) = arena.lay_out(|room| (lens.map(|len| (room.array(len), len)), room.arrays(3, 5)));
            for (i, (array, len)) in arrays.iter_mut().enumerate() {
                assert!(array.ptr().addr().is_multiple_of(LINE));
                array.slice(0, *len).fill(i as f32);
            }
            for i in 0..3 {
                assert!(several.read(i).ptr().addr().is_multiple_of(LINE));
                several.of(i).slice(0, 5).fill(5.0 + i as f32);
            }
            for (i, (array, len)) in arrays.iter().enumerate() {
                assert!(array.shared(0, *len).iter().all(|&x| x == i as f32));
            }
            for i in 0..3 {
                assert!(several.read(i).shared(0, 5).iter().all(|&x| x == 5.0 + i as f32));
            }
            arena.check();
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    fn what_is_written_behind_an_array_is_found() {
        for len in [0usize, 1, 15, 16, 17] {
            let mut arena = Arena::<f64>::default();
            let [mut array, _] = arena.lay_out(|room| [room.array(len), room.array(1)]);
            let array = array.cells();
            assert!(catch_unwind(AssertUnwindSafe(|| array.at(len, 1))).is_err());
            assert!(catch_unwind(AssertUnwindSafe(|| array.from(len + 1))).is_err());
            let behind = array.ptr().cast_mut().wrapping_add(len);
            arena.check();
            // SAFETY: the arena's memory, though not the array's.
            unsafe { *behind = 1.0 };
            assert!(catch_unwind(AssertUnwindSafe(|| arena.check())).is_err(), "{len} elements");
        }
    }

    #[test]
    fn lengths_never_wrap_around() {
        for (count, len) in [(1, usize::MAX), (1, usize::MAX - 15), (4, 1 << 59), (usize::MAX, 1)] {
            let huge = || Arena::<f64>::default().lay_out(|room| room.arrays(count, len).len.all);
            assert!(catch_unwind(huge).is_err(), "{count} of {len}");
        }
    }
}
