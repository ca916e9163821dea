//! The discretizations as vector code for every operation: each a functor, so that a kernel is written once for all of them.
//! The table of formulas is in [`super::discretization`].

use crate::cpu::math::{Exp, exp_phi1, exp_phi1_derivative, phi1, sincos};
use crate::cpu::simd::{Cx, Field, Isa, Real, V};

/// Real or complex states.
pub(crate) trait FieldKind: Sync {
    /// The vector of one state of neighbouring channels.
    type Of<T: Real, S: Isa>: Decay<T, S>;
    /// Real vectors in it.
    const PARTS: usize;
}

pub(crate) struct RealField;
pub(crate) struct ComplexField;

impl FieldKind for RealField {
    type Of<T: Real, S: Isa> = V<T, S>;
    const PARTS: usize = 1;
}

impl FieldKind for ComplexField {
    type Of<T: Real, S: Isa> = Cx<T, S>;
    const PARTS: usize = 2;
}

/// `exp(dt A)` with `A` prepared once: the factor log2(e) is folded into it, which saves a product in the innermost loop.
pub(crate) trait Decay<T: Real, S: Isa>: Exp<T, S> {
    fn prepare(self) -> Self;
    /// `BOUNDED` as in [`crate::cpu::simd::V::exp2_product`], for the real part.
    fn decay<const BOUNDED: bool>(self, dt: V<T, S>) -> Self;
}

impl<T: Real, S: Isa> Decay<T, S> for V<T, S> {
    #[inline(always)]
    fn prepare(self) -> Self {
        self * V::constant(self.simd(), core::f64::consts::LOG2_E)
    }
    #[inline(always)]
    fn decay<const BOUNDED: bool>(self, dt: V<T, S>) -> Self {
        V::exp2_product::<BOUNDED>(self, dt)
    }
}

impl<T: Real, S: Isa> Decay<T, S> for Cx<T, S> {
    #[inline(always)]
    fn prepare(self) -> Self {
        Cx { re: self.re.prepare(), im: self.im }
    }
    #[inline(always)]
    fn decay<const BOUNDED: bool>(self, dt: V<T, S>) -> Self {
        let (sin, cos) = sincos(self.im * dt);
        Cx { re: cos, im: sin }.scale(self.re.decay::<BOUNDED>(dt))
    }
}

/// The derivatives that a backward step needs besides the decay, as functions of `z = dt A`.
pub(crate) struct Derivatives<F> {
    /// The derivative of the decay.
    pub decay: F,
    /// The gain of the input.
    pub gain: F,
    /// The derivative of the gain.
    pub gain_derivative: F,
    /// The derivative of `dt gain(dt A)` by `dt`, without the cancellation of `gain + z gain'`.
    pub input_by_step: F,
}

/// `Abar = f(z)` and `Bbar = s gain(z)`, where `s` is `dt` (1 for `dirac`); see [`crate::ops::discretization`].
pub(crate) trait Rule: Sync {
    /// Whether the gain differs from 1.
    const GAIN: bool;
    /// Returns the operand that [`Rule::step`] takes in place of `A`.
    fn prepare<T: Real, S: Isa, F: Decay<T, S>>(a: F) -> F;
    /// The decay and the gain. `shared` says that `dt_a` is `dt`.
    fn step<T: Real, S: Isa, F: Decay<T, S>>(prepared: F, dt: V<T, S>, dt_a: V<T, S>, shared: bool) -> (F, F);
    /// The derivatives, given the decay. Without a gain, only that of the decay means anything.
    fn derivatives<T: Real, S: Isa, F: Decay<T, S>>(a: F, dt: V<T, S>, dt_a: V<T, S>, decay: F) -> Derivatives<F>;
}

/// `mamba` and `dirac`: `Abar = exp z`, gain 1.
///
/// `BOUNDED` promises that every real part of `dt A log2(e)` is NaN or between -[`BOUND`] and it, which saves instructions and changes no bit.
pub(crate) struct Exponential<const BOUNDED: bool = false>;

