//! [`Array`], [`ArrayMut`] and [`Cells`]: elements that kernels on the CPU read and write, in scratch memory or in a tensor. A strided part of
//! a tensor goes by a [`Plane`](super::tile::Plane).

mod access;

use super::simd::Real;
use crate::tensor::{Element, RawViewMut, View};
use core::marker::PhantomData;

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
    /// So many elements.
    ///
    /// # Safety
    /// If they are used, they are there, and for `'m` they are borrowed as the kind of array says.
    #[inline(always)]
    pub(super) unsafe fn new(start: *mut T, len: usize) -> Self {
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

    /// Returns the elements held in another way, or for a shorter time: the caller sees to it that both ways go together.
    #[inline(always)]
    fn again<'s, B>(&self) -> ArrayOf<'s, T, B> {
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

    /// So many elements from one on, and no others.
    #[inline(always)]
    pub(super) fn only(self, at: usize, count: usize) -> Self {
        Self::amid(self.place(at, count), [0, count as isize])
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
        Self::amid(slice.as_ptr().cast_mut(), [0, slice.len() as isize])
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
        Self::amid(slice.as_mut_ptr(), [0, slice.len() as isize])
    }

    /// Borrows the elements for a shorter time.
    #[inline(always)]
    pub(crate) fn reborrow(&mut self) -> ArrayMut<'_, T> {
        self.again()
    }

    /// Borrows the elements for reading.
    #[inline(always)]
    pub(crate) fn read(&self) -> Array<'_, T> {
        self.again()
    }

    /// Turns the array into one that is only read.
    #[inline(always)]
    pub(crate) fn into_read(self) -> Array<'m, T> {
        self.again()
    }

    /// Borrows the elements for use by several names.
    #[inline(always)]
    pub(crate) fn cells(&mut self) -> Cells<'_, T> {
        self.again()
    }

    /// Turns the array into one for use by several names.
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

    /// Returns the elements once more, for a thread that takes turns with this one.
    ///
    /// # Safety
    /// While one thread uses them, no other does.
    #[inline(always)]
    pub(super) unsafe fn in_turns(&self) -> Self {
        self.again()
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
        Self::of_array(ArrayMut::of(slice))
    }

    #[inline(always)]
    pub(super) fn of_array(array: ArrayMut<'m, T>) -> Self {
        Divided(array.into_read())
    }

    /// The elements from one on, to be divided further.
    #[inline(always)]
    pub(crate) fn from(self, at: usize) -> Self {
        Divided(self.0.from(at))
    }

    /// The elements from one on that may lie before the start, or outside.
    #[inline(always)]
    pub(crate) fn moved(self, by: isize) -> Self {
        Divided(self.0.moved(by))
    }

    /// The elements from one on, for the job that writes them.
    ///
    /// # Safety
    /// Until the job ends, the memory is borrowed (the call that made a [`RawViewMut`] goes on), nobody else uses what the job writes, and
    /// nobody else writes what it reads.
    #[inline(always)]
    pub(crate) unsafe fn part(self, at: usize) -> ArrayMut<'m, T> {
        self.0.from(at).again()
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

impl<'m, T: Real, A> ArrayOf<'m, T, A> {
    /// Returns the array as one of f32, which it is.
    #[inline(always)]
    pub(crate) fn into_f32(self) -> ArrayOf<'m, f32, A> {
        assert!(!T::DOUBLE, "elements are f32");
        ArrayOf {
            start: self.start.cast(),
            #[cfg(debug_assertions)]
            around: self.around,
            memory: PhantomData,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Array, ArrayMut, Cells};

    /// A type that has the trait has this twice, and then the compiler does not know which one is meant.
    macro_rules! is_not {
        ($of:ty: $which:path) => {
            const _: fn() = || {
                trait Twice<Which> {
                    fn known() {}
                }
                impl<T: ?Sized> Twice<()> for T {}
                struct Other;
                impl<T: ?Sized + $which> Twice<Other> for T {}
                let _ = <$of as Twice<_>>::known;
            };
        };
    }
    is_not!(ArrayMut<'static, f32>: Copy);
    is_not!(ArrayMut<'static, f32>: Clone);
    is_not!(Cells<'static, f32>: Send);
    is_not!(Cells<'static, f32>: Sync);

    #[test]
    fn parts_of_an_array_are_its_elements() {
        let mut memory = [0, 1, 2, 3, 4, 5];
        let mut array = ArrayMut::of(&mut memory);
        array.from(2).set(1, 30);
        array.reborrow().moved(4).set_group(0, [40, 50]);
        assert_eq!(array.read().only(2, 3).shared(0, 3), [2, 30, 40]);
        assert_eq!(array.shared(0, 6), [0, 1, 2, 30, 40, 50]);
    }

    #[test]
    fn cells_have_several_names() {
        let mut memory = [1.0f32, 2.0, 3.0];
        let mut array = ArrayMut::of(&mut memory);
        let all = array.cells();
        let rest = all.from(1);
        rest.set(0, all.get(0) + 10.0);
        all.set(2, rest.get(0));
        all.clear(1);
        assert_eq!(memory, [0.0, 11.0, 11.0]);
    }

    #[test]
    #[cfg(debug_assertions)]
    fn what_lies_outside_is_found() {
        use std::panic::catch_unwind;
        let memory = [0u8; 4];
        let array = Array::of(&memory);
        assert!(array.has(3, 1) && array.moved(2).moved(-2).has(0, 4) && array.from(4).has(0, 0));
        let outside: [fn(Array<'_, u8>) -> u8; 4] =
            [|a| a.get(4), |a| a.moved(-1).get(0), |a| a.only(1, 2).get(2), |a| a.from(5).get(0)];
        for outside in outside {
            assert!(catch_unwind(|| outside(array)).is_err());
        }
    }
}
