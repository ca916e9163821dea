//! Tiles: blocks of time x channel in the compute type, loaded from and stored to memory of any type and strides.
//!
//! A tile is step-major: element (step, lane) is at `step * pitch + lane`, so that one vector holds neighbouring channels of one step. Loading
//! converts and transposes in one pass, which makes storage types, strides and layouts free for kernels. Complex tensors load as two planes.

mod plane;
mod prefetch;
mod storage;
#[cfg(test)]
mod tests;

use super::array::{Array, ArrayMut, ArrayOf};
use super::simd::{Isa, Real};
pub(crate) use super::sizes::{MAX_LANES, STEPS};
use super::{Kernel, Level, Matrix, MatrixMut};
use crate::tensor::DType;
use core::mem::MaybeUninit;
use half::{bf16, f16};
pub(crate) use plane::{Address, Area, AreaMut, AreaOf, LINE, Plane, PlaneMut, PlaneOf, prefetch_own, prefetch_row};
pub(crate) use prefetch::Prefetch;
pub(crate) use storage::Storage;

/// A tile in scratch memory: the row of step `t` begins at `t * pitch`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileOf<A> {
    pub array: A,
    pub pitch: usize,
}

/// A tile that is read.
pub(crate) type Tile<'m, T> = TileOf<Array<'m, T>>;
/// A tile that is written.
pub(crate) type TileMut<'m, T> = TileOf<ArrayMut<'m, T>>;

impl<A> TileOf<A> {
    #[inline(always)]
    pub(crate) fn new(array: A, pitch: usize) -> Self {
        TileOf { array, pitch }
    }
}

impl<T, A> TileOf<ArrayOf<'_, T, A>> {
    /// An element.
    #[inline(always)]
    pub(crate) fn get(&self, t: usize, lane: usize) -> T
    where
        T: Copy,
    {
        self.array.get(t * self.pitch + lane)
    }

    /// A square of `width` steps and lanes.
    #[inline(always)]
    fn square(&self, width: usize) -> *const T {
        self.array.at(0, (width - 1) * self.pitch + width)
    }
}

impl<'m, T> Tile<'m, T> {
    /// The rows as a matrix.
    pub(crate) fn matrix(self) -> Matrix<'m, T> {
        Matrix::new(self.array, self.pitch)
    }

    /// The tile from a step and a lane on.
    #[inline(always)]
    pub(crate) fn from(self, t: usize, lane: usize) -> Self {
        Tile::new(self.array.from(t * self.pitch + lane), self.pitch)
    }

    /// A row as a slice.
    #[inline(always)]
    fn row(self, t: usize, lane: usize, count: usize) -> &'m [T] {
        self.array.shared(t * self.pitch + lane, count)
    }
}

impl<T> TileMut<'_, T> {
    /// Borrows the tile for a shorter time.
    #[inline(always)]
    pub(crate) fn reborrow(&mut self) -> TileMut<'_, T> {
        TileMut::new(self.array.reborrow(), self.pitch)
    }

    /// Borrows the tile for reading.
    #[inline(always)]
    pub(crate) fn read(&self) -> Tile<'_, T> {
        Tile::new(self.array.read(), self.pitch)
    }

    /// The rows as a matrix.
    pub(crate) fn matrix(&mut self) -> MatrixMut<'_, T> {
        MatrixMut::new(self.array.reborrow(), self.pitch)
    }

    /// Writes an element.
    #[inline(always)]
    pub(crate) fn set(&mut self, t: usize, lane: usize, value: T)
    where
        T: Copy,
    {
        self.array.set(t * self.pitch + lane, value);
    }

    /// The tile from a step and a lane on.
    #[inline(always)]
    pub(crate) fn from(&mut self, t: usize, lane: usize) -> TileMut<'_, T> {
        TileMut::new(self.array.from(t * self.pitch + lane), self.pitch)
    }

    /// A row as a slice.
    #[inline(always)]
    fn row(&mut self, t: usize, lane: usize, count: usize) -> &mut [T] {
        self.array.slice(t * self.pitch + lane, count)
    }

    /// A square of `width` steps and lanes, to be written.
    #[inline(always)]
    fn square_mut(&mut self, width: usize) -> *mut T {
        self.array.at_mut(0, (width - 1) * self.pitch + width)
    }
}

