//! Tiles: blocks of time x channel in the compute type, loaded from and stored to memory of any type and strides.
//!
//! A tile is step-major: element (step, lane) is at `step * pitch + lane`, so that one vector holds neighbouring channels of one step. Loading
//! converts and transposes in one pass, which makes storage types, strides and layouts free for kernels. Complex tensors load as two planes.

use super::simd::{Isa, Real};
use super::{Kernel, outline};
use crate::tensor::{DType, RawViewMut, View};
use core::mem::MaybeUninit;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Steps in a tile.
pub(crate) const STEPS: usize = 64;
/// The widest vector has this many lanes.
pub(crate) const MAX_LANES: usize = 16;

/// A two-dimensional strided part of a tensor: lanes x steps, real elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plane {
    ptr: *mut u8,
    dtype: DType,
    lane_step: isize,
    time_step: isize,
    complex: bool,
}

// SAFETY: a plane is an address; whoever loads or stores through it answers for the access.
unsafe impl Send for Plane {}
// SAFETY: as above.
unsafe impl Sync for Plane {}

impl Plane {
    fn new(ptr: *mut u8, dtype: DType, strides: &[isize], lane_axis: usize, time_axis: usize) -> Self {
        Plane { ptr, dtype, lane_step: strides[lane_axis], time_step: strides[time_axis], complex: false }
    }

    /// A plane of a view that is read, with the other axes at index 0. A complex view gives its real parts; see [`Plane::imaginary`].
    pub(crate) fn of(view: &View<'_>, lane_axis: usize, time_axis: usize) -> Self {
        Self::new(view.as_ptr().cast_mut(), view.dtype(), &view.strides(), lane_axis, time_axis).real()
    }

    /// A plane with strides of its own, in elements of the view; it starts where the view does.
    pub(crate) fn strided(view: &View<'_>, lane_step: isize, time_step: isize) -> Self {
        Self::new(view.as_ptr().cast_mut(), view.dtype(), &[lane_step, time_step], 0, 1).real()
    }

    /// A plane of a view that is written.
    pub(crate) fn of_mut(view: &RawViewMut, lane_axis: usize, time_axis: usize) -> Self {
        Self::new(view.as_mut_ptr(), view.dtype(), &view.strides(), lane_axis, time_axis).real()
    }

    fn real(mut self) -> Self {
        if self.dtype.is_complex() {
            self.dtype = self.dtype.real();
            self.complex = true;
            self.lane_step *= 2;
            self.time_step *= 2;
        }
        self
    }

    /// The imaginary parts beside a plane made from a complex view.
    pub(crate) fn imaginary(self) -> Self {
        self.advance_bytes(self.dtype.size() as isize)
    }

    /// Both parts of a complex plane whose time is contiguous, as a real plane of twice the steps: a tile of that is a tile of both parts.
    fn interleaved(self, parts: usize) -> Option<Self> {
        (parts == 2 && self.complex && self.time_step == 2).then_some(Plane { time_step: 1, complex: false, ..self })
    }

    /// Moves the origin by `count` indices of an axis that is not in the plane; `stride` is the view's, in its own elements.
    pub(crate) fn along(self, count: usize, stride: isize) -> Self {
        let size = self.dtype.size() * if self.complex { 2 } else { 1 };
        self.advance_bytes(count as isize * stride * size as isize)
    }

    /// The same elements with lanes and steps exchanged.
    pub(crate) fn transposed(self) -> Self {
        Plane { lane_step: self.time_step, time_step: self.lane_step, ..self }
    }

    /// Moves the origin to a lane and a step.
    pub(crate) fn at(self, lane: usize, step: usize) -> Self {
        let elements = lane as isize * self.lane_step + step as isize * self.time_step;
        self.advance_bytes(elements * self.dtype.size() as isize)
    }

