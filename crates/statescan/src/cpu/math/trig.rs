//! Sine and cosine together.
//!
//! `x = q pi/2 + r` with `pi/2` in three parts, `|r| <= pi/4`; `sin r = r + r^3 S(r^2)` and `cos r = 1 - r^2/2 + r^4 C(r^2)` with S and C of
//! degree 2 (f32) or 5 (f64), then the quadrant swaps and signs them.
//!
//! Error: 1.5 ulp (f32) or 2 ulp (f64), and where the result is small because `x` is near a multiple of `pi/2` other than 0, at most 2^-35
//! or 2^-91 more: part of an ulp for results from 2^-10 or 2^-38 on. That holds to `|x|` = 8192 or 2^20; beyond, a vector with such a lane
//! goes through libm lane by lane and is right for every number. 0 of either sign gives +0 and 1, a denormal itself and 1, infinity and NaN
//! give NaN.

use super::super::field::horner;
use super::super::simd::{Isa, Real, V};
use super::super::sizes::MAX_LANES;

/// `(sin x, cos x)`.
#[inline(always)]
pub(crate) fn sincos<T: Real, S: Isa>(x: V<T, S>) -> (V<T, S>, V<T, S>) {
    let (sin, cos, _) = sincos_versine(x);
    (sin, cos)
}

/// `(sin x, cos x, 1 - cos x)`, the last without cancellation.
#[inline(always)]
pub(super) fn sincos_versine<T: Real, S: Isa>(x: V<T, S>) -> (V<T, S>, V<T, S>, V<T, S>) {
    let simd = x.simd();
    if V::constant(simd, T::SINCOS_LIMIT).any_less(x.abs()) {
        return huge(x);
    }
    let constant = |c| V::constant(simd, c);
    let q = (x * constant(core::f64::consts::FRAC_2_PI)).round();
    let mut r = x;
    for part in T::HALF_PI {
        r = q.neg_mul_add(constant(part), r);
    }
    let r2 = r * r;
    let sin = (r * r2).mul_add(horner(simd, r2, T::SIN), r);
    let versine = r2 * r2.neg_mul_add(horner(simd, r2, T::COS), constant(0.5));
    let cos = constant(1.0) - versine;
    // the quadrant, in -2 ..= 2
    let quadrant = (q * constant(0.25)).round().neg_mul_add(constant(4.0), q);
    let odd = (quadrant.abs() - constant(1.0)).abs();
    let half = constant(0.5);
    let signed = |off: V<T, S>, y: V<T, S>| V::select_less(constant(1.0), off.abs(), -y, y);
    let y = signed(quadrant - half, V::select_less(odd, half, cos, sin));
    let z = signed(quadrant + half, V::select_less(odd, half, sin, cos));
    (y, z, V::select_less(quadrant.abs(), half, versine, constant(1.0) - z))
}

/// Lane by lane, for arguments beyond the reduction.
#[inline(always)]
fn huge<T: Real, S: Isa>(x: V<T, S>) -> (V<T, S>, V<T, S>, V<T, S>) {
    let mut lanes = [x.to_array(), [T::default(); MAX_LANES], [T::default(); MAX_LANES]];
    huge_lanes(&mut lanes, V::<T, S>::lanes());
    let [sin, cos, versine] = &lanes;
    (V::from_array(x.simd(), sin), V::from_array(x.simd(), cos), V::from_array(x.simd(), versine))
}

/// Replaces the arguments in the first row; apart, so that the calls into libm stay out of the vector code.
#[cold]
#[inline(never)]
fn huge_lanes<T: Real>(lanes: &mut [[T; MAX_LANES]; 3], count: usize) {
    for lane in 0..count {
        let x = lanes[0][lane].to_f64();
        let half = (0.5 * x).sin();
        lanes[0][lane] = T::from_f64(x.sin());
        lanes[1][lane] = T::from_f64(x.cos());
        lanes[2][lane] = T::from_f64(2.0 * half * half);
    }
}
