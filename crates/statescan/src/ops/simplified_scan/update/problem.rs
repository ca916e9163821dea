//! A checked call in normal form.

use super::{Args, OP, SIGNATURE, STATE};
use crate::error::{Error, Result};
use crate::ops::check::{Checker, limit_sizes, state_rows};
use crate::ops::discretization::Discretization;
use crate::tensor::{Device, RawViewMut, Shape, View};

/// The tensors that a step writes.
pub(crate) struct Targets {
    pub state: RawViewMut,
    pub y: RawViewMut,
}

/// A checked call in normal form.
#[derive(Debug)]
pub(crate) struct Problem<'a> {
    pub batch: usize,
    pub dim: usize,
    pub dstate: usize,
    pub states: usize,
    pub double: bool,
    pub u: View<'a>,
    /// (B, P), the rows being one where delta has no batch
    pub delta: View<'a>,
    /// (P,)
    pub a: View<'a>,
    pub b: View<'a>,
    pub c: View<'a>,
    pub delta_a: Option<View<'a>>,
    pub discretization: Discretization,
    /// `None` for a complex output, else the factor of its real part.
    pub real_factor: Option<f64>,
    pub d: Option<View<'a>>,
    /// The state of each row, where the host can read it.
    pub rows: Vec<Option<usize>>,
}

impl<'a> Problem<'a> {
    /// Checks the arguments and brings them to normal form, beside a state of a shape; `slotted` says that slots of it are read and written apart.
    pub(super) fn new(args: &Args<'a>, device: Device, slotted: bool, state: Shape) -> Result<Self> {
        let sizes = Checker::new(OP, device).bind(&SIGNATURE, &args.views())?;
        let [batch, dim, dstate] = ['B', 'H', 'P'].map(|letter| sizes.get(letter));
        if state.len() != 2 {
            let expected = SIGNATURE.shapes(STATE.layouts.iter().copied());
            return Err(Error::Rank { op: OP, argument: STATE.field, expected, got: state, help: String::new() });
        }
        limit_sizes(OP, SIGNATURE.limit.names, [batch.max(state[0]), dim, dstate])?;
        let batched = |view: View<'a>| if view.rank() == 1 { view.expand(0, batch) } else { view };
        let states = if slotted || args.state_batch_indices.is_some() { state[0] } else { batch };
        let rows = match device {
            Device::Cpu if !slotted => state_rows(OP, "state_batch_indices", args.state_batch_indices.as_ref(), batch, states)?,
            _ => Vec::new(),
        };
        Ok(Problem {
            batch,
            dim,
            dstate,
            states,
            double: args.u.dtype().is_double(),
            u: args.u,
            delta: batched(args.delta),
            a: if args.a.rank() == 2 { args.a.index(1, 0) } else { args.a },
            b: args.b,
            c: args.c,
            delta_a: args.delta_a.map(batched),
            discretization: args.discretization,
            real_factor: args.d.map(|_| if args.conj_sym { 2.0 } else { 1.0 }),
            d: args.d,
            rows,
        })
    }
}
