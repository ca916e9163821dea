//! Activations: `softplus`, `sigmoid`, `silu`, and their derivatives.
//!
//! ```text
//! softplus(x) = max(x, 0) + log1p(e^-|x|),  x above 20 (as PyTorch)
//! log1p(e)    = e + e^2 P(e) with P of degree 8 (f32)
//!             = 2 atanh(s) = 2 s + s^3 L(s^2), s = e / (2 + e) <= 1/3, L of degree 10 (f64)
//! sigmoid(x)  = 1 / (1 + e) or e / (1 + e) with e = e^-|x|, so that both it and 1 minus it keep every digit
//! silu(x)     = x / (1 + e^-x), silu' = sigmoid(x) (1 + x sigmoid(-x))
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

use super::super::field::horner;
use super::super::simd::{Isa, Real, V};
use super::exp;

/// Above this, softplus is the identity.
const THRESHOLD: f64 = 20.0;

/// `(ln(1 + e) - e) / e^2` on [0, 1], 5.1e-9 of the logarithm. In f64 so many terms would cost more than the division that they save.
const LOG1P: [f64; 9] = [
    -0.49999932763872523,
    0.33330511329605556,
    -0.24958587479961844,
    0.19695400616988887,
    -0.15355396013267733,
    0.1068055438947986,
    -0.05766442871726246,
    0.020204575038841682,
    -0.003318470102895996,
];

/// `(2 atanh(s) - 2 s) / s^3` in `s^2` on [0, 1/9], 3.8e-20.
const ATANH: &[f64] = &[
    0.6666666666666667,
    0.39999999999995384,
    0.2857142857233365,
    0.22222222136997222,
    0.1818182275610639,
    0.15384462876186353,
    0.1333663185095475,
    0.11717741822290556,
    0.10961040754077456,
    0.07036382181638855,
    0.16400834570334238,
];

/// `ln(1 + e^x)`, and `x` above 20: of several vectors, all of them one operation further before any gets the next. Its chain of operations is
/// so long that a processor which meets it vector by vector sees too few that need not wait.
#[inline(always)]
pub(crate) fn softplus_each<T: Real, S: Isa, const N: usize>(x: [V<T, S>; N]) -> [V<T, S>; N] {
    let zero = V::constant(x[0].simd(), 0.0);
    let (mut e, mut y) = (x, x);
    for i in 0..N {
        (e[i], y[i]) = (exp(-x[i].abs()), x[i].max(zero));
    }
    if !T::DOUBLE {
        // above the threshold the logarithm is less than half an ulp of x
        for i in 0..N {
            y[i] = e[i] + y[i];
        }
        return add_log1p(e, y);
    }
    let (two, threshold) = (V::constant(x[0].simd(), 2.0), V::constant(x[0].simd(), THRESHOLD));
    for i in 0..N {
        let s = e[i] / (e[i] + two);
        let s2 = s * s;
        let log = (s * s2).mul_add(horner(x[i].simd(), s2, ATANH), s + s);
        y[i] = V::select_less(threshold, x[i], x[i], y[i] + log);
    }
    y
}

/// `ln(1 + e)` added to sums that have `e` already. The polynomial is taken in pairs of terms: by Horner's rule its chain is as long as that
/// of the exponential before it.
#[inline(always)]
fn add_log1p<T: Real, S: Isa, const N: usize>(e: [V<T, S>; N], mut sums: [V<T, S>; N]) -> [V<T, S>; N] {
    let (mut square, mut low, mut high) = (e, e, e);
    for i in 0..N {
        (square[i], low[i], high[i]) = (e[i] * e[i], pair(e[i], 0), pair(e[i], 6));
    }
    for i in 0..N {
        low[i] = pair(e[i], 2).mul_add(square[i], low[i]);
        high[i] = V::constant(e[i].simd(), LOG1P[8]).mul_add(square[i], high[i]);
    }
    for i in 0..N {
        high[i] = high[i].mul_add(square[i], pair(e[i], 4));
    }
    for i in 0..N {
        low[i] = high[i].mul_add(square[i] * square[i], low[i]);
    }
    for i in 0..N {
        sums[i] = square[i].mul_add(low[i], sums[i]);
    }
    sums
}

/// Two neighbouring terms of [`LOG1P`].
#[inline(always)]
fn pair<T: Real, S: Isa>(e: V<T, S>, first: usize) -> V<T, S> {
    let simd = e.simd();
    V::constant(simd, LOG1P[first + 1]).mul_add(e, V::constant(simd, LOG1P[first]))
}

/// The derivative of [`softplus_each`]: `sigmoid(x)`, and 1 above 20.
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
    let [y] = silu_each([x]);
    y
}

/// [`silu`] of several vectors, see [`softplus_each`].
#[inline(always)]
pub(crate) fn silu_each<T: Real, S: Isa, const N: usize>(x: [V<T, S>; N]) -> [V<T, S>; N] {
    let one = V::constant(x[0].simd(), 1.0);
    let mut y = x;
    for i in 0..N {
        y[i] = exp(-x[i]) + one;
    }
    for i in 0..N {
        // a division keeps its unit busy for longer than all the rest takes
        y[i] = if T::DOUBLE { x[i] / y[i] } else { x[i] * y[i].short_recip() };
    }
    y
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
    let large = (one + e).short_recip();
    let small = e * large;
    (V::select_less(x, zero, small, large), V::select_less(x, zero, large, small))
}