    /// Asks for the lines of lanes x steps ahead of their use, where rows are contiguous along either axis. Any position is allowed: an
    /// address outside the tensor is never touched.
    #[inline(always)]
    pub(crate) fn prefetch(self, lanes: usize, steps: usize) {
        let (rows, row_step, len) = match (self.lane_step, self.time_step) {
            (_, 1) => (lanes, self.lane_step, steps),
            (1, _) => (steps, self.time_step, lanes),
            _ => return,
        };
        let size = self.dtype.size();
        for row in 0..rows {
            let start = self.ptr.wrapping_offset(row as isize * row_step * size as isize);
            for at in (0..len * size).step_by(LINE) {
                prefetch(start.wrapping_add(at));
            }
        }
    }

    fn advance_bytes(mut self, bytes: isize) -> Self {
        self.ptr = self.ptr.wrapping_offset(bytes);
        self
    }
}

/// Bytes in a cache line.
const LINE: usize = 64;

/// Asks for a cache line, into the second level: rows a power of two apart would push each other out of the first.
#[inline(always)]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it has no effect that a program could observe, whatever the address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T1 }>(address.cast())
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Conversion between a storage type and a compute type.
trait Storage<T>: Copy {
    /// Whether no conversion is needed.
    const IS_COMPUTE_TYPE: bool = false;
    fn load(self) -> T;
    fn store(value: T) -> Self;
    /// Converts a contiguous row.
    #[inline(always)]
    fn load_row(src: &[Self], dst: &mut [T]) {
        for (d, s) in dst.iter_mut().zip(src) {
            *d = s.load();
        }
    }
    /// Converts into a contiguous row.
    #[inline(always)]
    fn store_row(src: &[T], dst: &mut [Self])
    where
        T: Copy,
    {
        for (d, s) in dst.iter_mut().zip(src) {
            *d = Self::store(*s);
        }
    }
}

impl<T: Real> Storage<T> for f32 {
    const IS_COMPUTE_TYPE: bool = !T::DOUBLE;
    #[inline(always)]
    fn load(self) -> T {
        T::from_f64(f64::from(self))
    }
    #[inline(always)]
    fn store(value: T) -> Self {
        value.to_f64() as f32
    }
}

impl<T: Real> Storage<T> for f64 {
    const IS_COMPUTE_TYPE: bool = T::DOUBLE;
    #[inline(always)]
    fn load(self) -> T {
        T::from_f64(self)
    }
    #[inline(always)]
    fn store(value: T) -> Self {
        value.to_f64()
    }
}

impl<T: Real> Storage<T> for bf16 {
    #[inline(always)]
    fn load(self) -> T {
        T::from_f64(f64::from(f32::from_bits(u32::from(self.to_bits()) << 16)))
    }
    #[inline(always)]
    fn store(value: T) -> Self {
        if T::DOUBLE { bf16::from_f64(value.to_f64()) } else { bf16::from_f32(value.to_f64() as f32) }
    }
}

