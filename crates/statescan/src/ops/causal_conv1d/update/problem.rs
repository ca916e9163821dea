//! A checked call in normal form.

use super::{Activation, Args, OP, SIGNATURE, STATE};
use crate::error::{Error, Result};
use crate::ops::causal_conv1d::check_width;
use crate::ops::check::{Checker, limit_sizes, state_rows};
use crate::tensor::{Device, RawViewMut, Shape, View};

/// A checked call in normal form.
pub(crate) struct Problem<'a> {
    pub dim: usize,
    pub steps: usize,
    pub width: usize,
    pub state_len: usize,
    pub silu: bool,
    pub double: bool,
    /// (B, D, T)
    pub x: View<'a>,
    pub weight: View<'a>,
    pub bias: Option<View<'a>>,
    pub cache_seqlens: Option<View<'a>>,
    pub indices: Option<View<'a>>,
    /// (S, D, M)
    pub state: RawViewMut,
    /// (B, D, T)
    pub y: RawViewMut,
    /// For each row its state and the place in it where the next input goes, where the host can read them.
    pub rows: Vec<Option<(usize, usize)>>,
}

/// The sizes of a call, checked.
pub(super) struct Sizes {
    pub dim: usize,
    pub steps: usize,
    pub width: usize,
    pub states: usize,
    pub state_len: usize,
    /// As in [`Problem`].
    pub rows: Vec<Option<(usize, usize)>>,
}

impl Sizes {
    /// Checks the arguments beside a state of a shape; `slotted` says that slots of it are read and written apart.
    pub(super) fn new(args: &Args<'_>, device: Device, slotted: bool, state: Shape) -> Result<Self> {
        let sizes = Checker::new(OP, device).bind(&SIGNATURE, &args.views())?;
        let ([batch, dim, width], steps) = (['B', 'D', 'W'].map(|letter| sizes.get(letter)), sizes.known('T').unwrap_or(1));
        check_width(OP, width)?;
        let [states, _, state_len] = state[..] else {
            let expected = SIGNATURE.shapes(STATE.layouts.iter().copied());
            return Err(Error::Rank { op: OP, argument: STATE.field, expected, got: state, help: String::new() });
        };
        if state_len < width - 1 {
            let expected = "of at least width - 1 inputs";
            return Err(Error::Value { op: OP, argument: STATE.field, expected, got: state_len as f64 });
        }
        limit_sizes(OP, SIGNATURE.limit.names, [batch.max(states), dim, steps.max(state_len)])?;
        let mut sizes = Sizes { dim, steps, width, states, state_len, rows: vec![None; batch] };
        if !slotted && args.conv_state_indices.is_none() {
            sizes.states = batch;
        }
        if device == Device::Cpu && !slotted {
            sizes.find_rows(args, states)?;
        }
        Ok(sizes)
    }

    /// The call in normal form.
    pub(super) fn problem<'v>(self, args: &Args<'v>, state: RawViewMut, y: RawViewMut) -> Problem<'v> {
        let flat = args.x.rank() == 2;
        Problem {
            dim: self.dim,
            steps: self.steps,
            width: self.width,
            state_len: self.state_len,
            silu: args.activation == Activation::Silu,
            // a state of higher precision than the input keeps it
            double: args.x.dtype().is_double() || state.dtype().is_double(),
            x: if flat { args.x.expand(2, 1) } else { args.x },
            weight: args.weight,
            bias: args.bias,
            cache_seqlens: args.cache_seqlens,
            indices: args.conv_state_indices,
            state,
            y: if flat { y.expand(2, 1) } else { y },
            rows: self.rows,
        }
    }

    /// Finds the state of each row, and its place there.
    fn find_rows(&mut self, args: &Args<'_>, states: usize) -> Result<()> {
        let rows = state_rows(OP, "conv_state_indices", args.conv_state_indices.as_ref(), self.rows.len(), states)?;
        let seen = args.cache_seqlens.map(|v| v.to_indices());
        for (b, row) in rows.into_iter().enumerate() {
            let Some(row) = row else { continue };
            let got = seen.as_ref().map_or(0, |seen| seen[b]);
            if got < 0 {
                let argument = "cache_seqlens";
                return Err(Error::Index { op: OP, argument, position: b, expected: "at least", bound: 0, got });
            }
            self.rows[b] = Some((row, (got as u64 % self.state_len as u64) as usize));
        }
        Ok(())
    }
}
