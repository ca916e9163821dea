//! One or a few steps of a causal convolution, with its last inputs kept in place: what decoding needs.
//!
//! | argument | shape | type |
//! |---|---|---|
//! | x | (B, D), or (B, D, T) for T steps | real |
//! | conv_state | (B, D, M), or (S, D, M) with indices; M >= W-1 | real; read and written |
//! | weight, bias | (D, W), (D,) | real |
//! | cache_seqlens | (B,) | i32 or i64, not negative |
//! | conv_state_indices | (B,) | i32 or i64: the state that a row uses, negative for none |
//! | -> y | as x | real |
//!
//! Without `cache_seqlens` the state is the last M inputs, the latest last: it moves by T. With them it is a circular buffer: a row that has
//! seen `n` inputs keeps input `i` at `i mod M`, and the new ones go to `n mod M` and on.
//! Where an index is negative, `y` is zero and no state is touched. On CUDA only the device reads indices and lengths: an index that is out of
//! range counts as negative, one that is used twice gives wrong results, and a length counts modulo M.

mod cpu;
mod cuda;
pub mod reference;

use super::{Activation, width_of};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::ops::check::{Checker, Kind, limit_sizes};
use crate::tensor::{Device, Shape, View, ViewMut};

const OP: &str = "causal_conv1d_update";

/// The arguments of [`update`]; see the [module](self) for what they mean.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a> {
    /// New inputs, (B, D) or (B, D, T).
    pub x: View<'a>,
    /// Filters, (D, W).
    pub weight: View<'a>,
    /// Added to the sum, (D,).
    pub bias: Option<View<'a>>,
    /// What follows the sum.
    pub activation: Activation,
    /// Inputs that each row has seen, (B,): the state is a circular buffer.
    pub cache_seqlens: Option<View<'a>>,
    /// The state that each row uses, (B,); negative for none.
    pub conv_state_indices: Option<View<'a>>,
}

impl<'a> Args<'a> {
    /// The two required arguments, and no option.
    pub fn new(x: View<'a>, weight: View<'a>) -> Self {
        Args { x, weight, bias: None, activation: Activation::None, cache_seqlens: None, conv_state_indices: None }
    }
}

/// Computes `y`, shaped as `x`, and moves `conv_state`, (B, D, M) or (S, D, M), on by the new inputs. Without `cache_seqlens` the state holds
/// the last M inputs, the latest last; with them it is a circular buffer. Rows of negative index get zeros and touch no state.
///
/// # Errors
/// Any argument of a wrong shape, type or device, views that overlap, an index that is out of range or used twice, a negative length.
/// Nothing is written then.
pub fn update(exec: &Exec, args: &Args<'_>, conv_state: &mut ViewMut<'_>, y: &mut ViewMut<'_>) -> Result<()> {
    let mut checker = Checker::new(OP, exec.device());
    let sizes = Sizes::new(args, conv_state.shape(), &mut checker)?;
    checker.write("conv_state", conv_state, Kind::Real, &[sizes.states, sizes.dim, sizes.state_len])?;
    checker.write("y", y, Kind::Real, &args.x.shape())?;
    checker.finish()?;
    let (mut x, mut target) = (args.x, y.raw());
    if x.rank() == 2 {
        (x, target) = (x.expand(2, 1), target.expand(2, 1));
    }
    let silu = args.activation == Activation::Silu;
    if let Some(stream) = exec.stream() {
        let problem = cuda::Problem {
            batch: sizes.rows.len(),
            dim: sizes.dim,
            steps: sizes.steps,
            width: sizes.width,
            silu,
            x,
            weight: args.weight,
            bias: args.bias,
            cache_seqlens: args.cache_seqlens,
            indices: args.conv_state_indices,
            state: conv_state.raw(),
            y: target,
        };
        return cuda::update(stream, &problem);
    }
    let problem = cpu::Problem {
        dim: sizes.dim,
        steps: sizes.steps,
        width: sizes.width,
        state_len: sizes.state_len,
        circular: args.cache_seqlens.is_some(),
        silu,
        x,
        weight: args.weight,
        bias: args.bias,
        rows: sizes.rows,
        state: conv_state.raw(),
        y: target,
    };
    // a state of higher precision than the input keeps it
    cpu::update(exec, &problem, args.x.dtype().is_double());
    Ok(())
}

/// The sizes of a call, and for each row its state and the place in it where the next input goes.
struct Sizes {
    dim: usize,
    steps: usize,
    width: usize,
    states: usize,
    state_len: usize,
    rows: Vec<Option<(usize, usize)>>,
}

impl Sizes {
    /// Reads the sizes and checks the arguments. The checker remembers them for the overlap test.
    fn new<'c>(args: &'c Args<'_>, state: Shape, checker: &mut Checker<'c>) -> Result<Self> {
        let (batch, dim, steps) = match args.x.shape()[..] {
            [batch, dim] => (batch, dim, 1),
            [batch, dim, steps] => (batch, dim, steps),
            _ => {
                let expected = "shape (batch, dim) or (batch, dim, steps)";
                return Err(Error::Rank { op: OP, argument: "x", expected, got: args.x.shape() });
            }
        };
        let width = width_of(OP, &args.weight)?;
        let [states, _, state_len] = state[..] else {
            return Err(Error::Rank { op: OP, argument: "conv_state", expected: "shape (batch, dim, state_len)", got: state });
        };
        if state_len < width - 1 {
            let expected = "of at least width - 1 inputs, their number";
            return Err(Error::Value { op: OP, argument: "conv_state", expected, got: state_len as f64 });
        }
        let names = "max(batch, states) x dim x max(steps, state_len)";
        limit_sizes(OP, names, [batch.max(states), dim, steps.max(state_len)])?;
        let mut sizes = Sizes { dim, steps, width, states, state_len, rows: vec![None; batch] };
        if args.conv_state_indices.is_none() {
            sizes.states = batch;
        }
        sizes.check(args, checker)?;
        if checker.device() != Device::Cpu {
            return Ok(sizes);
        }
        let rows = crate::ops::check::state_rows(OP, "conv_state_indices", args.conv_state_indices.as_ref(), batch, states)?;
        let seen = args.cache_seqlens.map(|v| v.to_indices());
        for (b, row) in rows.into_iter().enumerate() {
            let Some(row) = row else { continue };
            let got = seen.as_ref().map_or(0, |seen| seen[b]);
            if got < 0 {
                let argument = "cache_seqlens";
                return Err(Error::Index { op: OP, argument, position: b, expected: "at least", bound: 0, got });
            }
            sizes.rows[b] = Some((row, (got as u64 % state_len as u64) as usize));
        }
        Ok(sizes)
    }

    /// Checks the arguments that are read.
    fn check<'c>(&self, args: &'c Args<'_>, checker: &mut Checker<'c>) -> Result<()> {
        let batch = self.rows.len();
        checker.read("x", &args.x, Kind::Real, &args.x.shape())?;
        checker.read("weight", &args.weight, Kind::Real, &[self.dim, self.width])?;
        checker.read_if("bias", &args.bias, Kind::Real, &[self.dim])?;
        checker.read_if("cache_seqlens", &args.cache_seqlens, Kind::Index, &[batch])?;
        checker.read_if("conv_state_indices", &args.conv_state_indices, Kind::Index, &[batch])
    }
}
