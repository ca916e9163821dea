//! The simplified scan in plain `f64` loops: the oracle that every kernel is tested against.
//!
//! Inputs are numbers of type `U`, states and maps of type `S`: real where all such arguments are.

use super::{Args, Cotangents, Problem, Step};
use crate::error::Result;
use crate::ops::oracle::{Scalar, gradients, read, sum};
use crate::ops::sequences::Segment;
use crate::ops::states::{NO_STATES, States};
use crate::tensor::{Dense, Device, Shape, View};
use core::marker::PhantomData;
use core::ops::Mul;
use num_complex::Complex64;

/// Results of [`forward`].
#[derive(Debug, Clone)]
pub struct Forward {
    /// (B, H, L)
    pub y: Dense,
    /// As the initial state.
    pub last_state: Dense,
}

gradients! { u, delta, a, b, c; d, delta_a; initial_state }

/// One segment's own numbers.
struct Row<'p, 'a, U, S> {
    p: &'p Problem<'a>,
    segment: Segment,
    numbers: PhantomData<(U, S)>,
}

impl<U: Scalar, S: Scalar + Mul<U, Output = S>> Row<'_, '_, U, S> {
    fn u(&self, h: usize, t: usize) -> U {
        read(&self.p.u, &[self.segment.batch, h, t])
    }

    fn a(&self, n: usize) -> S {
        read(&self.p.a, &[n])
    }

    fn b(&self, n: usize, h: usize) -> S {
        read(&self.p.b, &[n, h])
    }

    fn c(&self, h: usize, n: usize) -> S {
        read(&self.p.c, &[h, n])
    }

    fn deltas(&self, n: usize, t: usize) -> (f64, f64) {
        let d = self.p.delta.at(self.segment.batch, n, t);
        (d, self.p.delta_a.map_or(d, |v| v.at(self.segment.batch, n, t)))
    }

    /// `B u[t]`
    fn driven(&self, n: usize, t: usize) -> S {
        sum((0..self.p.dim).map(|h| self.b(n, h) * self.u(h, t)))
    }

    /// The states of every step, that before the first one included.
    fn states(&self) -> Vec<Vec<S>> {
        let (p, segment) = (self.p, self.segment);
        let first = (0..p.dstate).map(|n| match (p.initial_state, segment.initial) {
            (Some(view), Some((row, sequence))) => read(&view, &[row, sequence, n]),
            _ => S::zero(),
        });
        let mut states = vec![first.collect::<Vec<S>>()];
        for t in segment.start..segment.end {
            let before = &states[t - segment.start];
            let after = (0..p.dstate).map(|n| {
                let (a, (d, da)) = (self.a(n), self.deltas(n, t));
                p.discretization.decay(a * da).0 * before[n] + p.discretization.input(d, a, self.driven(n, t))
            });
            states.push(after.collect());
        }
        states
    }

    fn output(&self, h: usize, t: usize, state: &[S]) -> Complex64 {
        let y = sum((0..self.p.dstate).map(|n| self.c(h, n) * state[n]));
        match self.p.real_factor {
            None => y.into(),
            Some(factor) => self.skip(h, self.u(h, t).re()).map_or(factor * y.re(), |skip| factor * y.re() + skip).into(),
        }
    }

    /// `D u`, if there is a skip.
    fn skip(&self, h: usize, u: f64) -> Option<f64> {
        self.p.d.map(|d| read::<f64>(&d, &[h]) * u)
    }
}

/// Whether an argument that takes part in the products of states is complex.
fn is_complex(p: &Problem<'_>) -> bool {
    let state = p.initial_state.is_some_and(|v| v.dtype().is_complex());
    state || [p.u, p.a, p.b, p.c].iter().any(|view| view.dtype().is_complex())
}

/// `y` and the last state.
///
/// # Errors
/// As [`super::forward`].
pub fn forward(args: &Args<'_>) -> Result<Forward> {
    run(args, NO_STATES)
}

/// As [`forward`], with a last state of this shape: without an initial state it decides between the two forms that states have with
/// [`crate::Sequences::SeqIdx`].
///
/// # Errors
/// As [`super::forward`].
pub fn forward_with_state_shape(args: &Args<'_>, state: &[usize]) -> Result<Forward> {
    run(args, States::of_shapes([Some(Shape::new(state)?), None]))
}

fn run(args: &Args<'_>, states: States<'_>) -> Result<Forward> {
    let p = Problem::new(args, Device::Cpu, states)?;
    let mut y = Dense::zeros(&[p.batch, p.dim, p.seqlen])?;
    let (shape, normal) = (p.state_shape, p.normal.state_shape(p.state_shape));
    let mut last = Dense::zeroed(normal);
    match (p.u.dtype().is_complex(), is_complex(&p)) {
        (true, _) => rows_forward::<Complex64, Complex64>(&p, &mut y, &mut last),
        (_, true) => rows_forward::<f64, Complex64>(&p, &mut y, &mut last),
        _ => rows_forward::<f64, f64>(&p, &mut y, &mut last),
    }
    Ok(Forward { y: p.normal.restore(y, 2), last_state: last.reshaped(shape) })
}

