//! One step in plain `f64` loops: the oracle that the kernel is tested against.

use super::{Args, OP, Problem};
use crate::error::Result;
use crate::ops::check::{Checker, Kind};
use crate::ops::oracle::{Scalar, read, sum};
use crate::tensor::{Dense, Device, View};
use core::ops::Mul;
use num_complex::Complex64;

/// `y` and the states after the step; `state` is left as it is.
///
/// # Errors
/// As [`super::update`].
pub fn update(args: &Args<'_>, state: &View<'_>) -> Result<(Dense, Dense)> {
    let p = Problem::new(args, Device::Cpu, false, state.shape())?;
    Checker::new(OP, Device::Cpu).read("state", state, Kind::Float, &[p.states, p.dstate])?;
    let mut y = Dense::zeros(&[p.batch, p.dim])?;
    let mut next = Dense::from_view(state);
    let complex = [&p.a, &p.b, &p.c, state].iter().any(|view| view.dtype().is_complex());
    for (b, row) in p.rows.iter().enumerate() {
        let Some(row) = *row else { continue };
        match (p.u.dtype().is_complex(), complex) {
            (true, _) => step::<Complex64, Complex64>(&p, (b, row), &mut y, &mut next),
            (_, true) => step::<f64, Complex64>(&p, (b, row), &mut y, &mut next),
            _ => step::<f64, f64>(&p, (b, row), &mut y, &mut next),
        }
    }
    Ok((y, next))
}

/// A row, whose inputs are numbers of type `U`, and states and maps of type `S`.
fn step<U: Scalar, S: Scalar + Mul<U, Output = S>>(p: &Problem<'_>, (b, row): (usize, usize), y: &mut Dense, next: &mut Dense) {
    let u = |h: usize| -> U { read(&p.u, &[b, h]) };
    for n in 0..p.dstate {
        let (a, d): (S, f64) = (read(&p.a, &[n]), read(&p.delta, &[b, n]));
        let da = p.delta_a.map_or(d, |v| read(&v, &[b, n]));
        let driven = sum((0..p.dim).map(|h| read::<S>(&p.b, &[n, h]) * u(h)));
        let x = next.at_mut(&[row, n]);
        *x = (p.discretization.decay(a * da).0 * S::of(*x) + p.discretization.input(d, a, driven)).into();
    }
    for h in 0..p.dim {
        let sum = sum((0..p.dstate).map(|n| read::<S>(&p.c, &[h, n]) * S::of(next.at(&[row, n]))));
        *y.at_mut(&[b, h]) = match p.real_factor {
            None => sum.into(),
            Some(factor) => p.d.map_or(factor * sum.re(), |d| factor * sum.re() + read::<f64>(&d, &[h]) * u(h).re()).into(),
        };
    }
}
