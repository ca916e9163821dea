//! The gated delta rule in plain `f64` loops, step by step: the oracle that the kernels are tested against. It knows no chunks.

use super::{Args, Cotangents, EPS, Problem};
use crate::error::Result;
use crate::ops::oracle::{gradients, read};
use crate::ops::sequences::{Segment, StateRow};
use crate::ops::states::{NO_STATES, States};
use crate::tensor::{Dense, Device, Shape, View};

/// Results of [`forward`].
#[derive(Debug, Clone)]
pub struct Forward {
    /// (B, L, J, P)
    pub y: Dense,
    /// As the initial state.
    pub final_state: Dense,
}

gradients! { q, k, v; g, beta, a_log, dt_bias; initial_state }

/// One head of values of one segment.
struct Head<'p, 'a> {
    problem: &'p Problem<'a>,
    segment: Segment,
    j: usize,
}

/// The inputs of one step.
struct Step {
    /// With its length divided out, if that is wanted, and the inverse length; the query without the scale.
    q: (Vec<f64>, f64),
    k: (Vec<f64>, f64),
    v: Vec<f64>,
    /// The decay of each key channel.
    decay: Vec<f64>,
    /// Beta, and its derivative.
    beta: (f64, f64),
}

/// The effect of one step on the state.
struct Moved {
    /// The decayed state.
    faded: Vec<f64>,
    /// `v - S'^T k`
    error: Vec<f64>,
    after: Vec<f64>,
}

impl Head<'_, '_> {
    fn row(&self, view: &View<'_>, t: usize, head: usize) -> Vec<f64> {
        (0..view.shape()[3]).map(|i| read(view, &[self.segment.batch, t, head, i])).collect()
    }

    /// Divides a row by its length, if that is wanted.
    fn unit(&self, mut row: Vec<f64>) -> (Vec<f64>, f64) {
        if !self.problem.gates.qk_l2norm {
            return (row, 1.0);
        }
        let inverse = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() + EPS).sqrt();
        row.iter_mut().for_each(|x| *x *= inverse);
        (row, inverse)
    }

    fn at(&self, t: usize) -> [usize; 3] {
        [self.segment.batch, t, self.j]
    }

    /// Position of the gate of a key channel.
    fn gate_at(&self, t: usize, n: usize) -> Vec<usize> {
        let [b, t, j] = self.at(t);
        if self.problem.gates.by_channel { vec![b, t, j, n] } else { vec![b, t, j] }
    }

    fn own_at(&self, n: usize) -> Vec<usize> {
        if self.problem.gates.by_channel { vec![self.j, n] } else { vec![self.j] }
    }

    /// The logarithm of a decay, and its derivatives.
    fn gate(&self, t: usize, n: usize) -> super::gates::Decay {
        let problem = self.problem;
        let raw = problem.g.map_or(0.0, |g| read(&g, &self.gate_at(t, n)));
        let gate = problem.dt_bias.map_or(raw, |bias| raw + read::<f64>(&bias, &self.own_at(n)));
        problem.gates.exact_decay(gate, problem.a_log.map_or(0.0, |a| read(&a, &[self.j])))
    }

    fn step(&self, t: usize) -> Step {
        let (problem, head) = (self.problem, self.j / self.problem.group);
        let decay = (0..problem.keys).map(|n| self.gate(t, n).log.exp()).collect();
        Step {
            q: self.unit(self.row(&problem.q, t, head)),
            k: self.unit(self.row(&problem.k, t, head)),
            v: self.row(&problem.v, t, self.j),
            decay,
            beta: problem.beta.map_or((1.0, 0.0), |beta| problem.gates.exact_beta(read(&beta, &self.at(t)))),
        }
    }

    /// The state at a place of a tensor of states, or zero.
    fn state(&self, view: Option<View<'_>>, row: Option<StateRow>) -> Vec<f64> {
        let (keys, values) = (self.problem.keys, self.problem.values);
        let at = |i: usize| match (view, row) {
            (Some(view), Some((r, s))) => read(&view, &[r, s, self.j, i / values, i % values]),
            _ => 0.0,
        };
        (0..keys * values).map(at).collect()
    }

    fn store(&self, to: &mut Dense, row: Option<StateRow>, state: &[f64]) {
        let Some((r, s)) = row else { return };
        let values = self.problem.values;
        for (i, &value) in state.iter().enumerate() {
            *to.at_mut(&[r, s, self.j, i / values, i % values]) = value.into();
        }
    }

    fn advance(&self, step: &Step, before: &[f64]) -> Moved {
        let values = self.problem.values;
        let faded: Vec<f64> = before.iter().enumerate().map(|(i, s)| step.decay[i / values] * s).collect();
        let error: Vec<f64> = (0..values).map(|p| step.v[p] - column(&faded, &step.k.0, p, values)).collect();
        let after = faded.iter().enumerate().map(|(i, s)| s + step.k.0[i / values] * step.beta.0 * error[i % values]).collect();
        Moved { faded, error, after }
    }
}

