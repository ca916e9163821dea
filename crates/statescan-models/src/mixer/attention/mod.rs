//! Grouped-query attention with rotary positions:
//!
//! ```text
//! q, k, v = q_proj(u), k_proj(u), v_proj(u)      q, k = rotate(q), rotate(k)      y = softmax(scale q k^T, up to each row) v      o_proj(y)
//! ```
//!
//! Several heads of queries share a head of keys and values, which the state keeps of every token. Everything is a product and a softmax of whole rows: a
//! row takes time and memory by the number of tokens before it, which is right for the few layers of attention between scans, and not for long contexts.
//! On the CPU alone.

mod numbers;

use super::run::{Back, Part, Run, part};
use super::weights::{Linear, Next, Role, listed};
use super::{Mix, Multiplied, OneRow, Room, Rooms};
use crate::config::{Attention as Sizes, Config};
use crate::error::Result;
use crate::state::StateShape;
use numbers::{Rotary, add, add_transposed, softmax, softmax_backward, transpose};
use statescan::{DType, View};
use std::ops::Range;

/// Attention.
pub(super) struct Attention;

/// The weights of a mixer.
#[derive(Clone, Copy)]
struct Weights<T> {
    q_proj: Linear<T>,
    k_proj: Linear<T>,
    v_proj: Linear<T>,
    o_proj: Linear<T>,
}

impl<T> Weights<T> {
    fn bind(config: &Config, next: Next<'_, T>) -> Self {
        let (dim, Sizes { bias, .. }, [queries, keys]) = (config.dim, config.attention, columns(config));
        let (within, last) = (bias.then_some(Role::Bias), bias.then_some(Role::LastBias));
        Weights {
            q_proj: Linear::bind(next, ["q_proj.weight", "q_proj.bias"], [queries, dim], within),
            k_proj: Linear::bind(next, ["k_proj.weight", "k_proj.bias"], [keys, dim], within),
            v_proj: Linear::bind(next, ["v_proj.weight", "v_proj.bias"], [keys, dim], within),
            o_proj: Linear::bind(next, ["o_proj.weight", "o_proj.bias"], [dim, queries], last),
        }
    }

    fn of<'l>(run: &Run<'l>) -> Weights<View<'l>> {
        Weights::bind(run.config, &mut listed(run.weights.iter().copied()))
    }
}

/// Columns of all heads of queries, and of all heads of keys or of values.
fn columns(config: &Config) -> [usize; 2] {
    let Sizes { heads, kv_heads, headdim, .. } = config.attention;
    [heads * headdim, kv_heads * headdim]
}

/// One head of queries for some rows of one sequence, in the columns of its rows and of those of keys and values.
struct Head {
    queries: Range<usize>,
    keys: Range<usize>,
    /// Whether it is the first one with these keys.
    first: bool,
}

/// All heads, those that share keys one behind the other.
fn heads(config: &Config) -> impl Iterator<Item = Head> {
    let Sizes { heads, kv_heads, headdim, .. } = config.attention;
    let (columns, share) = (move |head: usize| head * headdim..(head + 1) * headdim, heads / kv_heads);
    (0..heads).map(move |head| Head { queries: columns(head), keys: columns(head / share), first: head % share == 0 })
}

/// Rows of one sequence that are all there is of it, or the latest of it: their own columns of rooms, and keys and values of all that was read.
struct Sequence<'s> {
    rows: Range<usize>,
    keys: &'s [f32],
    values: &'s [f32],
}

