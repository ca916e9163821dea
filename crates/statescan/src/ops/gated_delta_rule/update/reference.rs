//! One step in plain `f64` loops: the oracle that the kernel is tested against.

use super::problem::Sizes;
use super::{Args, OP};
use crate::error::Result;
use crate::ops::check::{Checker, Kind};
use crate::ops::gated_delta_rule::EPS;
use crate::ops::oracle::read;
use crate::tensor::{Dense, Device, View};

/// `y` and the state after the step; `state` is left as it is.
///
/// # Errors
/// As [`super::update`].
pub fn update(args: &Args<'_>, state: &View<'_>) -> Result<(Dense, Dense)> {
    let sizes = Sizes::new(args, Device::Cpu, false, state.shape())?;
    Checker::new(OP, Device::Cpu).read("state", state, Kind::Real, &sizes.state_shape())?;
    let (mut y, mut next) = (Dense::zeroed(args.v.shape()), Dense::from_view(state));
    for (batch, row) in sizes.rows.iter().enumerate() {
        let Some(row) = *row else { continue };
        for head in 0..sizes.heads * sizes.group {
            step(args, &sizes, [batch, row, head], (&mut y, &mut next));
        }
    }
    Ok((y, next))
}

/// A row of queries or keys, with its length divided out if that is wanted.
fn unit(sizes: &Sizes, view: &View<'_>, batch: usize, head: usize) -> Vec<f64> {
    let mut row: Vec<f64> = (0..sizes.keys).map(|n| read(view, &[batch, head, n])).collect();
    if sizes.gates.qk_l2norm {
        let length = (row.iter().map(|x| x * x).sum::<f64>() + EPS).sqrt();
        row.iter_mut().for_each(|x| *x /= length);
    }
    row
}

/// One head of values of a row.
fn step(args: &Args<'_>, sizes: &Sizes, [batch, row, head]: [usize; 3], (y, state): (&mut Dense, &mut Dense)) {
    let gates = &sizes.gates;
    let [q, k] = [&args.q, &args.k].map(|view| unit(sizes, view, batch, head / sizes.group));
    let beta = args.beta.map_or(1.0, |beta| gates.exact_beta(read(&beta, &[batch, head])).0);
    for n in 0..sizes.keys {
        let own = |view: &View<'_>, axes: &[usize]| -> f64 {
            if gates.by_channel { read(view, &[axes, &[n]].concat()) } else { read(view, axes) }
        };
        let raw = args.g.map_or(0.0, |g| own(&g, &[batch, head]));
        let gate = args.dt_bias.map_or(raw, |bias| raw + own(&bias, &[head]));
        let decay = gates.exact_decay(gate, args.a_log.map_or(0.0, |a| read(&a, &[head]))).log.exp();
        (0..sizes.values).for_each(|p| *state.at_mut(&[row, head, n, p]) *= decay);
    }
    for p in 0..sizes.values {
        let column =
            |state: &Dense, x: &[f64]| -> f64 { x.iter().enumerate().map(|(n, x)| state.at(&[row, head, n, p]).re * x).sum() };
        let written = beta * (read::<f64>(&args.v, &[batch, head, p]) - column(state, &k));
        (0..sizes.keys).for_each(|n| *state.at_mut(&[row, head, n, p]) += k[n] * written);
        *y.at_mut(&[batch, head, p]) = (gates.scale * column(state, &q)).into();
    }
}