/// Loads an area of at most STEPS steps; lanes from its own to `padded` become 0. The tile has a row of so many elements for each step.
#[inline(always)]
pub(crate) fn load<T: Real, S: Isa>(simd: S, from: Area<'_>, padded: usize, to: TileMut<'_, T>) {
    debug_assert!(from.plane.has(from.lanes, from.steps), "the area lies inside its tensor");
    simd.call(Load { from, padded, to });
}

/// See [`load`].
struct Load<'t, T> {
    from: Area<'t>,
    padded: usize,
    to: TileMut<'t, T>,
}

impl<T: Real> Kernel for Load<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Load { from, padded, mut to } = self;
        match from.plane.dtype {
            DType::F32 => load_as::<T, f32, S>(simd, from, to.reborrow()),
            DType::F64 => load_as::<T, f64, S>(simd, from, to.reborrow()),
            DType::BF16 => load_as::<T, bf16, S>(simd, from, to.reborrow()),
            DType::F16 => load_as::<T, f16, S>(simd, from, to.reborrow()),
            _ => unreachable!("planes are real"),
        }
        if from.lanes < padded {
            for t in 0..from.steps {
                to.row(t, from.lanes, padded - from.lanes).fill(T::default());
            }
        }
    }
}

/// Converts a contiguous row of elements of a real type, as many as `to` has.
#[inline(always)]
pub(crate) fn load_row<T: Real, S: Isa>(simd: S, dtype: DType, from: Array<'_, u8>, to: &mut [T]) {
    match dtype {
        DType::F32 => f32::load_row(simd, from.elements().shared(0, to.len()), to),
        DType::F64 => f64::load_row(simd, from.elements().shared(0, to.len()), to),
        DType::BF16 => bf16::load_row(simd, from.elements().shared(0, to.len()), to),
        DType::F16 => f16::load_row(simd, from.elements().shared(0, to.len()), to),
        _ => unreachable!("rows are real"),
    }
}

/// The inverse of [`load_row`].
#[inline(always)]
pub(crate) fn store_row<T: Real, S: Isa>(simd: S, from: &[T], dtype: DType, to: ArrayMut<'_, u8>) {
    match dtype {
        DType::F32 => f32::store_row(simd, from, to.elements().slice(0, from.len())),
        DType::F64 => f64::store_row(simd, from, to.elements().slice(0, from.len())),
        DType::BF16 => bf16::store_row(simd, from, to.elements().slice(0, from.len())),
        DType::F16 => f16::store_row(simd, from, to.elements().slice(0, from.len())),
        _ => unreachable!("rows are real"),
    }
}

/// [`load`] as code of a level.
pub(crate) fn load_on<T: Real>(level: Level, from: Area<'_>, padded: usize, to: TileMut<'_, T>) {
    debug_assert!(from.plane.has(from.lanes, from.steps), "the area lies inside its tensor");
    level.dispatch(Load { from, padded, to });
}

/// [`store`] as code of a level.
pub(crate) fn store_on<T: Real>(level: Level, from: Tile<'_, T>, to: AreaMut) {
    debug_assert!(to.plane.has(to.lanes, to.steps), "the area lies inside its tensor");
    level.dispatch(Store { from, to });
}

/// [`load_parts`] as code of a level.
pub(crate) fn load_parts_on<T: Real>(level: Level, from: Area<'_>, parts: usize, padded: usize, to: ArrayMut<'_, T>) {
    level.dispatch(LoadParts { from, parts, padded, to });
}

/// [`store_parts`] as code of a level.
pub(crate) fn store_parts_on<T: Real>(level: Level, from: Array<'_, T>, parts: usize, padded: usize, to: AreaMut) {
    level.dispatch(StoreParts { from, parts, padded, to });
}

/// See [`load_parts`].
struct LoadParts<'t, T> {
    from: Area<'t>,
    parts: usize,
    padded: usize,
    to: ArrayMut<'t, T>,
}

impl<T: Real> Kernel for LoadParts<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        load_parts(simd, self.from, self.parts, self.padded, self.to);
    }
}

