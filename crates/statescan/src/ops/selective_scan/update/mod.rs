//! One step of a selective scan, with the state updated in place: what decoding needs.
//!
//! ```text
//! h <- Abar(dt A) h + Bbar(dt, A) B x        y = <C, h> + D x,  then  y * silu(z)
//! ```
//!
//! The formulas, and the order of what happens to `dt`, are those of [`selective_scan`](super): L steps give its result,
//! for every discretization. B batch, D dim, N dstate, H nheads, P headdim, G ngroups, S states (B, or more with indices).
//!
//! | argument | Mamba-1 | Mamba-2 | type |
//! |---|---|---|---|
//! | state | (S, D, N) | (S, H, P, N) | real, or complex where a is; read and written |
//! | x, dt, z, dt_a | (B, D) | (B, H, P) | real |
//! | a | (D, N) | (H, P, N) | real or complex; complex: `y = 2 Re <C, h>` |
//! | b, c | (B, N) or (B, G, N) | the same | real, or complex where a is |
//! | d, dt_bias | (D,) | (H, P) | real |
//! | state_batch_indices | (B,) | (B,) | i32 or i64: the state that a row uses, negative for none |
//! | -> y | (B, D) | (B, H, P) | real |
//!
//! Each argument may have its own storage type and any strides. What is the same for a whole head may come expanded, with strides of
//! zero; where `a` is the same for all states of a channel, there is one exponential for each channel instead of one for each state.
//! Where an index is negative, `y` is zero and no state is touched.
//! Sums are `f32`, or `f64` where `x` or the state is.
//!
//! **CUDA.** Everything runs there but an `x` or a state in `f64`. Only the device reads indices: one that is out of range counts as negative,
//! one that is used twice gives wrong results.

mod cpu;
mod cuda;
pub mod reference;

use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::ops::check::{Checker, Kind, limit_sizes, limit_states, state_rows};
use crate::ops::discretization::Discretization;
use crate::tensor::{Device, Shape, View, ViewMut};

const OP: &str = "selective_state_update";

/// The arguments of a step; see the [module](self) for shapes and types.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a> {
    /// Input, (B, D) or (B, H, P).
    pub x: View<'a>,
    /// Step sizes, shaped as `x`.
    pub dt: View<'a>,
    /// State matrix, diagonal, (D, N) or (H, P, N).
    pub a: View<'a>,
    /// Input map, (B, N) or (B, G, N).
    pub b: View<'a>,
    /// Output map, (B, N) or (B, G, N).
    pub c: View<'a>,
    /// Skip, (D,) or (H, P).
    pub d: Option<View<'a>>,
    /// Gate, shaped as `x`.
    pub z: Option<View<'a>>,
    /// Added to `dt`, (D,) or (H, P).
    pub dt_bias: Option<View<'a>>,
    /// Whether `dt` goes through softplus after the bias.
    pub dt_softplus: bool,
    /// Lowest and highest step, applied last.
    pub dt_limit: (f64, f64),
    /// The decay's own step (`deltaA`), shaped as `x`, used as it is.
    pub dt_a: Option<View<'a>>,
    /// How (A, B) become a recurrence.
    pub discretization: Discretization,
    /// The state that each row uses, (B,); negative for none.
    pub state_batch_indices: Option<View<'a>>,
}

impl<'a> Args<'a> {
    /// The five required arguments, and no option: `Args { z: Some(z), ..Args::new(x, dt, a, b, c) }`.
    pub fn new(x: View<'a>, dt: View<'a>, a: View<'a>, b: View<'a>, c: View<'a>) -> Self {
        Args {
            x,
            dt,
            a,
            b,
            c,
            d: None,
            z: None,
            dt_bias: None,
            dt_softplus: false,
            dt_limit: (f64::NEG_INFINITY, f64::INFINITY),
            dt_a: None,
            discretization: Discretization::Mamba,
            state_batch_indices: None,
        }
    }
}

