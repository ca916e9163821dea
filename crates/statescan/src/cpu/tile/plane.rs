//! Strided planes of tensors.

use crate::tensor::{DType, Element, RawViewMut, View};
use core::marker::PhantomData;

/// The start of a plane: memory that is read, or memory that is written.
pub(crate) trait Address: Copy + Send + Sync {
    fn moved(self, bytes: isize) -> Self;
}

/// Memory that is read, and borrowed for that.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Read<'v>(*const u8, PhantomData<&'v [u8]>);

/// Memory that is written, or read and written: an address of a [`RawViewMut`], which says who answers for the accesses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Write(*mut u8);

// SAFETY: a shared borrow of numbers.
unsafe impl Send for Read<'_> {}
// SAFETY: as above.
unsafe impl Sync for Read<'_> {}
// SAFETY: an address.
unsafe impl Send for Write {}
// SAFETY: as above.
unsafe impl Sync for Write {}

impl Address for Read<'_> {
    #[inline(always)]
    fn moved(self, bytes: isize) -> Self {
        Read(self.0.wrapping_offset(bytes), PhantomData)
    }
}

impl Address for Write {
    #[inline(always)]
    fn moved(self, bytes: isize) -> Self {
        Write(self.0.wrapping_offset(bytes))
    }
}

/// A two-dimensional strided part of a tensor: lanes x steps, real elements.
///
/// One that is read borrows the elements of its view; one that is written has the promises of [`RawViewMut`]. Debug builds check that what is
/// accessed lies inside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlaneOf<A> {
    start: A,
    pub(super) dtype: DType,
    pub(super) lane_step: isize,
    pub(super) time_step: isize,
    pub(super) complex: bool,
    /// Lanes and steps from here on, where they are known; debug builds check that tiles lie inside.
    #[cfg(debug_assertions)]
    left: [usize; 2],
}

/// A plane that is read.
pub(crate) type Plane<'v> = PlaneOf<Read<'v>>;
/// A plane that is written.
pub(crate) type PlaneMut = PlaneOf<Write>;

impl<'v> Plane<'v> {
    /// A plane of a view, with the other axes at index 0. A complex view gives its real parts; see [`PlaneOf::imaginary`].
    #[inline(always)]
    pub(crate) fn of(view: &View<'v>, lane_axis: usize, time_axis: usize) -> Self {
        let (strides, shape) = (view.strides(), view.shape());
        let steps = [strides[lane_axis], strides[time_axis]];
        Self::new(Read(view.as_ptr(), PhantomData), view.dtype(), steps, [shape[lane_axis], shape[time_axis]])
    }

    /// A plane with strides of its own, in elements of the view; it starts where the view does.
    #[inline(always)]
    pub(crate) fn strided(view: &View<'v>, lane_step: isize, time_step: isize) -> Self {
        Self::new(Read(view.as_ptr(), PhantomData), view.dtype(), [lane_step, time_step], [usize::MAX; 2])
    }

    #[inline(always)]
    pub(super) fn ptr(self) -> *const u8 {
        self.start.0
    }

    /// Rows of f32 along time as rows of pairs, and the pairs from one to the next; nothing where that is no whole number.
    pub(crate) fn pairs(self) -> Option<(*const f64, isize)> {
        self.in_pairs().map(|step| (self.start.0.cast(), step))
    }

    /// An element of the plane's type `E`.
    #[inline(always)]
    pub(crate) fn get<E: Element>(self, lane: usize, step: usize) -> E {
        // SAFETY: the element is borrowed, and lies inside, which debug builds check.
        unsafe { *self.start.0.cast::<E>().offset(self.place::<E>(lane, step, [1, 1])) }
    }

    /// Neighbouring lanes of a step, where lanes lie side by side.
    #[inline(always)]
    pub(crate) fn lanes_of<E: Element>(self, step: usize, lanes: usize) -> &'v [E] {
        debug_assert!(self.lane_step == 1 || lanes <= 1, "lanes lie side by side");
        // SAFETY: as in `get`, for so many lanes.
        unsafe { core::slice::from_raw_parts(self.start.0.cast::<E>().offset(self.place::<E>(0, step, [lanes, 1])), lanes) }
    }

    /// Steps of a lane, where steps lie side by side.
    #[inline(always)]
    pub(crate) fn steps_of<E: Element>(self, lane: usize, steps: usize) -> &'v [E] {
        debug_assert!(self.time_step == 1 || steps <= 1, "steps lie side by side");
        // SAFETY: as in `get`, for so many steps.
        unsafe { core::slice::from_raw_parts(self.start.0.cast::<E>().offset(self.place::<E>(lane, 0, [1, steps])), steps) }
    }

    /// Returns the start of so many lanes and steps.
    #[inline(always)]
    pub(super) fn address<E: Element>(self, lane: usize, step: usize, count: [usize; 2]) -> *const E {
        self.start.0.cast::<E>().wrapping_offset(self.place::<E>(lane, step, count))
    }
}

