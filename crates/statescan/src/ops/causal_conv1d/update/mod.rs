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
pub(crate) mod dynamic;
mod problem;
pub mod reference;
mod signature;

use super::Activation;
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::builder::builder;
use crate::ops::check::{Checker, Kind};
use crate::tensor::{View, ViewMut};
use problem::{Problem, Sizes};
pub use signature::SIGNATURE;

const OP: &str = SIGNATURE.name;

builder! {
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
    let sizes = Sizes::new(args, &mut checker, &[conv_state.shape()])?;
    checker.write("conv_state", conv_state, Kind::Real, &[sizes.states, sizes.dim, sizes.state_len])?;
    checker.write("y", y, Kind::Real, &args.x.shape())?;
    checker.finish()?;
    let problem = sizes.problem(args, conv_state.raw(), y.raw());
    match exec.stream() {
        Some(stream) => cuda::update(stream, &problem),
        None => {
            cpu::update(exec, &problem);
            Ok(())
        }
    }
}
