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

use core::fmt;
use core::str::FromStr;
use num_complex::Complex64;

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

    /// That of a number in [`Discretization::ALL`]; the default for none.
    pub(crate) fn of_word(word: Option<usize>) -> Self {
        word.map_or_else(Self::default, |word| Self::ALL[word])
    }

    /// Its name in papers and in Python.
    pub const fn name(self) -> &'static str {
        match self {
            Discretization::Mamba => "mamba",
            Discretization::Zoh => "zoh",
            Discretization::Bilinear => "bilinear",
            Discretization::Dirac => "dirac",
        }
    }

    /// `Abar` and `dAbar/dz` at `z = d A`, in `f64`.
    pub fn decay(self, z: Complex64) -> (Complex64, Complex64) {
        match self {
            Discretization::Bilinear => {
                let g = (1.0 - z * 0.5).inv();
                ((1.0 + z * 0.5) * g, g * g)
            }
            _ => (z.exp(), z.exp()),
        }
    }

    /// `Bbar` and its derivatives by `d` and by `A`, in `f64`.
    pub fn input(self, d: f64, a: Complex64) -> (Complex64, Complex64, Complex64) {
        let (zero, one) = (Complex64::ZERO, Complex64::ONE);
        let z = a * d;
        match self {
            Discretization::Mamba => (Complex64::from(d), one, zero),
            Discretization::Dirac => (one, zero, zero),
            Discretization::Zoh => {
                let (phi1, derivative) = phi1(z);
                (phi1 * d, z.exp(), derivative * (d * d))
            }
            Discretization::Bilinear => {
                let g = (1.0 - z * 0.5).inv();
                (g * d, g * g, g * g * (0.5 * d * d))
            }
        }
    }
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

/// `phi1(z) = (exp z - 1) / z` and its derivative, without cancellation near 0.
pub fn phi1(z: Complex64) -> (Complex64, Complex64) {
    // sum z^k / (k + 1)! and sum (k + 1) z^k / (k + 2)!: 24 terms reach 1e-17 at |z| = 1
    if z.norm_sqr() < 1.0 {
        let (mut value, mut derivative) = (Complex64::ZERO, Complex64::ZERO);
        let (mut power, mut factorial) = (Complex64::ONE, 1.0);
        for k in 0..24 {
            let k1 = f64::from(k + 1);
            factorial *= k1;
            value += power / factorial;
            derivative += power * (k1 / (factorial * (k1 + 1.0)));
            power *= z;
        }
        return (value, derivative);
    }
    let exp = z.exp();
    let value = (exp - 1.0) / z;
    (value, (exp - value) / z)
}

#[cfg(test)]
mod tests {
    use super::*;

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
                    let (_, by_d, by_a) = method.input(d, a);
                    let difference = (method.input(d + h, a).0 - method.input(d - h, a).0) / (2.0 * h);
                    assert!(close(by_d, difference, 1e-8), "{method} input by d at {z}");
                    let difference = (method.input(d, a + h).0 - method.input(d, a - h).0) / (2.0 * h);
                    assert!(close(by_a, difference, 1e-8), "{method} input by A at {z}");
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
        let (zoh, _, _) = Discretization::Zoh.input(0.3, Complex64::new(-1e-12, 1e-12));
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
