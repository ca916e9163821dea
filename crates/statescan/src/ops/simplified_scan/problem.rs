//! A checked call in normal form.

use super::{Args, Head};
use crate::error::{Error, Result};
use crate::ops::check::{Checker, Kind};
use crate::ops::discretization::Discretization;
use crate::ops::sequences::{Extent, Segments};
use crate::tensor::{DType, Device, RawViewMut, Shape, View};

/// Step sizes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step<'a> {
    /// (B, P, L)
    Varying(View<'a>),
    /// (P,)
    Constant(View<'a>),
}

impl<'a> Step<'a> {
    pub(crate) fn is_constant(&self) -> bool {
        matches!(self, Step::Constant(_))
    }

    /// The step of a state at a time.
    pub(crate) fn at(&self, batch: usize, p: usize, t: usize) -> f64 {
        match self {
            Step::Varying(view) => view.at(&[batch, p, t]).re,
            Step::Constant(view) => view.at(&[p]).re,
        }
    }
}

/// A checked call: time runs forwards, `a` has one axis, states have a sequence axis.
#[derive(Debug)]
pub(crate) struct Problem<'a> {
    pub batch: usize,
    pub dim: usize,
    pub dstate: usize,
    pub seqlen: usize,
    pub double: bool,
    /// (B, H, L)
    pub u: View<'a>,
    pub delta: Step<'a>,
    /// (P,)
    pub a: View<'a>,
    pub b: View<'a>,
    pub c: View<'a>,
    pub delta_a: Option<Step<'a>>,
    /// (rows, sequences, P)
    pub initial_state: Option<View<'a>>,
    pub segments: Segments,
    pub reverse: bool,
    pub discretization: Discretization,
    /// `None` for a complex output, else the factor of its real part.
    pub real_factor: Option<f64>,
    /// (H,)
    pub d: Option<View<'a>>,
}

