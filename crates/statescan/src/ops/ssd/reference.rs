//! SSD in plain `f64` loops, step by step: the oracle that the kernels are tested against. It knows no chunks.

use super::{Args, Cotangents, Problem};
use crate::error::Result;
use crate::ops::oracle::{gradients, read, silu, sum};
use crate::ops::sequences::Segment;
use crate::ops::states::{NO_STATES, States};
use crate::tensor::{Dense, Device, Shape, View};

/// Results of [`forward`].
#[derive(Debug, Clone)]
pub struct Forward {
    /// (B, L, H, P)
    pub y: Dense,
    /// As the initial state.
    pub final_state: Dense,
}

gradients! { x, dt, a, b, c; d, z, dt_bias, dt_a; initial_state }

/// Row `p` of the state of head `h` in one segment.
struct Row<'p, 'a> {
    problem: &'p Problem<'a>,
    segment: Segment,
    h: usize,
    p: usize,
}

impl Row<'_, '_> {
    /// The step after bias, softplus and clamp, and its derivative by the raw one.
    fn dt(&self, t: usize) -> (f64, f64) {
        let problem = self.problem;
        let raw: f64 = read(&problem.dt, &[self.segment.batch, t, self.h]);
        let raw = problem.dt_bias.map_or(raw, |bias| raw + read::<f64>(&bias, &[self.h]));
        problem.step_size.exact(raw)
    }

    /// The step of the decay, where that of the input is `dt`.
    fn dt_a(&self, t: usize, dt: f64) -> f64 {
        self.problem.dt_a.map_or(dt, |view| view.at(&[self.segment.batch, t, self.h]).re)
    }

    fn index(&self, t: usize) -> [usize; 4] {
        [self.segment.batch, t, self.h, self.p]
    }

    fn x(&self, t: usize) -> f64 {
        self.problem.x.at(&self.index(t)).re
    }

    /// `D x`, if there is a skip.
    fn skip(&self, x: f64) -> Option<f64> {
        let own = |d: View<'_>| -> f64 { if d.rank() == 2 { read(&d, &[self.h, self.p]) } else { read(&d, &[self.h]) } };
        self.problem.d.map(|d| own(d) * x)
    }

    /// `silu(z)` and its derivative, if there is a gate.
    fn gate(&self, t: usize) -> Option<(f64, f64)> {
        self.problem.z.map(|z| silu(read(&z, &self.index(t))))
    }

    /// Position of an element of B or C.
    fn map(&self, t: usize, n: usize) -> [usize; 4] {
        [self.segment.batch, t, self.h / (self.problem.nheads / self.problem.ngroups), n]
    }

    /// The states before the first step and after each one.
    fn states(&self) -> Vec<Vec<f64>> {
        let (problem, segment) = (self.problem, self.segment);
        let mut state: Vec<f64> = (0..problem.dstate)
            .map(|n| match (problem.initial_state, segment.initial) {
                (Some(view), Some((row, sequence))) => view.at(&[row, sequence, self.h, self.p, n]).re,
                _ => 0.0,
            })
            .collect();
        let a = problem.a.at(&[self.h]).re;
        let mut all = vec![state.clone()];
        for t in segment.start..segment.end {
            let (dt, x) = (self.dt(t).0, self.x(t));
            let decay = (self.dt_a(t, dt) * a).exp();
            for n in 0..problem.dstate {
                state[n] = decay * state[n] + dt * problem.b.at(&self.map(t, n)).re * x;
            }
            all.push(state.clone());
        }
        all
    }

    /// `y` before the gate.
    fn output(&self, t: usize, state: &[f64]) -> f64 {
        let read_out = sum((0..self.problem.dstate).map(|n| read::<f64>(&self.problem.c, &self.map(t, n)) * state[n]));
        self.skip(self.x(t)).map_or(read_out, |skip| read_out + skip)
    }
}

