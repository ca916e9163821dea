//! Lines that are stored in the type they are read in, without tiles. On AVX-512 every input is read and converted once, and what earlier taps
//! take is made from two neighbouring vectors: three of four loads of shifted inputs would lie in two cache lines. On AVX2 that would take four
//! shuffles, and 16-bit inputs are read and converted for every tap instead.

use super::{MAX_LANES, Taps, silu_each};
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::Storage;
use crate::tensor::DType;
use half::{bf16, f16};

/// The width of filters that this is for, that of released models: with a width known only at run time it was slower than the loads.
const WIDTH: usize = 4;

/// Whether filters of a width are quicker this way on lines of a type.
#[inline(always)]
pub(super) fn follows<T: Real, S: Isa>(width: usize, dtype: DType) -> bool {
    let narrow = !T::DOUBLE && dtype.size() == 2;
    width == WIDTH && (S::FOLLOWS && (narrow || dtype == T::DTYPE) || S::WIDENS && narrow)
}

/// Whole vectors of a line that is stored as it was read, in any type, without anything in between.
///
/// # Safety
/// [`follows`] says so of filters and type. Source and target are of this type, hold at least a vector, and the source, which begins where the first tap
/// of the first output looks, holds WIDTH - 1 elements more.
#[inline(always)]
pub(super) unsafe fn follow<T: Real, S: Isa>(
    taps: Taps<T, S>,
    dtype: DType,
    (source, target): (*const u8, *mut u8),
    vectors: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match dtype {
            DType::BF16 if S::WIDENS && !T::DOUBLE => widen_pairs(taps, source.cast(), target.cast(), vectors),
            DType::F16 if S::WIDENS && !T::DOUBLE => widen::<T, S, f16>(taps, source.cast(), target.cast(), vectors),
            DType::F64 if T::DOUBLE => follow_as::<T, S, f64>(taps, source.cast(), target.cast(), vectors),
            DType::F32 if !T::DOUBLE => follow_as::<T, S, f32>(taps, source.cast(), target.cast(), vectors),
            DType::BF16 if !T::DOUBLE => follow_as::<T, S, bf16>(taps, source.cast(), target.cast(), vectors),
            DType::F16 if !T::DOUBLE => follow_as::<T, S, f16>(taps, source.cast(), target.cast(), vectors),
            _ => unreachable!("lines of other types do not come here"),
        }
    }
}

/// [`follow`] for one type.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn follow_as<T: Real, S: Isa, X: Storage<T>>(taps: Taps<T, S>, source: *const X, target: *mut X, vectors: usize) {
    let (simd, lanes, before) = (taps.bias.simd(), T::lanes::<S>(), WIDTH - 1);
    // SAFETY: the caller's contract; there is at least a vector of elements.
    unsafe {
        let first = X::load_vector(simd, source);
        // its first lanes where the last ones of a vector before the line would have them
        let (mut last, source) = (first.follow(first, lanes - before), source.add(before));
        let mut i = 0;
        while i + 4 <= vectors {
            last = follow_group::<T, S, X, 4>(taps, last, source.add(i * lanes), target.add(i * lanes));
            i += 4;
        }
        while i < vectors {
            last = follow_group::<T, S, X, 1>(taps, last, source.add(i * lanes), target.add(i * lanes));
            i += 1;
        }
    }
}

/// `R` neighbouring vectors of [`follow`], given the inputs before them; gives the last inputs. Here source and target begin at the same step.
///
/// # Safety
/// Both hold as many vectors.
#[inline(always)]
unsafe fn follow_group<T: Real, S: Isa, X: Storage<T>, const R: usize>(
    taps: Taps<T, S>,
    last: V<T, S>,
    source: *const X,
    target: *mut X,
) -> V<T, S> {
    let (simd, lanes) = (taps.bias.simd(), T::lanes::<S>());
    let (mut sum, mut x) = ([taps.bias; R], [taps.bias; R]);
    // SAFETY: the caller's contract.
    unsafe {
        for r in 0..R {
            x[r] = X::load_vector(simd, source.add(r * lanes));
        }
        for k in 0..WIDTH {
            let (tap, behind) = (V::load(simd, taps.ptr.add(k * lanes)), WIDTH - 1 - k);
            for r in 0..R {
                let before = if r == 0 { last } else { x[r - 1] };
                let x = if behind == 0 { x[r] } else { x[r].follow(before, behind) };
                sum[r] = x.mul_add(tap, sum[r]);
            }
        }
        if taps.silu {
            sum = silu_each(sum);
        }
        for r in 0..R {
            X::store_vector(sum[r], target.add(r * lanes));
        }
    }
    x[R - 1]
}

