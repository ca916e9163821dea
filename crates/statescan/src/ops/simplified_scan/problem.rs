//! A checked call in normal form.

use super::{Args, TABLE};
use crate::error::Result;
use crate::ops::check::Checker;
use crate::ops::discretization::Discretization;
use crate::ops::normal::{Axes, Normal};
use crate::ops::sequences::{Extent, Segments, Sequences};
use crate::ops::states::Pool;
use crate::ops::states::States;
use crate::tensor::{Device, Shape, View};

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
pub struct Problem<'a> {
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
    /// The pool that it is, where there is one.
    pub pool: Option<Pool<'a>>,
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

impl<'a> Problem<'a> {
    /// Checks the arguments and brings them to normal form. `states` are the shapes of the other states of the call.
    pub(super) fn new(args: &Args<'a>, device: Device, states: States<'a>) -> Result<Self> {
        let (op, views) = (args.op(), args.views());
        let checker = Checker::new(op, device);
        let sizes = checker.bind(&TABLE, &views)?;
        let [batch, dim, seqlen, dstate] = ['B', 'H', 'L', 'P'].map(|letter| sizes.get(letter));
        let extent = Extent { batch, seqlen, others: &[dim, dstate], names: TABLE.limit.names, state_rank: 1 };
        let segments = Segments::resolve(op, device, &args.sequences, extent, states.beside(&args.initial_state))?;
        let reverse = args.reverse.then_some(seqlen);
        let placed = segments.placed((&checker, device), (&TABLE, &views), &[dstate], reverse, states)?;
        let normal = placed.normal;
        let timed = |view: View<'a>| normal.timed(view, 2);
        let step = |view: View<'a>| match view.rank() {
            1 => Step::Constant(view),
            _ => Step::Varying(timed(view)),
        };
        Ok(Problem {
            batch,
            dim,
            dstate,
            seqlen,
            double: args.u.dtype().is_double(),
            u: timed(args.u),
            delta: step(args.delta),
            a: if args.a.rank() == 2 { args.a.index(1, 0) } else { args.a },
            b: args.b,
            c: args.c,
            delta_a: args.delta_a.map(step),
            initial_state: placed.initial,
            pool: placed.pool,
            sequences: args.sequences,
            reverse: args.reverse,
            segments: placed.segments,
            state_shape: placed.shape,
            normal,
            discretization: args.discretization,
            real_factor: args.d.map(|_| if args.conj_sym { 2.0 } else { 1.0 }),
            d: args.d,
        })
    }

    /// A tensor over time in normal form.
    pub(super) fn timed<V: Axes>(&self, view: V) -> V {
        self.normal.timed(view, 2)
    }

    /// Step sizes in normal form.
    pub(super) fn step<V: Axes>(&self, view: V) -> V {
        if view.rank() == 1 { view } else { self.timed(view) }
    }

    /// A diagonal in normal form.
    pub(super) fn diagonal<V: Axes>(&self, view: V) -> V {
        if view.rank() == 2 { view.index(1, 0) } else { view }
    }

    /// A state in normal form.
    pub(super) fn state<V: Axes>(&self, view: V) -> V {
        self.normal.state(view)
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