/// The name under which errors are reported.
fn op(head: &Head<'_>) -> &'static str {
    match head {
        Head::Complex => "simplified_scan",
        Head::Real { .. } => "s5_inner",
    }
}

impl<'a> Problem<'a> {
    /// Checks the arguments and brings them to normal form. `states` are the shapes of the state tensors that are written.
    pub(super) fn new<'c>(args: &'c Args<'a>, device: Device, states: &[Shape]) -> Result<(Self, Checker<'c>)> {
        let op = op(&args.head);
        let bad_rank = |argument, expected, view: &View<'_>| Err(Error::Rank { op, argument, expected, got: view.shape() });
        if args.u.rank() != 3 {
            return bad_rank("u", "shape (batch, dim, seqlen)", &args.u);
        }
        if !(args.a.rank() == 1 || args.a.rank() == 2) {
            return bad_rank("a", "shape (dstate,) or (dstate, 1)", &args.a);
        }
        for (argument, view) in [("delta", Some(&args.delta)), ("delta_a", args.delta_a.as_ref())] {
            if let Some(view) = view.filter(|v| v.rank() != 1 && v.rank() != 3) {
                return bad_rank(argument, "shape (batch, dstate, seqlen) or (dstate,)", view);
            }
        }
        let [batch, dim, seqlen] = [0, 1, 2].map(|axis| args.u.shape()[axis]);
        let names = "batch x dim x max(seqlen, sequences) x dstate";
        let extent = Extent { batch, seqlen, others: &[dim, args.a.shape()[0]], names, state_rank: 1 };
        let states = args.initial_state.iter().map(|s| s.shape()).chain(states.iter().copied());
        let segments = Segments::resolve(op, device, &args.sequences, extent, states)?;
        let mut problem = Self::normal(args, segments);
        // `a` of shape (P, k) is told from (P, 1) here, before its second axis is dropped
        let checker = problem.checker(args, device)?;
        if args.a.rank() == 2 {
            problem.a = args.a.index(1, 0);
        }
        problem.initial_state = args.initial_state.map(|v| problem.state_source(v));
        if args.reverse {
            problem.segments = problem.segments.reversed(problem.seqlen);
        }
        Ok((problem, checker))
    }

    /// The normal form of arguments whose ranks are right, without states.
    pub(crate) fn normal(args: &Args<'a>, segments: Segments) -> Self {
        let timed = |view: View<'a>| if args.reverse { view.flip(2) } else { view };
        let step = |view: View<'a>| match view.rank() {
            1 => Step::Constant(view),
            _ => Step::Varying(timed(view)),
        };
        let (real_factor, d) = match args.head {
            Head::Complex => (None, None),
            Head::Real { conj_sym, d } => (Some(if conj_sym { 2.0 } else { 1.0 }), d),
        };
        Problem {
            batch: args.u.shape()[0],
            dim: args.u.shape()[1],
            dstate: args.a.shape()[0],
            seqlen: args.u.shape()[2],
            double: args.u.dtype().is_double(),
            u: timed(args.u),
            delta: step(args.delta),
            a: args.a,
            b: args.b,
            c: args.c,
            delta_a: args.delta_a.map(step),
            initial_state: None,
            segments,
            reverse: args.reverse,
            discretization: args.discretization,
            real_factor,
            d,
        }
    }

    /// Checks the arguments that are read, and remembers them for the overlap test.
    fn checker<'c>(&self, args: &'c Args<'a>, device: Device) -> Result<Checker<'c>> {
        let mut checker = Checker::new(op(&args.head), device);
        let (batch, dim, dstate, seqlen) = (self.batch, self.dim, self.dstate, self.seqlen);
        checker.read("u", &args.u, Kind::Float, &[batch, dim, seqlen])?;
        let step = |view: &View<'_>| match view.rank() {
            1 => Shape::of(&[dstate]),
            _ => Shape::of(&[batch, dstate, seqlen]),
        };
        checker.read("delta", &args.delta, Kind::Real, &step(&args.delta))?;
        checker.read("a", &args.a, Kind::Float, &[dstate, 1][..args.a.rank()])?;
        checker.read("b", &args.b, Kind::Float, &[dstate, dim])?;
        checker.read("c", &args.c, Kind::Float, &[dim, dstate])?;
        if let Some(view) = &args.delta_a {
            checker.read("delta_a", view, Kind::Real, &step(view))?;
        }
        let state = self.segments.state_shape(&[dstate]);
        checker.read_if("initial_state", &args.initial_state, Kind::Float, &state)?;
        if let Head::Real { d, .. } = &args.head {
            checker.read_if("d", d, Kind::Real, &[dim])?;
        }
        Ok(checker)
    }

    /// The type of carried values (its components).
    pub(crate) fn real_dtype(&self) -> DType {
        if self.double { DType::F64 } else { DType::F32 }
    }

    /// Real numbers in an element of the output.
    pub(crate) fn output_parts(&self) -> usize {
        if self.real_factor.is_some() { 1 } else { 2 }
    }

    /// Real numbers in an element of the input.
    pub(crate) fn input_parts(&self) -> usize {
        1 + usize::from(self.u.dtype().is_complex())
    }

    /// A (B, .., L) tensor with its time running forwards.
    pub(super) fn mirror<'v>(&self, view: View<'v>) -> View<'v> {
        if self.reverse { view.flip(2) } else { view }
    }

    pub(super) fn mirror_target(&self, view: RawViewMut) -> RawViewMut {
        if self.reverse { view.flip(2) } else { view }
    }

    pub(crate) fn state_source<'v>(&self, view: View<'v>) -> View<'v> {
        if self.segments.states_have_sequences() { view } else { view.expand(1, 1) }
    }

    pub(crate) fn state_target(&self, view: RawViewMut) -> RawViewMut {
        if self.segments.states_have_sequences() { view } else { view.expand(1, 1) }
    }
}
