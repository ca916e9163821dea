//! Discretizations, step sizes and gates as their formulas stand in papers.

use statescan::Discretization;
use statescan::ops::Scalar;

/// How near the loops must come: near 0 the oracles have a series in place of `(exp z - 1) / z`.
pub fn tolerance(method: Discretization) -> f64 {
    if method == Discretization::Zoh { 1e-11 } else { 0.0 }
}

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
        _ => phi1(a * d) * d * driven,
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
            let (z, phi1) = (a * d, phi1(a * d));
            let slope = if is_small(z) { series(z, &[2.0, 3.0, 8.0, 30.0, 144.0, 840.0]) } else { (z.exp() - phi1) / z };
            (g * (phi1 * d).conj(), (by_gain * z.exp().conj()).re(), by_gain * (slope * (d * d)).conj())
        }
    }
}

/// Where `(exp z - 1) / z` cancels.
fn is_small<S: Scalar>(z: S) -> bool {
    z.re().abs() < 1e-2 && z.im().abs() < 1e-2
}

/// The sum of powers of `z`, each divided by a number.
fn series<S: Scalar>(z: S, by: &[f64]) -> S {
    by.iter().rev().fold(S::zero(), |sum, &by| sum * z + S::one() * by.recip())
}

fn phi1<S: Scalar>(z: S) -> S {
    if is_small(z) { series(z, &[1.0, 2.0, 6.0, 24.0, 120.0, 720.0]) } else { (z.exp() - S::one()) / z }
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
