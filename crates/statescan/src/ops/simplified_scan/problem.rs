//! A checked call in normal form.

use super::{Args, Head};
use crate::error::Result;
use crate::ops::check::Checker;
use crate::ops::discretization::Discretization;
use crate::ops::normal::Normal;
use crate::ops::sequences::{Extent, Segments, Sequences};
use crate::tensor::{DType, Shape, View};

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

    pub(crate) fn view(&self) -> &View<'a> {
        match self {
            Step::Varying(view) | Step::Constant(view) => view,
        }
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
    /// As the caller has them.
    pub sequences: Sequences<'a>,
    pub segments: Segments,
    pub reverse: bool,
    /// The shape of a state as the caller has it.
    pub state_shape: Shape,
    pub normal: Normal,
    pub discretization: Discretization,
    /// `None` for a complex output, else the factor of its real part.
    pub real_factor: Option<f64>,
    /// (H,)
    pub d: Option<View<'a>>,
}

impl<'a> Args<'a> {
    /// The arguments by position; how time divides is looked at apart from them.
    pub(super) fn views(&self) -> [Option<&View<'a>>; 8] {
        let Args { u, delta, a, b, c, delta_a, initial_state, head, .. } = self;
        let (delta_a, initial_state) = (delta_a.as_ref(), initial_state.as_ref());
        let [u, delta, a, b, c] = [u, delta, a, b, c].map(Some);
        match head {
            Head::Complex => [u, delta, a, b, c, delta_a, initial_state, None],
            Head::Real { d, .. } => [u, delta, a, b, c, d.as_ref(), delta_a, initial_state],
        }
    }
}

impl<'a> Problem<'a> {
    /// Checks the arguments and brings them to normal form. `states` are the shapes of the other states of the call.
    pub(super) fn new<'c>(args: &'c Args<'a>, checker: &mut Checker<'c>, states: &[Shape]) -> Result<Self> {
        let (signature, views) = (args.head.signature(), args.views());
        let sizes = checker.bind(signature, &views)?;
        let [batch, dim, seqlen, dstate] = ['B', 'H', 'L', 'P'].map(|letter| sizes.get(letter));
        let extent = Extent { batch, seqlen, others: &[dim, dstate], names: signature.limit.names, state_rank: 1 };
        let states = args.initial_state.iter().map(|s| s.shape()).chain(states.iter().copied());
        let segments = Segments::resolve(signature.name, checker.device(), &args.sequences, extent, states)?;
        let state_shape = segments.state_shape(&[dstate]);
        checker.bind_state(signature, &views, &state_shape)?;
        Ok(Self::normal(args, segments))
    }

    /// The normal form of arguments that were checked.
    pub(crate) fn normal(args: &Args<'a>, segments: Segments) -> Self {
        let normal = Normal::new(args.reverse, &segments);
        let (state_shape, seqlen) = (segments.state_shape(&[args.a.shape()[0]]), args.u.shape()[2]);
        let timed = |view: View<'a>| normal.timed(view, 2);
        let step = |view: View<'a>| match view.rank() {
            1 => Step::Constant(view),
            _ => Step::Varying(timed(view)),
        };
        let (real_factor, d) = args.head.parts();
        Problem {
            batch: args.u.shape()[0],
            dim: args.u.shape()[1],
            dstate: args.a.shape()[0],
            seqlen,
            double: args.u.dtype().is_double(),
            u: timed(args.u),
            delta: step(args.delta),
            a: if args.a.rank() == 2 { args.a.index(1, 0) } else { args.a },
            b: args.b,
            c: args.c,
            delta_a: args.delta_a.map(step),
            initial_state: args.initial_state.map(|view| normal.state(view)),
            sequences: args.sequences,
            reverse: args.reverse,
            segments: if args.reverse { segments.reversed(seqlen) } else { segments },
            state_shape,
            normal,
            discretization: args.discretization,
            real_factor,
            d,
        }
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
}
