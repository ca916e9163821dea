//! One step in plain complex `f64` loops: the oracle that the kernel is tested against.

use super::{Args, OP, Problem};
use crate::error::Result;
use crate::ops::check::{Checker, Kind};
use crate::tensor::{Dense, Device, View};
use num_complex::Complex64;

/// `y` and the states after the step; `state` is left as it is.
///
/// # Errors
/// As [`super::update`].
pub fn update(args: &Args<'_>, state: &View<'_>) -> Result<(Dense, Dense)> {
    let mut checker = Checker::new(OP, Device::Cpu);
    let p = Problem::new(args, &mut checker, &[state.shape()])?;
    checker.read("state", state, Kind::Float, &[p.states, p.dstate])?;
    let a = Dense::from_view(&args.a);
    let mut y = Dense::zeros(&[p.batch, p.dim])?;
    let mut next = Dense::from_view(state);
    for (b, row) in p.rows.iter().enumerate() {
        let Some(row) = *row else { continue };
        for n in 0..p.dstate {
            let (a, d) = (a.data()[n], p.delta.at(&[b, n]).re);
            let da = p.delta_a.map_or(d, |v| v.at(&[b, n]).re);
            let driven: Complex64 = (0..p.dim).map(|h| p.b.at(&[n, h]) * p.u.at(&[b, h])).sum();
            let x = next.at_mut(&[row, n]);
            *x = p.discretization.decay(a * da).0 * *x + p.discretization.input(d, a).0 * driven;
        }
        for h in 0..p.dim {
            let sum: Complex64 = (0..p.dstate).map(|n| p.c.at(&[h, n]) * next.at(&[row, n])).sum();
            *y.at_mut(&[b, h]) = match p.real_factor {
                None => sum,
                Some(factor) => (factor * sum.re + p.d.map_or(0.0, |v| v.at(&[h]).re) * p.u.at(&[b, h]).re).into(),
            };
        }
    }
    Ok((y, next))
}