/// Moves `state` on by one step and writes `y`, shaped as `x`.
///
/// # Errors
/// Any argument of a wrong shape, type or device, views that overlap, an index that is out of range or used twice. Nothing is written then.
pub fn update(exec: &Exec, args: &Args<'_>, state: &mut ViewMut<'_>, y: &mut ViewMut<'_>) -> Result<()> {
    let (sizes, mut checker) = Sizes::new(args, state.shape(), exec.device())?;
    checker.write("state", state, Kind::exactly(sizes.complex), &sizes.state_shape())?;
    checker.write("y", y, Kind::Real, &args.x.shape())?;
    checker.finish()?;
    let (state, y) = (state.raw(), y.raw());
    let problem = sizes.problem(args, &state.as_read(), &y.as_read());
    match exec.stream() {
        Some(stream) => cuda::update(stream, &problem, args.state_batch_indices),
        None => {
            cpu::update(exec, &problem);
            Ok(())
        }
    }
}

/// A tensor seen as (batch, head, channel of the head, state): stride 0 along the axes that it does not have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub view: View<'a>,
    pub strides: [isize; 4],
}

/// A checked call in normal form. Mamba-1 has as many heads as groups.
#[derive(Debug)]
pub(crate) struct Problem<'a> {
    pub heads: usize,
    pub headdim: usize,
    pub dstate: usize,
    pub complex: bool,
    pub double: bool,
    pub x: Operand<'a>,
    pub dt: Operand<'a>,
    pub a: Operand<'a>,
    /// With the number of heads that share a group; the head's stride is that of the group.
    pub b: (Operand<'a>, usize),
    pub c: (Operand<'a>, usize),
    pub d: Option<Operand<'a>>,
    pub z: Option<Operand<'a>>,
    pub dt_bias: Option<Operand<'a>>,
    pub dt_softplus: bool,
    pub dt_limit: (f64, f64),
    pub dt_a: Option<Operand<'a>>,
    pub discretization: Discretization,
    pub state: Operand<'a>,
    pub y: Operand<'a>,
    /// The state of each row, where the host can read it.
    pub rows: Vec<Option<usize>>,
}

/// The sizes of a call, checked.
struct Sizes {
    /// The axes of a channel: [D] or [H, P].
    own: Shape,
    heads: usize,
    headdim: usize,
    dstate: usize,
    states: usize,
    complex: bool,
    rows: Vec<Option<usize>>,
}

impl Sizes {
    /// Also gives the checker, which has seen the arguments.
    fn new<'c>(args: &'c Args<'_>, shape: Shape, device: Device) -> Result<(Self, Checker<'c>)> {
        let rank = |argument, expected, got: Shape| Error::Rank { op: OP, argument, expected, got };
        if shape.len() != 3 && shape.len() != 4 {
            return Err(rank("state", "shape (batch, dim, dstate) or (batch, nheads, headdim, dstate)", shape));
        }
        if args.x.rank() + 1 != shape.len() {
            return Err(rank("x", "the state's axes without the last, (batch, dim) or (batch, nheads, headdim)", args.x.shape()));
        }
        let (batch, own) = (args.x.shape()[0], Shape::of(&args.x.shape()[1..]));
        let groups_of = |argument, view: &View<'_>| match view.shape()[..] {
            [_, _] => Ok(1),
            [_, groups, _] if groups == 0 || own[0] % groups != 0 => {
                let expected = "divided into a number of groups that divides the heads (or channels),";
                Err(Error::Value { op: OP, argument, expected, got: groups as f64 })
            }
            [_, groups, _] => Ok(groups),
            _ => Err(rank(argument, "shape (batch, dstate) or (batch, ngroups, dstate)", view.shape())),
        };
        let (of_b, of_c) = (groups_of("b", &args.b)?, groups_of("c", &args.c)?);
        let groups = of_b.max(of_c);
        if own.len() == 1 && (groups % of_b != 0 || groups % of_c != 0) {
            let expected = "divided into as many groups as b,";
            return Err(Error::Value { op: OP, argument: "c", expected, got: of_c as f64 });
        }
        let (low, high) = args.dt_limit;
        if low.is_nan() || high.is_nan() || low > high {
            return Err(Error::Value { op: OP, argument: "dt_limit", expected: "an interval (low <= high)", got: low });
        }
        let dstate = shape[shape.len() - 1];
        limit_states(OP, dstate)?;
        // without channels there may be any number of groups
        let sizes = [batch.max(shape[0]), own[0].max(groups), own.get(1).copied().unwrap_or(1), dstate];
        limit_sizes(OP, "max(batch, states) x dim (or nheads x headdim) x dstate", sizes)?;
        let (heads, headdim) = if own.len() == 1 { (groups, own[0] / groups) } else { (own[0], own[1]) };
        let mut sizes = Sizes {
            heads,
            headdim,
            dstate,
            states: if args.state_batch_indices.is_some() { shape[0] } else { batch },
            complex: args.a.dtype().is_complex(),
            rows: vec![None; batch],
            own,
        };
        let checker = sizes.checker(args, device)?;
        if device == Device::Cpu {
            sizes.rows = state_rows(OP, "state_batch_indices", args.state_batch_indices.as_ref(), batch, sizes.states)?;
        }
        Ok((sizes, checker))
    }

    /// The call in normal form.
    fn problem<'v>(self, args: &Args<'v>, state: &View<'v>, y: &View<'v>) -> Problem<'v> {
        Problem {
            heads: self.heads,
            headdim: self.headdim,
            dstate: self.dstate,
            complex: self.complex,
            double: args.x.dtype().is_double() || state.dtype().is_double(),
            x: self.channels(&args.x, true),
            dt: self.channels(&args.dt, true),
            a: self.channels(&args.a, false),
            b: self.map(&args.b),
            c: self.map(&args.c),
            d: args.d.map(|v| self.channels(&v, false)),
            z: args.z.map(|v| self.channels(&v, true)),
            dt_bias: args.dt_bias.map(|v| self.channels(&v, false)),
            dt_softplus: args.dt_softplus,
            dt_limit: args.dt_limit,
            dt_a: args.dt_a.map(|v| self.channels(&v, true)),
            discretization: args.discretization,
            state: self.channels(state, true),
            y: self.channels(y, true),
            rows: self.rows,
        }
    }

    fn state_shape(&self) -> Shape {
        Shape::concat(&[&[self.states], &self.own, &[self.dstate]])
    }

    /// Checks the arguments that are read, and remembers them for the overlap test.
    fn checker<'c>(&self, args: &'c Args<'_>, device: Device) -> Result<Checker<'c>> {
        let mut checker = Checker::new(OP, device);
        let batch = self.rows.len();
        let batched = Shape::concat(&[&[batch], &self.own]);
        checker.read("x", &args.x, Kind::Real, &batched)?;
        checker.read("dt", &args.dt, Kind::Real, &batched)?;
        checker.read("a", &args.a, Kind::Float, &Shape::concat(&[&self.own, &[self.dstate]]))?;
        for (name, view) in [("b", &args.b), ("c", &args.c)] {
            let groups = &view.shape()[1..view.rank() - 1];
            checker.read(name, view, Kind::float(self.complex), &Shape::concat(&[&[batch], groups, &[self.dstate]]))?;
        }
        checker.read_if("d", &args.d, Kind::Real, &self.own)?;
        checker.read_if("z", &args.z, Kind::Real, &batched)?;
        checker.read_if("dt_bias", &args.dt_bias, Kind::Real, &self.own)?;
        checker.read_if("dt_a", &args.dt_a, Kind::Real, &batched)?;
        checker.read_if("state_batch_indices", &args.state_batch_indices, Kind::Index, &[batch])?;
        Ok(checker)
    }

    /// A tensor over channels in normal form.
    fn channels<'v>(&self, view: &View<'v>, batched: bool) -> Operand<'v> {
        let all = view.strides();
        let (batch, rest) = if batched { (all[0], &all[1..]) } else { (0, &all[..]) };
        let (channel, last) = rest.split_at(self.own.len());
        let (head, lane) = match *channel {
            [head, lane] => (head, lane),
            // one axis of channels falls into groups
            _ => (channel[0].wrapping_mul(self.headdim as isize), channel[0]),
        };
        Operand { view: *view, strides: [batch, head, lane, last.first().copied().unwrap_or(0)] }
    }

    /// B or C in normal form, and the heads that share a group.
    fn map<'v>(&self, view: &View<'v>) -> (Operand<'v>, usize) {
        let strides = view.strides();
        let (group, groups) = if view.rank() == 3 { (strides[1], view.shape()[1]) } else { (0, 1) };
        (Operand { view: *view, strides: [strides[0], group, 0, strides[view.rank() - 1]] }, self.heads / groups)
    }
}
