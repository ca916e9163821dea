//! One step in plain `f64` loops: the oracle that the kernel is tested against.

use super::problem::Sizes;
use super::{Args, OP};
use crate::error::Result;
use crate::ops::check::{Checker, Kind};
use crate::ops::oracle::{Scalar, read, silu};
use crate::tensor::{Dense, Device, View};
use num_complex::Complex64;

/// `y` and the state after the step; `state` is left as it is.
///
/// # Errors
/// As [`super::update`].
pub fn update(args: &Args<'_>, state: &View<'_>) -> Result<(Dense, Dense)> {
    let sizes = Sizes::new(args, Device::Cpu, false, state.shape())?;
    Checker::new(OP, Device::Cpu).read("state", state, Kind::Float, &sizes.state_shape())?;
    let mut y = Dense::zeros(&args.x.shape())?;
    let mut next = Dense::from_view(state);
    let channels: Vec<Vec<usize>> = match sizes.own[..] {
        [dim] => (0..dim).map(|d| vec![d]).collect(),
        _ => (0..sizes.own[0]).flat_map(|h| (0..sizes.own[1]).map(move |p| vec![h, p])).collect(),
    };
    for (batch, row) in sizes.rows.iter().enumerate() {
        let Some(row) = *row else { continue };
        for channel in &channels {
            match sizes.complex {
                false => step::<f64>(args, &sizes, (batch, row), channel, (&mut y, &mut next)),
                true => step::<Complex64>(args, &sizes, (batch, row), channel, (&mut y, &mut next)),
            }
        }
    }
    Ok((y, next))
}

/// One channel of a row, with states of type `S`.
fn step<S: Scalar>(
    args: &Args<'_>,
    sizes: &Sizes,
    (batch, row): (usize, usize),
    channel: &[usize],
    (y, state): (&mut Dense, &mut Dense),
) {
    let in_row = [&[batch], channel].concat();
    let timed = |view: &View<'_>| -> f64 { read(view, &in_row) };
    let x = timed(&args.x);
    let raw = args.dt_bias.map_or(timed(&args.dt), |bias| timed(&args.dt) + read::<f64>(&bias, channel));
    let (dt, _) = args.step_size().exact(raw);
    let dt_a = args.dt_a.map_or(dt, |v| timed(&v));
    let map = |view: &View<'_>, n: usize| -> S {
        match view.rank() {
            2 => read(view, &[batch, n]),
            _ => read(view, &[batch, channel[0] / (sizes.own[0] / view.shape()[1]), n]),
        }
    };
    let mut sum = S::zero();
    for n in 0..sizes.dstate {
        let a: S = read(&args.a, &[channel, &[n]].concat());
        let h = state.at_mut(&[&[row], channel, &[n]].concat());
        let input = args.discretization.input(dt, a, map(&args.b, n) * x);
        let next = args.discretization.decay(a * dt_a).0 * S::of(*h) + input;
        *h = next.into();
        sum += map(&args.c, n) * next;
    }
    let factor = if sizes.complex { 2.0 } else { 1.0 };
    let skipped = args.d.map_or(sum.re() * factor, |d| sum.re() * factor + read::<f64>(&d, channel) * x);
    *y.at_mut(&in_row) = args.z.map_or(skipped, |z| skipped * silu(timed(&z)).0).into();
}
