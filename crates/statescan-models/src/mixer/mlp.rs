//! The gated feed-forward layer, `down(silu(gate(u)) up(u))`: it remembers nothing.

use super::run::{Back, Part, Run};
use super::weights::{Linear, Next, Role, listed};
use super::{Mix, Multiplied, OneRow, Rooms};
use crate::config::{Config, Family, FeedForward};
use crate::error::Result;
use crate::state::StateShape;
use statescan::View;

/// The gated feed-forward layer.
pub(super) struct Mlp;

/// The weights of a mixer.
struct Weights<T> {
    into: Into<T>,
    down: Linear<T>,
}

/// The products to gates and to what they multiply, which checkpoints have apart or as one.
enum Into<T> {
    Apart([Linear<T>; 2]),
    Together(Linear<T>),
}

impl<T> Weights<T> {
    fn bind(config: &Config, next: Next<'_, T>) -> Self {
        let (dim, FeedForward { hidden, bias }) = (config.dim, config.feed_forward);
        let (within, last) = (bias.then_some(Role::Bias), bias.then_some(Role::LastBias));
        if config.family == Family::GraniteHybrid {
            let into = Linear::bind(next, ["input_linear.weight", "input_linear.bias"], [2 * hidden, dim], within);
            let down = Linear::bind(next, ["output_linear.weight", "output_linear.bias"], [dim, hidden], last);
            return Weights { into: Into::Together(into), down };
        }
        let gate = Linear::bind(next, ["gate_proj.weight", "gate_proj.bias"], [hidden, dim], within);
        let up = Linear::bind(next, ["up_proj.weight", "up_proj.bias"], [hidden, dim], within);
        let down = Linear::bind(next, ["down_proj.weight", "down_proj.bias"], [dim, hidden], last);
        Weights { into: Into::Apart([gate, up]), down }
    }

    fn of<'l>(run: &Run<'l>) -> Weights<View<'l>> {
        Weights::bind(run.config, &mut listed(run.weights.iter().copied()))
    }
}

/// `1 / (1 + exp(-x))`.
fn sigmoid(x: f32) -> f32 {
    (1.0 + (-x).exp()).recip()
}

impl Mix for Mlp {
    fn weights(&self, config: &Config, each: Next<'_, ()>) {
        Weights::bind(config, each);
    }

    fn states(&self, _: &Config) -> Vec<StateShape> {
        Vec::new()
    }

    fn row(&self, config: &Config) -> usize {
        config.feed_forward.hidden.saturating_mul(3)
    }

    fn one_row(&self) -> Option<&dyn OneRow> {
        None
    }

    fn forward<'r>(&self, run: &Run<'r>, x: View<'_>, _: Vec<Part<'_>>, rooms: &mut Rooms, _: bool) -> Result<Linear<View<'r>>> {
        let (rows, hidden, device) = (x.shape()[0], run.config.feed_forward.hidden, run.device);
        rooms.grow(device.exec(), (x.dtype(), rows), hidden, &[2 * hidden])?;
        let Rooms { mixed, own: [both, ..], .. } = rooms;
        let Weights { into, down } = Weights::<View<'_>>::of(run);
        match into {
            Into::Together(into) => device.product(x, into, &mut both.of_mut(rows))?,
            Into::Apart([gate, up]) => {
                let (to_gate, to_up) = both.of_mut(rows).split_at(1, hidden);
                [(gate, to_gate), (up, to_up)].into_iter().try_for_each(|(of, mut to)| device.product(x, of, &mut to))?;
            }
        }
        let both = both.numbers().chunks_exact(2 * hidden).take(rows);
        for (to, both) in mixed.numbers_mut().chunks_exact_mut(hidden).zip(both) {
            let (gates, ups) = both.split_at(hidden);
            to.iter_mut().zip(gates.iter().zip(ups)).for_each(|(to, (&gate, up))| *to = gate * sigmoid(gate) * up);
        }
        Ok(down)
    }

    fn backward(&self, run: &Run<'_>, mut back: Back<'_>, rooms: &mut Rooms, own: &mut Rooms) -> Result<()> {
        let (rows, hidden, device) = (back.steps.rows(), run.config.feed_forward.hidden, run.device);
        own.grow(device.exec(), (back.dy.dtype(), rows), hidden, &[2 * hidden])?;
        let weights = Weights::<View<'_>>::of(run);
        let into = Weights::bind(run.config, &mut listed(back.into));
        let Rooms { mixed: dmixed, own: [dboth, ..], workspace, .. } = own;
        let of = Multiplied { x: rooms.mixed.of(rows), product: weights.down, dy: back.dy };
        device.product_backward(of, &mut dmixed.of_mut(rows), false, into.down, workspace)?;
        let both = rooms.own[0].numbers().chunks_exact(2 * hidden).take(rows);
        let dmixed = dmixed.numbers().chunks_exact(hidden);
        for ((dboth, both), dmixed) in dboth.numbers_mut().chunks_exact_mut(2 * hidden).zip(both).zip(dmixed) {
            let ((dgates, dups), (gates, ups)) = (dboth.split_at_mut(hidden), both.split_at(hidden));
            for (i, (&gate, &d)) in gates.iter().zip(dmixed).enumerate() {
                let share = sigmoid(gate);
                dgates[i] = d * ups[i] * share * (1.0 + gate * (1.0 - share));
                dups[i] = d * gate * share;
            }
        }
        let (x, dy) = (back.x, dboth.of(rows));
        match (weights.into, into.into) {
            (Into::Apart(products), Into::Apart(into)) => {
                for (i, (product, into)) in products.into_iter().zip(into).enumerate() {
                    let of = Multiplied { x, product, dy: dy.slice(1, i * hidden..(i + 1) * hidden) };
                    device.product_backward(of, &mut back.dx, i > 0, into, workspace)?;
                }
                Ok(())
            }
            (Into::Together(product), Into::Together(into)) => {
                device.product_backward(Multiplied { x, product, dy }, &mut back.dx, false, into, workspace)
            }
            _ => unreachable!("both are of one configuration"),
        }
    }
}
