//! A checked call in normal form.

use super::super::check::{Checker, Kind};
use super::super::sequences::{Extent, Segments};
use super::{Args, OP};
use crate::error::{Error, Result};
use crate::tensor::{DType, Device, RawViewMut, Shape, View};

/// Time runs forwards, maps have a group axis, states have a sequence axis.
#[derive(Debug)]
pub(crate) struct Problem<'a> {
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
    pub dt_softplus: bool,
    pub dt_limit: (f64, f64),
    /// (rows, sequences, H, P, N)
    pub initial_state: Option<View<'a>>,
    pub segments: Segments,
    pub reverse: bool,
}

/// The time axis of everything that has one.
const TIME: usize = 1;

impl<'a> Problem<'a> {
    /// Reads the sizes, checks the arguments and brings them to normal form. `states` are the shapes of the other state tensors of the call.
    pub(crate) fn new<'c>(args: &'c Args<'a>, device: Device, states: &[Shape]) -> Result<(Self, Checker<'c>)> {
        let bad_rank = |argument, expected, view: &View<'_>| Error::Rank { op: OP, argument, expected, got: view.shape() };
        if args.x.rank() != 4 {
            return Err(bad_rank("x", "shape (batch, seqlen, nheads, headdim)", &args.x));
        }
        let [batch, seqlen, nheads, headdim] = [0, 1, 2, 3].map(|axis| args.x.shape()[axis]);
        let map = |argument, view: View<'a>| match view.rank() {
            3 => Ok(view.expand(2, 1)),
            4 => Ok(view),
            _ => Err(bad_rank(argument, "shape (batch, seqlen, ngroups, dstate) or (batch, seqlen, dstate)", &view)),
        };
        let (b, c) = (map("b", args.b)?, map("c", args.c)?);
        let (ngroups, dstate) = (b.shape()[2], b.shape()[3]);
        if ngroups == 0 || nheads % ngroups != 0 {
            let expected = "divided into a number of groups that divides nheads,";
            return Err(Error::Value { op: OP, argument: "b", expected, got: ngroups as f64 });
        }
        // without heads there may be any number of groups
        let others = &[nheads.max(ngroups), headdim, dstate];
        let names = "batch x max(seqlen, sequences) x nheads x headdim x dstate";
        let extent = Extent { batch, seqlen, others, names, state_rank: 3 };
        let states = args.initial_state.iter().map(|s| s.shape()).chain(states.iter().copied());
        let segments = Segments::resolve(OP, device, &args.sequences, extent, states)?;
        let mut problem = Problem {
            batch,
            seqlen,
            nheads,
            headdim,
            ngroups,
            dstate,
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
            initial_state: args.initial_state,
            segments,
            reverse: args.reverse,
        };
        let checker = problem.checker(args, device)?;
        check_options(args)?;
        problem.initial_state = problem.initial_state.map(|s| problem.state_source(s));
        if args.reverse {
            for view in [&mut problem.x, &mut problem.dt, &mut problem.b, &mut problem.c] {
                *view = view.flip(TIME);
            }
            problem.z = problem.z.map(|v| v.flip(TIME));
            problem.segments = problem.segments.reversed(seqlen);
        }
        Ok((problem, checker))
    }

    /// Checks the arguments that are read, and remembers them for the overlap test.
    fn checker<'c>(&self, args: &'c Args<'a>, device: Device) -> Result<Checker<'c>> {
        let mut checker = Checker::new(OP, device);
        let (batch, seqlen, nheads) = (self.batch, self.seqlen, self.nheads);
        let x = args.x.shape();
        checker.read("x", &args.x, Kind::Real, &x)?;
        checker.read("dt", &args.dt, Kind::Real, &[batch, seqlen, nheads])?;
        checker.read("a", &args.a, Kind::Real, &[nheads])?;
        for (name, view) in [("b", &args.b), ("c", &args.c)] {
            let shape = [batch, seqlen, self.ngroups, self.dstate];
            match view.rank() {
                // both forms may be mixed where there is one group
                3 if self.ngroups == 1 => checker.read(name, view, Kind::Real, &[batch, seqlen, self.dstate])?,
                _ => checker.read(name, view, Kind::Real, &shape)?,
            }
        }
        if let Some(d) = &args.d {
            let shape: &[usize] = if d.rank() == 2 { &[nheads, self.headdim] } else { &[nheads] };
            checker.read("d", d, Kind::Real, shape)?;
        }
        checker.read_if("z", &args.z, Kind::Real, &x)?;
        checker.read_if("dt_bias", &args.dt_bias, Kind::Real, &[nheads])?;
        checker.read_if("initial_state", &args.initial_state, Kind::Real, &self.state_shape())?;
        if let Some(mask) = &args.causal_mask {
            let size = mask.shape().first().copied().unwrap_or(0);
            checker.read("causal_mask", mask, Kind::Real, &[size, size])?;
        }
        Ok(checker)
    }

    /// The shape of a state tensor of this call.
    pub(crate) fn state_shape(&self) -> Shape {
        self.segments.state_shape(&[self.nheads, self.headdim, self.dstate])
    }

    /// The type of carried values.
    pub(crate) fn real_dtype(&self) -> DType {
        if self.double { DType::F64 } else { DType::F32 }
    }

    pub(crate) fn mirror_view<'v>(&self, view: View<'v>) -> View<'v> {
        if self.reverse { view.flip(TIME) } else { view }
    }

    pub(crate) fn mirror(&self, view: RawViewMut) -> RawViewMut {
        if self.reverse { view.flip(TIME) } else { view }
    }

    pub(crate) fn state_source<'v>(&self, view: View<'v>) -> View<'v> {
        if self.segments.states_have_sequences() { view } else { view.expand(1, 1) }
    }

    pub(crate) fn state_target(&self, view: RawViewMut) -> RawViewMut {
        if self.segments.states_have_sequences() { view } else { view.expand(1, 1) }
    }
}

fn check_options(args: &Args<'_>) -> Result<()> {
    let (low, high) = args.dt_limit;
    if low.is_nan() || high.is_nan() || low > high {
        return Err(Error::Value { op: OP, argument: "dt_limit", expected: "an interval (low <= high)", got: low });
    }
    if args.chunk_size == 0 {
        return Err(Error::Value { op: OP, argument: "chunk_size", expected: "at least 1", got: 0.0 });
    }
    if let Some(mask) = &args.causal_mask {
        for i in 0..mask.shape()[0] {
            for j in 0..mask.shape()[0] {
                let got = mask.at(&[i, j]).re;
                if got != f64::from(u8::from(j <= i)) {
                    let expected = "ones on and below the diagonal and zeros above";
                    return Err(Error::Value { op: OP, argument: "causal_mask", expected, got });
                }
            }
        }
    }
    Ok(())
}