/// Real exponents of 2 up to this are in the normal range, with room for rounding.
pub(crate) const BOUND: f64 = 125.0;

impl<const BOUNDED: bool> Rule for Exponential<BOUNDED> {
    const GAIN: bool = false;
    #[inline(always)]
    fn prepare<T: Real, S: Isa, F: Decay<T, S>>(a: F) -> F {
        a.prepare()
    }
    #[inline(always)]
    fn step<T: Real, S: Isa, F: Decay<T, S>>(prepared: F, _dt: V<T, S>, dt_a: V<T, S>, _shared: bool) -> (F, F) {
        let decay = prepared.decay::<BOUNDED>(dt_a);
        (decay, decay)
    }
    #[inline(always)]
    fn derivatives<T: Real, S: Isa, F: Decay<T, S>>(_a: F, _dt: V<T, S>, _dt_a: V<T, S>, decay: F) -> Derivatives<F> {
        Derivatives { decay, gain: decay, gain_derivative: decay, input_by_step: decay }
    }
}

/// `zoh`: `Abar = exp z`, gain phi1(z).
pub(crate) struct Zoh;

impl Rule for Zoh {
    const GAIN: bool = true;
    #[inline(always)]
    fn prepare<T: Real, S: Isa, F: Decay<T, S>>(a: F) -> F {
        a
    }
    #[inline(always)]
    fn step<T: Real, S: Isa, F: Decay<T, S>>(a: F, dt: V<T, S>, dt_a: V<T, S>, shared: bool) -> (F, F) {
        if shared { exp_phi1(a.scale(dt)) } else { (a.scale(dt_a).exp(), phi1(a.scale(dt))) }
    }
    #[inline(always)]
    fn derivatives<T: Real, S: Isa, F: Decay<T, S>>(a: F, dt: V<T, S>, _dt_a: V<T, S>, decay: F) -> Derivatives<F> {
        let (input_by_step, gain, gain_derivative) = exp_phi1_derivative(a.scale(dt));
        Derivatives { decay, gain, gain_derivative, input_by_step }
    }
}

/// `bilinear`: with `g(z) = 1 / (1 - z / 2)`, `Abar = 2 g - 1` and gain `g`.
pub(crate) struct Bilinear;

#[inline(always)]
fn tustin<T: Real, S: Isa, F: Decay<T, S>>(a: F, dt: V<T, S>) -> F {
    let half = V::constant(dt.simd(), -0.5);
    a.scale_add(dt * half, F::from_real(V::constant(dt.simd(), 1.0))).recip()
}

impl Rule for Bilinear {
    const GAIN: bool = true;
    #[inline(always)]
    fn prepare<T: Real, S: Isa, F: Decay<T, S>>(a: F) -> F {
        a
    }
    #[inline(always)]
    fn step<T: Real, S: Isa, F: Decay<T, S>>(a: F, dt: V<T, S>, dt_a: V<T, S>, shared: bool) -> (F, F) {
        // (1 + z/2) g loses nothing near z = -2, where 2 g - 1 would cancel
        let gain = tustin(a, dt);
        let decay_gain = if shared { gain } else { tustin(a, dt_a) };
        let half = V::constant(dt.simd(), 0.5);
        let numerator = a.scale_add(dt_a * half, F::from_real(V::constant(dt.simd(), 1.0)));
        (numerator * decay_gain, gain)
    }
    #[inline(always)]
    fn derivatives<T: Real, S: Isa, F: Decay<T, S>>(a: F, dt: V<T, S>, dt_a: V<T, S>, _decay: F) -> Derivatives<F> {
        let (gain, by_decay) = (tustin(a, dt), tustin(a, dt_a));
        let half = V::constant(dt.simd(), 0.5);
        let square = gain * gain;
        Derivatives { decay: by_decay * by_decay, gain, gain_derivative: square.scale(half), input_by_step: square }
    }
}
