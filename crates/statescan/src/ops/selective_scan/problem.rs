//! A checked call in normal form.

use super::{Args, OP, cpu, cuda};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::ops::check::{Checker, Kind, limit_states};
use crate::ops::discretization::Discretization;
use crate::ops::sequences::{Extent, Segments, Sequences};
use crate::tensor::{DType, Device, RawViewMut, Shape, View};

/// An input or output map in its normal form.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Projection<V> {
    /// (B, G, N, L)
    Varying(V),
    /// (D, N)
    Constant(V),
}

/// Time runs forwards, maps have a group axis, states have a sequence axis.
#[derive(Debug)]
pub(crate) struct Problem<'a> {
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
    pub dt_softplus: bool,
    pub dt_limit: (f64, f64),
    pub dt_a: Option<View<'a>>,
    /// (rows, sequences, D, N)
    pub initial_state: Option<View<'a>>,
    pub sequences: Sequences<'a>,
    /// The same, with the values that the host can read.
    pub segments: Segments,
    pub reverse: bool,
    pub discretization: Discretization,
}

impl<'a> Problem<'a> {
    /// Reads the sizes, checks the arguments, and brings them to normal form. The checker remembers them for the overlap test.
    pub(super) fn new<'c>(args: &'c Args<'a>, checker: &mut Checker<'c>, states: &[Shape]) -> Result<Self> {
        let bad_rank = |argument, expected, view: &View<'_>| Error::Rank { op: OP, argument, expected, got: view.shape() };
        if args.x.rank() != 3 {
            return Err(bad_rank("x", "shape (batch, dim, seqlen)", &args.x));
        }
        if args.a.rank() != 2 {
            return Err(bad_rank("a", "shape (dim, dstate)", &args.a));
        }
        let [batch, dim, seqlen] = [args.x.shape()[0], args.x.shape()[1], args.x.shape()[2]];
        let dstate = args.a.shape()[1];
        let projection = |argument, view: View<'a>| match view.rank() {
            2 => Ok(Projection::Constant(view)),
            3 => Ok(Projection::Varying(view.expand(1, 1))),
            4 => {
                let groups = view.shape()[1];
                if groups == 0 || dim % groups != 0 {
                    let expected = "divided into a number of groups that divides dim,";
                    return Err(Error::Value { op: OP, argument, expected, got: groups as f64 });
                }
                Ok(Projection::Varying(view))
            }
            _ => {
                Err(bad_rank(argument, "shape (batch, dstate, seqlen), (batch, ngroups, dstate, seqlen) or (dim, dstate)", &view))
            }
        };
        let (b, c) = (projection("b", args.b)?, projection("c", args.c)?);
        limit_states(OP, dstate)?;
        // without channels there may be any number of groups
        let groups = |map: &Projection<View<'_>>| if let Projection::Varying(view) = map { view.shape()[1] } else { 1 };
        let others = &[dim.max(groups(&b)).max(groups(&c)), dstate];
        let names = "batch x dim x max(seqlen, sequences) x dstate";
        let extent = Extent { batch, seqlen, others, names, state_rank: 2 };
        let states = args.initial_state.iter().map(|s| s.shape()).chain(states.iter().copied());
        let segments = Segments::resolve(OP, checker.device(), &args.sequences, extent, states)?;
        let mut problem = Problem {
            batch,
            dim,
            seqlen,
            dstate,
            complex: args.a.dtype().is_complex(),
            double: args.x.dtype().is_double(),
            x: args.x,
            dt: args.dt,
            a: args.a,
            b,
            c,
            d: args.d,
            z: args.z,
            dt_bias: args.dt_bias,
            dt_softplus: args.dt_softplus,
            dt_limit: args.dt_limit,
            dt_a: args.dt_a,
            initial_state: args.initial_state,
            sequences: args.sequences,
            segments,
            reverse: args.reverse,
            discretization: args.discretization,
        };
        problem.check(args, checker)?;
        let (low, high) = args.dt_limit;
        if low.is_nan() || high.is_nan() || low > high {
            return Err(Error::Value { op: OP, argument: "dt_limit", expected: "an interval (low <= high)", got: low });
        }
        problem.initial_state = problem.initial_state.map(|s| problem.state_source(s));
        if args.reverse {
            let mirror = |view: View<'a>, axis| view.flip(axis);
            problem.x = mirror(problem.x, 2);
            problem.dt = mirror(problem.dt, 2);
            problem.z = problem.z.map(|v| mirror(v, 2));
            problem.dt_a = problem.dt_a.map(|v| mirror(v, 2));
            for map in [&mut problem.b, &mut problem.c] {
                if let Projection::Varying(view) = map {
                    *view = mirror(*view, 3);
                }
            }
            problem.segments = problem.segments.reversed(seqlen);
        }
        Ok(problem)
    }

    /// Checks the arguments that are read.
    fn check<'c>(&self, args: &'c Args<'_>, checker: &mut Checker<'c>) -> Result<()> {
        let (batch, dim, seqlen, dstate) = (self.batch, self.dim, self.seqlen, self.dstate);
        let bdl = [batch, dim, seqlen];
        checker.read("x", &args.x, Kind::Real, &bdl)?;
        checker.read("dt", &args.dt, Kind::Real, &bdl)?;
        checker.read("a", &args.a, Kind::Float, &[dim, dstate])?;
        for (name, view) in [("b", &args.b), ("c", &args.c)] {
            let groups = view.shape().get(1).copied().unwrap_or(1);
            let shape: &[usize] = match view.rank() {
                2 => &[dim, dstate],
                3 => &[batch, dstate, seqlen],
                _ => &[batch, groups, dstate, seqlen],
            };
            checker.read(name, view, Kind::float(self.complex), shape)?;
        }
        checker.read_if("d", &args.d, Kind::Real, &[dim])?;
        checker.read_if("z", &args.z, Kind::Real, &bdl)?;
        checker.read_if("dt_bias", &args.dt_bias, Kind::Real, &[dim])?;
        checker.read_if("dt_a", &args.dt_a, Kind::Real, &bdl)?;
        let state = self.segments.state_shape(&[dim, dstate]);
        checker.read_if("initial_state", &args.initial_state, Kind::float(self.complex), &state)
    }

    /// Real numbers in a state.
    pub(crate) fn parts(&self) -> usize {
        if self.complex { 2 } else { 1 }
    }

    /// Elements of the saved states; how they lie depends on the device.
    pub(super) fn checkpoints_len(&self) -> usize {
        match self.x.device() {
            Device::Cpu => cpu::Checkpoints::new(self).len,
            Device::Cuda(_) => cuda::checkpoints_len(self),
        }
    }

    /// Elements of scratch memory that a forward pass wants.
    pub(super) fn workspace_len(&self, exec: &Exec) -> usize {
        exec.stream().map_or(0, |stream| cuda::workspace_len(stream, self))
    }

    /// Elements of scratch memory that a backward pass needs, with or without room for saved states.
    pub(super) fn backward_workspace_len(&self, exec: &Exec, saves: bool) -> Result<usize> {
        exec.stream().map_or(Ok(0), |stream| cuda::backward_workspace_len(stream, self, saves))
    }

    /// The type of carried values (its components).
    pub(super) fn real_dtype(&self) -> DType {
        if self.double { DType::F64 } else { DType::F32 }
    }

    pub(super) fn mirror_view<'v>(&self, view: View<'v>, axis: usize) -> View<'v> {
        if self.reverse { view.flip(axis) } else { view }
    }

    pub(super) fn mirror(&self, view: RawViewMut, axis: usize) -> RawViewMut {
        if self.reverse { view.flip(axis) } else { view }
    }

    pub(super) fn state_source<'v>(&self, view: View<'v>) -> View<'v> {
        if self.segments.states_have_sequences() { view } else { view.expand(1, 1) }
    }

    pub(super) fn state_target(&self, view: RawViewMut) -> RawViewMut {
        if self.segments.states_have_sequences() { view } else { view.expand(1, 1) }
    }

    pub(super) fn projection_target(&self, view: RawViewMut) -> Projection<RawViewMut> {
        match view.shape().len() {
            2 => Projection::Constant(view),
            3 => Projection::Varying(self.mirror(view.expand(1, 1), 3)),
            _ => Projection::Varying(self.mirror(view, 3)),
        }
    }
}
