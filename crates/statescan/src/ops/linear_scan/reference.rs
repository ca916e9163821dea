//! The linear scan in plain `f64` loops, complex where `a` or `b` is: the oracle that every kernel is tested against.

use super::{Args, Cotangents, Problem};
use crate::error::Result;
use crate::ops::oracle::{Scalar, gradients};
use crate::ops::states::NO_STATES;
use crate::tensor::{Dense, Device, View};
use num_complex::Complex64;

/// Results of [`forward`].
#[derive(Debug, Clone)]
pub struct Forward {
    /// (.., L)
    pub h: Dense,
    /// (..)
    pub final_state: Dense,
    /// (..)
    pub decay: Dense,
}

gradients! { a, b; ; initial_state }

/// One argument as rows of time, the scan's first step first.
struct Rows<S> {
    data: Vec<S>,
    seqlen: usize,
}

impl<S: Scalar> Rows<S> {
    fn new(view: &View<'_>, seqlen: usize) -> Self {
        Rows { data: numbers(view), seqlen }
    }
    fn at(&self, row: usize, t: usize) -> S {
        self.data[row * self.seqlen + t]
    }
}

fn numbers<S: Scalar>(view: &View<'_>) -> Vec<S> {
    Dense::from_view(view).data().iter().map(|&value| S::of(value)).collect()
}

/// Decays and inputs of every row, and its initial state.
struct Scan<S> {
    a: Rows<S>,
    b: Rows<S>,
    initial: Vec<S>,
}

impl<S: Scalar> Scan<S> {
    fn new(problem: &Problem<'_>) -> Self {
        let rows = |view| Rows::new(view, problem.seqlen);
        let zeros = || vec![S::zero(); problem.state_shape.iter().product()];
        Scan { a: rows(&problem.a), b: rows(&problem.b), initial: problem.initial_state.map_or_else(zeros, |v| numbers(&v)) }
    }

    /// States of a row, that before the first step included.
    fn states(&self, row: usize) -> Vec<S> {
        let mut states = vec![self.initial[row]];
        for t in 0..self.a.seqlen {
            states.push(self.a.at(row, t) * states[t] + self.b.at(row, t));
        }
        states
    }
}

/// Puts a value computed at step `t` of the scan where that step lies in memory.
fn place<S: Scalar>(problem: &Problem<'_>, out: &mut Dense, row: usize, t: usize, value: S) {
    let at = if problem.reverse { problem.seqlen - 1 - t } else { t };
    out.data_mut()[row * problem.seqlen + at] = value.into();
}

/// The states, the final state, the total decay.
///
/// # Errors
/// As [`super::forward`].
pub fn forward(args: &Args<'_>) -> Result<Forward> {
    let problem = Problem::new(args, Device::Cpu, NO_STATES)?;
    let (shape, state) = (args.b.shape(), problem.state_shape);
    let mut out = Forward { h: Dense::zeroed(shape), final_state: Dense::zeroed(state), decay: Dense::zeroed(state) };
    match problem.complex {
        false => scan_forward::<f64>(&problem, &mut out),
        true => scan_forward::<Complex64>(&problem, &mut out),
    }
    Ok(out)
}

fn scan_forward<S: Scalar>(problem: &Problem<'_>, out: &mut Forward) {
    let scan = Scan::<S>::new(problem);
    for row in 0..scan.initial.len() {
        let h = scan.states(row);
        for t in 0..problem.seqlen {
            place(problem, &mut out.h, row, t, h[t + 1]);
        }
        out.final_state.data_mut()[row] = h[problem.seqlen].into();
        let decay = (0..problem.seqlen).fold(S::one(), |decay, t| decay * scan.a.at(row, t));
        out.decay.data_mut()[row] = decay.into();
    }
}

/// Every gradient.
///
/// # Errors
/// As [`super::backward`].
pub fn backward(args: &Args<'_>, cotangents: &Cotangents<'_>) -> Result<Backward> {
    let problem = Problem::new(args, Device::Cpu, NO_STATES)?;
    let (shape, state) = (args.b.shape(), problem.state_shape);
    let mut out = Backward { a: Dense::zeroed(shape), b: Dense::zeroed(shape), initial_state: Dense::zeroed(state) };
    match problem.complex {
        false => scan_backward::<f64>(&problem, cotangents, &mut out),
        true => scan_backward::<Complex64>(&problem, cotangents, &mut out),
    }
    // the gradient of a real argument is real
    let real = |grad: &mut Dense| grad.data_mut().iter_mut().for_each(|v| v.im = 0.0);
    if !args.a.dtype().is_complex() {
        real(&mut out.a);
    }
    if !args.b.dtype().is_complex() {
        real(&mut out.b);
    }
    if args.initial_state.is_some_and(|v| !v.dtype().is_complex()) {
        real(&mut out.initial_state);
    }
    Ok(out)
}

fn scan_backward<S: Scalar>(problem: &Problem<'_>, cotangents: &Cotangents<'_>, out: &mut Backward) {
    let scan = Scan::<S>::new(problem);
    let by_h = cotangents.h.map(|v| Rows::<S>::new(&problem.timed(v), problem.seqlen));
    let by_final = cotangents.final_state.map(|v| numbers::<S>(&v));
    for row in 0..scan.initial.len() {
        let h = scan.states(row);
        let mut g = by_final.as_ref().map_or(S::zero(), |v| v[row]);
        for t in (0..problem.seqlen).rev() {
            g += by_h.as_ref().map_or(S::zero(), |v| v.at(row, t));
            place(problem, &mut out.b, row, t, g);
            place(problem, &mut out.a, row, t, g * h[t].conj());
            g *= scan.a.at(row, t).conj();
        }
        out.initial_state.data_mut()[row] = g.into();
    }
}
