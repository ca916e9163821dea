//! Scratch memory of jobs: arrays by name.
//!
//! One function names the arrays and says how long each is. It runs twice, first to count and then to hand out, so that no sum of lengths
//! stands anywhere that could disagree with another. In debug builds an [`Array`] knows its length and checks every access, and a zone that
//! nobody may write to lies behind each array: [`Arena::check`] looks at the zones after a job.

use super::array::Array;
use super::kept;
use super::simd::Real;
use core::marker::PhantomData;
use core::ops::Range;

/// Arrays start on cache lines: a vector that lies across two of them takes two accesses.
const LINE: usize = 64;
/// Bytes of the zone behind an array, beyond the end of its last line.
const ZONE: usize = if cfg!(debug_assertions) { LINE } else { 0 };
/// What is in a zone: no number, whether it is read as one `f64` or as two `f32`.
const UNTOUCHED: u64 = 0x7ff5_a5a5_7ff5_a5a5;

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
        if ZONE != 0 && !self.start.is_null() {
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
