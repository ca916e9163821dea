//! Abar, Bbar and their derivatives for tiles of steps, from the functors that every operation shares.

use crate::cpu::ArrayMut;
use crate::cpu::recurrence::Steps;
use crate::cpu::simd::{Cx, Field, Isa, Real, V};
use crate::ops::discretization::Discretization;
use crate::ops::rules::{Bilinear, Exponential, Rule, Zoh};

/// The values that a backward step needs.
#[derive(Clone, Copy)]
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

impl<F> Derivatives<F> {
    /// Applies a function to each value.
    #[inline(always)]
    pub(crate) fn map<'f, G>(&'f self, f: impl Fn(&'f F) -> G) -> Derivatives<G> {
        let Derivatives { decay, decay_by_z, input, input_by_d, input_by_a } = self;
        Derivatives {
            decay: f(decay),
            decay_by_z: f(decay_by_z),
            input: f(input),
            input_by_d: f(input_by_d),
            input_by_a: f(input_by_a),
        }
    }
}

/// Step sizes of one vector of states, a real vector at every step.
#[derive(Clone, Copy)]
pub(crate) struct Deltas<'m, T> {
    pub d: Steps<'m, T>,
    pub da: Steps<'m, T>,
    /// Whether `da` is `d`.
    pub shared: bool,
    /// Whether both are the same at every step.
    pub constant: bool,
}

impl<T: Real> Deltas<'_, T> {
    #[inline(always)]
    pub(crate) fn at<S: Isa>(self, simd: S, t: usize) -> (V<T, S>, V<T, S>) {
        (self.d.load(simd, t), self.da.load(simd, t))
    }
}

/// The values that a forward step needs: Abar and Bbar.
pub(crate) struct Values<'m, T> {
    pub decay: ArrayMut<'m, T>,
    pub input: ArrayMut<'m, T>,
}

/// Writes Abar and Bbar for `count` steps.
#[inline(always)]
pub(crate) fn values<T: Real, S: Isa>(
    simd: S,
    method: Discretization,
    a: Cx<T, S>,
    deltas: Deltas<'_, T>,
    count: usize,
    to: &mut Values<'_, T>,
) {
    match method {
        Discretization::Mamba => values_of::<T, S, Exponential, true>(simd, a, deltas, count, to),
        Discretization::Dirac => values_of::<T, S, Exponential, false>(simd, a, deltas, count, to),
        Discretization::Zoh => values_of::<T, S, Zoh, true>(simd, a, deltas, count, to),
        Discretization::Bilinear => values_of::<T, S, Bilinear, true>(simd, a, deltas, count, to),
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
fn values_of<T: Real, S: Isa, R: Rule, const SCALED: bool>(
    simd: S,
    a: Cx<T, S>,
    deltas: Deltas<'_, T>,
    count: usize,
    to: &mut Values<'_, T>,
) {
    let (step, prepared) = (2 * T::lanes::<S>(), R::prepare(a));
    for t in 0..count {
        let (d, da) = deltas.at(simd, t);
        let (by_decay, gain) = R::step(prepared, d, da, deltas.shared);
        to.decay.store_field(t * step, by_decay);
        to.input.store_field(t * step, input_of::<T, S, R, SCALED>(d, gain));
    }
}

/// Writes the five numbers of [`Derivatives`], one tile each, for `count` steps.
#[inline(always)]
pub(crate) fn derivatives<T: Real, S: Isa>(
    simd: S,
    method: Discretization,
    a: Cx<T, S>,
    deltas: Deltas<'_, T>,
    count: usize,
    to: &mut Derivatives<ArrayMut<'_, T>>,
) {
    match method {
        Discretization::Mamba => derivatives_of::<T, S, Exponential, true>(simd, a, deltas, count, to),
        Discretization::Dirac => derivatives_of::<T, S, Exponential, false>(simd, a, deltas, count, to),
        Discretization::Zoh => derivatives_of::<T, S, Zoh, true>(simd, a, deltas, count, to),
        Discretization::Bilinear => derivatives_of::<T, S, Bilinear, true>(simd, a, deltas, count, to),
    }
}

#[inline(always)]
fn derivatives_of<T: Real, S: Isa, R: Rule, const SCALED: bool>(
    simd: S,
    a: Cx<T, S>,
    deltas: Deltas<'_, T>,
    count: usize,
    to: &mut Derivatives<ArrayMut<'_, T>>,
) {
    let (step, prepared) = (2 * T::lanes::<S>(), R::prepare(a));
    let (zero, one) = (Cx::zero(simd), Cx::from_real(V::constant(simd, 1.0)));
    for t in 0..count {
        let (d, da) = deltas.at(simd, t);
        let (decay, gain) = R::step(prepared, d, da, deltas.shared);
        let by = R::derivatives(a, d, da, decay);
        let (by_d, by_a) = match (R::GAIN, SCALED) {
            (true, _) => (by.input_by_step, by.gain_derivative.scale(d * d)),
            (false, true) => (one, zero),
            (false, false) => (zero, zero),
        };
        to.decay.store_field(t * step, decay);
        to.decay_by_z.store_field(t * step, by.decay);
        to.input.store_field(t * step, input_of::<T, S, R, SCALED>(d, gain));
        to.input_by_d.store_field(t * step, by_d);
        to.input_by_a.store_field(t * step, by_a);
    }
}
