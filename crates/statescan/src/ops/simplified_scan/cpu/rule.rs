//! The discretizations on vectors of states: each a functor with its derivatives (the table is in [`crate::ops::discretization`]).

use crate::cpu::math::{Exp, exp_phi1, exp_phi1_derivative, phi1};
use crate::cpu::simd::{Cx, Field, Isa, Real, V};
use crate::ops::discretization::Discretization;

/// What a backward step needs.
pub(crate) struct Derivatives<F> {
    /// Abar
    pub decay: F,
    /// dAbar/dz
    pub decay_by_z: F,
    /// Bbar
    pub input: F,
    /// dBbar/ddelta
    pub input_by_d: F,
    /// dBbar/dA
    pub input_by_a: F,
}

/// A discretization; `shared` says that both steps are the same.
trait Rule {
    /// Abar and Bbar.
    fn values<T: Real, S: Isa>(a: Cx<T, S>, d: V<T, S>, da: V<T, S>, shared: bool) -> (Cx<T, S>, Cx<T, S>);
    /// The same with derivatives.
    fn derivatives<T: Real, S: Isa>(a: Cx<T, S>, d: V<T, S>, da: V<T, S>, shared: bool) -> Derivatives<Cx<T, S>>;
}

struct Mamba;
struct Dirac;
struct Zoh;
struct Bilinear;

#[inline(always)]
fn one<T: Real, S: Isa>(like: V<T, S>) -> V<T, S> {
    V::constant(like.simd(), 1.0)
}

impl Rule for Mamba {
    #[inline(always)]
    fn values<T: Real, S: Isa>(a: Cx<T, S>, d: V<T, S>, da: V<T, S>, _shared: bool) -> (Cx<T, S>, Cx<T, S>) {
        (a.scale(da).exp(), Cx::from_real(d))
    }
    #[inline(always)]
    fn derivatives<T: Real, S: Isa>(a: Cx<T, S>, d: V<T, S>, da: V<T, S>, _shared: bool) -> Derivatives<Cx<T, S>> {
        let decay = a.scale(da).exp();
        let (one, zero) = (Cx::from_real(one(d)), Cx::zero(d.simd()));
        Derivatives { decay, decay_by_z: decay, input: Cx::from_real(d), input_by_d: one, input_by_a: zero }
    }
}

impl Rule for Dirac {
    #[inline(always)]
    fn values<T: Real, S: Isa>(a: Cx<T, S>, d: V<T, S>, da: V<T, S>, _shared: bool) -> (Cx<T, S>, Cx<T, S>) {
        (a.scale(da).exp(), Cx::from_real(one(d)))
    }
    #[inline(always)]
    fn derivatives<T: Real, S: Isa>(a: Cx<T, S>, d: V<T, S>, da: V<T, S>, _shared: bool) -> Derivatives<Cx<T, S>> {
        let decay = a.scale(da).exp();
        let (one, zero) = (Cx::from_real(one(d)), Cx::zero(d.simd()));
        Derivatives { decay, decay_by_z: decay, input: one, input_by_d: zero, input_by_a: zero }
    }
}

impl Rule for Zoh {
    #[inline(always)]
    fn values<T: Real, S: Isa>(a: Cx<T, S>, d: V<T, S>, da: V<T, S>, shared: bool) -> (Cx<T, S>, Cx<T, S>) {
        let (decay, gain) = if shared { exp_phi1(a.scale(d)) } else { (a.scale(da).exp(), phi1(a.scale(d))) };
        (decay, gain.scale(d))
    }
    #[inline(always)]
    fn derivatives<T: Real, S: Isa>(a: Cx<T, S>, d: V<T, S>, da: V<T, S>, shared: bool) -> Derivatives<Cx<T, S>> {
        let (exp, gain, gain_by_z) = exp_phi1_derivative(a.scale(d));
        let decay = if shared { exp } else { a.scale(da).exp() };
        Derivatives { decay, decay_by_z: decay, input: gain.scale(d), input_by_d: exp, input_by_a: gain_by_z.scale(d * d) }
    }
}

/// `1 / (1 - z/2)`
#[inline(always)]
fn tustin<T: Real, S: Isa>(a: Cx<T, S>, d: V<T, S>) -> Cx<T, S> {
    a.scale_add(d * V::constant(d.simd(), -0.5), Cx::from_real(one(d))).recip()
}

