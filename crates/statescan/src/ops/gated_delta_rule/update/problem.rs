//! A checked call.

use super::super::gates::Gates;
use super::super::problem::check_widths;
use super::{Args, OP, SIGNATURE, STATE};
use crate::error::{Error, Result};
use crate::ops::check::{Checker, check_groups, limit_sizes, state_rows};
use crate::tensor::{DType, Device, Shape, View};

/// A checked call.
#[derive(Debug)]
pub(in crate::ops::gated_delta_rule) struct Problem<'a> {
    /// Heads of keys, and heads of values that share one.
    pub heads: usize,
    pub group: usize,
    pub keys: usize,
    pub values: usize,
    pub double: bool,
    pub q: View<'a>,
    pub k: View<'a>,
    pub v: View<'a>,
    pub g: Option<View<'a>>,
    pub beta: Option<View<'a>>,
    pub a_log: Option<View<'a>>,
    pub dt_bias: Option<View<'a>>,
    pub gates: Gates,
    /// The state of each row.
    pub rows: Vec<Option<usize>>,
}

/// The sizes of a call, checked.
#[derive(Debug)]
pub(super) struct Sizes {
    pub heads: usize,
    pub group: usize,
    pub keys: usize,
    pub values: usize,
    states: usize,
    pub gates: Gates,
    pub rows: Vec<Option<usize>>,
}

impl Sizes {
    /// Checks the arguments beside a state of a shape; `slotted` says that slots of it are read and written apart.
    pub(super) fn new(args: &Args<'_>, device: Device, slotted: bool, shape: Shape) -> Result<Self> {
        if shape.len() != 4 {
            let expected = SIGNATURE.shapes(STATE.layouts.to_vec());
            return Err(Error::Rank { op: OP, argument: STATE.field, expected, got: shape, help: String::new() });
        }
        let sizes = Checker::new(OP, device).bind(&SIGNATURE, &args.views())?;
        let [batch, heads, all] = ['B', 'H', 'J'].map(|letter| sizes.get(letter));
        let [keys, values] = check_widths(OP, [sizes.get('N'), sizes.get('P')])?;
        check_groups(OP, "q", heads, all)?;
        let gates = Gates::new(&args.gates(), 2, keys)?;
        // without heads of values there may be any number of those of keys
        let counted = [batch.max(shape[0]), all.max(heads).max(shape[1]), keys.max(shape[2]), values.max(shape[3])];
        limit_sizes(OP, SIGNATURE.limit.names, counted)?;
        let states = if slotted || args.state_batch_indices.is_some() { shape[0] } else { batch };
        let rows = match device {
            Device::Cpu if !slotted => state_rows(OP, "state_batch_indices", args.state_batch_indices.as_ref(), batch, states)?,
            _ => vec![None; batch],
        };
        Ok(Sizes { heads, group: all / heads, keys, values, states, gates, rows })
    }

    /// The call beside a state of a type.
    pub(super) fn problem<'a>(self, args: &Args<'a>, state: DType) -> Problem<'a> {
        let Sizes { heads, group, keys, values, gates, rows, .. } = self;
        let double = args.v.dtype().is_double() || state.is_double();
        let Args { q, k, v, g, beta, a_log, dt_bias, .. } = *args;
        Problem { heads, group, keys, values, double, q, k, v, g, beta, a_log, dt_bias, gates, rows }
    }

    pub(super) fn state_shape(&self) -> Shape {
        Shape::of(&[self.states, self.heads * self.group, self.keys, self.values])
    }
}
