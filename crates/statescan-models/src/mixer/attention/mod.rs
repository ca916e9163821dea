//! Grouped-query attention with rotary positions:
//!
//! ```text
//! q, k, v = q_proj(u), k_proj(u), v_proj(u)      q, k = rope(q), rope(k)      y = softmax(scale q k^T, up to each row) v      o_proj(y)
//! ```
//!
//! Some families have norms of queries and keys before they are rotated, and gates, which the projection to queries has behind each head.
//!
//! Several heads of queries share a head of keys and values, which the state keeps of every token. Everything is a product and a softmax of whole rows, one
//! head after the other: a row takes time and memory by the number of tokens before it, which is right for the few layers of attention between scans, and
//! not for long contexts.
//!
//! `backward.rs` has the way back, `step.rs` the way of one row on a GPU.

mod backward;
mod heads;
mod step;

use super::run::{Back, Part, Run, part};
use super::weights::{Linear, Next, Role, listed};
use super::{Heads, Last, Mix, Room, Rooms};
use crate::config::{Attention as Sizes, Config, HeadNorms};
use crate::error::Result;
use crate::state::StateShape;
use crate::weight::Weight;
use heads::Norms;
use statescan::{DType, View, ViewMut};
use std::ops::Range;

/// Attention.
pub(super) struct Attention;

/// Scores that are there at once: what bounds the memory of a long prompt.
const SCORES: usize = 1 << 26;

/// The weights of a mixer.
#[derive(Clone, Copy)]
struct Weights<T> {
    /// To queries, keys and values.
    into: [Linear<T>; 3],
    o_proj: Linear<T>,
    /// The norms of queries and of keys, where there are some.
    norms: Option<[T; 2]>,
}

impl<T> Weights<T> {
    fn bind(config: &Config, next: Next<'_, T>) -> Self {
        let (dim, Sizes { bias, norms, headdim, .. }, [wide, keys]) = (config.dim, config.attention, columns(config));
        let queries = projected_queries(config);
        let (within, last) = (bias.then_some(Role::Bias), bias.then_some(Role::LastBias));
        let into = [
            Linear::bind(next, ["q_proj.weight", "q_proj.bias"], [queries, dim], within),
            Linear::bind(next, ["k_proj.weight", "k_proj.bias"], [keys, dim], within),
            Linear::bind(next, ["v_proj.weight", "v_proj.bias"], [keys, dim], within),
        ];
        let o_proj = Linear::bind(next, ["o_proj.weight", "o_proj.bias"], [dim, wide], last);
        let of_norms = match norms {
            HeadNorms::None => None,
            HeadNorms::Each => Some([headdim, headdim]),
            HeadNorms::All => Some([wide, keys]),
        };
        let mut norm = |name, size| next(name, &[size], Role::Norm);
        let norms = of_norms.map(|[queries, keys]| [norm("q_norm.weight", queries), norm("k_norm.weight", keys)]);
        Weights { into, o_proj, norms }
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

/// Columns of the projection to queries, which may have gates behind each head.
fn projected_queries(config: &Config) -> usize {
    columns(config)[0] * if config.attention.gate { 2 } else { 1 }
}

/// Rows with queries, keys and values behind one another, or a row of them, as these three, of which the first two have so many columns.
fn apart(rows: ViewMut<'_>, [of_queries, of_keys]: [usize; 2]) -> [ViewMut<'_>; 3] {
    let last = rows.shape().len() - 1;
    let (queries, both) = rows.split_at(last, of_queries);
    let (keys, values) = both.split_at(last, of_keys);
    [queries, keys, values]
}

/// The heads of keys and values, each with those of queries that share it: in the columns of their rows.
fn heads(config: &Config) -> impl Iterator<Item = (Range<usize>, impl Iterator<Item = Range<usize>>)> {
    let Sizes { heads, kv_heads, headdim, .. } = config.attention;
    let (columns, share) = (move |head: usize| head * headdim..(head + 1) * headdim, heads / kv_heads);
    (0..kv_heads).map(move |head| (columns(head), (head * share..(head + 1) * share).map(columns)))
}

/// How rows are turned, the first of which is at a position.
fn turns<'r>(run: &Run<'r>, first: usize) -> Heads<'r> {
    Heads { headdim: run.config.attention.headdim, angles: run.derived.first().copied(), first, back: false }
}

/// Rows of one sequence that are all there is of it, or the latest of it: their rows in rooms, and keys and values of all that was read.
struct Sequence<'s> {
    rows: Range<usize>,
    /// Tokens before these rows.
    position: usize,
    keys: View<'s>,
    values: View<'s>,
}