fn rows_forward<U: Scalar, S: Scalar + Mul<U, Output = S>>(p: &Problem<'_>, y: &mut Dense, last: &mut Dense) {
    for &segment in &p.segments.list {
        let row = Row::<U, S> { p, segment, numbers: PhantomData };
        let states = row.states();
        for t in segment.start..segment.end {
            for h in 0..p.dim {
                *y.at_mut(&[segment.batch, h, t]) = row.output(h, t, &states[t - segment.start + 1]);
            }
        }
        if let Some((at, sequence)) = segment.last {
            for n in 0..p.dstate {
                *last.at_mut(&[at, sequence, n]) = states[segment.len()][n].into();
            }
        }
    }
}

/// Every gradient.
///
/// # Errors
/// As [`super::backward`].
pub fn backward(args: &Args<'_>, cotangents: &Cotangents<'_>) -> Result<Backward> {
    let states = States::of_shapes([cotangents.last_state.map(|s| s.shape()), None]);
    let p = Problem::new(args, Device::Cpu, states)?;
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
    let by = (by_y, by_last);
    // a state that was left at zero has a complex gradient where cotangents are complex
    let complex = is_complex(&p) || [by_y, by_last].iter().flatten().any(|view| view.dtype().is_complex());
    match (p.u.dtype().is_complex(), complex) {
        (true, _) => rows_backward::<Complex64, Complex64>(&p, by, &mut out),
        (_, true) => rows_backward::<f64, Complex64>(&p, by, &mut out),
        _ => rows_backward::<f64, f64>(&p, by, &mut out),
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

/// Cotangents of the output and of the last state.
type By<'a> = (Option<View<'a>>, Option<View<'a>>);

fn rows_backward<U: Scalar, S: Scalar + Mul<U, Output = S>>(p: &Problem<'_>, by: By<'_>, out: &mut Backward) {
    for &segment in &p.segments.list {
        row_backward(&Row::<U, S> { p, segment, numbers: PhantomData }, by, out);
    }
}

fn row_backward<U: Scalar, S: Scalar + Mul<U, Output = S>>(row: &Row<'_, '_, U, S>, (by_y, by_last): By<'_>, out: &mut Backward) {
    let (p, segment) = (row.p, row.segment);
    let states = row.states();
    let at = |n| match (by_last, segment.last) {
        (Some(view), Some((row, sequence))) => read(&view, &[row, sequence, n]),
        _ => S::zero(),
    };
    // the gradient by x[t], carried from step to step
    let mut g: Vec<S> = (0..p.dstate).map(at).collect();
    for t in (segment.start..segment.end).rev() {
        let (before, after) = (&states[t - segment.start], &states[t - segment.start + 1]);
        if let Some(by_y) = by_y {
            output_backward(row, t, by_y, after, &mut g, out);
        }
        for n in 0..p.dstate {
            let (a, (d, da)) = (row.a(n), row.deltas(n, t));
            let (decay, decay_by_z) = p.discretization.decay(a * da);
            let by = p.discretization.input_adjoint(d, a, row.driven(n, t), g[n]);
            for h in 0..p.dim {
                *out.b.at_mut(&[n, h]) += (by.driven * row.u(h, t).conj()).into();
                *out.u.at_mut(&[segment.batch, h, t]) += (by.driven * row.b(n, h).conj()).into();
            }
            let by_decay = g[n] * before[n].conj();
            *out.a.at_mut(&[n]) += (by_decay * decay_by_z.conj() * da + by.a).into();
            add_step(&p.delta, &mut out.delta, segment.batch, n, t, by.d);
            let by_da = (by_decay * (decay_by_z * a).conj()).re();
            match (&p.delta_a, &mut out.delta_a) {
                (Some(of), Some(grad)) => add_step(of, grad, segment.batch, n, t, by_da),
                _ => add_step(&p.delta, &mut out.delta, segment.batch, n, t, by_da),
            }
            g[n] *= decay.conj();
        }
    }
    if let Some((row, sequence)) = segment.initial {
        for n in 0..p.dstate {
            *out.initial_state.at_mut(&[row, sequence, n]) = g[n].into();
        }
    }
}

/// Adds the gradients that the outputs of a step give to its states, which are `after`, and to the other inputs of the outputs.
fn output_backward<U: Scalar, S: Scalar + Mul<U, Output = S>>(
    row: &Row<'_, '_, U, S>,
    t: usize,
    by_y: View<'_>,
    after: &[S],
    g: &mut [S],
    out: &mut Backward,
) {
    let (p, batch) = (row.p, row.segment.batch);
    for h in 0..p.dim {
        let by: S = read(&by_y, &[batch, h, t]);
        if p.real_factor.is_some() {
            if let Some(by_d) = &mut out.d {
                *by_d.at_mut(&[h]) += by.re() * row.u(h, t).re();
            }
            *out.u.at_mut(&[batch, h, t]) += row.skip(h, by.re()).unwrap_or(0.0);
        }
        let by_output = |value: S| p.real_factor.map_or(value * by, |factor| value * (factor * by.re()));
        for n in 0..p.dstate {
            g[n] += by_output(row.c(h, n).conj());
            *out.c.at_mut(&[h, n]) += by_output(after[n].conj()).into();
        }
    }
}
