//! Exponentials: `exp`, `expm1`, of real and of complex lanes.
//!
//! ```text
//! exp(x)    x = n ln(2) + f;         e^f = 1 + p, p = f + f^2 g(f), g of degree 4 (f32) or 10 (f64)
//! expm1(x)  = 2^n p + (2^n - 1), which never cancels since |p| < 0.42
//! e^(a+bi)  = e^a (cos b, sin b)
//! e^(a+bi) - 1 = expm1(a) cos b - (1 - cos b) + i e^a sin b, which is right next to every multiple of 2 pi i
//! ```
//!
//! `exp` alone is shorter in f32 on AVX-512, by a table (`exp2.rs`).
//!
//! | largest error in ulp | f32 | f64 |
//! |---|---|---|
//! | `exp` | 1.25 | 1.25 |
//! | `expm1` | 2 | 2 |
//! | complex `exp`, of the modulus | 2.5 | 2.5 |
//!
//! A zero, of either sign, and a denormal give 1, and 0 or the denormal for `expm1`. Overflow and +infinity give infinity, -infinity gives 0
//! and -1, NaN stays NaN. Results next to the smallest normal number and below (under 2^-125, 2^-1021) are exact denormals on AVX-512; on the
//! other levels they fall to 0 in their own way. A complex result has no NaN unless the number has one or its imaginary part is infinite.

use super::super::field::horner;
use super::super::simd::{Cx, Field, Isa, Real, V};
use super::trig;

/// `e^x`.
#[inline(always)]
pub(crate) fn exp<T: Real, S: Isa>(x: V<T, S>) -> V<T, S> {
    x.power_of_e()
}

/// `e^x` by [`reduced`], where the instruction set has nothing shorter.
#[inline(always)]
pub(crate) fn exp_reduced<T: Real, S: Isa>(x: V<T, S>) -> V<T, S> {
    let (p, n) = reduced(x);
    (p + V::constant(x.simd(), 1.0)).scale_pow2(n)
}

/// `(p, n)` with `e^x = (1 + p) 2^n`.
#[inline(always)]
fn reduced<T: Real, S: Isa>(x: V<T, S>) -> (V<T, S>, V<T, S>) {
    let simd = x.simd();
    let x = x.max(V::constant(simd, T::EXP_RANGE[0])).min(V::constant(simd, T::EXP_RANGE[1]));
    let n = (x * V::constant(simd, core::f64::consts::LOG2_E)).round();
    let f = n.neg_mul_add(V::constant(simd, T::LN2[0]), x);
    let f = n.neg_mul_add(V::constant(simd, T::LN2[1]), f);
    ((f * f).mul_add(horner(simd, f, T::EXPM1), f), n)
}

/// `(e^x, e^x - 1)` from the parts of [`reduced`].
#[inline(always)]
fn both<T: Real, S: Isa>(p: V<T, S>, n: V<T, S>) -> (V<T, S>, V<T, S>) {
    let one = V::constant(p.simd(), 1.0);
    let e = (p + one).scale_pow2(n);
    let m = p.scale_pow2(n) + (one.scale_pow2(n) - one);
    // the power alone overflows before the product does
    (e, V::select_less(V::constant(p.simd(), 100.0), n, e, m))
}

/// A field with an exponential.
pub(crate) trait Exp<T: Real, S: Isa>: Field<T, S> {
    /// The token.
    fn simd(self) -> S;
    /// `e^self`.
    fn exp(self) -> Self;
    /// `(e^self, e^self - 1)`.
    fn exp_expm1(self) -> (Self, Self);
    /// `1 / self` for numbers that are neither tiny nor, in their real part, so large that `e^self` is infinite.
    fn safe_recip(self) -> Self;
}

impl<T: Real, S: Isa> Exp<T, S> for V<T, S> {
    #[inline(always)]
    fn simd(self) -> S {
        V::simd(self)
    }
    #[inline(always)]
    fn exp(self) -> Self {
        exp(self)
    }
    #[inline(always)]
    fn exp_expm1(self) -> (Self, Self) {
        let (p, n) = reduced(self);
        both(p, n)
    }
    #[inline(always)]
    fn safe_recip(self) -> Self {
        // so that infinity times this stays infinity
        self.min(V::constant(V::simd(self), 1000.0)).recip()
    }
}

impl<T: Real, S: Isa> Exp<T, S> for Cx<T, S> {
    #[inline(always)]
    fn simd(self) -> S {
        self.re.simd()
    }
    #[inline(always)]
    fn exp(self) -> Self {
        let (p, n) = reduced(self.re);
        let (sin, cos) = trig::sincos(self.im);
        // the power comes last: infinity times a sine of 0 would be NaN
        let e = p + V::constant(self.re.simd(), 1.0);
        Cx { re: (e * cos).scale_pow2(n), im: (e * sin).scale_pow2(n) }
    }
    #[inline(always)]
    fn exp_expm1(self) -> (Self, Self) {
        let (p, n) = reduced(self.re);
        let (sin, cos, versine) = trig::sincos_versine(self.im);
        let e = p + V::constant(self.re.simd(), 1.0);
        let im = (e * sin).scale_pow2(n);
        let m = both(p, n).1;
        (Cx { re: (e * cos).scale_pow2(n), im }, Cx { re: m.mul_add(cos, -versine), im })
    }
    #[inline(always)]
    fn safe_recip(self) -> Self {
        let simd = self.re.simd();
        // an infinite real part has a zero exponential, so a finite one serves
        let z = Cx { re: self.re.max(V::constant(simd, -T::LARGEST)), im: self.im };
        let (size, limit) = (z.re.abs() + z.im.abs(), V::constant(simd, 1.0 / (1024.0 * T::SHRINK)));
        let factor = V::select_less(size, limit, V::constant(simd, 1.0), V::constant(simd, T::SHRINK));
        z.scale(factor).recip().scale(factor)
    }
}
