//! Discretizations of `h' = A h + B x`, each once, with derivatives.
//!
//! A step of size `d` turns the continuous pair (A, B) into `h[t] = Abar h[t-1] + Bbar B x[t]`. With `z = d A`:
//!
//! | name | Abar(z) | dAbar/dz | Bbar(d, A) | dBbar/dd | dBbar/dA | source |
//! |---|---|---|---|---|---|---|
//! | `mamba` | exp z | exp z | d | 1 | 0 | Gu and Dao 2023, section 3.2 as implemented |
//! | `zoh` | exp z | exp z | d phi1(z) | exp z | d^2 phi1'(z) | zero-order hold, Gu and Dao 2023, eq. 4 |
//! | `bilinear` | (1 + z/2) / (1 - z/2) | g^2 | d g | g^2 | d^2 g^2 / 2 | Tustin; g = 1 / (1 - z/2) |
//! | `dirac` | exp z | exp z | 1 | 0 | 0 | impulses, for event-driven input |
//!
//! `phi1(z) = (exp z - 1) / z` is 1 at 0. The decay and the input may use different steps (`deltaA` and `delta`).

use crate::cuda::Value;
use crate::ops::oracle::Scalar;
use core::fmt;
use core::str::FromStr;

/// How a continuous state-space model becomes a recurrence.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Discretization {
    /// `Abar = exp(d A)`, `Bbar = d`: what Mamba computes.
    #[default]
    Mamba,
    /// Zero-order hold: `Abar = exp(d A)`, `Bbar = (exp(d A) - 1) / A`.
    Zoh,
    /// Bilinear (Tustin): `Abar = (1 + d A / 2) / (1 - d A / 2)`, `Bbar = d / (1 - d A / 2)`.
    Bilinear,
    /// Impulses: `Abar = exp(d A)`, `Bbar = 1`.
    Dirac,
}

impl Discretization {
    /// Every discretization.
    pub const ALL: [Discretization; 4] =
        [Discretization::Mamba, Discretization::Zoh, Discretization::Bilinear, Discretization::Dirac];

    /// Its name in papers and in Python.
    pub const fn name(self) -> &'static str {
        match self {
            Discretization::Mamba => "mamba",
            Discretization::Zoh => "zoh",
            Discretization::Bilinear => "bilinear",
            Discretization::Dirac => "dirac",
        }
    }

    /// Its name in `discretization.cuh`.
    pub(crate) fn constant(self) -> Value {
        let name = match self {
            Discretization::Mamba => "Mamba",
            Discretization::Zoh => "Zoh",
            Discretization::Bilinear => "Bilinear",
            Discretization::Dirac => "Dirac",
        };
        Value::Name("Discretization", name)
    }

    /// `Abar` and `dAbar/dz` at `z = d A`, in `f64`.
    pub fn decay<S: Scalar>(self, z: S) -> (S, S) {
        match self {
            Discretization::Bilinear => {
                let g = tustin(z);
                ((S::one() + z * 0.5) * g, g * g)
            }
            _ => (z.exp(), z.exp()),
        }
    }

    /// `Bbar B x` with `driven = B x`, in `f64`.
    pub fn input<S: Scalar>(self, d: f64, a: S, driven: S) -> S {
        match self {
            Discretization::Mamba => driven * d,
            Discretization::Dirac => driven,
            Discretization::Zoh => phi1(a * d).0 * d * driven,
            Discretization::Bilinear => tustin(a * d) * d * driven,
        }
    }

    /// The gradients of a loss by what [`Discretization::input`] takes, given that by its result.
    pub(crate) fn input_adjoint<S: Scalar>(self, d: f64, a: S, driven: S, by_input: S) -> InputAdjoint<S> {
        let by_gain = by_input * driven.conj();
        // a gain that is not there is no factor: zero times an infinity is NaN
        match self {
            Discretization::Mamba => InputAdjoint { driven: by_input * d, d: by_gain.re(), a: S::zero() },
            Discretization::Dirac => InputAdjoint { driven: by_input, d: 0.0, a: S::zero() },
            Discretization::Zoh => {
                let z = a * d;
                let (phi1, derivative) = phi1(z);
                let by_d = (by_gain * z.exp().conj()).re();
                InputAdjoint { driven: by_input * (phi1 * d).conj(), d: by_d, a: by_gain * (derivative * (d * d)).conj() }
            }
            Discretization::Bilinear => {
                let g = tustin(a * d);
                let (by_d, by_a) = ((by_gain * (g * g).conj()).re(), by_gain * (g * g * (0.5 * d * d)).conj());
                InputAdjoint { driven: by_input * (g * d).conj(), d: by_d, a: by_a }
            }
        }
    }
}

/// Gradients by what makes the input of a state.
pub(crate) struct InputAdjoint<S> {
    /// By `B x`.
    pub driven: S,
    /// By the step.
    pub d: f64,
    /// By `A`.
    pub a: S,
}

impl fmt::Display for Discretization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name is none of `mamba`, `zoh`, `bilinear`, `dirac`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("discretization must be one of mamba, zoh, bilinear, dirac")]
pub struct UnknownDiscretization;

