//! One step in plain `f64` loops: the oracle that the kernel is tested against.

use super::problem::Sizes;
use super::{Args, OP};
use crate::error::Result;
use crate::ops::check::{Checker, Kind};
use crate::ops::oracle::{silu, softplus};
use crate::tensor::{Dense, Device, View};
use num_complex::Complex64;

/// `y` and the state after the step; `state` is left as it is.
///
/// # Errors
/// As [`super::update`].
pub fn update(args: &Args<'_>, state: &View<'_>) -> Result<(Dense, Dense)> {
    let mut checker = Checker::new(OP, Device::Cpu);
    let sizes = Sizes::new(args, &mut checker, &[state.shape()])?;
    checker.read("state", state, Kind::Float, &sizes.state_shape())?;
    let mut y = Dense::zeros(&args.x.shape())?;
    let mut next = Dense::from_view(state);
    let channels: Vec<Vec<usize>> = match sizes.own[..] {
        [dim] => (0..dim).map(|d| vec![d]).collect(),
        _ => (0..sizes.own[0]).flat_map(|h| (0..sizes.own[1]).map(move |p| vec![h, p])).collect(),
    };
    for (batch, row) in sizes.rows.iter().enumerate() {
        let Some(row) = *row else { continue };
        for channel in &channels {
            step(args, &sizes, (batch, row), channel, &mut y, &mut next);
        }
    }
    Ok((y, next))
}

fn step(args: &Args<'_>, sizes: &Sizes, (batch, row): (usize, usize), channel: &[usize], y: &mut Dense, state: &mut Dense) {
    let in_row = [&[batch], channel].concat();
    let own = |view: Option<View<'_>>| view.map_or(0.0, |v| v.at(channel).re);
    let x = args.x.at(&in_row).re;
    let mut dt = args.dt.at(&in_row).re + own(args.dt_bias);
    if args.dt_softplus {
        dt = softplus(dt).0;
    }
    let (low, high) = args.dt_limit;
    if dt < low || dt > high {
        dt = dt.clamp(low, high);
    }
    let dt_a = args.dt_a.map_or(dt, |v| v.at(&in_row).re);
    let map = |view: &View<'_>, n: usize| match view.rank() {
        2 => view.at(&[batch, n]),
        _ => view.at(&[batch, channel[0] / (sizes.own[0] / view.shape()[1]), n]),
    };
    let mut sum = Complex64::ZERO;
    for n in 0..sizes.dstate {
        let a = args.a.at(&[channel, &[n]].concat());
        let h = state.at_mut(&[&[row], channel, &[n]].concat());
        *h = args.discretization.decay(a * dt_a).0 * *h + args.discretization.input(dt, a).0 * map(&args.b, n) * x;
        sum += map(&args.c, n) * *h;
    }
    let factor = if sizes.complex { 2.0 } else { 1.0 };
    let gate = args.z.map_or(1.0, |v| silu(v.at(&in_row).re).0);
    *y.at_mut(&in_row) = ((sum.re * factor + own(args.d) * x) * gate).into();
}