impl Sequence<'_> {
    /// Shares of some of the rows, (rows, tokens), to `scores`, by a head's rotated queries and its keys.
    fn shares(&self, run: &Run<'_>, rows: &Range<usize>, [queries, keys]: [View<'_>; 2], scores: &mut Room) -> Result<()> {
        let seen = self.position + rows.start - self.rows.start + 1;
        scores.grow(run.device.exec(), DType::F32, rows.len(), keys.shape()[0])?;
        let scores = &mut scores.of_mut(rows.len());
        run.device.product(queries, Linear::plain(keys), scores)?;
        run.device.softmax(scores, seen, run.config.attention.scale)
    }

    /// From rotated queries to what they attend to, in f32.
    fn attend(&self, run: &Run<'_>, queries: &Room, [scores, turned]: [&mut Room; 2], to: &mut Room) -> Result<()> {
        let most = (SCORES / self.keys.shape()[0]).max(1);
        for (shared, queried) in heads(run.config) {
            let values = run.device.transposed(self.values.slice(1, shared.clone()), turned)?;
            for own in queried {
                for first in self.rows.clone().step_by(most) {
                    let rows = first..self.rows.end.min(first + most);
                    let factors = [part(queries, &rows).slice(1, own.clone()), self.keys.slice(1, shared.clone())];
                    self.shares(run, &rows, factors, scores)?;
                    let y = &mut to.of_mut(rows.end).slice(0, rows.clone()).slice(1, own.clone());
                    run.device.product(scores.of(rows.len()), Linear::plain(values), y)?;
                }
            }
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
        [projected_queries(config), queries, queries, queries, keys, keys, keys, keys, keys]
            .into_iter()
            .fold(0, usize::saturating_add)
    }

    /// Radians for each position, one for each pair of numbers that is turned.
    fn derived(&self, config: &Config, _: &[Weight], _: bool) -> Result<Vec<Weight>> {
        let Sizes { rotary, theta, .. } = config.attention;
        let angle = |pair: usize| theta.powf(2.0 * pair as f64 / rotary as f64).recip() as f32;
        let angles: Vec<f32> = (0..rotary / 2).map(angle).collect();
        Ok(if angles.is_empty() { Vec::new() } else { vec![Weight::from_slice(&angles, &[angles.len()])?] })
    }

    /// The first of the own rooms has rows as they are projected, the second rotated queries, and the third, where no state is carried on, rotated keys and
    /// values.
    fn forward<'r>(&self, run: &Run<'r>, x: View<'_>, parts: Vec<Part<'_>>, rooms: &mut Rooms, _: bool) -> Result<Last<'r>> {
        let (count, [wide, width], device) = (x.shape()[0], columns(run.config), run.device);
        let (Weights { into, o_proj, norms }, of_queries) = (Weights::<View<'_>>::of(run), projected_queries(run.config));
        rooms.grow(device.exec(), (x.dtype(), count), wide, &[of_queries + 2 * width])?;
        let Rooms { mixed, own: [projected, queries, known, scores, turned, attended, normed], .. } = rooms;
        queries.grow(device.exec(), DType::F32, count, wide)?;
        for (product, mut to) in into.into_iter().zip(apart(projected.of_mut(count), [of_queries, width])) {
            device.product(x, product, &mut to)?;
        }
        if let Some(norms) = norms {
            normed.grow(device.exec(), DType::F32, count, wide + width)?;
            Norms::of(run, norms).forward(projected.of(count), normed.of_mut(count))?;
        }
        let turned_from = if norms.is_some() { &*normed } else { &*projected };
        let rounds = x.dtype() != DType::F32;
        let to = if rounds { &mut *attended } else { &mut *mixed };
        to.grow(device.exec(), DType::F32, count, wide)?;
        for Part { rows, steps, position, mut grown, .. } in parts {
            if grown.is_empty() {
                known.grow(device.exec(), DType::F32, count, 2 * width)?;
            }
            for (sequence, start) in rows.step_by(steps.steps).enumerate() {
                let (rows, new) = (start..start + steps.steps, position..position + steps.steps);
                let [from, values_from] = [turned_from, projected].map(|room| part(room, &rows));
                device.rope(from.slice(1, 0..wide), &turns(run, position), &mut rows_mut(queries, &rows))?;
                let [mut keys, mut values] = match &mut grown[..] {
                    [keys, values] => [keys, values].map(|all| all.reborrow().index(0, sequence)),
                    _ => <[_; 2]>::from(rows_mut(known, &rows).split_at(1, width)),
                };
                device.rope(
                    from.slice(1, wide..wide + width),
                    &turns(run, position),
                    &mut keys.reborrow().slice(0, new.clone()),
                )?;
                let columns = of_queries + width..of_queries + 2 * width;
                device.cast(values_from.slice(1, columns), &mut values.reborrow().slice(0, new))?;
                let sequence = Sequence { rows, position, keys: keys.as_view(), values: values.as_view() };
                sequence.attend(run, queries, [&mut *scores, &mut *turned], to)?;
            }
        }
        if run.config.attention.gate {
            let queries = projected.of(count).slice(1, 0..of_queries);
            device.output_gate(queries, run.config.attention.headdim, &mut to.of_mut(count))?;
        }
        if rounds {
            device.cast(attended.of(count), &mut mixed.of_mut(count))?;
        }
        Ok(o_proj)
    }

    fn backward(&self, run: &Run<'_>, back: Back<'_>, rooms: &mut Rooms, own: &mut Rooms) -> Result<()> {
        backward::backward(run, back, rooms, own)
    }
}

/// Some rows of a room, to be written.
fn rows_mut<'r>(room: &'r mut Room, rows: &Range<usize>) -> ViewMut<'r> {
    room.of_mut(rows.end).slice(0, rows.clone())
}
