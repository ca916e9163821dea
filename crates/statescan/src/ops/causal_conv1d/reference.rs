//! The causal convolution in plain `f64` loops: the oracle that every kernel is tested against.

use super::{Args, Cotangents, Problem};
use crate::error::Result;
use crate::ops::oracle::{gradients, silu, sum};
use crate::ops::sequences::Segment;
use crate::ops::states::{NO_STATES, States};
use crate::tensor::{Dense, Device, Shape, View};

/// Results of [`forward`].
#[derive(Debug, Clone)]
pub struct Forward {
    /// (B, D, L)
    pub y: Dense,
    /// As the initial states.
    pub final_states: Dense,
}

gradients! { x, weight; ; bias, initial_states }

/// One channel of one segment.
struct Channel<'p, 'a> {
    p: &'p Problem<'a>,
    segment: Segment,
    d: usize,
}

impl Channel<'_, '_> {
    /// The W-1 inputs before the segment, then its own.
    fn inputs(&self) -> Vec<f64> {
        let (p, s, d) = (self.p, self.segment, self.d);
        let before = |j| match (p.initial_states, s.initial) {
            (Some(states), Some((row, sequence))) => states.at(&[row, sequence, d, j]).re,
            _ => 0.0,
        };
        (0..p.width - 1).map(before).chain((s.start..s.end).map(|t| p.x.at(&[s.batch, d, t]).re)).collect()
    }

    fn weight(&self, k: usize) -> f64 {
        self.p.weight.at(&[self.d, k]).re
    }

    /// The sum before the activation, `t` counted from the start of the segment.
    fn sum(&self, u: &[f64], t: usize) -> f64 {
        let bias = self.p.bias.map_or(0.0, |v| v.at(&[self.d]).re);
        bias + sum((0..self.p.width).map(|k| self.weight(k) * u[t + k]))
    }
}

fn channels<'p, 'a>(p: &'p Problem<'a>) -> impl Iterator<Item = Channel<'p, 'a>> {
    p.segments.list.iter().flat_map(move |&segment| (0..p.dim).map(move |d| Channel { p, segment, d }))
}

/// `y` and the final states.
///
/// # Errors
/// As [`super::forward`].
pub fn forward(args: &Args<'_>) -> Result<Forward> {
    run(args, NO_STATES)
}

/// As [`forward`], with final states of this shape: without initial states it decides between the two forms that states have with
/// [`crate::Sequences::SeqIdx`].
///
/// # Errors
/// As [`super::forward`].
pub fn forward_with_state_shape(args: &Args<'_>, states: &[usize]) -> Result<Forward> {
    run(args, States::of_shapes([Some(Shape::new(states)?), None]))
}

fn run(args: &Args<'_>, shapes: States<'_>) -> Result<Forward> {
    let p = Problem::new(args, Device::Cpu, shapes)?;
    let (mut y, mut last) = (Dense::zeros(&args.x.shape())?, Dense::zeros(&p.normal.state_shape(p.state_shape))?);
    for channel in channels(&p) {
        let (segment, d, u) = (channel.segment, channel.d, channel.inputs());
        for t in 0..segment.len() {
            let sum = channel.sum(&u, t);
            *y.at_mut(&[segment.batch, d, segment.start + t]) = if p.silu { silu(sum).0 } else { sum }.into();
        }
        if let Some((row, sequence)) = segment.last {
            for j in 0..p.width - 1 {
                *last.at_mut(&[row, sequence, d, j]) = u[segment.len() + j].into();
            }
        }
    }
    Ok(Forward { y: p.normal.restore(y, 2), final_states: last.reshaped(p.state_shape) })
}

/// Every gradient.
///
/// # Errors
/// As [`super::backward`].
pub fn backward(args: &Args<'_>, cotangents: &Cotangents<'_>) -> Result<Backward> {
    let shapes = States::of_shapes([cotangents.final_states.map(|s| s.shape()), None]);
    let p = Problem::new(args, Device::Cpu, shapes)?;
    let mut out = Backward {
        x: Dense::zeros(&args.x.shape())?,
        weight: Dense::zeros(&[p.dim, p.width])?,
        bias: Dense::zeros(&[p.dim])?,
        initial_states: Dense::zeros(&p.normal.state_shape(p.state_shape))?,
    };
    let dy = cotangents.y.map(|v| p.normal.timed(v, 2));
    let dlast = cotangents.final_states.map(|v| p.normal.state(v));
    for channel in channels(&p) {
        channel_backward(&channel, dy, dlast, &mut out);
    }
    out.x = p.normal.restore(out.x, 2);
    out.initial_states = out.initial_states.reshaped(p.state_shape);
    Ok(out)
}

fn channel_backward(channel: &Channel<'_, '_>, dy: Option<View<'_>>, dlast: Option<View<'_>>, out: &mut Backward) {
    let (p, segment, d, u) = (channel.p, channel.segment, channel.d, channel.inputs());
    let before = p.width - 1;
    let mut du = vec![0.0; u.len()];
    for t in 0..segment.len() {
        let cotangent = dy.map_or(0.0, |v| v.at(&[segment.batch, d, segment.start + t]).re);
        let by_sum = if p.silu { cotangent * silu(channel.sum(&u, t)).1 } else { cotangent };
        for k in 0..p.width {
            du[t + k] += channel.weight(k) * by_sum;
            *out.weight.at_mut(&[d, k]) += u[t + k] * by_sum;
        }
        *out.bias.at_mut(&[d]) += by_sum;
    }
    if let (Some(dlast), Some((row, sequence))) = (dlast, segment.last) {
        for j in 0..before {
            du[segment.len() + j] += dlast.at(&[row, sequence, d, j]).re;
        }
    }
    for t in 0..segment.len() {
        *out.x.at_mut(&[segment.batch, d, segment.start + t]) = du[before + t].into();
    }
    if let Some((row, sequence)) = segment.initial {
        for j in 0..before {
            *out.initial_states.at_mut(&[row, sequence, d, j]) = du[j].into();
        }
    }
}