/// See [`store_parts`].
struct StoreParts<'t, T> {
    from: Array<'t, T>,
    parts: usize,
    padded: usize,
    to: AreaMut,
}

impl<T: Real> Kernel for StoreParts<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        store_parts(simd, self.from, self.parts, self.padded, self.to);
    }
}

/// Loads any number of steps of a real or complex area into `parts` (1 or 2) real tiles side by side: element (step, part, lane) is at
/// `(step * parts + part) * padded + lane`. A real plane has zero imaginary parts; one part of a complex plane is its real part.
#[inline(always)]
pub(crate) fn load_parts<T: Real, S: Isa>(simd: S, from: Area<'_>, parts: usize, padded: usize, to: ArrayMut<'_, T>) {
    let AreaOf { plane, lanes, steps } = from;
    let mut to = TileMut::new(to, parts * padded);
    if let Some(plane) = plane.interleaved(parts) {
        return load_parts(simd, plane.area(lanes, 2 * steps), 1, padded, to.array);
    }
    let mut start = 0;
    while start < steps {
        let (count, mut to) = (STEPS.min(steps - start), to.from(start, 0));
        load(simd, plane.at(0, start).area(lanes, count), padded, to.reborrow());
        if parts == 2 && plane.complex {
            load(simd, plane.imaginary().at(0, start).area(lanes, count), padded, to.from(0, padded));
        } else if parts == 2 {
            (0..count).for_each(|t| to.row(t, padded, padded).fill(T::default()));
        }
        start += count;
    }
}

/// The inverse of [`load_parts`].
#[inline(always)]
pub(crate) fn store_parts<T: Real, S: Isa>(simd: S, from: Array<'_, T>, parts: usize, padded: usize, to: AreaMut) {
    let AreaOf { plane, lanes, steps } = to;
    let from = Tile::new(from, parts * padded);
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

/// [`load`] of a plane of elements `E`.
#[inline(always)]
fn load_as<T: Real, E: Storage<T>, S: Isa>(simd: S, from: Area<'_>, mut to: TileMut<'_, T>) {
    let AreaOf { plane, lanes, steps } = from;
    if plane.time_step == 1 && steps >= T::lanes::<S>() {
        load_along_time::<T, E, S>(simd, from, to);
    } else if plane.lane_step == 1 {
        for t in 0..steps {
            E::load_row(simd, plane.lanes_of(t, lanes), to.row(t, 0, lanes));
        }
    } else if plane.lane_step == 0 && lanes > 0 {
        for t in 0..steps {
            to.row(t, 0, lanes).fill(plane.get::<E>(0, t).load());
        }
    } else if steps < T::lanes::<S>() {
        // a few steps are not worth a transposition: one row of the tile after the other
        for t in 0..steps {
            for lane in 0..lanes {
                to.set(t, lane, plane.get::<E>(lane, t).load());
            }
        }
    } else {
        for lane in 0..lanes {
            for t in 0..steps {
                to.set(t, lane, plane.get::<E>(lane, t).load());
            }
        }
    }
}

/// Rows along time become columns of the tile, a vector of lanes at a time: where they lie, or converted beforehand.
#[inline(always)]
fn load_along_time<T: Real, E: Storage<T>, S: Isa>(simd: S, from: Area<'_>, mut to: TileMut<'_, T>) {
    let AreaOf { plane, lanes, steps } = from;
    let width = T::lanes::<S>();
    let mut staged = MaybeUninit::<[T; MAX_LANES * STEPS]>::uninit();
    for first in (0..lanes).step_by(width) {
        let (count, mut to) = (width.min(lanes - first), to.from(0, first));
        let mut stage = stage(&mut staged);
        if !E::IS_COMPUTE_TYPE {
            for i in 0..count {
                E::load_row(simd, plane.steps_of(first + i, steps), stage.row(i, 0, steps));
            }
        }
        let whole = if count == width { steps - steps % width } else { 0 };
        for t in (0..whole).step_by(width) {
            let (rows, step) = match E::IS_COMPUTE_TYPE {
                true => (plane.address::<T>(first, t, [width; 2]), plane.lane_step),
                false => (stage.read().from(0, t).square(width), STEPS as isize),
            };
            // SAFETY: a square of the plane or of the stage, and one of the tile.
            unsafe { T::transpose(simd, rows, step, to.from(t, 0).square_mut(width), to.pitch as isize) };
        }
        for i in 0..count {
            for t in whole..steps {
                to.set(t, i, if E::IS_COMPUTE_TYPE { plane.get::<T>(first + i, t) } else { stage.get(i, t) });
            }
        }
    }
}

/// Rows for a vector of lanes.
#[inline(always)]
fn stage<T>(memory: &mut MaybeUninit<[T; MAX_LANES * STEPS]>) -> TileMut<'_, T> {
    // SAFETY: the memory is borrowed, and the caller writes it before it is read.
    TileMut::new(unsafe { ArrayMut::new(memory.as_mut_ptr().cast::<T>(), MAX_LANES * STEPS) }, STEPS)
}

