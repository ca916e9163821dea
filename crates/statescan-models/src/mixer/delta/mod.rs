//! The gated delta rule:
//!
//! ```text
//! q, k, v, z, b, a = projections of u      q, k, v = silu(conv(q, k, v))      y = rule(q, k, v, g(a), sigmoid(b))      out(norm(y) silu(z))
//! ```
//!
//! Heads of values share those of queries and keys in groups. `rule.rs` has the calls of the rule and of the norm behind it; here are names and passes.

mod rule;
mod step;

use super::convolution::{Around, Frame};
use super::run::{Back, Part, Run, Steps, first, part};
use super::weights::{Linear, Next, Role, listed};
use super::{Last, Mix, Rooms};
use crate::config::{Config, Family};
use crate::error::Result;
use crate::state::StateShape;
use rule::{Inner, RuleTargets};
use statescan::View;
use std::ops::Range;

/// The gated delta rule.
pub(super) struct Delta;

/// The weights of a mixer.
struct Weights<T> {
    around: Around<T>,
    /// Logarithms of rates, and biases of what decays are made of, (nheads).
    a_log: T,
    dt_bias: T,
    /// The weight of the norm of each head.
    norm: T,
}

impl<T> Weights<T> {
    fn bind(config: &Config, next: Next<'_, T>) -> Self {
        let (columns, dim) = (Columns::new(config), config.dim);
        let [keys, values, heads] = [config.ngroups * config.dstate, config.inner, config.nheads];
        let olmo = config.family == Family::OlmoHybrid;
        let into: &[(&'static str, usize)] = match olmo {
            true => &[
                ("q_proj.weight", keys),
                ("k_proj.weight", keys),
                ("v_proj.weight", values),
                ("g_proj.weight", values),
                ("b_proj.weight", heads),
                ("a_proj.weight", heads),
            ],
            false => &[
                ("in_proj_qkv.weight", columns.conv.len()),
                ("in_proj_z.weight", values),
                ("in_proj_b.weight", heads),
                ("in_proj_a.weight", heads),
            ],
        };
        let [last, norm] = if olmo { ["o_proj.weight", "o_norm.weight"] } else { ["out_proj.weight", "norm.weight"] };
        let mut plain = |name, shape: &[usize], role| Linear::plain(next(name, shape, role));
        let around = Around {
            into: into.iter().map(|&(name, outputs)| plain(name, &[outputs, dim], Role::Matrix)).collect(),
            conv: plain("conv1d.weight", &[columns.conv.len(), 1, config.width], Role::Filter),
            out_proj: plain(last, &[dim, values], Role::Matrix),
        };
        Weights {
            around,
            a_log: next("A_log", &[heads], Role::Vector),
            dt_bias: next("dt_bias", &[heads], Role::Vector),
            norm: next(norm, &[config.headdim()], Role::Vector),
        }
    }
}

/// Columns of the first of a mixer's own rooms, which has what is projected; the second has what the convolution makes of its columns, the third what the
/// rule makes of that.
struct Columns {
    /// Queries, keys and values.
    conv: Range<usize>,
    gate: Range<usize>,
    beta: Range<usize>,
    /// Numbers that decays are made of.
    decay: Range<usize>,
}

impl Columns {
    fn new(config: &Config) -> Self {
        let Config { inner, nheads, .. } = *config;
        let channels = config.conv_channels();
        let after = |end: usize, count: usize| end..end + count;
        let gate = after(channels, inner);
        let beta = after(gate.end, nheads);
        Columns { conv: 0..channels, decay: after(beta.end, nheads), gate, beta }
    }

    /// Columns of each room.
    fn of_rooms(&self) -> [usize; 3] {
        [self.decay.end, self.conv.len(), self.gate.len()]
    }
}

/// A mixer on a device.
struct Pass<'p, 'r> {
    run: &'p Run<'r>,
    columns: Columns,
    weights: Weights<View<'r>>,
}

impl<'p, 'r> Pass<'p, 'r> {
    fn new(run: &'p Run<'r>) -> Self {
        let weights = Weights::bind(run.config, &mut listed(run.weights.iter().copied()));
        Pass { run, columns: Columns::new(run.config), weights }
    }

