//! Tiles: blocks of time x channel in the compute type, loaded from and stored to memory of any type and strides.
//!
//! A tile is step-major: element (step, lane) is at `step * pitch + lane`, so that one vector holds neighbouring channels of one step. Loading
//! converts and transposes in one pass, which makes storage types, strides and layouts free for kernels. Complex tensors load as two planes.

mod plane;
mod prefetch;
mod storage;
#[cfg(test)]
mod tests;

use super::simd::{Isa, Real};
pub(crate) use super::sizes::{MAX_LANES, STEPS};
use super::{Array, Kernel, Level, MatrixMut, outline};
use crate::tensor::DType;
use core::mem::MaybeUninit;
use half::{bf16, f16};
pub(crate) use plane::{Address, Area, AreaMut, LINE, Plane, PlaneMut, PlaneOf, prefetch_own, prefetch_row};
pub(crate) use prefetch::Prefetch;
pub(crate) use storage::Storage;

/// Where a tile lies in scratch memory: the row of step `t` begins at `t * pitch`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tile<T> {
    pub array: Array<T>,
    pub pitch: usize,
}

impl<T> Tile<T> {
    #[inline(always)]
    pub(crate) fn new(array: Array<T>, pitch: usize) -> Self {
        Tile { array, pitch }
    }

    /// The rows as a matrix.
    pub(crate) fn matrix(self) -> MatrixMut<T> {
        MatrixMut::new(self.array.ptr(), self.pitch)
    }

    /// `count` elements of the row of step `t`, from `lane` on.
    #[inline(always)]
    pub(crate) fn at(self, t: usize, lane: usize, count: usize) -> *mut T {
        self.array.at(t * self.pitch + lane, count)
    }

    /// The tile from a step and a lane on.
    #[inline(always)]
    pub(crate) fn from(self, t: usize, lane: usize) -> Self {
        Tile { array: self.array.from(t * self.pitch + lane), ..self }
    }

    /// A row as a slice.
    ///
    /// # Safety
    /// The contract of [`Array`].
    #[inline(always)]
    unsafe fn row<'s>(self, t: usize, lane: usize, count: usize) -> &'s mut [T] {
        // SAFETY: the caller's contract is that of `slice`.
        unsafe { self.array.slice(t * self.pitch + lane, count) }
    }

    /// A square of `width` steps and lanes.
    #[inline(always)]
    fn square(self, t: usize, lane: usize, width: usize) -> *mut T {
        self.array.at(t * self.pitch + lane, (width - 1) * self.pitch + width)
    }
}

/// Loads an area of at most STEPS steps; lanes from its own to `padded` become 0.
///
/// # Safety
/// - The area can be read.
/// - The tile is this thread's, and has a row of `padded` elements for each step.
#[inline(always)]
pub(crate) unsafe fn load<T: Real, S: Isa>(simd: S, from: Area, padded: usize, to: Tile<T>) {
    debug_assert!(from.plane.has(from.lanes, from.steps), "the area lies inside its tensor");
    outline(simd, Load { from, padded, to });
}

/// The contract of [`load`], the only maker of this.
struct Load<T> {
    from: Area,
    padded: usize,
    to: Tile<T>,
}

impl<T: Real> Kernel for Load<T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Load { from, padded, to } = self;
        // SAFETY: the contract of `load`; the type is the plane's own.
        unsafe {
            match from.plane.dtype {
                DType::F32 => load_as::<T, f32, S>(simd, from, to),
                DType::F64 => load_as::<T, f64, S>(simd, from, to),
                DType::BF16 => load_as::<T, bf16, S>(simd, from, to),
                DType::F16 => load_as::<T, f16, S>(simd, from, to),
                _ => unreachable!("planes are real"),
            }
            if from.lanes < padded {
                for t in 0..from.steps {
                    to.row(t, from.lanes, padded - from.lanes).fill(T::default());
                }
            }
        }
    }
}

/// Converts a contiguous row of elements of a real type.
///
/// # Safety
/// As many elements as `to` has can be read.
#[inline(always)]
pub(crate) unsafe fn load_row<T: Real, S: Isa>(simd: S, dtype: DType, from: *const u8, to: &mut [T]) {
    // SAFETY: the caller's contract.
    unsafe {
        match dtype {
            DType::F32 => f32::load_row(simd, core::slice::from_raw_parts(from.cast(), to.len()), to),
            DType::F64 => f64::load_row(simd, core::slice::from_raw_parts(from.cast(), to.len()), to),
            DType::BF16 => bf16::load_row(simd, core::slice::from_raw_parts(from.cast(), to.len()), to),
            DType::F16 => f16::load_row(simd, core::slice::from_raw_parts(from.cast(), to.len()), to),
            _ => unreachable!("rows are real"),
        }
    }
}