/// Stores an area of at most STEPS steps from a tile, rounding to the plane's type.
#[inline(always)]
pub(crate) fn store<T: Real, S: Isa>(simd: S, from: Tile<'_, T>, to: AreaMut) {
    debug_assert!(to.plane.has(to.lanes, to.steps), "the area lies inside its tensor");
    simd.call(Store { from, to });
}

/// See [`store`].
struct Store<'t, T> {
    from: Tile<'t, T>,
    to: AreaMut,
}

impl<T: Real> Kernel for Store<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Store { from, to } = self;
        match to.plane.dtype {
            DType::F32 => store_as::<T, f32, S>(simd, from, to),
            DType::F64 => store_as::<T, f64, S>(simd, from, to),
            DType::BF16 => store_as::<T, bf16, S>(simd, from, to),
            DType::F16 => store_as::<T, f16, S>(simd, from, to),
            _ => unreachable!("planes are real"),
        }
    }
}

/// [`store`] to a plane of elements `E`.
#[inline(always)]
fn store_as<T: Real, E: Storage<T>, S: Isa>(simd: S, from: Tile<'_, T>, to: AreaMut) {
    let AreaOf { mut plane, lanes, steps } = to;
    if plane.time_step == 1 && steps >= T::lanes::<S>() {
        store_along_time::<T, E, S>(simd, from, to);
    } else if plane.lane_step == 1 {
        for t in 0..steps {
            E::store_row(simd, from.row(t, 0, lanes), plane.lanes_of(t, lanes));
        }
    } else if steps < T::lanes::<S>() {
        for t in 0..steps {
            for lane in 0..lanes {
                plane.set(lane, t, E::store(from.get(t, lane)));
            }
        }
    } else {
        for lane in 0..lanes {
            for t in 0..steps {
                plane.set(lane, t, E::store(from.get(t, lane)));
            }
        }
    }
}

/// The inverse of [`load_along_time`].
#[inline(always)]
fn store_along_time<T: Real, E: Storage<T>, S: Isa>(simd: S, from: Tile<'_, T>, to: AreaMut) {
    let AreaOf { mut plane, lanes, steps } = to;
    let width = T::lanes::<S>();
    let mut staged = MaybeUninit::<[T; MAX_LANES * STEPS]>::uninit();
    for first in (0..lanes).step_by(width) {
        let (count, from) = (width.min(lanes - first), from.from(0, first));
        let mut stage = stage(&mut staged);
        let whole = if count == width { steps - steps % width } else { 0 };
        for t in (0..whole).step_by(width) {
            let (rows, step) = match E::IS_COMPUTE_TYPE {
                true => (plane.address::<T>(first, t, [width; 2]), plane.lane_step),
                false => (stage.from(0, t).square_mut(width), STEPS as isize),
            };
            // SAFETY: a square of the tile, and one of the plane or of the stage.
            unsafe { T::transpose(simd, from.from(t, 0).square(width), from.pitch as isize, rows, step) };
        }
        for i in 0..count {
            for t in whole..steps {
                match E::IS_COMPUTE_TYPE {
                    true => plane.set::<T>(first + i, t, from.get(t, i)),
                    false => stage.set(i, t, from.get(t, i)),
                }
            }
            if !E::IS_COMPUTE_TYPE {
                E::store_row(simd, stage.row(i, 0, steps), plane.steps_of(first + i, steps));
            }
        }
    }
}
