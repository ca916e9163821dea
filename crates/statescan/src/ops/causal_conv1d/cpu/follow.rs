//! Lines that are stored in the type they are read in, without tiles. On AVX-512 every input is read and converted once, and what earlier taps
//! take is made from two neighbouring vectors: three of four loads of shifted inputs would lie in two cache lines. On AVX2 that would take four
//! shuffles, and 16-bit inputs are read and converted for every tap instead.

use super::{Taps, silu_each};
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::Storage;
use crate::cpu::{Array, ArrayMut};
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
#[inline(always)]
pub(super) fn follow<T: Real, S: Isa>(
    taps: Taps<'_, T, S>,
    dtype: DType,
    (source, target): (Array<'_, u8>, ArrayMut<'_, u8>),
    vectors: usize,
) {
    match dtype {
        DType::BF16 if S::WIDENS && !T::DOUBLE => widen_pairs(taps, source.elements(), target.elements(), vectors),
        DType::F16 if S::WIDENS && !T::DOUBLE => widen::<T, S, f16>(taps, source.elements(), target.elements(), vectors),
        DType::F64 if T::DOUBLE => follow_as::<T, S, f64>(taps, source.elements(), target.elements(), vectors),
        DType::F32 if !T::DOUBLE => follow_as::<T, S, f32>(taps, source.elements(), target.elements(), vectors),
        DType::BF16 if !T::DOUBLE => follow_as::<T, S, bf16>(taps, source.elements(), target.elements(), vectors),
        DType::F16 if !T::DOUBLE => follow_as::<T, S, f16>(taps, source.elements(), target.elements(), vectors),
        _ => unreachable!("lines of other types do not come here"),
    }
}

/// [`follow`] for one type.
#[inline(always)]
fn follow_as<T: Real, S: Isa, X: Storage<T>>(
    taps: Taps<'_, T, S>,
    source: Array<'_, X>,
    mut target: ArrayMut<'_, X>,
    vectors: usize,
) {
    let (simd, lanes, before) = (taps.bias.simd(), T::lanes::<S>(), WIDTH - 1);
    let first = X::load_vector(simd, source, 0);
    // its first lanes where the last ones of a vector before the line would have them
    let (mut last, source) = (first.follow(first, lanes - before), source.from(before));
    let mut i = 0;
    while i + 4 <= vectors {
        last = follow_group::<T, S, X, 4>(taps, last, source.from(i * lanes), target.from(i * lanes));
        i += 4;
    }
    while i < vectors {
        last = follow_group::<T, S, X, 1>(taps, last, source.from(i * lanes), target.from(i * lanes));
        i += 1;
    }
}

/// `R` neighbouring vectors of [`follow`], given the inputs before them; gives the last inputs. Here source and target begin at the same step.
#[inline(always)]
fn follow_group<T: Real, S: Isa, X: Storage<T>, const R: usize>(
    taps: Taps<'_, T, S>,
    last: V<T, S>,
    source: Array<'_, X>,
    mut target: ArrayMut<'_, X>,
) -> V<T, S> {
    let (simd, lanes) = (taps.bias.simd(), T::lanes::<S>());
    let (mut sum, mut x) = ([taps.bias; R], [taps.bias; R]);
    for r in 0..R {
        x[r] = X::load_vector(simd, source, r * lanes);
    }
    for k in 0..WIDTH {
        let (tap, behind) = (taps.array.load(simd, k * lanes), WIDTH - 1 - k);
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
        X::store_vector(sum[r], target.reborrow(), r * lanes);
    }
    x[R - 1]
}

/// [`follow`] with inputs converted for every tap.
#[inline(always)]
fn widen<T: Real, S: Isa, X: Storage<T>>(
    taps: Taps<'_, T, S>,
    source: Array<'_, X>,
    mut target: ArrayMut<'_, X>,
    vectors: usize,
) {
    let (lanes, mut i) = (T::lanes::<S>(), 0);
    while i + 4 <= vectors {
        widen_group::<T, S, X, 4>(taps, source.from(i * lanes), target.from(i * lanes));
        i += 4;
    }
    while i < vectors {
        widen_group::<T, S, X, 1>(taps, source.from(i * lanes), target.from(i * lanes));
        i += 1;
    }
}

/// `R` neighbouring vectors of [`widen`].
#[inline(always)]
fn widen_group<T: Real, S: Isa, X: Storage<T>, const R: usize>(
    taps: Taps<'_, T, S>,
    source: Array<'_, X>,
    mut target: ArrayMut<'_, X>,
) {
    let (simd, lanes) = (taps.bias.simd(), T::lanes::<S>());
    let mut sum = [taps.bias; R];
    for k in 0..WIDTH {
        let tap = taps.array.load(simd, k * lanes);
        for r in 0..R {
            sum[r] = X::load_vector(simd, source, r * lanes + k).mul_add(tap, sum[r]);
        }
    }
    if taps.silu {
        sum = silu_each(sum);
    }
    for r in 0..R {
        X::store_vector(sum[r], target.reborrow(), r * lanes);
    }
}

/// [`follow`] for bf16 in f32, even and odd steps apart: two halves of words are widened by an operation each, and narrowed without moving lanes.
#[inline(always)]
fn widen_pairs<T: Real, S: Isa>(taps: Taps<'_, T, S>, source: Array<'_, bf16>, mut target: ArrayMut<'_, bf16>, vectors: usize) {
    let (lanes, mut i) = (T::lanes::<S>(), 0);
    let bias = V::from_array(taps.bias.simd(), &taps.bias.to_array().map(|x| x.to_f64() as f32));
    let Taps { array, pitch, width, step, silu, .. } = taps;
    let of_f32 = Taps { array: array.into_f32(), pitch, width, step, bias, silu };
    while i + 4 <= vectors {
        widen_two_pairs(of_f32, source.from(i * lanes), target.from(i * lanes));
        i += 4;
    }
    widen::<T, S, bf16>(taps, source.from(i * lanes), target.from(i * lanes), vectors - i);
}

/// Four neighbouring vectors of [`widen_pairs`].
#[inline(always)]
fn widen_two_pairs<S: Isa>(taps: Taps<'_, f32, S>, source: Array<'_, bf16>, mut target: ArrayMut<'_, bf16>) {
    let (simd, lanes) = (taps.bias.simd(), S::F32_LANES);
    let mut sum = [taps.bias; 4];
    for pair in 0..2 {
        let source = source.from(2 * pair * lanes);
        let ([x0, x1], [x2, x3]) = (source.load_pairs(simd, 0), source.load_pairs(simd, 2));
        // from one step further only those at odd places are left
        let [_, x4] = source.load_pairs(simd, WIDTH - 1);
        let x = [x0, x1, x2, x3, x4];
        for k in 0..WIDTH {
            let tap = taps.array.load(simd, k * lanes);
            sum[2 * pair] = x[k].mul_add(tap, sum[2 * pair]);
            sum[2 * pair + 1] = x[k + 1].mul_add(tap, sum[2 * pair + 1]);
        }
    }
    if taps.silu {
        sum = silu_each(sum);
    }
    for pair in 0..2 {
        target.store_pairs(2 * pair * lanes, [sum[2 * pair], sum[2 * pair + 1]]);
    }
}
