//! The gated feed-forward layer, `down(silu(gate(u)) up(u))`: it remembers nothing.

use super::numbers::gate_backward;
use super::run::{Back, Part, Run};
use super::weights::{Linear, Next, Role, listed};
use super::{Mix, Multiplied, OneRow, Rooms, Row};
use crate::config::{Config, Family, FeedForward};
use crate::error::Result;
use crate::kernels::Before;
use crate::kernels::hybrid::gate;
use crate::state::StateShape;
use statescan::{View, ViewMut};

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

impl<T> Into<T> {
    /// Each product, with the columns of rows (rows, 2 x hidden) that it gives.
    fn each(self, hidden: usize, rows: ViewMut<'_>, mut product: impl FnMut(Linear<T>, ViewMut<'_>) -> Result<()>) -> Result<()> {
        match self {
            Into::Together(into) => product(into, rows),
            Into::Apart([gate, up]) => {
                let (to_gate, to_up) = rows.split_at(1, hidden);
                product(gate, to_gate)?;
                product(up, to_up)
            }
        }
    }
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

    fn forward<'r>(&self, run: &Run<'r>, x: View<'_>, _: Vec<Part<'_>>, rooms: &mut Rooms, _: bool) -> Result<Linear<View<'r>>> {
        let (rows, hidden, device) = (x.shape()[0], run.config.feed_forward.hidden, run.device);
        rooms.grow(device.exec(), (x.dtype(), rows), hidden, &[2 * hidden])?;
        let Rooms { mixed, own: [both, ..], .. } = rooms;
        let Weights { into, down } = Weights::<View<'_>>::of(run);
        into.each(hidden, both.of_mut(rows), |of, mut to| device.product(x, of, &mut to))?;
        device.gate(both.of(rows), &mut mixed.of_mut(rows))?;
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
        gate_backward(&rooms.own[0].of(rows), &dmixed.of(rows), &mut dboth.of_mut(rows));
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

impl OneRow for Mlp {
    fn rooms(&self, config: &Config) -> [usize; 3] {
        let hidden = config.feed_forward.hidden;
        [2 * hidden, 0, hidden]
    }

    fn record(&self, mut row: Row<'_>, [both, _, mut gated]: [ViewMut<'_>; 3]) -> Result<()> {
        let (hidden, weights) = (row.config.feed_forward.hidden, row.weights.clone());
        let Weights { into, down } = Weights::<View<'_>>::bind(row.config, &mut listed(weights));
        let mut both = both.split(0, 1);
        into.each(hidden, both.reborrow(), |of, to| row.project(of, &mut to.index(0, 0)))?;
        gate(row.exec, both.as_view().index(0, 0), &mut gated)?;
        row.add(down, Before::Nothing, gated.as_view(), None)
    }
}
