//! The simplified scan in plain complex `f64` loops: the oracle that every kernel is tested against.

use super::{Args, Cotangents, Problem, Step};
use crate::error::Result;
use crate::ops::check::Checker;
use crate::ops::sequences::Segment;
use crate::tensor::{Dense, Device, Shape, View};
use num_complex::Complex64;

/// Results of [`forward`].
#[derive(Debug, Clone)]
pub struct Forward {
    /// (B, H, L)
    pub y: Dense,
    /// As the initial state.
    pub last_state: Dense,
}

/// Results of [`backward`]; the gradients of arguments that were not given are `None`.
#[derive(Debug, Clone)]
pub struct Backward {
    /// By `u`.
    pub u: Dense,
    /// By `delta`.
    pub delta: Dense,
    /// By `a`.
    pub a: Dense,
    /// By `b`.
    pub b: Dense,
    /// By `c`.
    pub c: Dense,
    /// By the skip.
    pub d: Option<Dense>,
    /// By `delta_a`.
    pub delta_a: Option<Dense>,
    /// By `initial_state` (zero or given).
    pub initial_state: Dense,
}

/// One segment's own numbers.
struct Row<'p, 'a> {
    p: &'p Problem<'a>,
    segment: Segment,
}

impl Row<'_, '_> {
    fn u(&self, h: usize, t: usize) -> Complex64 {
        self.p.u.at(&[self.segment.batch, h, t])
    }

    fn deltas(&self, n: usize, t: usize) -> (f64, f64) {
        let d = self.p.delta.at(self.segment.batch, n, t);
        (d, self.p.delta_a.map_or(d, |v| v.at(self.segment.batch, n, t)))
    }

    /// `B u[t]`
    fn driven(&self, n: usize, t: usize) -> Complex64 {
        (0..self.p.dim).map(|h| self.p.b.at(&[n, h]) * self.u(h, t)).sum()
    }

    /// The states of every step, that before the first one included.
    fn states(&self) -> Vec<Vec<Complex64>> {
        let (p, segment) = (self.p, self.segment);
        let first = (0..p.dstate).map(|n| match (p.initial_state, segment.initial) {
            (Some(view), Some((row, sequence))) => view.at(&[row, sequence, n]),
            _ => Complex64::ZERO,
        });
        let mut states = vec![first.collect::<Vec<_>>()];
        for t in segment.start..segment.end {
            let before = &states[t - segment.start];
            let after = (0..p.dstate).map(|n| {
                let (a, (d, da)) = (p.a.at(&[n]), self.deltas(n, t));
                p.discretization.decay(a * da).0 * before[n] + p.discretization.input(d, a).0 * self.driven(n, t)
            });
            states.push(after.collect());
        }
        states
    }

    fn output(&self, h: usize, t: usize, state: &[Complex64]) -> Complex64 {
        let p = self.p;
        let y: Complex64 = (0..p.dstate).map(|n| p.c.at(&[h, n]) * state[n]).sum();
        match p.real_factor {
            None => y,
            Some(factor) => (factor * y.re + self.skip(h) * self.u(h, t).re).into(),
        }
    }

    fn skip(&self, h: usize) -> f64 {
        self.p.d.map_or(0.0, |v| v.at(&[h]).re)
    }
}

/// `y` and the last state.
///
/// # Errors
/// As [`super::forward`].
pub fn forward(args: &Args<'_>) -> Result<Forward> {
    run(args, &[])
}

/// As [`forward`], with a last state of this shape: without an initial state it decides between the two forms that states have with
/// [`crate::Sequences::SeqIdx`].
///
/// # Errors
/// As [`super::forward`].
pub fn forward_with_state_shape(args: &Args<'_>, state: &[usize]) -> Result<Forward> {
    run(args, &[Shape::new(state)?])
}

fn run(args: &Args<'_>, states: &[Shape]) -> Result<Forward> {
    let p = Problem::new(args, &mut Checker::new(args.head.op(), Device::Cpu), states)?;
    let mut y = Dense::zeros(&[p.batch, p.dim, p.seqlen])?;
    let (shape, normal) = (p.state_shape, p.normal.state_shape(p.state_shape));
    let mut last = Dense::zeroed(normal);
    for &segment in &p.segments.list {
        let row = Row { p: &p, segment };
        let states = row.states();
        for t in segment.start..segment.end {
            for h in 0..p.dim {
                *y.at_mut(&[segment.batch, h, t]) = row.output(h, t, &states[t - segment.start + 1]);
            }
        }
        if let Some((at, sequence)) = segment.last {
            for n in 0..p.dstate {
                *last.at_mut(&[at, sequence, n]) = states[segment.len()][n];
            }
        }
    }
    Ok(Forward { y: p.normal.restore(y, 2), last_state: last.reshaped(shape) })
}