/// The inverse of [`load_row`].
///
/// # Safety
/// As many elements as `from` has can be written.
#[inline(always)]
pub(crate) unsafe fn store_row<T: Real, S: Isa>(simd: S, from: &[T], dtype: DType, to: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe {
        match dtype {
            DType::F32 => f32::store_row(simd, from, core::slice::from_raw_parts_mut(to.cast(), from.len())),
            DType::F64 => f64::store_row(simd, from, core::slice::from_raw_parts_mut(to.cast(), from.len())),
            DType::BF16 => bf16::store_row(simd, from, core::slice::from_raw_parts_mut(to.cast(), from.len())),
            DType::F16 => f16::store_row(simd, from, core::slice::from_raw_parts_mut(to.cast(), from.len())),
            _ => unreachable!("rows are real"),
        }
    }
}

/// [`load`] as code of a level.
///
/// # Safety
/// As [`load`].
pub(crate) unsafe fn load_on<T: Real>(level: Level, from: Area, padded: usize, to: Tile<T>) {
    debug_assert!(from.plane.has(from.lanes, from.steps), "the area lies inside its tensor");
    level.dispatch(Load { from, padded, to });
}

/// [`store`] as code of a level.
///
/// # Safety
/// As [`store`].
pub(crate) unsafe fn store_on<T: Real>(level: Level, from: Tile<T>, to: AreaMut) {
    debug_assert!(to.plane.has(to.lanes, to.steps), "the area lies inside its tensor");
    level.dispatch(Store { from, to });
}

/// [`load_parts`] as code of a level.
///
/// # Safety
/// As [`load_parts`].
pub(crate) unsafe fn load_parts_on<T: Real>(level: Level, from: Area, parts: usize, padded: usize, to: Array<T>) {
    level.dispatch(LoadParts { from, parts, padded, to });
}

/// [`store_parts`] as code of a level.
///
/// # Safety
/// As [`store_parts`].
pub(crate) unsafe fn store_parts_on<T: Real>(level: Level, from: Array<T>, parts: usize, padded: usize, to: AreaMut) {
    level.dispatch(StoreParts { from, parts, padded, to });
}

/// The contract of [`load_parts_on`], the only maker of this.
struct LoadParts<T> {
    from: Area,
    parts: usize,
    padded: usize,
    to: Array<T>,
}

impl<T: Real> Kernel for LoadParts<T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        // SAFETY: see above.
        unsafe { load_parts(simd, self.from, self.parts, self.padded, self.to) }
    }
}

/// The contract of [`store_parts_on`], the only maker of this.
struct StoreParts<T> {
    from: Array<T>,
    parts: usize,
    padded: usize,
    to: AreaMut,
}

impl<T: Real> Kernel for StoreParts<T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        // SAFETY: see above.
        unsafe { store_parts(simd, self.from, self.parts, self.padded, self.to) }
    }
}

/// Loads any number of steps of a real or complex area into `parts` (1 or 2) real tiles side by side: element (step, part, lane) is at
/// `(step * parts + part) * padded + lane`. A real plane has zero imaginary parts; one part of a complex plane is its real part.
///
/// # Safety
/// As [`load`], with rows of `parts * padded`.
#[inline(always)]
pub(crate) unsafe fn load_parts<T: Real, S: Isa>(simd: S, from: Area, parts: usize, padded: usize, to: Array<T>) {
    let Area { plane, lanes, steps } = from;
    let to = Tile::new(to, parts * padded);
    // SAFETY: the caller's contract, a piece of at most STEPS at a time.
    unsafe {
        if let Some(plane) = plane.interleaved(parts) {
            return load_parts(simd, plane.area(lanes, 2 * steps), 1, padded, to.array);
        }
        let mut start = 0;
        while start < steps {
            let (count, to) = (STEPS.min(steps - start), to.from(start, 0));
            load(simd, plane.at(0, start).area(lanes, count), padded, to);
            if parts == 2 && plane.complex {
                load(simd, plane.imaginary().at(0, start).area(lanes, count), padded, to.from(0, padded));
            } else if parts == 2 {
                (0..count).for_each(|t| to.row(t, padded, padded).fill(T::default()));
            }
            start += count;
        }
    }
}