impl PlaneMut {
    /// As [`Plane::of`].
    #[inline(always)]
    pub(crate) fn of(view: &RawViewMut, lane_axis: usize, time_axis: usize) -> Self {
        let (strides, shape) = (view.strides(), view.shape());
        let steps = [strides[lane_axis], strides[time_axis]];
        Self::new(Write(view.as_mut_ptr()), view.dtype(), steps, [shape[lane_axis], shape[time_axis]])
    }

    /// As [`Plane::strided`].
    #[inline(always)]
    pub(crate) fn strided(view: &RawViewMut, lane_step: isize, time_step: isize) -> Self {
        Self::new(Write(view.as_mut_ptr()), view.dtype(), [lane_step, time_step], [usize::MAX; 2])
    }

    /// Returns the plane for reading.
    #[inline(always)]
    pub(crate) fn read(&self) -> Plane<'_> {
        PlaneOf {
            start: Read(self.start.0.cast_const(), PhantomData),
            dtype: self.dtype,
            lane_step: self.lane_step,
            time_step: self.time_step,
            complex: self.complex,
            #[cfg(debug_assertions)]
            left: self.left,
        }
    }

    /// As [`Plane::pairs`].
    pub(crate) fn pairs(self) -> Option<(*mut f64, isize)> {
        self.in_pairs().map(|step| (self.start.0.cast(), step))
    }

    /// Writes an element of the plane's type `E`.
    #[inline(always)]
    pub(crate) fn set<E: Element>(self, lane: usize, step: usize, value: E) {
        // SAFETY: the promises of `RawViewMut`: the element lies inside, which debug builds check, and is this thread's.
        unsafe { *self.start.0.cast::<E>().offset(self.place::<E>(lane, step, [1, 1])) = value };
    }

    /// As [`Plane::lanes_of`].
    #[inline(always)]
    pub(crate) fn lanes_of<E: Element>(&mut self, step: usize, lanes: usize) -> &mut [E] {
        debug_assert!(self.lane_step == 1 || lanes <= 1, "lanes lie side by side");
        // SAFETY: as in `set`, for so many lanes.
        unsafe { core::slice::from_raw_parts_mut(self.start.0.cast::<E>().offset(self.place::<E>(0, step, [lanes, 1])), lanes) }
    }

    /// As [`Plane::steps_of`].
    #[inline(always)]
    pub(crate) fn steps_of<E: Element>(&mut self, lane: usize, steps: usize) -> &mut [E] {
        debug_assert!(self.time_step == 1 || steps <= 1, "steps lie side by side");
        // SAFETY: as in `set`, for so many steps.
        unsafe { core::slice::from_raw_parts_mut(self.start.0.cast::<E>().offset(self.place::<E>(lane, 0, [1, steps])), steps) }
    }

    /// As [`Plane::address`].
    #[inline(always)]
    pub(super) fn address<E: Element>(self, lane: usize, step: usize, count: [usize; 2]) -> *mut E {
        self.start.0.cast::<E>().wrapping_offset(self.place::<E>(lane, step, count))
    }
}

impl<A: Address> PlaneOf<A> {
    #[inline(always)]
    fn new(start: A, dtype: DType, [lane_step, time_step]: [isize; 2], left: [usize; 2]) -> Self {
        let _ = left;
        let complex = dtype.is_complex();
        let parts = if complex { 2 } else { 1 };
        PlaneOf {
            start,
            dtype: if complex { dtype.real() } else { dtype },
            lane_step: lane_step * parts,
            time_step: time_step * parts,
            complex,
            #[cfg(debug_assertions)]
            left,
        }
    }

    /// The imaginary parts beside a plane made from a complex view.
    #[inline(always)]
    pub(crate) fn imaginary(self) -> Self {
        self.advance_bytes(self.dtype.size() as isize)
    }

    /// Both parts of a complex plane whose time is contiguous, as a real plane of twice the steps: a tile of that is a tile of both parts.
    #[inline(always)]
    pub(super) fn interleaved(self, parts: usize) -> Option<Self> {
        let both = PlaneOf {
            time_step: 1,
            complex: false,
            #[cfg(debug_assertions)]
            left: [self.left[0], self.left[1].saturating_mul(2)],
            ..self
        };
        (parts == 2 && self.complex && self.time_step == 2).then_some(both)
    }

    /// Moves the origin by `count` indices of an axis that is not in the plane; `stride` is the view's, in its own elements.
    #[inline(always)]
    pub(crate) fn along(self, count: usize, stride: isize) -> Self {
        let size = self.dtype.size() * if self.complex { 2 } else { 1 };
        self.advance_bytes(count as isize * stride * size as isize)
    }

