//! The linear scan in plain complex `f64` loops: the oracle that every kernel is tested against.

use super::{Args, Cotangents, OP, Problem};
use crate::error::Result;
use crate::ops::check::Checker;
use crate::tensor::{Dense, Device, Shape, View};
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

/// Results of [`backward`].
#[derive(Debug, Clone)]
pub struct Backward {
    /// By `a`.
    pub a: Dense,
    /// By `b`.
    pub b: Dense,
    /// By `initial_state` (zero or given).
    pub initial_state: Dense,
}

/// One argument as rows of time, the scan's first step first.
struct Rows {
    data: Vec<Complex64>,
    seqlen: usize,
}

impl Rows {
    fn new(view: &View<'_>, seqlen: usize) -> Self {
        Rows { data: Dense::from_view(view).data().to_vec(), seqlen }
    }
    fn at(&self, row: usize, t: usize) -> Complex64 {
        self.data[row * self.seqlen + t]
    }
}

/// States of a row, that before the first step included.
fn states(a: &Rows, b: &Rows, row: usize, initial: Complex64) -> Vec<Complex64> {
    let mut states = vec![initial];
    for t in 0..a.seqlen {
        states.push(a.at(row, t) * states[t] + b.at(row, t));
    }
    states
}

/// The problem, and the shapes of `h` and of a state.
fn checked<'a>(args: &Args<'a>) -> Result<(Problem<'a>, Shape, Shape)> {
    let problem = Problem::new(args, &mut Checker::new(OP, Device::Cpu), &[])?;
    let state = problem.state_shape;
    Ok((problem, args.b.shape(), state))
}

fn initial_states(problem: &Problem<'_>, rows: usize) -> Vec<Complex64> {
    problem.initial_state.map_or(vec![Complex64::ZERO; rows], |v| Dense::from_view(&v).data().to_vec())
}

/// Puts a value computed at step `t` of the scan where that step lies in memory.
fn place(problem: &Problem<'_>, out: &mut Dense, row: usize, t: usize, value: Complex64) {
    let at = if problem.reverse { problem.seqlen - 1 - t } else { t };
    out.data_mut()[row * problem.seqlen + at] = value;
}

/// The states, the final state, the total decay.
///
/// # Errors
/// As [`super::forward`].
pub fn forward(args: &Args<'_>) -> Result<Forward> {
    let (problem, shape, state) = checked(args)?;
    let (a, b) = (Rows::new(&problem.a, problem.seqlen), Rows::new(&problem.b, problem.seqlen));
    let mut out = Forward { h: Dense::zeroed(shape), final_state: Dense::zeroed(state), decay: Dense::zeroed(state) };
    let rows = state.iter().product();
    for (row, initial) in initial_states(&problem, rows).into_iter().enumerate() {
        let h = states(&a, &b, row, initial);
        for t in 0..problem.seqlen {
            place(&problem, &mut out.h, row, t, h[t + 1]);
        }
        out.final_state.data_mut()[row] = h[problem.seqlen];
        out.decay.data_mut()[row] = (0..problem.seqlen).map(|t| a.at(row, t)).product();
    }
    Ok(out)
}

/// Every gradient.
///
/// # Errors
/// As [`super::backward`].
pub fn backward(args: &Args<'_>, cotangents: &Cotangents<'_>) -> Result<Backward> {
    let (problem, shape, state) = checked(args)?;
    let (a, b) = (Rows::new(&problem.a, problem.seqlen), Rows::new(&problem.b, problem.seqlen));
    let by_h = cotangents.h.map(|v| Rows::new(&problem.timed(v), problem.seqlen));
    let by_final = cotangents.final_state.map(|v| Dense::from_view(&v));
    let mut out = Backward { a: Dense::zeroed(shape), b: Dense::zeroed(shape), initial_state: Dense::zeroed(state) };
    let rows = state.iter().product();
    for (row, initial) in initial_states(&problem, rows).into_iter().enumerate() {
        let h = states(&a, &b, row, initial);
        let mut g = by_final.as_ref().map_or(Complex64::ZERO, |v| v.data()[row]);
        for t in (0..problem.seqlen).rev() {
            g += by_h.as_ref().map_or(Complex64::ZERO, |v| v.at(row, t));
            place(&problem, &mut out.b, row, t, g);
            place(&problem, &mut out.a, row, t, g * h[t].conj());
            g *= a.at(row, t).conj();
        }
        out.initial_state.data_mut()[row] = g;
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
