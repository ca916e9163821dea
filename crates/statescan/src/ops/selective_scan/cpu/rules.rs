//! The discretizations as vector code: each a functor, so that a kernel is written once for all of them.

use crate::cpu::math::{Exp, exp_phi1, exp_phi1_derivative, exp2, phi1, sincos};
use crate::cpu::simd::{Cx, Field, Isa, Real, V};

/// Real or complex states.
pub(in crate::ops) trait FieldKind: Sync {
    /// The vector of one state of neighbouring channels.
    type Of<T: Real, S: Isa>: Decay<T, S>;
    /// Real vectors in it.
    const PARTS: usize;
}

pub(in crate::ops) struct RealField;
pub(in crate::ops) struct ComplexField;

impl FieldKind for RealField {
    type Of<T: Real, S: Isa> = V<T, S>;
    const PARTS: usize = 1;
}

impl FieldKind for ComplexField {
    type Of<T: Real, S: Isa> = Cx<T, S>;
    const PARTS: usize = 2;
}

/// `exp(dt A)` with `A` prepared once: the factor log2(e) is folded into it, which saves a product in the innermost loop.
pub(in crate::ops) trait Decay<T: Real, S: Isa>: Exp<T, S> {
    fn prepare(self) -> Self;
    fn decay(self, dt: V<T, S>) -> Self;
}

impl<T: Real, S: Isa> Decay<T, S> for V<T, S> {
    #[inline(always)]
    fn prepare(self) -> Self {
        self * V::constant(self.simd(), core::f64::consts::LOG2_E)
    }
    #[inline(always)]
    fn decay(self, dt: V<T, S>) -> Self {
        exp2(self * dt)
    }
}

impl<T: Real, S: Isa> Decay<T, S> for Cx<T, S> {
    #[inline(always)]
    fn prepare(self) -> Self {
        Cx { re: self.re.prepare(), im: self.im }
    }
    #[inline(always)]
    fn decay(self, dt: V<T, S>) -> Self {
        let (sin, cos) = sincos(self.im * dt);
        Cx { re: cos, im: sin }.scale(self.re.decay(dt))
    }
}

/// What a backward step needs besides the decay, as functions of `z = dt A`.
pub(in crate::ops) struct Derivatives<F> {
    /// The derivative of the decay.
    pub decay: F,
    /// The gain of the input.
    pub gain: F,
    /// The derivative of the gain.
    pub gain_derivative: F,
}

/// `Abar = f(z)` and `Bbar = s gain(z)`, where `s` is `dt` (1 for `dirac`); see [`crate::ops::discretization`].
pub(in crate::ops) trait Rule: Sync {
    /// Whether the gain differs from 1.
    const GAIN: bool;
    /// What [`Rule::step`] takes in place of `A`.
    fn prepare<T: Real, S: Isa, F: Decay<T, S>>(a: F) -> F;
    /// The decay and the gain. `shared` says that `dt_a` is `dt`.
    fn step<T: Real, S: Isa, F: Decay<T, S>>(prepared: F, dt: V<T, S>, dt_a: V<T, S>, shared: bool) -> (F, F);
    /// The derivatives, given the decay.
    fn derivatives<T: Real, S: Isa, F: Decay<T, S>>(a: F, dt: V<T, S>, dt_a: V<T, S>, decay: F) -> Derivatives<F>;
}

/// `mamba` and `dirac`: `Abar = exp z`, gain 1.
pub(in crate::ops) struct Exponential;

impl Rule for Exponential {
    const GAIN: bool = false;
    #[inline(always)]
    fn prepare<T: Real, S: Isa, F: Decay<T, S>>(a: F) -> F {
        a.prepare()
    }
    #[inline(always)]
    fn step<T: Real, S: Isa, F: Decay<T, S>>(prepared: F, _dt: V<T, S>, dt_a: V<T, S>, _shared: bool) -> (F, F) {
        let decay = prepared.decay(dt_a);
        (decay, decay)
    }
    #[inline(always)]
    fn derivatives<T: Real, S: Isa, F: Decay<T, S>>(_a: F, _dt: V<T, S>, _dt_a: V<T, S>, decay: F) -> Derivatives<F> {
        Derivatives { decay, gain: decay, gain_derivative: decay }
    }
}

/// `zoh`: `Abar = exp z`, gain phi1(z).
pub(in crate::ops) struct Zoh;

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
        let (_, gain, gain_derivative) = exp_phi1_derivative(a.scale(dt));
        Derivatives { decay, gain, gain_derivative }
    }
}

/// `bilinear`: with `g(z) = 1 / (1 - z / 2)`, `Abar = 2 g - 1` and gain `g`.
pub(in crate::ops) struct Bilinear;

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
        Derivatives { decay: by_decay * by_decay, gain, gain_derivative: (gain * gain).scale(half) }
    }
}