impl FromStr for Discretization {
    type Err = UnknownDiscretization;
    fn from_str(name: &str) -> Result<Self, UnknownDiscretization> {
        Self::ALL.into_iter().find(|d| d.name() == name).ok_or(UnknownDiscretization)
    }
}

/// `g(z) = 1 / (1 - z / 2)`.
fn tustin<S: Scalar>(z: S) -> S {
    (S::one() - z * 0.5).recip()
}

/// `phi1(z) = (exp z - 1) / z` and its derivative, without cancellation near 0.
pub fn phi1<S: Scalar>(z: S) -> (S, S) {
    // sum z^k / (k + 1)! and sum (k + 1) z^k / (k + 2)!: 24 terms reach 1e-17 at |z| = 1
    if z.re() * z.re() + z.im() * z.im() < 1.0 {
        let (mut value, mut derivative) = (S::zero(), S::zero());
        let (mut power, mut factorial) = (S::one(), 1.0);
        for k in 0..24 {
            let k1 = f64::from(k + 1);
            factorial *= k1;
            value += power * factorial.recip();
            derivative += power * (k1 / (factorial * (k1 + 1.0)));
            power *= z;
        }
        return (value, derivative);
    }
    let exp = z.exp();
    let value = (exp - S::one()) / z;
    (value, (exp - value) / z)
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_complex::Complex64;

    fn close(a: Complex64, b: Complex64, tolerance: f64) -> bool {
        (a - b).norm() <= tolerance * (1.0 + b.norm())
    }

    #[test]
    fn derivatives_agree_with_central_differences() {
        let h = 1e-5;
        for method in Discretization::ALL {
            for a in [Complex64::new(-0.7, 0.0), Complex64::new(-0.2, 3.0), Complex64::new(-1e-9, 0.0), Complex64::new(-5.0, 9.0)]
            {
                for d in [1e-3, 0.1, 0.9] {
                    let z = a * d;
                    let by_z = (method.decay(z + h).0 - method.decay(z - h).0) / (2.0 * h);
                    assert!(close(method.decay(z).1, by_z, 1e-8), "{method} decay at {z}");
                    let one = Complex64::ONE;
                    // the loss is Re(input): its gradient by a complex number is the conjugate of a derivative
                    let adjoint = method.input_adjoint(d, a, one, one);
                    let input = |d, a| method.input(d, a, one);
                    let difference = (input(d + h, a) - input(d - h, a)) / (2.0 * h);
                    assert!((adjoint.d - difference.re).abs() < 1e-8 * (1.0 + difference.norm()), "{method} input by d at {z}");
                    let difference = (input(d, a + h) - input(d, a - h)) / (2.0 * h);
                    assert!(close(adjoint.a.conj(), difference, 1e-8), "{method} input by A at {z}");
                    assert_eq!(adjoint.driven.conj(), input(d, a), "{method} is linear in B x");
                }
            }
        }
    }

    #[test]
    fn real_numbers_and_complex_ones_agree() {
        for method in Discretization::ALL {
            for (a, d) in [(-0.7, 0.3), (-30.0, 0.9), (0.0, 0.5)] {
                let of = Complex64::from;
                let real = (method.decay(a * d), method.input(d, a, 1.5), method.input_adjoint(d, a, 1.5, 0.5));
                let complex =
                    (method.decay(of(a * d)), method.input(d, of(a), of(1.5)), method.input_adjoint(d, of(a), of(1.5), of(0.5)));
                let pairs = [(real.0.0, complex.0.0), (real.0.1, complex.0.1), (real.1, complex.1)];
                let adjoints = [(real.2.driven, complex.2.driven), (real.2.d, of(complex.2.d)), (real.2.a, complex.2.a)];
                for (real, complex) in pairs.into_iter().chain(adjoints) {
                    assert!(close(of(real), complex, 1e-15), "{method}: {real} {complex}");
                }
            }
        }
    }

    #[test]
    fn phi1_is_continuous_where_its_formula_changes() {
        for angle in 0..12 {
            let direction = Complex64::from_polar(1.0, f64::from(angle) * 0.55);
            let (below, above) = (phi1(direction * (1.0 - 1e-14)), phi1(direction * (1.0 + 1e-14)));
            assert!(close(below.0, above.0, 1e-13) && close(below.1, above.1, 1e-13));
        }
        assert_eq!(phi1(Complex64::ZERO), (Complex64::ONE, Complex64::from(0.5)));
    }

    #[test]
    fn zero_order_hold_tends_to_mamba_as_a_vanishes() {
        let zoh = Discretization::Zoh.input(0.3, Complex64::new(-1e-12, 1e-12), Complex64::ONE);
        assert!(close(zoh, Complex64::from(0.3), 1e-12));
    }

    #[test]
    fn names_round_trip() {
        for method in Discretization::ALL {
            assert_eq!(method.name().parse(), Ok(method));
        }
        assert!("euler".parse::<Discretization>().is_err());
    }
}
