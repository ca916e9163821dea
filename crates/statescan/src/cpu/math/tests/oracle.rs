//! Double-double arithmetic (about 106 bits) and the functions in it, by Taylor series.

use core::ops::{Add, Div, Mul, Neg, Sub};

#[derive(Clone, Copy, Debug)]
pub(super) struct Dd {
    pub hi: f64,
    pub lo: f64,
}

pub(super) const fn dd(hi: f64) -> Dd {
    Dd { hi, lo: 0.0 }
}

const LN2: Dd = Dd { hi: core::f64::consts::LN_2, lo: 2.3190468138462996e-17 };
const HALF_PI: Dd = Dd { hi: core::f64::consts::FRAC_PI_2, lo: 6.123233995736766e-17 };

fn two_sum(a: f64, b: f64) -> Dd {
    let hi = a + b;
    let t = hi - a;
    Dd { hi, lo: (a - (hi - t)) + (b - t) }
}

fn quick(a: f64, b: f64) -> Dd {
    let hi = a + b;
    Dd { hi, lo: b - (hi - a) }
}

impl Add for Dd {
    type Output = Dd;
    fn add(self, o: Dd) -> Dd {
        let (s, t) = (two_sum(self.hi, o.hi), two_sum(self.lo, o.lo));
        let s = quick(s.hi, s.lo + t.hi);
        quick(s.hi, s.lo + t.lo)
    }
}
impl Neg for Dd {
    type Output = Dd;
    fn neg(self) -> Dd {
        Dd { hi: -self.hi, lo: -self.lo }
    }
}
impl Sub for Dd {
    type Output = Dd;
    fn sub(self, o: Dd) -> Dd {
        self + -o
    }
}
impl Mul for Dd {
    type Output = Dd;
    fn mul(self, o: Dd) -> Dd {
        let hi = self.hi * o.hi;
        let lo = self.hi.mul_add(o.hi, -hi);
        quick(hi, lo + (self.hi * o.lo + self.lo * o.hi))
    }
}
impl Div for Dd {
    type Output = Dd;
    fn div(self, o: Dd) -> Dd {
        let first = dd(self.hi / o.hi);
        let rest = self - first * o;
        let second = dd(rest.hi / o.hi);
        let rest = rest - second * o;
        first + second + dd(rest.hi / o.hi)
    }
}

impl Dd {
    fn scale(self, factor: f64) -> Dd {
        Dd { hi: self.hi * factor, lo: self.lo * factor }
    }

    pub fn exp(self) -> Dd {
        let n = (self.hi / LN2.hi).round().clamp(-1100.0, 1100.0);
        let r = (self - dd(n) * LN2).scale(1.0 / 16.0);
        let mut sum = dd(1.0);
        for k in (1..20).rev() {
            sum = dd(1.0) + sum * r / dd(k as f64);
        }
        for _ in 0..4 {
            sum = sum * sum;
        }
        let half = (0.5 * n).floor();
        sum.scale(half.exp2()).scale((n - half).exp2())
    }

    pub fn exp2(self) -> Dd {
        // the power of two first, for the product with ln(2) would lose it
        let n = self.hi.round().clamp(-1100.0, 1100.0);
        let half = (0.5 * n).floor();
        ((self - dd(n)) * LN2).exp().scale(half.exp2()).scale((n - half).exp2())
    }

    pub fn expm1(self) -> Dd {
        match self.hi.abs() < 1e-6 {
            true => self + self * self * (dd(0.5) + self / dd(6.0)),
            false => self.exp() - dd(1.0),
        }
    }

    /// `ln(1 + self)` for `self` in [0, 1], by Newton's method on the exponential.
    pub fn ln_1p(self) -> Dd {
        if self.hi < 1e-8 {
            return self - self * self * (dd(0.5) - self / dd(3.0));
        }
        let guess = dd(self.hi.ln_1p());
        guess + ((dd(1.0) + self) / guess.exp() - dd(1.0))
    }

    pub fn sin_cos(self) -> (Dd, Dd) {
        let q = (self.hi / HALF_PI.hi).round();
        let r = self - dd(q) * HALF_PI;
        let r2 = r * r;
        let (mut sin, mut cos) = (dd(1.0), dd(1.0));
        for k in (1..16).rev() {
            let k = k as f64;
            sin = dd(1.0) - sin * r2 / dd(2.0 * k * (2.0 * k + 1.0));
            cos = dd(1.0) - cos * r2 / dd(2.0 * k * (2.0 * k - 1.0));
        }
        let sin = sin * r;
        match q.rem_euclid(4.0) as i32 {
            0 => (sin, cos),
            1 => (cos, -sin),
            2 => (-sin, -cos),
            _ => (-cos, sin),
        }
    }
}

/// A complex number.
#[derive(Clone, Copy, Debug)]
pub(super) struct C {
    pub re: Dd,
    pub im: Dd,
}

impl C {
    pub fn new(re: f64, im: f64) -> C {
        C { re: dd(re), im: dd(im) }
    }
    fn add(self, o: C) -> C {
        C { re: self.re + o.re, im: self.im + o.im }
    }
    fn mul(self, o: C) -> C {
        C { re: self.re * o.re - self.im * o.im, im: self.re * o.im + self.im * o.re }
    }
    fn real(self, x: f64) -> C {
        C { re: self.re * dd(x), im: self.im * dd(x) }
    }
    fn div(self, o: C) -> C {
        let norm = o.re * o.re + o.im * o.im;
        let p = self.mul(C { re: o.re, im: -o.im });
        C { re: p.re / norm, im: p.im / norm }
    }
    pub fn norm(self) -> f64 {
        self.re.hi.hypot(self.im.hi)
    }
    pub fn exp(self) -> C {
        let (sin, cos) = self.im.sin_cos();
        let e = self.re.exp();
        C { re: e * cos, im: e * sin }
    }
    /// `(exp, phi1, phi1')`.
    pub fn phi(self) -> (C, C, C) {
        let (one, exp) = (C::new(1.0, 0.0), self.exp());
        if self.norm() < 1e-6 {
            let phi1 = one.add(self.real(0.5)).add(self.mul(self).div(C::new(6.0, 0.0)));
            let slope = one.real(0.5).add(self.div(C::new(3.0, 0.0))).add(self.mul(self).real(0.125));
            return (exp, phi1, slope);
        }
        let minus = C::new(-1.0, 0.0);
        let phi1 = exp.add(minus).div(self);
        // (e^z (z - 1) + 1) / z^2
        let slope = exp.mul(self.add(minus)).add(one).div(self).div(self);
        (exp, phi1, slope)
    }
}