impl Rule for Bilinear {
    #[inline(always)]
    fn values<T: Real, S: Isa>(a: Cx<T, S>, d: V<T, S>, da: V<T, S>, shared: bool) -> (Cx<T, S>, Cx<T, S>) {
        let gain = tustin(a, d);
        let decay_gain = if shared { gain } else { tustin(a, da) };
        // (1 + z/2) g loses nothing near z = -2, where 2 g - 1 would cancel
        let numerator = a.scale_add(da * V::constant(d.simd(), 0.5), Cx::from_real(one(d)));
        (numerator * decay_gain, gain.scale(d))
    }
    #[inline(always)]
    fn derivatives<T: Real, S: Isa>(a: Cx<T, S>, d: V<T, S>, da: V<T, S>, shared: bool) -> Derivatives<Cx<T, S>> {
        let gain = tustin(a, d);
        let decay_gain = if shared { gain } else { tustin(a, da) };
        let half = V::constant(d.simd(), 0.5);
        let numerator = a.scale_add(da * half, Cx::from_real(one(d)));
        let square = gain * gain;
        Derivatives {
            decay: numerator * decay_gain,
            decay_by_z: decay_gain * decay_gain,
            input: gain.scale(d),
            input_by_d: square,
            input_by_a: square.scale(half * d * d),
        }
    }
}

/// Step sizes of one vector of states: a tile of real vectors; a step of 0 stands for sizes that do not depend on time.
#[derive(Clone, Copy)]
pub(crate) struct Deltas<T> {
    pub d: *const T,
    pub d_step: usize,
    pub da: *const T,
    pub da_step: usize,
    /// Whether `da` is `d`.
    pub shared: bool,
}

impl<T: Real> Deltas<T> {
    /// # Safety
    /// Step `t` is inside both tiles.
    #[inline(always)]
    pub(crate) unsafe fn at<S: Isa>(self, simd: S, t: usize) -> (V<T, S>, V<T, S>) {
        // SAFETY: the caller's contract.
        unsafe { (V::load(simd, self.d.add(t * self.d_step)), V::load(simd, self.da.add(t * self.da_step))) }
    }
}

/// Writes Abar and Bbar for `count` steps.
///
/// # Safety
/// The step sizes can be read, and `decay` and `input` written, for `count` vectors.
#[inline(always)]
pub(crate) unsafe fn values<T: Real, S: Isa>(
    simd: S,
    method: Discretization,
    a: Cx<T, S>,
    deltas: Deltas<T>,
    count: usize,
    decay: *mut T,
    input: *mut T,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match method {
            Discretization::Mamba => values_of::<T, S, Mamba>(simd, a, deltas, count, decay, input),
            Discretization::Zoh => values_of::<T, S, Zoh>(simd, a, deltas, count, decay, input),
            Discretization::Bilinear => values_of::<T, S, Bilinear>(simd, a, deltas, count, decay, input),
            Discretization::Dirac => values_of::<T, S, Dirac>(simd, a, deltas, count, decay, input),
        }
    }
}

#[inline(always)]
unsafe fn values_of<T: Real, S: Isa, R: Rule>(
    simd: S,
    a: Cx<T, S>,
    deltas: Deltas<T>,
    count: usize,
    decay: *mut T,
    input: *mut T,
) {
    let step = 2 * T::lanes::<S>();
    for t in 0..count {
        // SAFETY: the contract of `values`.
        unsafe {
            let (d, da) = deltas.at(simd, t);
            let (by_decay, by_input) = R::values(a, d, da, deltas.shared);
            by_decay.store(decay.add(t * step));
            by_input.store(input.add(t * step));
        }
    }
}

/// Writes the five numbers of [`Derivatives`], one tile each, for `count` steps.
///
/// # Safety
/// As [`values`].
#[inline(always)]
pub(crate) unsafe fn derivatives<T: Real, S: Isa>(
    simd: S,
    method: Discretization,
    a: Cx<T, S>,
    deltas: Deltas<T>,
    count: usize,
    to: &Derivatives<*mut T>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match method {
            Discretization::Mamba => derivatives_of::<T, S, Mamba>(simd, a, deltas, count, to),
            Discretization::Zoh => derivatives_of::<T, S, Zoh>(simd, a, deltas, count, to),
            Discretization::Bilinear => derivatives_of::<T, S, Bilinear>(simd, a, deltas, count, to),
            Discretization::Dirac => derivatives_of::<T, S, Dirac>(simd, a, deltas, count, to),
        }
    }
}

#[inline(always)]
unsafe fn derivatives_of<T: Real, S: Isa, R: Rule>(
    simd: S,
    a: Cx<T, S>,
    deltas: Deltas<T>,
    count: usize,
    to: &Derivatives<*mut T>,
) {
    let step = 2 * T::lanes::<S>();
    for t in 0..count {
        // SAFETY: the contract of `derivatives`.
        unsafe {
            let (d, da) = deltas.at(simd, t);
            let it = R::derivatives(a, d, da, deltas.shared);
            it.decay.store(to.decay.add(t * step));
            it.decay_by_z.store(to.decay_by_z.add(t * step));
            it.input.store(to.input.add(t * step));
            it.input_by_d.store(to.input_by_d.add(t * step));
            it.input_by_a.store(to.input_by_a.add(t * step));
        }
    }
}