impl Sequence<'_> {
    /// Shares of a head, (rows, positions), to `scores`, and its values, (headdim, positions), to `turned`.
    fn shares(&self, run: &Run<'_>, head: &Head, queries: &Room, [scores, turned]: [&mut Room; 2]) -> Result<()> {
        let (exec, Sizes { headdim, scale, .. }, [_, width]) = (run.device.exec(), run.config.attention, columns(run.config));
        let (count, positions) = (self.rows.len(), self.keys.len() / width);
        scores.grow(exec, DType::F32, count, positions)?;
        turned.grow(exec, DType::F32, headdim, positions)?;
        if head.first {
            transpose(self.values, width, head.keys.clone(), turned.numbers_mut());
        }
        let keys = View::new(self.keys, &[positions, width])?.slice(1, head.keys.clone());
        run.device.product(
            part(queries, &self.rows).slice(1, head.queries.clone()),
            Linear::plain(keys),
            &mut scores.of_mut(count),
        )?;
        softmax(&mut scores.numbers_mut()[..count * positions], positions, positions - count + 1, scale);
        Ok(())
    }

    /// From rotated queries to what they attend to.
    fn attend(&self, run: &Run<'_>, queries: &Room, work: [&mut Room; 2], mixed: &mut Room) -> Result<()> {
        let [scores, turned] = work;
        for head in heads(run.config) {
            self.shares(run, &head, queries, [&mut *scores, &mut *turned])?;
            let y = &mut mixed.of_mut(self.rows.end).slice(0, self.rows.clone()).slice(1, head.queries);
            run.device.product(scores.of(self.rows.len()), Linear::plain(turned.of(run.config.attention.headdim)), y)?;
        }
        Ok(())
    }

    /// The way back for a sequence that is all there: from the gradient by its rows of `own.mixed` to those by its queries, keys and values, as they are
    /// rotated; the latter two are added to what is there.
    fn backward(&self, run: &Run<'_>, queries: &Room, work: [&mut Room; 2], own: &mut Rooms) -> Result<()> {
        let (exec, Sizes { headdim, scale, .. }, [_, width]) = (run.device.exec(), run.config.attention, columns(run.config));
        let Rooms { mixed: dmixed, own: [dqueries, dkeys, dvalues, dscores, dturned, dhead], workspace, .. } = own;
        let (count, [scores, turned], keys) = (self.rows.len(), work, View::new(self.keys, &[self.rows.len(), width])?);
        dscores.grow(exec, DType::F32, count, count)?;
        dturned.grow(exec, DType::F32, headdim, count)?;
        dhead.grow(exec, DType::F32, count, headdim)?;
        for head in heads(run.config) {
            self.shares(run, &head, queries, [&mut *scores, &mut *turned])?;
            let dy = part(dmixed, &self.rows).slice(1, head.queries.clone());
            let of = Multiplied { x: scores.of(count), product: Linear::plain(turned.of(headdim)), dy };
            let into = Linear::plain(dturned.of_mut(headdim));
            run.device.product_backward(of, &mut dscores.of_mut(count), false, into, workspace)?;
            softmax_backward(&mut dscores.numbers_mut()[..count * count], scores.numbers(), count, scale);
            let x = part(queries, &self.rows).slice(1, head.queries.clone());
            let of = Multiplied { x, product: Linear::plain(keys.slice(1, head.keys.clone())), dy: dscores.of(count) };
            let dx = &mut dqueries.of_mut(self.rows.end).slice(0, self.rows.clone()).slice(1, head.queries);
            run.device.product_backward(of, dx, false, Linear::plain(dhead.of_mut(count)), workspace)?;
            let (rows, first) = (self.rows.start * width..self.rows.end * width, head.keys.start);
            add(&mut dkeys.numbers_mut()[rows.clone()], width, first, dhead.numbers(), headdim);
            add_transposed(&mut dvalues.numbers_mut()[rows], width, first, dturned.numbers(), headdim);
        }
        Ok(())
    }
}

impl Mix for Attention {
    fn weights(&self, config: &Config, each: Next<'_, ()>) {
        Weights::bind(config, each);
    }

    fn states(&self, config: &Config) -> Vec<StateShape> {
        let [_, width] = columns(config);
        ["keys", "values"].map(|name| StateShape { name, shape: [1, width], grows: true }).into()
    }

    fn row(&self, config: &Config) -> usize {
        let [queries, keys] = columns(config);
        [queries, queries, keys, keys].into_iter().fold(0, usize::saturating_add)
    }

