//! [`Field`]: what a linear recurrence runs on, real lanes ([`V`]) or complex ones ([`Cx`]), so that one body serves both.

use super::simd::{Isa, Real, V};
use core::ops::{Add, Mul, Neg, Sub};

/// Vectors that a linear recurrence can run on: real lanes or complex lanes. In memory a complex vector is its real lanes followed by its
/// imaginary lanes.
pub(crate) trait Field<T: Real, S: Isa>:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Neg<Output = Self>
{
    /// Real vectors in one of these: 1 or 2.
    const PARTS: usize;
    /// A real vector as an element of the field.
    fn from_real(x: V<T, S>) -> Self;
    /// A number of its real and its imaginary lanes, of which real ones have none: then those are anything.
    fn of_parts(parts: [V<T, S>; 2]) -> Self;
    /// The inverse of [`Field::of_parts`].
    fn parts(self) -> [V<T, S>; 2];
    /// `self * a + b`.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// `conj(self) * a + b`.
    fn conj_mul_add(self, a: Self, b: Self) -> Self;
    /// `self * x` for real lanes.
    fn scale(self, x: V<T, S>) -> Self;
    /// `self * x + b` for real lanes `x`.
    fn scale_add(self, x: V<T, S>, b: Self) -> Self;
    /// The complex conjugate.
    fn conj(self) -> Self;
    /// `1 / self`.
    fn recip(self) -> Self;
    /// `|self|^2`.
    fn norm_sqr(self) -> V<T, S>;
    /// Lane by lane `if a < b { yes } else { no }`.
    fn select_less(a: V<T, S>, b: V<T, S>, yes: Self, no: Self) -> Self;
    /// Zero.
    #[inline(always)]
    fn zero(simd: S) -> Self {
        Self::from_real(V::constant(simd, 0.0))
    }
    /// `Re(self * a) + b`, the output of a complex state.
    fn re_mul_add(self, a: Self, b: V<T, S>) -> V<T, S>;
    /// `Re(conj(self) * a) + b`.
    fn re_dot_add(self, a: Self, b: V<T, S>) -> V<T, S>;
}

impl<T: Real, S: Isa> Field<T, S> for V<T, S> {
    const PARTS: usize = 1;
    #[inline(always)]
    fn from_real(x: V<T, S>) -> Self {
        x
    }
    #[inline(always)]
    fn of_parts([real, _]: [V<T, S>; 2]) -> Self {
        real
    }
    #[inline(always)]
    fn parts(self) -> [V<T, S>; 2] {
        [self, self]
    }
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        V::mul_add(self, a, b)
    }
    #[inline(always)]
    fn conj_mul_add(self, a: Self, b: Self) -> Self {
        V::mul_add(self, a, b)
    }
    #[inline(always)]
    fn scale(self, x: V<T, S>) -> Self {
        self * x
    }
    #[inline(always)]
    fn scale_add(self, x: V<T, S>, b: Self) -> Self {
        V::mul_add(self, x, b)
    }
    #[inline(always)]
    fn conj(self) -> Self {
        self
    }
    #[inline(always)]
    fn recip(self) -> Self {
        V::constant(self.simd(), 1.0) / self
    }
    #[inline(always)]
    fn norm_sqr(self) -> V<T, S> {
        self * self
    }
    #[inline(always)]
    fn select_less(a: V<T, S>, b: V<T, S>, yes: Self, no: Self) -> Self {
        V::select_less(a, b, yes, no)
    }
    #[inline(always)]
    fn re_mul_add(self, a: Self, b: V<T, S>) -> V<T, S> {
        V::mul_add(self, a, b)
    }
    #[inline(always)]
    fn re_dot_add(self, a: Self, b: V<T, S>) -> V<T, S> {
        V::mul_add(self, a, b)
    }
}

/// A vector of complex lanes.
#[derive(Clone, Copy)]
pub(crate) struct Cx<T: Real, S: Isa> {
    /// Real parts.
    pub re: V<T, S>,
    /// Imaginary parts.
    pub im: V<T, S>,
}

impl<T: Real, S: Isa> Add for Cx<T, S> {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Cx { re: self.re + other.re, im: self.im + other.im }
    }
}

impl<T: Real, S: Isa> Sub for Cx<T, S> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Cx { re: self.re - other.re, im: self.im - other.im }
    }
}

impl<T: Real, S: Isa> Mul for Cx<T, S> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Cx { re: self.im.neg_mul_add(other.im, self.re * other.re), im: self.im.mul_add(other.re, self.re * other.im) }
    }
}

impl<T: Real, S: Isa> Neg for Cx<T, S> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Cx { re: -self.re, im: -self.im }
    }
}

impl<T: Real, S: Isa> Field<T, S> for Cx<T, S> {
    const PARTS: usize = 2;
    #[inline(always)]
    fn from_real(x: V<T, S>) -> Self {
        Cx { re: x, im: V::constant(x.simd(), 0.0) }
    }
    #[inline(always)]
    fn of_parts([re, im]: [V<T, S>; 2]) -> Self {
        Cx { re, im }
    }
    #[inline(always)]
    fn parts(self) -> [V<T, S>; 2] {
        [self.re, self.im]
    }
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        Cx { re: self.im.neg_mul_add(a.im, self.re.mul_add(a.re, b.re)), im: self.im.mul_add(a.re, self.re.mul_add(a.im, b.im)) }
    }
    #[inline(always)]
    fn conj_mul_add(self, a: Self, b: Self) -> Self {
        Cx { re: self.im.mul_add(a.im, self.re.mul_add(a.re, b.re)), im: self.im.neg_mul_add(a.re, self.re.mul_add(a.im, b.im)) }
    }
    #[inline(always)]
    fn scale(self, x: V<T, S>) -> Self {
        Cx { re: self.re * x, im: self.im * x }
    }
    #[inline(always)]
    fn scale_add(self, x: V<T, S>, b: Self) -> Self {
        Cx { re: self.re.mul_add(x, b.re), im: self.im.mul_add(x, b.im) }
    }
    #[inline(always)]
    fn conj(self) -> Self {
        Cx { re: self.re, im: -self.im }
    }
    #[inline(always)]
    fn recip(self) -> Self {
        self.conj().scale(self.norm_sqr().recip())
    }
    #[inline(always)]
    fn norm_sqr(self) -> V<T, S> {
        self.re.mul_add(self.re, self.im * self.im)
    }
    #[inline(always)]
    fn select_less(a: V<T, S>, b: V<T, S>, yes: Self, no: Self) -> Self {
        Cx { re: V::select_less(a, b, yes.re, no.re), im: V::select_less(a, b, yes.im, no.im) }
    }
    #[inline(always)]
    fn re_mul_add(self, a: Self, b: V<T, S>) -> V<T, S> {
        self.im.neg_mul_add(a.im, self.re.mul_add(a.re, b))
    }
    #[inline(always)]
    fn re_dot_add(self, a: Self, b: V<T, S>) -> V<T, S> {
        self.im.mul_add(a.im, self.re.mul_add(a.re, b))
    }
}

/// `c[0] + c[1] x + ...` by Horner's rule.
#[inline(always)]
pub(crate) fn horner<T: Real, S: Isa, F: Field<T, S>>(simd: S, x: F, c: &[f64]) -> F {
    let mut sum = F::from_real(V::constant(simd, c[c.len() - 1]));
    for &c in c.iter().rev().skip(1) {
        sum = sum.mul_add(x, F::from_real(V::constant(simd, c)));
    }
    sum
}