/// The inverse of [`load_parts`].
///
/// # Safety
/// As [`store`], with rows of `parts * padded`.
#[inline(always)]
pub(crate) unsafe fn store_parts<T: Real, S: Isa>(simd: S, from: Array<T>, parts: usize, padded: usize, to: AreaMut) {
    let Area { plane, lanes, steps } = to;
    let from = Tile::new(from, parts * padded);
    // SAFETY: the caller's contract, a piece of at most STEPS at a time.
    unsafe {
        if let Some(plane) = plane.interleaved(parts) {
            return store_parts(simd, from.array, 1, padded, plane.area(lanes, 2 * steps));
        }
        let mut start = 0;
        while start < steps {
            let (count, from) = (STEPS.min(steps - start), from.from(start, 0));
            store(simd, from, plane.at(0, start).area(lanes, count));
            if parts == 2 && plane.complex {
                store(simd, from.from(0, padded), plane.imaginary().at(0, start).area(lanes, count));
            }
            start += count;
        }
    }
}

/// # Safety
/// As [`load`], and `E` is the plane's own type.
#[inline(always)]
unsafe fn load_as<T: Real, E: Storage<T>, S: Isa>(simd: S, from: Area, to: Tile<T>) {
    let Area { plane, lanes, steps } = from;
    let (src, lane_step, time_step) = (plane.ptr().cast::<E>(), plane.lane_step, plane.time_step);
    // SAFETY: every access is inside lanes x steps of the plane or of the tile.
    unsafe {
        if time_step == 1 && steps >= T::lanes::<S>() {
            load_along_time::<T, E, S>(simd, from, to);
        } else if lane_step == 1 {
            for t in 0..steps {
                let row = core::slice::from_raw_parts(src.offset(t as isize * time_step), lanes);
                E::load_row(simd, row, to.row(t, 0, lanes));
            }
        } else if lane_step == 0 && lanes > 0 {
            for t in 0..steps {
                to.row(t, 0, lanes).fill((*src.offset(t as isize * time_step)).load());
            }
        } else if steps < T::lanes::<S>() {
            // a few steps are not worth a transposition: one row of the tile after the other
            for t in 0..steps {
                for lane in 0..lanes {
                    *to.at(t, lane, 1) = (*src.offset(lane as isize * lane_step + t as isize * time_step)).load();
                }
            }
        } else {
            for lane in 0..lanes {
                let row = src.offset(lane as isize * lane_step);
                for t in 0..steps {
                    *to.at(t, lane, 1) = (*row.offset(t as isize * time_step)).load();
                }
            }
        }
    }
}

/// Rows along time become columns of the tile, a vector of lanes at a time: where they lie, or converted beforehand.
///
/// # Safety
/// As [`load_as`], and time is contiguous.
#[inline(always)]
unsafe fn load_along_time<T: Real, E: Storage<T>, S: Isa>(simd: S, from: Area, to: Tile<T>) {
    let Area { plane, lanes, steps } = from;
    let (src, width) = (plane.ptr().cast::<E>(), T::lanes::<S>());
    let mut staged = MaybeUninit::<[T; MAX_LANES * STEPS]>::uninit();
    let mut first = 0;
    while first < lanes {
        let count = width.min(lanes - first);
        let mut rows = TimeRows { first: src.cast::<T>(), step: plane.lane_step };
        // SAFETY: the rows lie inside the plane, and as many staged ones inside the stage.
        unsafe {
            if E::IS_COMPUTE_TYPE {
                rows.first = rows.first.offset(first as isize * plane.lane_step);
            } else {
                let stage = staged.as_mut_ptr().cast::<T>();
                for i in 0..count {
                    let row = src.offset((first + i) as isize * plane.lane_step);
                    let to = core::slice::from_raw_parts_mut(stage.add(i * STEPS), steps);
                    E::load_row(simd, core::slice::from_raw_parts(row, steps), to);
                }
                rows = TimeRows { first: stage, step: STEPS as isize };
            }
            transpose_in(simd, rows, count, steps, to.from(0, first));
        }
        first += count;
    }
}

/// Rows of the compute type along time.
struct TimeRows<T> {
    first: *const T,
    step: isize,
}

/// Rows become columns of the tile.
///
/// # Safety
/// `count` rows of `steps` elements can be read, and `steps` rows of the tile written.
#[inline(always)]
unsafe fn transpose_in<T: Real, S: Isa>(simd: S, rows: TimeRows<T>, count: usize, steps: usize, to: Tile<T>) {
    let width = T::lanes::<S>();
    let whole = if count == width { steps - steps % width } else { 0 };
    // SAFETY: the blocks lie inside the rows and inside the tile.
    unsafe {
        let mut t = 0;
        while t < whole {
            T::transpose(simd, rows.first.add(t), rows.step, to.square(t, 0, width), to.pitch as isize);
            t += width;
        }
        for i in 0..count {
            let row = rows.first.offset(i as isize * rows.step);
            for t in whole..steps {
                *to.at(t, i, 1) = *row.add(t);
            }
        }
    }
}

