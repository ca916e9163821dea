//! `phi1(z) = (e^z - 1) / z` and its derivative, the gain of a zero-order hold and its gradient, of real and of complex lanes.
//!
//! ```text
//! phi1(z)  = expm1(z) / z,                    1 + z/2 for tiny |z|
//! phi1'(z) = (e^z (1 - 1/z) + 1/z) / z,       for |z|^2 >= 2
//!          = sum_k (k + 1) / (k + 2)! z^k,    for |z|^2 < 2: 13 terms for f32, 22 for f64
//! ```
//!
//! | largest error in ulp, for complex numbers of the modulus | f32 | f64 |
//! |---|---|---|
//! | `phi1`, real | 3 | 3 |
//! | `phi1'`, real | 4 | 4 |
//! | `phi1`, complex | 5 | 5 |
//! | `phi1'`, complex | 8 | 8 |
//!
//! At 0 they are exactly 1 and 1/2. For real numbers -infinity gives 0, and both are infinite from where `e^z` is, a little before they need
//! be; a complex number whose exponential overflows may give infinity or NaN. `|z|` itself may be as large as the type goes. NaN stays NaN.

use super::super::field::horner;
use super::super::simd::{Isa, Real, V};
use super::exp::Exp;

/// The series is used below this `|z|^2`: further in, the closed form loses digits.
const SERIES_NORM: f64 = 2.0;

/// Coefficients of the series of `phi1'`.
const SERIES: [f64; 22] = {
    let mut c = [0.0; 22];
    let (mut k, mut factorial) = (0, 2.0);
    while k < 22 {
        c[k] = (k + 1) as f64 / factorial;
        factorial *= (k + 3) as f64;
        k += 1;
    }
    c
};

/// `phi1(z)`.
#[inline(always)]
pub(crate) fn phi1<T: Real, S: Isa, F: Exp<T, S>>(z: F) -> F {
    exp_phi1(z).1
}

/// `(e^z, phi1(z))`.
#[inline(always)]
pub(crate) fn exp_phi1<T: Real, S: Isa, F: Exp<T, S>>(z: F) -> (F, F) {
    let (exp, expm1) = z.exp_expm1();
    (exp, quotient(z, expm1, z.safe_recip()))
}

/// `(e^z, phi1(z), phi1'(z))`.
#[inline(always)]
pub(crate) fn exp_phi1_derivative<T: Real, S: Isa, F: Exp<T, S>>(z: F) -> (F, F, F) {
    let simd = z.simd();
    let (exp, expm1) = z.exp_expm1();
    let inverse = z.safe_recip();
    let one = F::from_real(V::constant(simd, 1.0));
    let far = exp.mul_add(one - inverse, inverse) * inverse;
    let near = horner(simd, z, &SERIES[..T::PHI1_TERMS]);
    let derivative = F::select_less(z.norm_sqr(), V::constant(simd, SERIES_NORM), near, far);
    (exp, quotient(z, expm1, inverse), derivative)
}

/// `expm1 / z`, right at 0. The selection takes bits, so what the other side is does not matter.
#[inline(always)]
fn quotient<T: Real, S: Isa, F: Exp<T, S>>(z: F, expm1: F, inverse: F) -> F {
    let simd = z.simd();
    let near = z.scale_add(V::constant(simd, 0.5), F::from_real(V::constant(simd, 1.0)));
    F::select_less(z.norm_sqr(), V::constant(simd, T::TINY), near, expm1 * inverse)
}
