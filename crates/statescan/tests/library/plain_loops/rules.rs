//! Discretizations, step sizes and gates as their formulas stand in papers.

use statescan::Discretization;
use statescan::ops::Scalar;
use statescan::ops::discretization::phi1;

/// `Abar` and its derivative by `z`.
pub fn decay<S: Scalar>(method: Discretization, z: S) -> (S, S) {
    match method {
        Discretization::Bilinear => {
            let gain = (S::one() - z * 0.5).recip();
            ((S::one() + z * 0.5) * gain, gain * gain)
        }
        _ => (z.exp(), z.exp()),
    }
}

/// `Bbar` times what it multiplies.
pub fn input<S: Scalar>(method: Discretization, d: f64, a: S, driven: S) -> S {
    match method {
        Discretization::Mamba => driven * d,
        Discretization::Dirac => driven,
        Discretization::Bilinear => (S::one() - a * d * 0.5).recip() * d * driven,
        _ => phi1(a * d).0 * d * driven,
    }
}

/// Gradients by what is multiplied, by `d` and by `a`, of a loss whose gradient by the product is `g`.
pub fn input_backward<S: Scalar>(method: Discretization, d: f64, a: S, driven: S, g: S) -> (S, f64, S) {
    let by_gain = g * driven.conj();
    match method {
        Discretization::Mamba => (g * d, by_gain.re(), S::zero()),
        Discretization::Dirac => (g, 0.0, S::zero()),
        Discretization::Bilinear => {
            let gain = (S::one() - a * d * 0.5).recip();
            let by_a = gain * gain * (0.5 * d * d);
            (g * (gain * d).conj(), (by_gain * (gain * gain).conj()).re(), by_gain * by_a.conj())
        }
        _ => {
            let (value, slope) = phi1(a * d);
            let by_d = (by_gain * (a * d).exp().conj()).re();
            (g * (value * d).conj(), by_d, by_gain * (slope * (d * d)).conj())
        }
    }
}

/// softplus and its derivative.
pub fn softplus(v: f64) -> (f64, f64) {
    if v > 20.0 { (v, 1.0) } else { (v.exp().ln_1p(), 1.0 / (1.0 + (-v).exp())) }
}

/// A step size after softplus and clamp, and its derivative by the raw one.
pub fn step_size(raw: f64, with_softplus: bool, (low, high): (f64, f64)) -> (f64, f64) {
    let (dt, slope) = if with_softplus { softplus(raw) } else { (raw, 1.0) };
    match () {
        () if dt < low => (low, 0.0),
        () if dt > high => (high, 0.0),
        () => (dt, slope),
    }
}

/// silu and its derivative.
pub fn silu(v: f64) -> (f64, f64) {
    let sigmoid = 1.0 / (1.0 + (-v).exp());
    (v * sigmoid, sigmoid * (1.0 + v * (1.0 - sigmoid)))
}
