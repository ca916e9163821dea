//! A few steps in plain `f64` loops: the oracle that the kernels are tested against.

use super::{Activation, Args, OP, Sizes};
use crate::error::Result;
use crate::ops::check::{Checker, Kind};
use crate::ops::oracle::{silu, sum};
use crate::tensor::{Dense, Device, View};

/// `y` and the state after the steps, in plain `f64` loops.
///
/// # Errors
/// As [`super::update`].
pub fn update(args: &Args<'_>, conv_state: &View<'_>) -> Result<(Dense, Dense)> {
    let sizes = Sizes::new(args, Device::Cpu, false, conv_state.shape())?;
    Checker::new(OP, Device::Cpu).read("conv_state", conv_state, Kind::Float, &[sizes.states, sizes.dim, sizes.state_len])?;
    let mut y = Dense::zeros(&[sizes.rows.len(), sizes.dim, sizes.steps])?;
    let mut state = Dense::from_view(conv_state);
    let x = if args.x.rank() == 2 { args.x.expand(2, 1) } else { args.x };
    let (before, len) = (sizes.width - 1, sizes.state_len);
    for (b, row) in sizes.rows.iter().enumerate() {
        let Some((s, seen)) = *row else { continue };
        for d in 0..sizes.dim {
            let old: Vec<f64> = (0..len).map(|m| state.at(&[s, d, m]).re).collect();
            let new: Vec<f64> = (0..sizes.steps).map(|t| x.at(&[b, d, t]).re).collect();
            let latest = |i: usize| match args.cache_seqlens {
                None => old[len - before + i],
                Some(_) => old[(seen + len - before + i) % len],
            };
            let u: Vec<f64> = (0..before).map(latest).chain(new.iter().copied()).collect();
            for t in 0..sizes.steps {
                let bias = args.bias.map_or(0.0, |v| v.at(&[d]).re);
                let sum = bias + sum((0..sizes.width).map(|k| args.weight.at(&[d, k]).re * u[t + k]));
                let gated = args.activation == Activation::Silu;
                let value = if gated { silu(sum).0 } else { sum };
                *y.at_mut(&[b, d, t]) = value.into();
            }
            if args.cache_seqlens.is_some() {
                for t in 0..sizes.steps {
                    *state.at_mut(&[s, d, (seen + t) % len]) = new[t].into();
                }
            } else {
                let all: Vec<f64> = old.into_iter().chain(new).collect();
                for m in 0..len {
                    *state.at_mut(&[s, d, m]) = all[sizes.steps + m].into();
                }
            }
        }
    }
    Ok((y.reshaped(args.x.shape()), state))
}
