//! A checked call in normal form.

use super::{Args, OP, Options, SIGNATURE};
use crate::error::Result;
use crate::ops::check::{Checker, check_groups, check_interval, limit_states};
use crate::ops::normal::{Axes, Normal};
use crate::ops::sequences::{Extent, Segments, Sequences};
use crate::ops::states::Pool;
use crate::ops::states::States;
use crate::tensor::{Device, Shape, View};

/// An input or output map in its normal form.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Projection<V> {
    /// (B, G, N, L)
    Varying(V),
    /// (D, N)
    Constant(V),
}

impl<V: Axes> Projection<V> {
    /// A map as a caller has it.
    fn new(view: V, normal: Normal) -> Self {
        match view.rank() {
            2 => Projection::Constant(view),
            3 => Projection::Varying(normal.timed(view.expand(1, 1), 3)),
            _ => Projection::Varying(normal.timed(view, 3)),
        }
    }
}

/// Time runs forwards, maps have a group axis, states have a sequence axis.
#[derive(Debug)]
pub struct Problem<'a> {
    pub batch: usize,
    pub dim: usize,
    pub seqlen: usize,
    pub dstate: usize,
    pub complex: bool,
    pub double: bool,
    pub x: View<'a>,
    pub dt: View<'a>,
    pub a: View<'a>,
    pub b: Projection<View<'a>>,
    pub c: Projection<View<'a>>,
    pub d: Option<View<'a>>,
    pub z: Option<View<'a>>,
    pub dt_bias: Option<View<'a>>,
    pub dt_a: Option<View<'a>>,
    /// (rows, sequences, D, N)
    pub initial_state: Option<View<'a>>,
    /// The pool that it is, where there is one.
    pub pool: Option<Pool<'a>>,
    pub sequences: Sequences<'a>,
    /// The sequences as segments, with the values that the host can read.
    pub segments: Segments,
    /// The shape of a state as the caller has it.
    pub state_shape: Shape,
    pub normal: Normal,
    pub options: Options,
}

impl<'a> Problem<'a> {
    /// Checks the arguments and brings them to normal form. `states` are the shapes of the other states of the call.
    pub(super) fn new(args: &Args<'a>, device: Device, states: States<'a>) -> Result<Self> {
        let (checker, views) = (Checker::new(OP, device), args.views());
        let sizes = checker.bind(&SIGNATURE, &views)?;
        let [batch, dim, seqlen, dstate] = ['B', 'D', 'L', 'N'].map(|letter| sizes.get(letter));
        let mut groups = 1;
        for (argument, map) in [("b", &args.b), ("c", &args.c)].into_iter().filter(|(_, map)| map.rank() == 4) {
            check_groups(OP, argument, map.shape()[1], dim)?;
            groups = groups.max(map.shape()[1]);
        }
        limit_states(OP, dstate)?;
        check_interval(OP, "dt_limit", args.dt_limit)?;
        // without channels there may be any number of groups
        let others = &[dim.max(groups), dstate];
        let extent = Extent { batch, seqlen, others, names: SIGNATURE.limit.names, state_rank: 2 };
        let segments = Segments::resolve(OP, device, &args.sequences, extent, states.beside(&args.initial_state))?;
        let reverse = args.reverse.then_some(seqlen);
        let placed = segments.placed((&checker, device), (&SIGNATURE, &views), &[dim, dstate], reverse, states)?;
        let normal = placed.normal;
        let timed = |view: View<'a>| normal.timed(view, 2);
        Ok(Problem {
            batch,
            dim,
            seqlen,
            dstate,
            complex: args.a.dtype().is_complex(),
            double: args.x.dtype().is_double(),
            x: timed(args.x),
            dt: timed(args.dt),
            a: args.a,
            b: Projection::new(args.b, normal),
            c: Projection::new(args.c, normal),
            d: args.d,
            z: args.z.map(timed),
            dt_bias: args.dt_bias,
            dt_a: args.dt_a.map(timed),
            initial_state: placed.initial,
            pool: placed.pool,
            sequences: args.sequences,
            segments: placed.segments,
            state_shape: placed.shape,
            normal,
            options: args.options(),
        })
    }

    /// Real numbers in a state.
    pub(crate) fn parts(&self) -> usize {
        if self.complex { 2 } else { 1 }
    }

    /// A tensor over time in normal form.
    pub(super) fn timed<V: Axes>(&self, view: V) -> V {
        self.normal.timed(view, 2)
    }

    /// A map in normal form.
    pub(super) fn map<V: Axes>(&self, view: V) -> Projection<V> {
        Projection::new(view, self.normal)
    }

    /// A state in normal form.
    pub(super) fn state<V: Axes>(&self, view: V) -> V {
        self.normal.state(view)
    }
}