    fn one_row(&self) -> Option<&dyn OneRow> {
        None
    }

    fn forward<'r>(
        &self,
        run: &Run<'r>,
        x: View<'_>,
        parts: Vec<Part<'_>>,
        rooms: &mut Rooms,
        _: bool,
    ) -> Result<Linear<View<'r>>> {
        let (count, [wide, width], rotary) = (x.shape()[0], columns(run.config), Rotary::new(&run.config.attention));
        let Weights { q_proj, k_proj, v_proj, o_proj } = Weights::<View<'_>>::of(run);
        rooms.grow(run.device.exec(), (x.dtype(), count), wide, &[wide, width, width])?;
        let Rooms { mixed, own: [queries, keys, values, scores, turned, ..], .. } = rooms;
        for (product, to) in [(q_proj, &mut *queries), (k_proj, &mut *keys), (v_proj, &mut *values)] {
            run.device.product(x, product, &mut to.of_mut(count))?;
        }
        for Part { rows, steps, position, mut grown, .. } in parts {
            for start in rows.step_by(steps.steps) {
                let rows = start..start + steps.steps;
                let of = |width: usize| rows.start * width..rows.end * width;
                rotary.rotate(&mut queries.numbers_mut()[of(wide)], wide, position, false);
                rotary.rotate(&mut keys.numbers_mut()[of(width)], width, position, false);
                let new = [&*keys, &*values].map(|room| &room.numbers()[of(width)]);
                // where the state is carried on it has those of earlier tokens
                for (all, new) in grown.iter_mut().zip(new) {
                    all.truncate(position * width);
                    all.extend_from_slice(new);
                }
                let [keys, values] = if let [keys, values] = &grown[..] { [&keys[..], &values[..]] } else { new };
                Sequence { rows, keys, values }.attend(run, queries, [&mut *scores, &mut *turned], mixed)?;
            }
        }
        Ok(o_proj)
    }

    fn backward(&self, run: &Run<'_>, mut back: Back<'_>, rooms: &mut Rooms, own: &mut Rooms) -> Result<()> {
        let (count, [wide, width], rotary) = (back.steps.rows(), columns(run.config), Rotary::new(&run.config.attention));
        let (weights, device) = (Weights::<View<'_>>::of(run), run.device);
        let Weights { q_proj, k_proj, v_proj, o_proj } = Weights::bind(run.config, &mut listed(back.into));
        own.grow(device.exec(), (back.dy.dtype(), count), wide, &[wide, width, width])?;
        let of = Multiplied { x: rooms.mixed.of(count), product: weights.o_proj, dy: back.dy };
        device.product_backward(of, &mut own.mixed.of_mut(count), false, o_proj, &mut own.workspace)?;
        own.own[1..3].iter_mut().for_each(|room| room.numbers_mut().fill(0.0));
        let Rooms { own: [queries, keys, values, scores, turned, ..], .. } = rooms;
        for start in (0..count).step_by(back.steps.steps) {
            let rows = start..start + back.steps.steps;
            let of = |width: usize| rows.start * width..rows.end * width;
            let [keys, values] = [&*keys, &*values].map(|room| &room.numbers()[of(width)]);
            let sequence = Sequence { rows: rows.clone(), keys, values };
            sequence.backward(run, queries, [&mut *scores, &mut *turned], own)?;
            rotary.rotate(&mut own.own[0].numbers_mut()[of(wide)], wide, 0, true);
            rotary.rotate(&mut own.own[1].numbers_mut()[of(width)], width, 0, true);
        }
        let all = [(weights.q_proj, q_proj), (weights.k_proj, k_proj), (weights.v_proj, v_proj)];
        let Rooms { own: gradients, workspace, .. } = own;
        for (i, ((product, into), dy)) in all.into_iter().zip(gradients).enumerate() {
            let of = Multiplied { x: back.x, product, dy: dy.of(count) };
            device.product_backward(of, &mut back.dx, i > 0, into, workspace)?;
        }
        Ok(())
    }
}