    /// Exchanges lanes and steps.
    #[inline(always)]
    pub(crate) fn transposed(self) -> Self {
        PlaneOf {
            lane_step: self.time_step,
            time_step: self.lane_step,
            #[cfg(debug_assertions)]
            left: [self.left[1], self.left[0]],
            ..self
        }
    }

    /// Returns the plane with more lanes behind it, for axes that lie one behind the other.
    #[inline(always)]
    pub(crate) fn with_lanes(self, lanes: usize) -> Self {
        let _ = lanes;
        PlaneOf {
            #[cfg(debug_assertions)]
            left: [lanes, self.left[1]],
            ..self
        }
    }

    /// Elements of the plane's type `E` from its origin to a lane and a step, from which on so many of both are to be used.
    #[inline(always)]
    fn place<E: Element>(self, lane: usize, step: usize, [lanes, steps]: [usize; 2]) -> isize {
        debug_assert!(self.dtype == E::DTYPE, "elements of the plane's type");
        debug_assert!(self.has(lane + lanes, step + steps), "the elements lie inside their tensor");
        lane as isize * self.lane_step + step as isize * self.time_step
    }

    fn in_pairs(self) -> Option<isize> {
        (self.dtype == DType::F32 && self.time_step == 1 && self.lane_step % 2 == 0).then_some(self.lane_step / 2)
    }

    /// Moves the origin to a lane and a step.
    #[inline(always)]
    pub(crate) fn at(self, lane: usize, step: usize) -> Self {
        let elements = lane as isize * self.lane_step + step as isize * self.time_step;
        PlaneOf {
            #[cfg(debug_assertions)]
            left: [self.left[0].saturating_sub(lane), self.left[1].saturating_sub(step)],
            ..self.advance_bytes(elements * self.dtype.size() as isize)
        }
    }

    /// So many lanes and steps from the origin on.
    #[inline(always)]
    pub(crate) fn area(self, lanes: usize, steps: usize) -> AreaOf<A> {
        AreaOf { plane: self, lanes, steps }
    }

    /// Whether lanes and steps are there; only debug builds know.
    #[inline(always)]
    pub(super) fn has(self, lanes: usize, steps: usize) -> bool {
        #[cfg(debug_assertions)]
        return lanes == 0 || steps == 0 || (lanes <= self.left[0] && steps <= self.left[1]);
        #[cfg(not(debug_assertions))]
        {
            let _ = (lanes, steps);
            true
        }
    }

    #[inline(always)]
    fn advance_bytes(mut self, bytes: isize) -> Self {
        self.start = self.start.moved(bytes);
        self
    }
}

/// The memory of lanes x steps of a plane. Any position is allowed: an area that is only prefetched need not lie inside the
/// tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AreaOf<A> {
    pub plane: PlaneOf<A>,
    pub lanes: usize,
    pub steps: usize,
}

/// An area that is read.
pub(crate) type Area<'v> = AreaOf<Read<'v>>;
/// An area that is written.
pub(crate) type AreaMut = AreaOf<Write>;

impl AreaMut {
    /// Returns the area for reading.
    #[inline(always)]
    pub(crate) fn read(&self) -> Area<'_> {
        self.plane.read().area(self.lanes, self.steps)
    }
}

/// Bytes in a cache line.
pub(crate) const LINE: usize = 64;

/// Prefetches the lines of a row of so many bytes, which may lie anywhere, into the second level of caches: rows a power of two apart would
/// push each other out of the first.
#[inline(always)]
pub(crate) fn prefetch_row(start: *const u8, bytes: usize) {
    prefetch::<SECOND>(start, bytes);
}

/// Prefetches the lines of so many bytes that other threads have written, to be changed soon.
#[inline(always)]
pub(crate) fn prefetch_own(start: *const u8, bytes: usize) {
    prefetch::<OWN>(start, bytes);
}

#[cfg(target_arch = "x86_64")]
const SECOND: i32 = core::arch::x86_64::_MM_HINT_T1;
#[cfg(target_arch = "x86_64")]
const OWN: i32 = core::arch::x86_64::_MM_HINT_ET0;
#[cfg(not(target_arch = "x86_64"))]
const SECOND: i32 = 0;
#[cfg(not(target_arch = "x86_64"))]
const OWN: i32 = 0;

#[inline(always)]
fn prefetch<const HINT: i32>(start: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(LINE) {
        let address = start.wrapping_add(at);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint; it has no effect that a program could observe, whatever the address.
        unsafe {
            core::arch::x86_64::_mm_prefetch::<HINT>(address.cast())
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = address;
    }
}