/// The inner product of a column of a state with a key or a query.
fn column(state: &[f64], key: &[f64], p: usize, values: usize) -> f64 {
    key.iter().enumerate().map(|(n, k)| state[n * values + p] * k).sum()
}

fn heads<'p, 'a>(problem: &'p Problem<'a>) -> impl Iterator<Item = Head<'p, 'a>> {
    problem.segments.list.iter().flat_map(move |&segment| (0..problem.value_heads()).map(move |j| Head { problem, segment, j }))
}

/// `y` and the final state.
///
/// # Errors
/// As [`super::forward`].
pub fn forward(args: &Args<'_>) -> Result<Forward> {
    run(args, NO_STATES)
}

/// As [`forward`], with a final state of this shape: without an initial state it decides between the two forms that states have with
/// [`crate::Sequences::SeqIdx`].
///
/// # Errors
/// As [`super::forward`].
pub fn forward_with_state_shape(args: &Args<'_>, state: &[usize]) -> Result<Forward> {
    run(args, States::of_shapes([Some(Shape::new(state)?), None]))
}

fn run(args: &Args<'_>, states: States<'_>) -> Result<Forward> {
    let problem = Problem::new(args, Device::Cpu, states)?;
    let mut y = Dense::zeroed(args.v.shape());
    let (shape, normal) = (problem.state_shape, problem.normal.state_shape(problem.state_shape));
    let mut last = Dense::zeros(&normal)?;
    for head in heads(&problem) {
        let segment = head.segment;
        let mut state = head.state(problem.initial_state, segment.initial);
        for t in segment.start..segment.end {
            let step = head.step(t);
            state = head.advance(&step, &state).after;
            for p in 0..problem.values {
                let read = column(&state, &step.q.0, p, problem.values);
                *y.at_mut(&[segment.batch, t, head.j, p]) = (problem.gates.scale * read).into();
            }
        }
        head.store(&mut last, segment.last, &state);
    }
    Ok(Forward { y: problem.normal.restore(y, 1), final_state: last.reshaped(shape) })
}

/// Every gradient.
///
/// # Errors
/// As [`super::backward`].
pub fn backward(args: &Args<'_>, cotangents: &Cotangents<'_>) -> Result<Backward> {
    let states = States::of_shapes([cotangents.final_state.map(|s| s.shape()), None]);
    let problem = Problem::new(args, Device::Cpu, states)?;
    let like = |view: &View<'_>| Dense::zeroed(view.shape());
    let (shape, normal) = (problem.state_shape, problem.normal.state_shape(problem.state_shape));
    let mut out = Backward {
        q: like(&problem.q),
        k: like(&problem.k),
        v: like(&problem.v),
        g: problem.g.as_ref().map(like),
        beta: problem.beta.as_ref().map(like),
        a_log: problem.a_log.as_ref().map(like),
        dt_bias: problem.dt_bias.as_ref().map(like),
        initial_state: Dense::zeros(&normal)?,
    };
    let dy = cotangents.y.map(|v| problem.normal.timed(v, 1));
    let dlast = cotangents.final_state.map(|v| problem.normal.state(v));
    for head in heads(&problem) {
        head_backward(&head, dy, dlast, &mut out);
    }
    let restore = |dense| problem.normal.restore(dense, 1);
    (out.q, out.k, out.v) = (restore(out.q), restore(out.k), restore(out.v));
    (out.g, out.beta) = (out.g.map(restore), out.beta.map(restore));
    out.initial_state = out.initial_state.reshaped(shape);
    Ok(out)
}