fn rows<'p, 'a>(problem: &'p Problem<'a>) -> impl Iterator<Item = Row<'p, 'a>> {
    problem.segments.list.iter().flat_map(move |&segment| {
        (0..problem.nheads).flat_map(move |h| (0..problem.headdim).map(move |p| Row { problem, segment, h, p }))
    })
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
    let mut y = Dense::zeroed(args.x.shape());
    let (shape, normal) = (problem.state_shape, problem.normal.state_shape(problem.state_shape));
    let mut last = Dense::zeros(&normal)?;
    for row in rows(&problem) {
        let segment = row.segment;
        let states = row.states();
        for t in segment.start..segment.end {
            let output = row.output(t, &states[t - segment.start + 1]);
            *y.at_mut(&row.index(t)) = row.gate(t).map_or(output, |(gate, _)| output * gate).into();
        }
        if let Some((r, s)) = segment.last {
            for n in 0..problem.dstate {
                *last.at_mut(&[r, s, row.h, row.p, n]) = states[segment.len()][n].into();
            }
        }
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
        x: like(&problem.x),
        dt: like(&problem.dt),
        a: like(&problem.a),
        b: like(&problem.b),
        c: like(&problem.c),
        d: problem.d.as_ref().map(like),
        z: problem.z.as_ref().map(like),
        dt_bias: problem.dt_bias.as_ref().map(like),
        dt_a: problem.dt_a.as_ref().map(like),
        initial_state: Dense::zeros(&normal)?,
    };
    let dy = cotangents.y.map(|v| problem.normal.timed(v, 1));
    let dlast = cotangents.final_state.map(|v| problem.normal.state(v));
    for row in rows(&problem) {
        row_backward(&row, dy, dlast, &mut out);
    }
    out.x = problem.normal.restore(out.x, 1);
    out.dt = problem.normal.restore(out.dt, 1);
    out.dt_a = out.dt_a.map(|v| problem.normal.restore(v, 1));
    out.z = out.z.map(|v| problem.normal.restore(v, 1));
    out.b = problem.normal.restore(out.b, 1).reshaped(args.b.shape());
    out.c = problem.normal.restore(out.c, 1).reshaped(args.c.shape());
    out.initial_state = out.initial_state.reshaped(shape);
    Ok(out)
}

fn row_backward(row: &Row<'_, '_>, dy: Option<View<'_>>, dlast: Option<View<'_>>, out: &mut Backward) {
    let (problem, segment, h) = (row.problem, row.segment, row.h);
    let states = row.states();
    let a = problem.a.at(&[h]).re;
    // the gradient by the state, carried from step to step
    let mut g: Vec<f64> = (0..problem.dstate)
        .map(|n| match (dlast, segment.last) {
            (Some(view), Some((r, s))) => view.at(&[r, s, h, row.p, n]).re,
            _ => 0.0,
        })
        .collect();
    for t in (segment.start..segment.end).rev() {
        let (before, after) = (&states[t - segment.start], &states[t - segment.start + 1]);
        let ((dt, slope), x, index) = (row.dt(t), row.x(t), row.index(t));
        let cotangent = dy.map_or(0.0, |v| v.at(&index).re);
        let gate = row.gate(t);
        if let (Some(dz), Some((_, slope))) = (&mut out.z, gate) {
            *dz.at_mut(&index) = (cotangent * row.output(t, after) * slope).into();
        }
        let dout = gate.map_or(cotangent, |(gate, _)| cotangent * gate);
        if let Some(dd) = &mut out.d {
            let at = if dd.shape().len() == 2 { vec![h, row.p] } else { vec![h] };
            *dd.at_mut(&at) += dout * x;
        }
        let (mut dx, mut ddt, mut ddt_a) = (row.skip(dout).unwrap_or(0.0), 0.0, 0.0);
        let dt_a = row.dt_a(t, dt);
        let decay = (dt_a * a).exp();
        for n in 0..problem.dstate {
            let at = row.map(t, n);
            let b = problem.b.at(&at).re;
            g[n] += problem.c.at(&at).re * dout;
            *out.c.at_mut(&at) += after[n] * dout;
            *out.b.at_mut(&at) += g[n] * dt * x;
            dx += g[n] * dt * b;
            let by_exponent = g[n] * before[n] * decay;
            *out.a.at_mut(&[h]) += by_exponent * dt_a;
            ddt += g[n] * b * x;
            ddt_a += by_exponent * a;
            g[n] *= decay;
        }
        *out.x.at_mut(&index) = dx.into();
        match &mut out.dt_a {
            Some(grad) => *grad.at_mut(&[segment.batch, t, h]) += ddt_a,
            None => ddt += ddt_a,
        }
        *out.dt.at_mut(&[segment.batch, t, h]) += ddt * slope;
        if let Some(bias) = &mut out.dt_bias {
            *bias.at_mut(&[h]) += ddt * slope;
        }
    }
    if let Some((r, s)) = segment.initial {
        for n in 0..problem.dstate {
            *out.initial_state.at_mut(&[r, s, h, row.p, n]) = g[n].into();
        }
    }
}