    fn inner(&self, steps: Steps) -> Inner<'_> {
        let Pass { run, columns, weights } = self;
        Inner { exec: run.device.exec(), config: run.config, steps, columns, weights }
    }

    fn frame(&self) -> Frame<'p, 'r> {
        Frame { run: self.run, around: self.weights.around.clone(), columns: self.columns.conv.clone() }
    }
}

impl Mix for Delta {
    fn weights(&self, config: &Config, each: Next<'_, ()>) {
        Weights::bind(config, each);
    }

    fn states(&self, config: &Config) -> Vec<StateShape> {
        let conv = StateShape { name: "conv", shape: [config.conv_channels(), config.width - 1], grows: false };
        let state = [config.nheads * config.dstate, config.headdim()];
        vec![conv, StateShape { name: "scan", shape: state, grows: false }]
    }

    fn row(&self, config: &Config) -> usize {
        Columns::new(config).of_rooms().into_iter().fold(config.inner, usize::saturating_add)
    }

    fn forward<'r>(&self, run: &Run<'r>, x: View<'_>, parts: Vec<Part<'_>>, rooms: &mut Rooms, _: bool) -> Result<Last<'r>> {
        let (rows, pass) = (x.shape()[0], Pass::new(run));
        rooms.grow(run.device.exec(), (x.dtype(), rows), run.config.inner, &pass.columns.of_rooms())?;
        for (rows, steps, states) in pass.frame().forward(x, parts, rooms)? {
            let Rooms { own: [projected, conv, y, ..], workspace, .. } = &mut *rooms;
            let from = [&*projected, &*conv].map(|room| part(room, &rows));
            pass.inner(steps).rule(from, states, y.of_mut(rows.end).slice(0, rows), workspace)?;
        }
        let Rooms { mixed, own: [projected, _, y, ..], .. } = rooms;
        let inner = pass.inner(Steps { sequences: 1, steps: rows });
        inner.gated_norm(y.of(rows), projected.of(rows), mixed.of_mut(rows))?;
        Ok(pass.weights.around.out_proj)
    }

    /// From the gradient by the results of the norm the way goes to those by the columns of gates, of beta and of decays and by the convolution's results.
    fn backward(&self, run: &Run<'_>, mut back: Back<'_>, rooms: &mut Rooms, own: &mut Rooms) -> Result<()> {
        let (pass, steps, rows) = (Pass::new(run), back.steps, back.steps.rows());
        own.grow(run.device.exec(), (back.dy.dtype(), rows), run.config.inner, &pass.columns.of_rooms())?;
        let Weights { around, a_log, dt_bias, norm } = Weights::bind(run.config, &mut listed(std::mem::take(&mut back.into)));
        let [of_conv, of_rule] = first(std::mem::take(&mut back.states));
        let mut within = Some((of_rule, norm, [a_log, dt_bias]));
        pass.frame().backward((back, of_conv), around, (rooms, own), &mut |rooms, own| {
            let (ends, of_norm, of_rule) = within.take().expect("once");
            let (inner, Rooms { own: [projected, conv, y, ..], .. }) = (pass.inner(steps), rooms);
            let Rooms { mixed: dmixed, own: [dprojected, dconv, dy, ..], workspace, .. } = own;
            let [projected, conv, y] = [projected, conv, y].map(|room| room.of(rows));
            let from = [y, projected, dmixed.of(rows)];
            inner.gated_norm_backward(from, dy.of_mut(rows), dprojected.of_mut(rows), of_norm, workspace)?;
            let into = RuleTargets { projected: dprojected.of_mut(rows), conv: dconv.of_mut(rows) };
            inner.rule_backward([projected, conv, dy.of(rows)], into, of_rule, ends, workspace)
        })
    }
}
