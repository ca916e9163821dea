//! A checked call in normal form.

use super::{Args, OP, SIGNATURE, STATE};
use crate::error::{Error, Result};
use crate::ops::check::{Checker, check_groups, check_interval, limit_sizes, limit_states, state_rows};
use crate::ops::discretization::Discretization;
use crate::step_size::StepSize;
use crate::tensor::{Device, Shape, View};

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
    pub step_size: StepSize,
    pub dt_a: Option<Operand<'a>>,
    pub discretization: Discretization,
    pub state: Operand<'a>,
    pub y: Operand<'a>,
    /// The state of each row, where the host can read it.
    pub rows: Vec<Option<usize>>,
}

/// The sizes of a call, checked.
pub(super) struct Sizes {
    /// The axes of a channel: [D] or [H, P].
    pub own: Shape,
    heads: usize,
    headdim: usize,
    pub dstate: usize,
    states: usize,
    pub complex: bool,
    pub rows: Vec<Option<usize>>,
}

impl Sizes {
    /// Checks the arguments beside a state of a shape; `slotted` says that slots of it are read and written apart.
    pub(super) fn new(args: &Args<'_>, device: Device, slotted: bool, shape: Shape) -> Result<Self> {
        let rank = |argument, layouts, got| Error::Rank {
            op: OP,
            argument,
            expected: SIGNATURE.shapes(layouts),
            got,
            help: String::new(),
        };
        let Some(form) = STATE.layouts.iter().position(|layout| layout.len() == shape.len()) else {
            return Err(rank(STATE.field, STATE.layouts.to_vec(), shape));
        };
        if args.x.rank() + 1 != shape.len() {
            return Err(rank("x", vec![SIGNATURE.arguments[0].layouts[form]], args.x.shape()));
        }
        let sizes = Checker::new(OP, device).bind(&SIGNATURE, &args.views())?;
        let (batch, own, dstate) = (sizes.get('B'), Shape::of(&args.x.shape()[1..]), sizes.get('N'));
        let groups = |map: &View<'_>| if map.rank() == 3 { map.shape()[1] } else { 1 };
        let (of_b, of_c) = (groups(&args.b), groups(&args.c));
        check_groups(OP, "b", of_b, own[0])?;
        check_groups(OP, "c", of_c, own[0])?;
        let groups = of_b.max(of_c);
        if own.len() == 1 && (groups % of_b != 0 || groups % of_c != 0) {
            let expected = "in as many groups as the input map";
            return Err(Error::Value { op: OP, argument: "c", expected, got: of_c as f64 });
        }
        check_interval(OP, "dt_limit", args.dt_limit)?;
        // the state may claim more of them than A, and has not been compared yet
        let most = dstate.max(shape[shape.len() - 1]);
        limit_states(OP, most)?;
        // without channels there may be any number of groups
        let sizes = [batch.max(shape[0]), own[0].max(groups), own.get(1).copied().unwrap_or(1), most];
        limit_sizes(OP, SIGNATURE.limit.names, sizes)?;
        let (heads, headdim) = if own.len() == 1 { (groups, own[0] / groups) } else { (own[0], own[1]) };
        let mut sizes = Sizes {
            heads,
            headdim,
            dstate,
            states: if slotted || args.state_batch_indices.is_some() { shape[0] } else { batch },
            complex: args.a.dtype().is_complex(),
            rows: vec![None; batch],
            own,
        };
        if device == Device::Cpu && !slotted {
            sizes.rows = state_rows(OP, "state_batch_indices", args.state_batch_indices.as_ref(), batch, sizes.states)?;
        }
        Ok(sizes)
    }

    /// The call in normal form.
    pub(super) fn problem<'v>(self, args: &Args<'v>, state: &View<'v>, y: &View<'v>) -> Problem<'v> {
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
            step_size: args.step_size(),
            dt_a: args.dt_a.map(|v| self.channels(&v, true)),
            discretization: args.discretization,
            state: self.channels(state, true),
            y: self.channels(y, true),
            rows: self.rows,
        }
    }

    pub(super) fn state_shape(&self) -> Shape {
        Shape::concat(&[&[self.states], &self.own, &[self.dstate]])
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