impl<T: Real> Storage<T> for f16 {
    #[inline(always)]
    fn load(self) -> T {
        T::from_f64(self.to_f64())
    }
    #[inline(always)]
    fn store(value: T) -> Self {
        if T::DOUBLE { f16::from_f64(value.to_f64()) } else { f16::from_f32(value.to_f64() as f32) }
    }
    #[inline(always)]
    fn load_row(src: &[Self], dst: &mut [T]) {
        // half converts slices with the processor's own instructions where it has them
        match bytemuck::try_cast_slice_mut::<T, f32>(dst) {
            Ok(dst) if !T::DOUBLE => src.convert_to_f32_slice(dst),
            _ => dst.iter_mut().zip(src).for_each(|(d, s)| *d = s.load()),
        }
    }
    #[inline(always)]
    fn store_row(src: &[T], dst: &mut [Self]) {
        match bytemuck::try_cast_slice::<T, f32>(src) {
            Ok(src) if !T::DOUBLE => dst.convert_from_f32_slice(src),
            _ => dst.iter_mut().zip(src).for_each(|(d, s)| *d = Self::store(*s)),
        }
    }
}

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
                        E::load_row(core::slice::from_raw_parts(row, steps), to);
                    }
                    rows = Rows { first: stage, step: STEPS as isize };
                }
                transpose_in(simd, rows, count, steps, tile.add(first), pitch);
                first += count;
            }
        } else if plane.lane_step == 1 {
            for t in 0..steps {
                let row = core::slice::from_raw_parts(src.offset(t as isize * plane.time_step), lanes);
                E::load_row(row, core::slice::from_raw_parts_mut(tile.add(t * pitch), lanes));
            }
        } else if plane.lane_step == 0 {
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
                        E::store_row(core::slice::from_raw_parts(row, steps), core::slice::from_raw_parts_mut(to, steps));
                    }
                }
                first += count;
            }
        } else if plane.lane_step == 1 {
            for t in 0..steps {
                let row = core::slice::from_raw_parts(tile.add(t * pitch), lanes);
                E::store_row(row, core::slice::from_raw_parts_mut(dst.offset(t as isize * plane.time_step), lanes));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{Kernel, Level};
    use crate::tensor::{Element, ViewMut};

    struct RoundTrip<'v, T> {
        source: View<'v>,
        target: RawViewMut,
        tile: &'v mut [T],
        lanes: usize,
        steps: usize,
    }

    impl<T: Real> Kernel for RoundTrip<'_, T> {
        type Output = ();
        #[inline(always)]
        fn run<S: Isa>(self, simd: S) {
            let pitch = self.lanes.next_multiple_of(T::lanes::<S>());
            let tile = self.tile.as_mut_ptr();
            // SAFETY: the views have lanes x steps elements and the tile has room for STEPS rows of 64.
            unsafe {
                load(simd, Plane::of(&self.source, 0, 1), self.lanes, pitch, self.steps, tile, pitch);
                for t in 0..self.steps {
                    for lane in 0..pitch {
                        let value = (*tile.add(t * pitch + lane)).to_f64();
                        let expected = if lane < self.lanes { self.source.at(&[lane, t]).re } else { 0.0 };
                        assert_eq!(value, expected, "lane {lane} step {t}");
                    }
                }
                store(simd, tile, pitch, Plane::of_mut(&self.target, 0, 1), self.lanes, self.steps);
            }
        }
    }

    fn round_trip<T: Real, E: Element + PartialEq + core::fmt::Debug>(from: fn(f64) -> E) {
        for level in Level::available() {
            for (lanes, steps) in [(1, 1), (3, 7), (8, 16), (16, 64), (17, 33), (40, 63), (16, 0)] {
                let data: Vec<E> = (0..64 * 64 * 4).map(|i| from(f64::from(i % 251) * 0.5 - 60.0)).collect();
                for strides in [[64, 1], [1, 64], [2, 130], [130, 2], [64, -1]] {
                    let mut out = vec![from(-7.0); data.len()];
                    let source = View::strided(&data, 64, &[lanes, steps], &strides).unwrap();
                    let mut target = ViewMut::strided(&mut out, 64, &[lanes, steps], &strides).unwrap();
                    let mut tile = vec![T::from_f64(f64::NAN); STEPS * 64];
                    let target = target.raw();
                    level.dispatch(RoundTrip { source, target, tile: &mut tile, lanes, steps });
                    let mut touched = vec![false; out.len()];
                    source.for_each_offset(|o| touched[(64 + o) as usize] = true);
                    for i in 0..out.len() {
                        assert_eq!(out[i], if touched[i] { data[i] } else { from(-7.0) });
                    }
                }
            }
        }
    }

    #[test]
    fn tiles_round_trip_for_every_type_stride_and_level() {
        round_trip::<f32, f32>(|x| x as f32);
        round_trip::<f64, f64>(|x| x);
        round_trip::<f64, f32>(|x| x as f32);
        round_trip::<f32, bf16>(bf16::from_f64);
        round_trip::<f32, f16>(f16::from_f64);
        round_trip::<f64, f16>(f16::from_f64);
    }
}
