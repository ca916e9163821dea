//! One step of a simplified scan (S5), with the state updated in place: what decoding needs.
//!
//! ```text
//! x <- Abar x + Bbar (B u)        y = C x,  or  f Re(C x) + D Re(u)
//! ```
//!
//! The formulas are those of [`simplified_scan`](super): L steps give its result, for every discretization and head.
//! B batch, H dim, P dstate, S states (B, or more with indices).
//!
//! | argument | shape | type |
//! |---|---|---|
//! | state | (S, P) | complex; read and written |
//! | u | (B, H) | real or complex |
//! | delta, delta_a | (B, P) or (P,) | real |
//! | a | (P,) or (P, 1) | real or complex |
//! | b, c | (P, H), (H, P) | real or complex |
//! | state_batch_indices | (B,) | i32 or i64: the state that a row uses, negative for none |
//! | -> y | (B, H) | complex; real for [`Head::Real`] |
//!
//! Each argument may have its own storage type and any strides. Where an index is negative, `y` is zero and no state is touched.
//! Sums are `f32`, or `f64` where `u` or the state is. The maps are read once for up to 64 rows, where they lie; nothing is packed.
//!
//! **CUDA.** Everything runs there but a `u` or a state in `f64`. Only the device reads indices: one that is out of range counts as negative,
//! one that is used twice gives wrong results.

mod cpu;
mod cuda;
pub mod reference;

use super::Head;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::ops::check::{Checker, Kind, limit_sizes, state_rows};
use crate::ops::discretization::Discretization;
use crate::tensor::{Device, RawViewMut, Shape, View, ViewMut};

const OP: &str = "simplified_state_update";

/// The arguments of a step; see the [module](self) for shapes and types.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a> {
    /// Input, (B, H).
    pub u: View<'a>,
    /// Step sizes, (B, P) or (P,).
    pub delta: View<'a>,
    /// State matrix, diagonal, (P,) or (P, 1).
    pub a: View<'a>,
    /// Input map, (P, H).
    pub b: View<'a>,
    /// Output map, (H, P).
    pub c: View<'a>,
    /// The decay's own step sizes, (B, P) or (P,).
    pub delta_a: Option<View<'a>>,
    /// How (A, B) become a recurrence.
    pub discretization: Discretization,
    /// What becomes of `C x`.
    pub head: Head<'a>,
    /// The state that each row uses, (B,); negative for none.
    pub state_batch_indices: Option<View<'a>>,
}

impl<'a> Args<'a> {
    /// The five required arguments, bilinear, complex output.
    pub fn new(u: View<'a>, delta: View<'a>, a: View<'a>, b: View<'a>, c: View<'a>) -> Self {
        Args {
            u,
            delta,
            a,
            b,
            c,
            delta_a: None,
            discretization: Discretization::Bilinear,
            head: Head::Complex,
            state_batch_indices: None,
        }
    }
}

/// Moves `state` on by one step and writes `y`.
///
/// # Errors
/// Any argument of a wrong shape, type or device, views that overlap, an index that is out of range or used twice. Nothing is written then.
pub fn update(exec: &Exec, args: &Args<'_>, state: &mut ViewMut<'_>, y: &mut ViewMut<'_>) -> Result<()> {
    let mut checker = Checker::new(OP, exec.device());
    let mut problem = Problem::new(args, state.shape(), &mut checker)?;
    checker.write("state", state, Kind::Complex, &[problem.states, problem.dstate])?;
    checker.write("y", y, Kind::exactly(problem.real_factor.is_none()), &[problem.batch, problem.dim])?;
    checker.finish()?;
    if args.a.rank() == 2 {
        problem.a = args.a.index(1, 0);
    }
    problem.double |= state.dtype().is_double();
    let targets = Targets { state: state.raw(), y: y.raw() };
    match exec.stream() {
        Some(stream) => cuda::update(stream, &problem, args.state_batch_indices, &targets),
        None => {
            cpu::update(exec, &problem, &targets);
            Ok(())
        }
    }
}

/// What a step writes.
pub(crate) struct Targets {
    pub state: RawViewMut,
    pub y: RawViewMut,
}