/// [`follow`] with inputs converted for every tap.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn widen<T: Real, S: Isa, X: Storage<T>>(taps: Taps<T, S>, source: *const X, target: *mut X, vectors: usize) {
    let (lanes, mut i) = (T::lanes::<S>(), 0);
    // SAFETY: the caller's contract.
    unsafe {
        while i + 4 <= vectors {
            widen_group::<T, S, X, 4>(taps, source.add(i * lanes), target.add(i * lanes));
            i += 4;
        }
        while i < vectors {
            widen_group::<T, S, X, 1>(taps, source.add(i * lanes), target.add(i * lanes));
            i += 1;
        }
    }
}

/// `R` neighbouring vectors of [`widen`].
///
/// # Safety
/// The target holds as many vectors, the source WIDTH - 1 elements more.
#[inline(always)]
unsafe fn widen_group<T: Real, S: Isa, X: Storage<T>, const R: usize>(taps: Taps<T, S>, source: *const X, target: *mut X) {
    let (simd, lanes) = (taps.bias.simd(), T::lanes::<S>());
    let mut sum = [taps.bias; R];
    // SAFETY: the caller's contract.
    unsafe {
        for k in 0..WIDTH {
            let tap = V::load(simd, taps.ptr.add(k * lanes));
            for r in 0..R {
                sum[r] = X::load_vector(simd, source.add(r * lanes + k)).mul_add(tap, sum[r]);
            }
        }
        if taps.silu {
            sum = silu_each(sum);
        }
        for r in 0..R {
            X::store_vector(sum[r], target.add(r * lanes));
        }
    }
}

/// [`follow`] for bf16 in f32, even and odd steps apart: two halves of words are widened by an operation each, and narrowed without moving lanes.
///
/// # Safety
/// As there, and `T` is f32.
#[inline(always)]
unsafe fn widen_pairs<T: Real, S: Isa>(taps: Taps<T, S>, source: *const bf16, target: *mut bf16, vectors: usize) {
    let (lanes, mut bias, mut i) = (T::lanes::<S>(), [T::default(); MAX_LANES], 0);
    // SAFETY: the caller's contract; a vector has at most MAX_LANES lanes.
    unsafe {
        taps.bias.store(bias.as_mut_ptr());
        let bias = V::load(taps.bias.simd(), bias.as_ptr().cast::<f32>());
        let Taps { ptr, pitch, width, step, silu, .. } = taps;
        let of_f32 = Taps { ptr: ptr.cast::<f32>(), pitch, width, step, bias, silu };
        while i + 4 <= vectors {
            widen_two_pairs(of_f32, source.add(i * lanes), target.add(i * lanes));
            i += 4;
        }
        widen::<T, S, bf16>(taps, source.add(i * lanes), target.add(i * lanes), vectors - i);
    }
}

/// Four neighbouring vectors of [`widen_pairs`].
///
/// # Safety
/// The target holds as many vectors, the source WIDTH - 1 elements more.
#[inline(always)]
unsafe fn widen_two_pairs<S: Isa>(taps: Taps<f32, S>, source: *const bf16, target: *mut bf16) {
    let (simd, lanes) = (taps.bias.simd(), S::F32_LANES);
    let mut sum = [taps.bias; 4];
    // SAFETY: the caller's contract.
    unsafe {
        for pair in 0..2 {
            let source = source.add(2 * pair * lanes);
            let ([x0, x1], [x2, x3]) = (V::load_pairs(simd, source), V::load_pairs(simd, source.add(2)));
            // from one step further only those at odd places are left
            let [_, x4] = V::load_pairs(simd, source.add(WIDTH - 1));
            let x = [x0, x1, x2, x3, x4];
            for k in 0..WIDTH {
                let tap = V::load(simd, taps.ptr.add(k * lanes));
                sum[2 * pair] = x[k].mul_add(tap, sum[2 * pair]);
                sum[2 * pair + 1] = x[k + 1].mul_add(tap, sum[2 * pair + 1]);
            }
        }
        if taps.silu {
            sum = silu_each(sum);
        }
        for pair in 0..2 {
            V::store_pairs([sum[2 * pair], sum[2 * pair + 1]], target.add(2 * pair * lanes));
        }
    }
}
