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
use super::{Kernel, outline};
use crate::tensor::DType;
use core::mem::MaybeUninit;
use half::{bf16, f16};
pub(crate) use plane::{LINE, Plane, prefetch_own, prefetch_row};
pub(crate) use prefetch::{Area, Prefetch};
pub(crate) use storage::Storage;

/// Loads `lanes` x `steps` elements (`steps <= STEPS`); lanes from `lanes` to `padded` become 0.
///
/// # Safety
/// The plane must be readable over lanes and steps, and `tile` writable for `steps` rows of `pitch >= padded` elements.
#[inline(always)]
pub(crate) unsafe fn load<T: Real, S: Isa>(
    simd: S,
    plane: Plane,
    lanes: usize,
    padded: usize,
    steps: usize,
    tile: *mut T,
    pitch: usize,
) {
    outline(simd, Load { plane, lanes, padded, steps, tile, pitch });
}

struct Load<T> {
    plane: Plane,
    lanes: usize,
    padded: usize,
    steps: usize,
    tile: *mut T,
    pitch: usize,
}

impl<T: Real> Kernel for Load<T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Load { plane, lanes, padded, steps, tile, pitch } = self;
        // SAFETY: the contract of `load`, the only maker of this; the type is the plane's own.
        unsafe {
            match plane.dtype {
                DType::F32 => load_as::<T, f32, S>(simd, plane, lanes, steps, tile, pitch),
                DType::F64 => load_as::<T, f64, S>(simd, plane, lanes, steps, tile, pitch),
                DType::BF16 => load_as::<T, bf16, S>(simd, plane, lanes, steps, tile, pitch),
                DType::F16 => load_as::<T, f16, S>(simd, plane, lanes, steps, tile, pitch),
                _ => unreachable!("planes are real"),
            }
            if lanes < padded {
                for t in 0..steps {
                    core::slice::from_raw_parts_mut(tile.add(t * pitch + lanes), padded - lanes).fill(T::default());
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

/// Loads any number of steps of a real or complex plane into `parts` (1 or 2) real tiles side by side: element (step, part, lane) is at
/// `(step * parts + part) * padded + lane`. A real plane has zero imaginary parts; one part of a complex plane is its real part.
///
/// # Safety
/// As [`load`], with a pitch of `parts * padded`.
#[inline(always)]
pub(crate) unsafe fn load_parts<T: Real, S: Isa>(
    simd: S,
    plane: Plane,
    parts: usize,
    lanes: usize,
    padded: usize,
    steps: usize,
    tile: *mut T,
) {
    let pitch = parts * padded;
    // SAFETY: the caller's contract, a piece of at most STEPS at a time.
    unsafe {
        if let Some(plane) = plane.interleaved(parts) {
            return load_parts(simd, plane, 1, lanes, padded, 2 * steps, tile);
        }
        let mut start = 0;
        while start < steps {
            let (count, tile) = (STEPS.min(steps - start), tile.add(start * pitch));
            load(simd, plane.at(0, start), lanes, padded, count, tile, pitch);
            if parts == 2 && plane.complex {
                load(simd, plane.imaginary().at(0, start), lanes, padded, count, tile.add(padded), pitch);
            } else if parts == 2 {
                for t in 0..count {
                    core::slice::from_raw_parts_mut(tile.add(t * pitch + padded), padded).fill(T::default());
                }
            }
            start += count;
        }
    }
}

/// The inverse of [`load_parts`].
///
/// # Safety
/// As [`store`], with a pitch of `parts * padded`.
#[inline(always)]
pub(crate) unsafe fn store_parts<T: Real, S: Isa>(
    simd: S,
    tile: *const T,
    parts: usize,
    padded: usize,
    plane: Plane,
    lanes: usize,
    steps: usize,
) {
    let pitch = parts * padded;
    // SAFETY: the caller's contract, a piece of at most STEPS at a time.
    unsafe {
        if let Some(plane) = plane.interleaved(parts) {
            return store_parts(simd, tile, 1, padded, plane, lanes, 2 * steps);
        }
        let mut start = 0;
        while start < steps {
            let (count, tile) = (STEPS.min(steps - start), tile.add(start * pitch));
            store(simd, tile, pitch, plane.at(0, start), lanes, count);
            if parts == 2 && plane.complex {
                store(simd, tile.add(padded), pitch, plane.imaginary().at(0, start), lanes, count);
            }
            start += count;
        }
    }
}

/// # Safety
/// As [`load`], and `E` is the plane's own type.
#[inline(always)]
unsafe fn load_as<T: Real, E: Storage<T>, S: Isa>(simd: S, plane: Plane, lanes: usize, steps: usize, tile: *mut T, pitch: usize) {
    let src = plane.ptr.cast::<E>();
    // SAFETY: every access is inside lanes x steps of the plane or of the tile.
    unsafe {
        if plane.time_step == 1 && steps >= T::lanes::<S>() {
            let width = T::lanes::<S>();
            let mut staged = MaybeUninit::<[T; MAX_LANES * STEPS]>::uninit();
            let mut first = 0;
            while first < lanes {
                let count = width.min(lanes - first);
                let mut rows = Rows { first: src.cast::<T>(), step: plane.lane_step };
                if E::IS_COMPUTE_TYPE {
                    rows.first = rows.first.offset(first as isize * plane.lane_step);
                } else {
                    let stage = staged.as_mut_ptr().cast::<T>();
                    for i in 0..count {
                        let row = src.offset((first + i) as isize * plane.lane_step);
                        let to = core::slice::from_raw_parts_mut(stage.add(i * STEPS), steps);
                        E::load_row(simd, core::slice::from_raw_parts(row, steps), to);
                    }
                    rows = Rows { first: stage, step: STEPS as isize };
                }
                transpose_in(simd, rows, count, steps, tile.add(first), pitch);
                first += count;
            }
        } else if plane.lane_step == 1 {
            for t in 0..steps {
                let row = core::slice::from_raw_parts(src.offset(t as isize * plane.time_step), lanes);
                E::load_row(simd, row, core::slice::from_raw_parts_mut(tile.add(t * pitch), lanes));
            }
        } else if plane.lane_step == 0 && lanes > 0 {
            for t in 0..steps {
                let value = (*src.offset(t as isize * plane.time_step)).load();
                core::slice::from_raw_parts_mut(tile.add(t * pitch), lanes).fill(value);
            }
        } else if steps < T::lanes::<S>() {
            // a few steps are not worth a transposition: one row of the tile after the other
            for t in 0..steps {
                for lane in 0..lanes {
                    *tile.add(t * pitch + lane) =
                        (*src.offset(lane as isize * plane.lane_step + t as isize * plane.time_step)).load();
                }
            }
        } else {
            for lane in 0..lanes {
                let row = src.offset(lane as isize * plane.lane_step);
                for t in 0..steps {
                    *tile.add(t * pitch + lane) = (*row.offset(t as isize * plane.time_step)).load();
                }
            }
        }
    }
}

/// Rows of the compute type along time.
struct Rows<T> {
    first: *const T,
    step: isize,
}

/// Rows become columns of the tile.
///
/// # Safety
/// `count` rows of `steps` elements can be read, and `steps` rows of the tile written.
#[inline(always)]
unsafe fn transpose_in<T: Real, S: Isa>(simd: S, rows: Rows<T>, count: usize, steps: usize, tile: *mut T, pitch: usize) {
    let width = T::lanes::<S>();
    let whole = if count == width { steps - steps % width } else { 0 };
    // SAFETY: the blocks lie inside the rows and inside the tile.
    unsafe {
        let mut t = 0;
        while t < whole {
            T::transpose(simd, rows.first.add(t), rows.step, tile.add(t * pitch), pitch as isize);
            t += width;
        }
        for i in 0..count {
            let row = rows.first.offset(i as isize * rows.step);
            for t in whole..steps {
                *tile.add(t * pitch + i) = *row.add(t);
            }
        }
    }
}

/// Stores `lanes` x `steps` elements of a tile (`steps <= STEPS`), rounding to the plane's type.
///
/// # Safety
/// The plane must be writable over lanes and steps, and `tile` readable for `steps` rows of `pitch` elements.
#[inline(always)]
pub(crate) unsafe fn store<T: Real, S: Isa>(simd: S, tile: *const T, pitch: usize, plane: Plane, lanes: usize, steps: usize) {
    outline(simd, Store { tile, pitch, plane, lanes, steps });
}

struct Store<T> {
    tile: *const T,
    pitch: usize,
    plane: Plane,
    lanes: usize,
    steps: usize,
}

impl<T: Real> Kernel for Store<T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Store { tile, pitch, plane, lanes, steps } = self;
        // SAFETY: the contract of `store`, the only maker of this; the type is the plane's own.
        unsafe {
            match plane.dtype {
                DType::F32 => store_as::<T, f32, S>(simd, tile, pitch, plane, lanes, steps),
                DType::F64 => store_as::<T, f64, S>(simd, tile, pitch, plane, lanes, steps),
                DType::BF16 => store_as::<T, bf16, S>(simd, tile, pitch, plane, lanes, steps),
                DType::F16 => store_as::<T, f16, S>(simd, tile, pitch, plane, lanes, steps),
                _ => unreachable!("planes are real"),
            }
        }
    }
}

/// # Safety
/// As [`store`], and `E` is the plane's own type.
#[inline(always)]
unsafe fn store_as<T: Real, E: Storage<T>, S: Isa>(
    simd: S,
    tile: *const T,
    pitch: usize,
    plane: Plane,
    lanes: usize,
    steps: usize,
) {
    let dst = plane.ptr.cast::<E>();
    // SAFETY: every access is inside lanes x steps of the plane or of the tile.
    unsafe {
        if plane.time_step == 1 && steps >= T::lanes::<S>() {
            let width = T::lanes::<S>();
            let mut staged = MaybeUninit::<[T; MAX_LANES * STEPS]>::uninit();
            let mut first = 0;
            while first < lanes {
                let count = width.min(lanes - first);
                let whole = if count == width { steps - steps % width } else { 0 };
                let (mut rows, mut step) = (dst.cast::<T>(), plane.lane_step);
                if E::IS_COMPUTE_TYPE {
                    rows = rows.offset(first as isize * step);
                } else {
                    (rows, step) = (staged.as_mut_ptr().cast::<T>(), STEPS as isize);
                }
                let mut t = 0;
                while t < whole {
                    T::transpose(simd, tile.add(t * pitch + first), pitch as isize, rows.add(t), step);
                    t += width;
                }
                for i in 0..count {
                    let row = rows.offset(i as isize * step);
                    for t in whole..steps {
                        *row.add(t) = *tile.add(t * pitch + first + i);
                    }
                    if !E::IS_COMPUTE_TYPE {
                        let to = dst.offset((first + i) as isize * plane.lane_step);
                        E::store_row(simd, core::slice::from_raw_parts(row, steps), core::slice::from_raw_parts_mut(to, steps));
                    }
                }
                first += count;
            }
        } else if plane.lane_step == 1 {
            for t in 0..steps {
                let row = core::slice::from_raw_parts(tile.add(t * pitch), lanes);
                E::store_row(simd, row, core::slice::from_raw_parts_mut(dst.offset(t as isize * plane.time_step), lanes));
            }
        } else if steps < T::lanes::<S>() {
            for t in 0..steps {
                for lane in 0..lanes {
                    *dst.offset(lane as isize * plane.lane_step + t as isize * plane.time_step) =
                        E::store(*tile.add(t * pitch + lane));
                }
            }
        } else {
            for lane in 0..lanes {
                let row = dst.offset(lane as isize * plane.lane_step);
                for t in 0..steps {
                    *row.offset(t as isize * plane.time_step) = E::store(*tile.add(t * pitch + lane));
                }
            }
        }
    }
}
