//! The gated feed-forward layer, `down(silu(gate(u)) up(u))`: it remembers nothing.

use super::run::{Back, Part, Run};
use super::weights::{Linear, Next, Role, listed};
use super::{Last, Mix, Multiplied, OneRow, Rooms, Row};
use crate::config::{Config, Family, FeedForward};
use crate::error::Result;
use crate::kernels::Before;
use crate::kernels::hybrid::gate;
use crate::state::StateShape;
use statescan::{View, ViewMut};
use std::ops::Range;

/// The gated feed-forward layer.
pub(super) struct Mlp;

/// The weights of a mixer.
struct Weights<T> {
    /// To gates and to what they multiply, which checkpoints have apart or as one.
    into: Vec<Linear<T>>,
    down: Linear<T>,
}

impl<T> Weights<T> {
    fn bind(config: &Config, next: Next<'_, T>) -> Self {
        let (dim, FeedForward { hidden, bias }) = (config.dim, config.feed_forward);
        let (within, last) = (bias.then_some(Role::Bias), bias.then_some(Role::LastBias));
        if config.family == Family::GraniteHybrid {
            let into = vec![Linear::bind(next, ["input_linear.weight", "input_linear.bias"], [2 * hidden, dim], within)];
            let down = Linear::bind(next, ["output_linear.weight", "output_linear.bias"], [dim, hidden], last);
            return Weights { into, down };
        }
        let apart = [["gate_proj.weight", "gate_proj.bias"], ["up_proj.weight", "up_proj.bias"]];
        let into = apart.map(|names| Linear::bind(next, names, [hidden, dim], within)).into();
        Weights { into, down: Linear::bind(next, ["down_proj.weight", "down_proj.bias"], [dim, hidden], last) }
    }

    /// The products to gates and what they multiply, each with the columns that it gives of as many as both have.
    fn into(self, hidden: usize) -> impl Iterator<Item = (Linear<T>, Range<usize>)> {
        let columns = 2 * hidden / self.into.len();
        self.into.into_iter().enumerate().map(move |(i, product)| (product, i * columns..(i + 1) * columns))
    }
}

impl<'l> Weights<View<'l>> {
    fn of(run: &Run<'l>) -> Self {
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

    fn forward<'r>(&self, run: &Run<'r>, x: View<'_>, _: Vec<Part<'_>>, rooms: &mut Rooms, _: bool) -> Result<Last<'r>> {
        let (rows, hidden, device) = (x.shape()[0], run.config.feed_forward.hidden, run.device);
        rooms.grow(device.exec(), (x.dtype(), rows), hidden, &[2 * hidden])?;
        let Rooms { mixed, own: [both, ..], .. } = rooms;
        let weights = Weights::of(run);
        let down = weights.down;
        for (product, columns) in weights.into(hidden) {
            device.product(x, product, &mut both.of_mut(rows).slice(1, columns))?;
        }
        device.gate(both.of(rows), &mut mixed.of_mut(rows))?;
        Ok(down)
    }

    fn backward(&self, run: &Run<'_>, mut back: Back<'_>, rooms: &mut Rooms, own: &mut Rooms) -> Result<()> {
        let (rows, hidden, device) = (back.steps.rows(), run.config.feed_forward.hidden, run.device);
        own.grow(device.exec(), (back.dy.dtype(), rows), hidden, &[2 * hidden])?;
        let weights = Weights::of(run);
        let into = Weights::bind(run.config, &mut listed(back.into));
        let Rooms { mixed: dmixed, own: [dboth, ..], workspace, .. } = own;
        let of = Multiplied { x: rooms.mixed.of(rows), product: weights.down, dy: back.dy };
        device.product_backward(of, &mut dmixed.of_mut(rows), false, into.down, workspace)?;
        device.gate_backward(rooms.own[0].of(rows), dmixed.of(rows), &mut dboth.of_mut(rows))?;
        for (i, ((product, columns), into)) in weights.into(hidden).zip(into.into).enumerate() {
            let of = Multiplied { x: back.x, product, dy: dboth.of(rows).slice(1, columns) };
            device.product_backward(of, &mut back.dx, i > 0, into, workspace)?;
        }
        Ok(())
    }
}

impl OneRow for Mlp {
    fn rooms(&self, config: &Config) -> [usize; 3] {
        let hidden = config.feed_forward.hidden;
        [2 * hidden, 0, hidden]
    }

    fn record(&self, mut row: Row<'_>, [mut both, _, mut gated]: [ViewMut<'_>; 3]) -> Result<()> {
        let weights = Weights::<View<'_>>::bind(row.config, &mut listed(row.weights.clone()));
        let down = weights.down;
        for (product, columns) in weights.into(row.config.feed_forward.hidden) {
            row.project(product, &mut both.reborrow().slice(0, columns))?;
        }
        gate(row.exec, both.as_view(), &mut gated)?;
        row.add(down, Before::Nothing, gated.as_view(), None)
    }
}
