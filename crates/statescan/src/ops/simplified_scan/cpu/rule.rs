//! Abar, Bbar and their derivatives for tiles of steps, from the functors that every operation shares.

use crate::cpu::simd::{Cx, Field, Isa, Real, V};
use crate::ops::discretization::Discretization;
use crate::ops::rules::{Bilinear, Exponential, Rule, Zoh};

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
            Discretization::Mamba => values_of::<T, S, Exponential, true>(simd, a, deltas, count, decay, input),
            Discretization::Dirac => values_of::<T, S, Exponential, false>(simd, a, deltas, count, decay, input),
            Discretization::Zoh => values_of::<T, S, Zoh, true>(simd, a, deltas, count, decay, input),
            Discretization::Bilinear => values_of::<T, S, Bilinear, true>(simd, a, deltas, count, decay, input),
        }
    }
}

/// Bbar: the gain, times the step unless the discretization takes impulses.
#[inline(always)]
fn input_of<T: Real, S: Isa, R: Rule, const SCALED: bool>(d: V<T, S>, gain: Cx<T, S>) -> Cx<T, S> {
    match (R::GAIN, SCALED) {
        (true, _) => gain.scale(d),
        (false, true) => Cx::from_real(d),
        (false, false) => Cx::from_real(V::constant(d.simd(), 1.0)),
    }
}

#[inline(always)]
unsafe fn values_of<T: Real, S: Isa, R: Rule, const SCALED: bool>(
    simd: S,
    a: Cx<T, S>,
    deltas: Deltas<T>,
    count: usize,
    decay: *mut T,
    input: *mut T,
) {
    let (step, prepared) = (2 * T::lanes::<S>(), R::prepare(a));
    for t in 0..count {
        // SAFETY: the contract of `values`.
        unsafe {
            let (d, da) = deltas.at(simd, t);
            let (by_decay, gain) = R::step(prepared, d, da, deltas.shared);
            by_decay.store(decay.add(t * step));
            input_of::<T, S, R, SCALED>(d, gain).store(input.add(t * step));
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
            Discretization::Mamba => derivatives_of::<T, S, Exponential, true>(simd, a, deltas, count, to),
            Discretization::Dirac => derivatives_of::<T, S, Exponential, false>(simd, a, deltas, count, to),
            Discretization::Zoh => derivatives_of::<T, S, Zoh, true>(simd, a, deltas, count, to),
            Discretization::Bilinear => derivatives_of::<T, S, Bilinear, true>(simd, a, deltas, count, to),
        }
    }
}

#[inline(always)]
unsafe fn derivatives_of<T: Real, S: Isa, R: Rule, const SCALED: bool>(
    simd: S,
    a: Cx<T, S>,
    deltas: Deltas<T>,
    count: usize,
    to: &Derivatives<*mut T>,
) {
    let (step, prepared) = (2 * T::lanes::<S>(), R::prepare(a));
    let (zero, one) = (Cx::zero(simd), Cx::from_real(V::constant(simd, 1.0)));
    for t in 0..count {
        // SAFETY: the contract of `derivatives`.
        unsafe {
            let (d, da) = deltas.at(simd, t);
            let (decay, gain) = R::step(prepared, d, da, deltas.shared);
            let by = R::derivatives(a, d, da, decay);
            let (by_d, by_a) = match (R::GAIN, SCALED) {
                (true, _) => (by.input_by_step, by.gain_derivative.scale(d * d)),
                (false, true) => (one, zero),
                (false, false) => (zero, zero),
            };
            decay.store(to.decay.add(t * step));
            by.decay.store(to.decay_by_z.add(t * step));
            input_of::<T, S, R, SCALED>(d, gain).store(to.input.add(t * step));
            by_d.store(to.input_by_d.add(t * step));
            by_a.store(to.input_by_a.add(t * step));
        }
    }
}
