//! Every oracle against the loops that one writes first, where arguments are infinite, NaN, -0 and subnormal: in `f64` where they are real, in
//! complex numbers where they are complex.

mod causal_conv1d;
mod linear_scan;
mod rules;
mod selective_scan;
mod simplified_scan;
mod ssd;

use crate::common::Rng;
use num_complex::Complex64;
use statescan::ops::Scalar;
use statescan::tensor::Dense;
use statescan::{DType, Tensor, View};

/// Rows, channels or heads, steps, states.
const B: usize = 2;
const D: usize = 2;
const L: usize = 3;
const N: usize = 2;

/// What one argument of a call is: its name, its shape, whether it is complex.
#[derive(Clone, Copy)]
struct Spec(&'static str, &'static [usize], bool);

/// The arguments of a call by name, cotangents among them.
struct Inputs(Vec<(&'static str, Tensor)>);

impl Inputs {
    fn view(&self, name: &str) -> View<'_> {
        self.get(name).unwrap_or_else(|| panic!("no {name}"))
    }

    fn get(&self, name: &str) -> Option<View<'_>> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, tensor)| tensor.view())
    }

    /// An element.
    fn at<S: Scalar>(&self, name: &str, index: &[usize]) -> S {
        S::of(self.view(name).at(index))
    }

    /// An element of an argument that may not be there.
    fn option(&self, name: &str, index: &[usize]) -> Option<f64> {
        self.get(name).map(|view| view.at(index).re)
    }
}

/// Results and gradients by name.
type Results = Vec<(&'static str, Dense)>;

/// Zeros for results and gradients.
fn zeros(of: &[(&'static str, &[usize])]) -> Results {
    of.iter().map(|&(name, shape)| (name, Dense::zeros(shape).unwrap())).collect()
}

/// Adds to an element of one of them.
fn add<S: Scalar>(results: &mut Results, name: &str, index: &[usize], value: S) {
    if let Some((_, dense)) = results.iter_mut().find(|(n, _)| *n == name) {
        *dense.at_mut(index) += value.into();
    }
}

/// Sets an element of one of them.
fn set<S: Scalar>(results: &mut Results, name: &str, index: &[usize], value: S) {
    if let Some((_, dense)) = results.iter_mut().find(|(n, _)| *n == name) {
        *dense.at_mut(index) = value.into();
    }
}

const HOSTILE: [f64; 9] = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.0, 0.0, 5e-324, -2e-310, f64::MIN_POSITIVE, -1e300];

/// Runs `check` on random arguments, of which one element is hostile in turn, then on such where any may be.
fn each(specs: &[Spec], mut check: impl FnMut(&str, &Inputs)) {
    let rng = &mut Rng::new(5);
    for hostile in HOSTILE {
        for &Spec(name, ..) in specs {
            let mut inputs = draw(rng, specs, 0.0);
            let (_, tensor) = inputs.0.iter_mut().find(|(n, _)| *n == name).expect("drawn");
            let mut dense = tensor.to_dense();
            let at = rng.below(dense.data().len());
            let part = if tensor.dtype().is_complex() && rng.below(2) == 0 { Complex64::I } else { Complex64::ONE };
            let kept = dense.data()[at];
            dense.data_mut()[at] = match part == Complex64::I {
                true => Complex64::new(kept.re, hostile),
                false => Complex64::new(hostile, kept.im),
            };
            *tensor = Tensor::from_dense(&dense, tensor.dtype());
            check(&format!("{hostile:e} in {name}"), &inputs);
        }
    }
    for mixture in 0..40 {
        check(&format!("mixture {mixture}"), &draw(rng, specs, 0.01 * f64::from(mixture)));
    }
}

/// Random arguments; an element is hostile with a probability.
fn draw(rng: &mut Rng, specs: &[Spec], hostile: f64) -> Inputs {
    let one = |&Spec(name, shape, complex): &Spec, rng: &mut Rng| {
        let number = |rng: &mut Rng| match rng.uniform(0.0, 1.0) < hostile {
            true => rng.pick(&HOSTILE),
            false => rng.uniform(0.3, 1.2) * rng.pick(&[-1.0, 1.0]),
        };
        let mut tensor = Tensor::host(if complex { DType::Complex128 } else { DType::F64 }, shape).unwrap();
        tensor.fill_with(|| Complex64::new(number(rng), if complex { number(rng) } else { 0.0 }));
        (name, tensor)
    };
    Inputs(specs.iter().map(|spec| one(spec, rng)).collect())
}

/// Fails unless both have the same results: NaN where the other has it, else the same bits.
#[track_caller]
fn assert_same(what: &str, loops: &Results, oracle: &Results) {
    assert_eq!(loops.iter().map(|(name, _)| *name).collect::<Vec<_>>(), oracle.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for ((name, expected), (_, got)) in loops.iter().zip(oracle) {
        assert_eq!(got.shape(), expected.shape(), "{what}: {name}");
        for (i, (got, expected)) in got.data().iter().zip(expected.data()).enumerate() {
            for (got, expected) in [(got.re, expected.re), (got.im, expected.im)] {
                let same = (got.is_nan() && expected.is_nan()) || got.to_bits() == expected.to_bits();
                assert!(same, "{what}: {name}, element {i} is {got:e}, loops give {expected:e}");
            }
        }
    }
}
