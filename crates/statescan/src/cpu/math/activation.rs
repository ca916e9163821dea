//! Activations: `softplus`, `sigmoid`, `silu`, and their derivatives.
//!
//! ```text
//! softplus(x) = max(x, 0) + log1p(e^-|x|),  x above 20 (as PyTorch)
//! log1p(e)    = 2 atanh(s) = 2 s + s^3 L(s^2), s = e / (2 + e) <= 1/3, L of degree 3 (f32) or 10 (f64)
//! sigmoid(x)  = 1 / (1 + e) or e / (1 + e) with e = e^-|x|, so that both it and 1 minus it keep every digit
//! silu(x)     = x sigmoid(x), silu' = sigmoid(x) (1 + x sigmoid(-x))
//! ```
//!
//! | largest error in ulp | f32 | f64 |
//! |---|---|---|
//! | `softplus`, `softplus_derivative`, `sigmoid` | 2.5 | 2.5 |
//! | `silu` | 3 | 3 |
//! | derivative of `silu`, at least of 1/4 for x > -2 since it crosses 0 at -1.28 | 6 | 6 |
//!
//! The relative error stays small for very negative `x`, as far as `e^x` is a normal number (-86 in f32, -706 in f64); below, results go to
//! 0 and never to NaN. 0 and denormals give ln(2) and 1/2. At an infinity `softplus`, its derivative and `sigmoid` are their limits; `silu` of
//! -infinity and its derivative at either infinity are NaN, as in PyTorch. NaN stays NaN.

use super::super::simd::{Isa, Real, V};
use super::{exp, horner};

/// Above this, softplus is the identity.
const THRESHOLD: f64 = 20.0;

/// `ln(1 + e^x)`, and `x` above 20.
#[inline(always)]
pub(crate) fn softplus<T: Real, S: Isa>(x: V<T, S>) -> V<T, S> {
    let simd = x.simd();
    let e = exp(-x.abs());
    let s = e / (e + V::constant(simd, 2.0));
    let s2 = s * s;
    let log = (s * s2).mul_add(horner(simd, s2, T::ATANH), s + s);
    let sum = x.max(V::constant(simd, 0.0)) + log;
    V::select_less(V::constant(simd, THRESHOLD), x, x, sum)
}

/// The derivative of [`softplus`]: `sigmoid(x)`, and 1 above 20.
#[inline(always)]
pub(crate) fn softplus_derivative<T: Real, S: Isa>(x: V<T, S>) -> V<T, S> {
    let simd = x.simd();
    V::select_less(V::constant(simd, THRESHOLD), x, V::constant(simd, 1.0), sigmoid(x))
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<T: Real, S: Isa>(x: V<T, S>) -> V<T, S> {
    sigmoid_both(x).0
}

/// `x sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu<T: Real, S: Isa>(x: V<T, S>) -> V<T, S> {
    x * sigmoid(x)
}

/// `silu(x)` and its derivative.
#[inline(always)]
pub(crate) fn silu_and_derivative<T: Real, S: Isa>(x: V<T, S>) -> (V<T, S>, V<T, S>) {
    let (sigmoid, other) = sigmoid_both(x);
    (x * sigmoid, sigmoid * x.mul_add(other, V::constant(x.simd(), 1.0)))
}

/// `(sigmoid(x), sigmoid(-x))`.
#[inline(always)]
fn sigmoid_both<T: Real, S: Isa>(x: V<T, S>) -> (V<T, S>, V<T, S>) {
    let simd = x.simd();
    let (zero, one) = (V::constant(simd, 0.0), V::constant(simd, 1.0));
    let e = exp(-x.abs());
    let large = one / (one + e);
    let small = e * large;
    (V::select_less(x, zero, small, large), V::select_less(x, zero, large, small))
}