/// Every gradient.
///
/// # Errors
/// As [`super::backward`].
pub fn backward(args: &Args<'_>, cotangents: &Cotangents<'_>) -> Result<Backward> {
    let states: Vec<_> = cotangents.last_state.iter().map(|s| s.shape()).collect();
    let p = Problem::new(args, &mut Checker::new(args.head.op(), Device::Cpu), &states)?;
    let (shape, normal) = (p.state_shape, p.normal.state_shape(p.state_shape));
    let of = |view: &View<'_>| Dense::zeroed(view.shape());
    let mut out = Backward {
        u: of(&args.u),
        delta: of(&args.delta),
        a: Dense::zeros(&[p.dstate])?,
        b: of(&args.b),
        c: of(&args.c),
        d: p.d.map(|v| of(&v)),
        delta_a: args.delta_a.map(|v| of(&v)),
        initial_state: Dense::zeroed(normal),
    };
    let by_y = cotangents.y.map(|v| p.normal.timed(v, 2));
    let by_last = cotangents.last_state.map(|v| p.normal.state(v));
    for &segment in &p.segments.list {
        row_backward(&Row { p: &p, segment }, by_y, by_last, &mut out);
    }
    out.u = p.normal.restore(out.u, 2);
    if !p.delta.is_constant() {
        out.delta = p.normal.restore(out.delta, 2);
    }
    if p.delta_a.is_some_and(|v| !v.is_constant()) {
        out.delta_a = out.delta_a.map(|v| p.normal.restore(v, 2));
    }
    out.a = out.a.reshaped(args.a.shape());
    out.initial_state = out.initial_state.reshaped(shape);
    // the gradient of a real argument is real
    let zeros = Dense::zeroed(shape);
    let initial = args.initial_state.unwrap_or(zeros.view());
    for (grad, view) in [
        (&mut out.u, &args.u),
        (&mut out.a, &args.a),
        (&mut out.b, &args.b),
        (&mut out.c, &args.c),
        (&mut out.initial_state, &initial),
    ] {
        if !view.dtype().is_complex() {
            grad.data_mut().iter_mut().for_each(|v| v.im = 0.0);
        }
    }
    Ok(out)
}

/// Adds to the gradient of a step size.
fn add_step(of: &Step<'_>, grad: &mut Dense, batch: usize, n: usize, t: usize, value: f64) {
    match of {
        Step::Constant(_) => *grad.at_mut(&[n]) += value,
        Step::Varying(_) => *grad.at_mut(&[batch, n, t]) += value,
    }
}

fn row_backward(row: &Row<'_, '_>, by_y: Option<View<'_>>, by_last: Option<View<'_>>, out: &mut Backward) {
    let (p, segment) = (row.p, row.segment);
    let states = row.states();
    let at = |n| match (by_last, segment.last) {
        (Some(view), Some((row, sequence))) => view.at(&[row, sequence, n]),
        _ => Complex64::ZERO,
    };
    // the gradient by x[t], carried from step to step
    let mut g: Vec<_> = (0..p.dstate).map(at).collect();
    for t in (segment.start..segment.end).rev() {
        let (before, after) = (&states[t - segment.start], &states[t - segment.start + 1]);
        for h in 0..p.dim {
            let Some(by_y) = by_y else { break };
            let mut by_output = by_y.at(&[segment.batch, h, t]);
            if let Some(factor) = p.real_factor {
                let cotangent = by_output.re;
                if let Some(by_d) = &mut out.d {
                    *by_d.at_mut(&[h]) += cotangent * row.u(h, t).re;
                }
                *out.u.at_mut(&[segment.batch, h, t]) += cotangent * row.skip(h);
                by_output = (factor * cotangent).into();
            }
            for n in 0..p.dstate {
                g[n] += p.c.at(&[h, n]).conj() * by_output;
                *out.c.at_mut(&[h, n]) += by_output * after[n].conj();
            }
        }
        for n in 0..p.dstate {
            let (a, (d, da)) = (p.a.at(&[n]), row.deltas(n, t));
            let (decay, decay_by_z) = p.discretization.decay(a * da);
            let (input, input_by_d, input_by_a) = p.discretization.input(d, a);
            let by_driven = g[n] * input.conj();
            for h in 0..p.dim {
                *out.b.at_mut(&[n, h]) += by_driven * row.u(h, t).conj();
                *out.u.at_mut(&[segment.batch, h, t]) += by_driven * p.b.at(&[n, h]).conj();
            }
            let by_decay = g[n] * before[n].conj();
            let by_input = g[n] * row.driven(n, t).conj();
            *out.a.at_mut(&[n]) += by_decay * decay_by_z.conj() * da + by_input * input_by_a.conj();
            add_step(&p.delta, &mut out.delta, segment.batch, n, t, (by_input * input_by_d.conj()).re);
            let by_da = (by_decay * (decay_by_z * a).conj()).re;
            match (&p.delta_a, &mut out.delta_a) {
                (Some(of), Some(grad)) => add_step(of, grad, segment.batch, n, t, by_da),
                _ => add_step(&p.delta, &mut out.delta, segment.batch, n, t, by_da),
            }
            g[n] *= decay.conj();
        }
    }
    if let Some((row, sequence)) = segment.initial {
        for n in 0..p.dstate {
            *out.initial_state.at_mut(&[row, sequence, n]) = g[n];
        }
    }
}
