//! A checked call in normal form.

use super::{Args, OP, SIGNATURE};
use crate::error::{Error, Result};
use crate::ops::check::{Checker, check_groups, check_interval};
use crate::ops::normal::{Axes, Normal};
use crate::ops::sequences::{Extent, Segments, Sequences};
use crate::ops::states::Pool;
use crate::ops::states::States;
use crate::step_size::StepSize;
use crate::tensor::{Device, Shape, View};

/// Time runs forwards, maps have a group axis, states have a sequence axis.
#[derive(Debug, Clone)]
pub struct Problem<'a> {
    pub batch: usize,
    pub seqlen: usize,
    pub nheads: usize,
    pub headdim: usize,
    pub ngroups: usize,
    pub dstate: usize,
    pub double: bool,
    pub x: View<'a>,
    pub dt: View<'a>,
    pub a: View<'a>,
    /// (B, L, G, N)
    pub b: View<'a>,
    /// (B, L, G, N)
    pub c: View<'a>,
    /// (H,) or (H, P)
    pub d: Option<View<'a>>,
    pub z: Option<View<'a>>,
    pub dt_bias: Option<View<'a>>,
    pub step_size: StepSize,
    pub dt_a: Option<View<'a>>,
    /// (rows, sequences, H, P, N)
    pub initial_state: Option<View<'a>>,
    /// The pool that it is, where there is one.
    pub pool: Option<Pool<'a>>,
    pub sequences: Sequences<'a>,
    /// The sequences as segments, with the values that the host can read.
    pub segments: Segments,
    /// The shape of a state as the caller has it.
    pub state_shape: Shape,
    pub normal: Normal,
    /// Whether the caller's time runs backwards.
    pub reverse: bool,
}

/// The time axis of everything that has one.
pub(super) const TIME: usize = 1;

impl<'a> Problem<'a> {
    /// Checks the arguments and brings them to normal form. `states` are the shapes of the other states of the call.
    pub(super) fn new(args: &Args<'a>, device: Device, states: States<'a>) -> Result<Self> {
        let (checker, views) = (Checker::new(OP, device), args.views());
        let sizes = checker.bind(&SIGNATURE, &views)?;
        let [batch, seqlen, nheads, headdim, dstate] = ['B', 'L', 'H', 'P', 'N'].map(|letter| sizes.get(letter));
        // maps without a group axis have one group
        let groups = |map: &View<'_>| if map.rank() == 4 { map.shape()[2] } else { 1 };
        let ngroups = groups(&args.b);
        check_groups(OP, "b", ngroups, nheads)?;
        if groups(&args.c) != ngroups {
            let expected = Shape::of(&[batch, seqlen, ngroups, dstate]);
            return Err(Error::Shape { op: OP, argument: "c", expected, got: args.c.shape(), help: String::new() });
        }
        check_interval(OP, "dt_limit", args.dt_limit)?;
        if args.chunk_size == 0 {
            return Err(Error::Value { op: OP, argument: "chunk_size", expected: "at least 1", got: 0.0 });
        }
        // without heads there may be any number of groups
        let others = &[nheads.max(ngroups), headdim, dstate];
        let extent = Extent { batch, seqlen, others, names: SIGNATURE.limit.names, state_rank: 3 };
        let segments = Segments::resolve(OP, device, &args.sequences, extent, states.beside(&args.initial_state))?;
        let (own, reverse) = ([nheads, headdim, dstate], args.reverse.then_some(seqlen));
        let placed = segments.placed((&checker, device), (&SIGNATURE, &views), &own, reverse, states)?;
        let normal = placed.normal;
        let mut problem = Problem {
            batch,
            seqlen,
            nheads,
            headdim,
            ngroups,
            dstate,
            double: args.x.dtype().is_double(),
            x: normal.timed(args.x, TIME),
            dt: normal.timed(args.dt, TIME),
            a: args.a,
            b: args.b,
            c: args.c,
            d: args.d,
            z: args.z.map(|view| normal.timed(view, TIME)),
            dt_bias: args.dt_bias,
            step_size: args.step_size(),
            dt_a: args.dt_a.map(|view| normal.timed(view, TIME)),
            initial_state: placed.initial,
            pool: placed.pool,
            sequences: args.sequences,
            segments: placed.segments,
            state_shape: placed.shape,
            normal,
            reverse: args.reverse,
        };
        (problem.b, problem.c) = (problem.map(args.b), problem.map(args.c));
        Ok(problem)
    }

    /// A tensor over time in normal form.
    pub(super) fn timed<V: Axes>(&self, view: V) -> V {
        self.normal.timed(view, TIME)
    }

    /// An input or output map in normal form.
    pub(super) fn map<V: Axes>(&self, view: V) -> V {
        self.timed(if view.rank() == 3 { view.expand(2, 1) } else { view })
    }

    /// A state in normal form.
    pub(super) fn state<V: Axes>(&self, view: V) -> V {
        self.normal.state(view)
    }
}