/// Stores an area of at most STEPS steps from a tile, rounding to the plane's type.
///
/// # Safety
/// - The area can be written, and no other thread uses it meanwhile.
/// - The tile has a row with the area's lanes for each step.
#[inline(always)]
pub(crate) unsafe fn store<T: Real, S: Isa>(simd: S, from: Tile<T>, to: AreaMut) {
    debug_assert!(to.plane.has(to.lanes, to.steps), "the area lies inside its tensor");
    outline(simd, Store { from, to });
}

/// The contract of [`store`], the only maker of this.
struct Store<T> {
    from: Tile<T>,
    to: AreaMut,
}

impl<T: Real> Kernel for Store<T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Store { from, to } = self;
        // SAFETY: the contract of `store`; the type is the plane's own.
        unsafe {
            match to.plane.dtype {
                DType::F32 => store_as::<T, f32, S>(simd, from, to),
                DType::F64 => store_as::<T, f64, S>(simd, from, to),
                DType::BF16 => store_as::<T, bf16, S>(simd, from, to),
                DType::F16 => store_as::<T, f16, S>(simd, from, to),
                _ => unreachable!("planes are real"),
            }
        }
    }
}

/// # Safety
/// As [`store`], and `E` is the plane's own type.
#[inline(always)]
unsafe fn store_as<T: Real, E: Storage<T>, S: Isa>(simd: S, from: Tile<T>, to: AreaMut) {
    let Area { plane, lanes, steps } = to;
    let (dst, lane_step, time_step) = (plane.ptr().cast::<E>(), plane.lane_step, plane.time_step);
    // SAFETY: every access is inside lanes x steps of the plane or of the tile.
    unsafe {
        if time_step == 1 && steps >= T::lanes::<S>() {
            store_along_time::<T, E, S>(simd, from, to);
        } else if lane_step == 1 {
            for t in 0..steps {
                let row = core::slice::from_raw_parts_mut(dst.offset(t as isize * time_step), lanes);
                E::store_row(simd, from.row(t, 0, lanes), row);
            }
        } else if steps < T::lanes::<S>() {
            for t in 0..steps {
                for lane in 0..lanes {
                    *dst.offset(lane as isize * lane_step + t as isize * time_step) = E::store(*from.at(t, lane, 1));
                }
            }
        } else {
            for lane in 0..lanes {
                let row = dst.offset(lane as isize * lane_step);
                for t in 0..steps {
                    *row.offset(t as isize * time_step) = E::store(*from.at(t, lane, 1));
                }
            }
        }
    }
}

/// The inverse of [`load_along_time`].
///
/// # Safety
/// As [`store_as`], and time is contiguous.
#[inline(always)]
unsafe fn store_along_time<T: Real, E: Storage<T>, S: Isa>(simd: S, from: Tile<T>, to: AreaMut) {
    let Area { plane, lanes, steps } = to;
    let (dst, width) = (plane.ptr().cast::<E>(), T::lanes::<S>());
    let mut staged = MaybeUninit::<[T; MAX_LANES * STEPS]>::uninit();
    let mut first = 0;
    while first < lanes {
        let count = width.min(lanes - first);
        let whole = if count == width { steps - steps % width } else { 0 };
        let (mut rows, mut step) = (dst.cast::<T>(), plane.lane_step);
        // SAFETY: the rows lie inside the plane, and as many staged ones inside the stage.
        unsafe {
            if E::IS_COMPUTE_TYPE {
                rows = rows.offset(first as isize * step);
            } else {
                (rows, step) = (staged.as_mut_ptr().cast::<T>(), STEPS as isize);
            }
            let mut t = 0;
            while t < whole {
                T::transpose(simd, from.square(t, first, width), from.pitch as isize, rows.add(t), step);
                t += width;
            }
            for i in 0..count {
                let row = rows.offset(i as isize * step);
                for t in whole..steps {
                    *row.add(t) = *from.at(t, first + i, 1);
                }
                if !E::IS_COMPUTE_TYPE {
                    let to = dst.offset((first + i) as isize * plane.lane_step);
                    E::store_row(simd, core::slice::from_raw_parts(row, steps), core::slice::from_raw_parts_mut(to, steps));
                }
            }
        }
        first += count;
    }
}