fn head_backward(head: &Head<'_, '_>, dy: Option<View<'_>>, dlast: Option<View<'_>>, out: &mut Backward) {
    let (problem, segment) = (head.problem, head.segment);
    let mut states = vec![head.state(problem.initial_state, segment.initial)];
    for t in segment.start..segment.end {
        states.push(head.advance(&head.step(t), &states[t - segment.start]).after);
    }
    let mut d = head.state(dlast, segment.last);
    for t in (segment.start..segment.end).rev() {
        let step = head.step(t);
        let moved = head.advance(&step, &states[t - segment.start]);
        let dy = dy.map_or(vec![0.0; problem.values], |dy| head.row(&dy, t, head.j));
        d = step_backward(head, (t, &step, &moved), &dy, d, out);
    }
    head.store(&mut out.initial_state, segment.initial, &d);
}

/// Takes the gradient of the state after a step to that of the state before it.
fn step_backward(
    head: &Head<'_, '_>,
    (t, step, moved): (usize, &Step, &Moved),
    dy: &[f64],
    mut d: Vec<f64>,
    out: &mut Backward,
) -> Vec<f64> {
    let (problem, b) = (head.problem, head.segment.batch);
    let (keys, values, scale) = (problem.keys, problem.values, problem.gates.scale);
    let (mut dq, mut dk) = (vec![0.0; keys], vec![0.0; keys]);
    for i in 0..keys * values {
        d[i] += scale * step.q.0[i / values] * dy[i % values];
        dq[i / values] += scale * moved.after[i] * dy[i % values];
    }
    let written: Vec<f64> = (0..values).map(|p| column(&d, &step.k.0, p, values)).collect();
    let dv: Vec<f64> = written.iter().map(|w| step.beta.0 * w).collect();
    for (p, dv) in dv.iter().enumerate() {
        *out.v.at_mut(&[b, t, head.j, p]) = (*dv).into();
    }
    if let Some(dbeta) = &mut out.beta {
        let by_beta: f64 = written.iter().zip(&moved.error).map(|(w, e)| w * e).sum();
        *dbeta.at_mut(&head.at(t)) += by_beta * step.beta.1;
    }
    let mut dlog = vec![0.0; keys];
    for i in 0..keys * values {
        let (n, p) = (i / values, i % values);
        dk[n] += d[i] * step.beta.0 * moved.error[p] - moved.faded[i] * dv[p];
        d[i] -= step.k.0[n] * dv[p];
        dlog[n] += moved.faded[i] * d[i];
        d[i] *= step.decay[n];
    }
    for (of, (unit, inverse), by) in [(&mut out.q, &step.q, dq), (&mut out.k, &step.k, dk)] {
        let along: f64 = unit.iter().zip(&by).map(|(x, d)| x * d).sum();
        for n in 0..keys {
            let by = if problem.gates.qk_l2norm { inverse * (by[n] - unit[n] * along) } else { by[n] };
            *of.at_mut(&[b, t, head.j / problem.group, n]) += by;
        }
    }
    for (n, dlog) in dlog.into_iter().enumerate() {
        let gate = head.gate(t, n);
        if let Some(dg) = &mut out.g {
            *dg.at_mut(&head.gate_at(t, n)) += dlog * gate.by_gate;
        }
        if let Some(dbias) = &mut out.dt_bias {
            *dbias.at_mut(&head.own_at(n)) += dlog * gate.by_gate;
        }
        if let Some(da) = &mut out.a_log {
            *da.at_mut(&[head.j]) += dlog * gate.by_a_log;
        }
    }
    d
}
