//! A checked call in normal form.

use super::{Args, Cotangents, GradientTargets, Sources, TABLE, Table, Targets, cpu, cuda, reference};
use crate::cuda::Stream;
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::call::{Call, Given, Written};
use crate::ops::check::Checker;
use crate::ops::checked::States;
use crate::ops::discretization::Discretization;
use crate::ops::normal::{Axes, Normal};
use crate::ops::op::{self, Op, Place};
use crate::ops::pool::Pool;
use crate::ops::sequences::{Extent, Segments, Sequences};
use crate::ops::summary::Summary;
use crate::tensor::{Dense, Device, Shape, View};

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

impl Op for Table {
    fn problem<'a>(&self, call: &Call<'a>, device: Device, states: States<'a>) -> Result<Box<dyn op::Problem + Send + 'a>> {
        Ok(Box::new(Problem::new(&Args::of_call(call), device, states)?))
    }

    fn reference(&self, call: &Call<'_>) -> Result<Vec<Dense>> {
        let exact = reference::forward(&Args::of_call(call))?;
        Ok(vec![exact.y, exact.last_state])
    }

    fn reference_backward(&self, call: &Call<'_>, given: &Given<'_>) -> Result<Vec<Option<Dense>>> {
        Ok(reference::backward(&Args::of_call(call), &Cotangents::of_given(given))?.by_position())
    }

    fn summary(&self, exec: &Exec, call: &Call<'_>, out: &mut Summary<'_>) -> Result<()> {
        super::summary(exec, &Args::of_call(call), out)
    }

    fn summary_workspace_len(&self, exec: &Exec, call: &Call<'_>) -> Result<usize> {
        super::summary_workspace_len(exec, &Args::of_call(call))
    }
}

impl op::Problem for Problem<'_> {
    fn op(&self) -> &'static str {
        if self.real_factor.is_some() { super::INNER.name } else { super::SIGNATURE.name }
    }

    fn state_shape(&self) -> Option<Shape> {
        Some(self.state_shape)
    }

    fn saved_len(&self) -> usize {
        match self.u.device() {
            Device::Cpu => cpu::checkpoints_len(self),
            Device::Cuda(_) => cuda::checkpoints_len(self),
        }
    }

    fn workspace_len(&self, stream: &Stream) -> Result<usize> {
        cuda::workspace_len(stream, self)
    }

    fn backward_workspace_len(&self, stream: &Stream, has_saved: bool) -> Result<usize> {
        cuda::backward_workspace_len(stream, self, has_saved)
    }

    fn forward(&self, place: Place<'_>, out: &mut Written<'_>) -> Result<()> {
        let targets = Targets::new(self, out);
        place.run(|exec| cpu::forward(exec, self, &targets), |queue| cuda::forward(queue, self, &targets))
    }

    fn backward(&self, place: Place<'_>, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()> {
        let (sources, targets) = (Sources::new(self, given), GradientTargets::new(self, grads));
        place.run(|exec| cpu::backward(exec, self, &sources, &targets), |queue| cuda::backward(queue, self, &sources, &targets))
    }
}