/// A checked call in normal form.
#[derive(Debug)]
pub(crate) struct Problem<'a> {
    pub batch: usize,
    pub dim: usize,
    pub dstate: usize,
    pub states: usize,
    pub double: bool,
    pub u: View<'a>,
    /// (B, P), the rows being one where delta has no batch
    pub delta: View<'a>,
    /// (P,)
    pub a: View<'a>,
    pub b: View<'a>,
    pub c: View<'a>,
    pub delta_a: Option<View<'a>>,
    pub discretization: Discretization,
    /// `None` for a complex output, else the factor of its real part.
    pub real_factor: Option<f64>,
    pub d: Option<View<'a>>,
    /// The state of each row, where the host can read it.
    pub rows: Vec<Option<usize>>,
}

impl<'a> Problem<'a> {
    /// Reads the sizes, checks the arguments, and brings them to normal form. The checker remembers them for the overlap test.
    fn new<'c>(args: &'c Args<'a>, state: Shape, checker: &mut Checker<'c>) -> Result<Self> {
        let bad_rank = |argument, expected, got: Shape| Err(Error::Rank { op: OP, argument, expected, got });
        if args.u.rank() != 2 {
            return bad_rank("u", "shape (batch, dim)", args.u.shape());
        }
        if state.len() != 2 {
            return bad_rank("state", "shape (batch, dstate)", state);
        }
        if !(args.a.rank() == 1 || args.a.rank() == 2) {
            return bad_rank("a", "shape (dstate,) or (dstate, 1)", args.a.shape());
        }
        for (argument, view) in [("delta", Some(&args.delta)), ("delta_a", args.delta_a.as_ref())] {
            if let Some(view) = view.filter(|v| v.rank() != 1 && v.rank() != 2) {
                return bad_rank(argument, "shape (batch, dstate) or (dstate,)", view.shape());
            }
        }
        let [batch, dim, dstate] = [args.u.shape()[0], args.u.shape()[1], args.a.shape()[0]];
        limit_sizes(OP, "max(batch, states) x dim x dstate", [batch.max(state[0]), dim, dstate])?;
        let batched = |view: View<'a>| if view.rank() == 1 { view.expand(0, batch) } else { view };
        let (real_factor, d) = match args.head {
            Head::Complex => (None, None),
            Head::Real { conj_sym, d } => (Some(if conj_sym { 2.0 } else { 1.0 }), d),
        };
        let mut problem = Problem {
            batch,
            dim,
            dstate,
            states: if args.state_batch_indices.is_some() { state[0] } else { batch },
            double: args.u.dtype().is_double(),
            u: args.u,
            delta: batched(args.delta),
            a: args.a,
            b: args.b,
            c: args.c,
            delta_a: args.delta_a.map(batched),
            discretization: args.discretization,
            real_factor,
            d,
            rows: Vec::new(),
        };
        problem.check(args, checker)?;
        if checker.device() == Device::Cpu {
            problem.rows = state_rows(OP, "state_batch_indices", args.state_batch_indices.as_ref(), batch, problem.states)?;
        }
        Ok(problem)
    }

    /// Checks the arguments that are read.
    fn check<'c>(&self, args: &'c Args<'_>, checker: &mut Checker<'c>) -> Result<()> {
        let (batch, dim, dstate) = (self.batch, self.dim, self.dstate);
        checker.read("u", &args.u, Kind::Float, &[batch, dim])?;
        let step = |view: &View<'_>| if view.rank() == 1 { Shape::of(&[dstate]) } else { Shape::of(&[batch, dstate]) };
        checker.read("delta", &args.delta, Kind::Real, &step(&args.delta))?;
        checker.read("a", &args.a, Kind::Float, &[dstate, 1][..args.a.rank()])?;
        checker.read("b", &args.b, Kind::Float, &[dstate, dim])?;
        checker.read("c", &args.c, Kind::Float, &[dim, dstate])?;
        if let Some(view) = &args.delta_a {
            checker.read("delta_a", view, Kind::Real, &step(view))?;
        }
        if let Head::Real { d, .. } = &args.head {
            checker.read_if("d", d, Kind::Real, &[dim])?;
        }
        checker.read_if("state_batch_indices", &args.state_batch_indices, Kind::Index, &[batch])
    }
}
