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
pub(crate) mod dynamic;
mod problem;
pub mod reference;
mod signature;

use crate::error::Result;
use crate::exec::Exec;
use crate::ops::builder::builder;
use crate::ops::check::{Checker, Kind};
use crate::ops::discretization::Discretization;
use crate::tensor::{View, ViewMut};
use problem::Sizes;
pub(crate) use problem::{Operand, Problem};
pub use signature::SIGNATURE;

const OP: &str = SIGNATURE.name;

builder! {
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
}

impl<'a> Args<'a> {
    /// The five required arguments, and no option: `Args::new(x, dt, a, b, c).z(z).dt_softplus(true)`.
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
    let mut checker = Checker::new(OP, exec.device());
    let sizes = Sizes::new(args, &mut checker, &[state.shape()])?;
    checker.write("state", state, Kind::exactly(sizes.complex), &sizes.state_shape())?;
    checker.write("y", y, Kind::Real, &args.x.shape())?;
    checker.finish()?;
    let (state, y) = (state.raw(), y.raw());
    let problem = sizes.problem(args, &state.as_read(), &y.as_read());
    match exec.stream() {
        Some(stream) => cuda::update(stream, &problem, args.state_batch_indices),
        None => {
            cpu::update(exec, &problem, state, y);
            Ok(())
        }
    }
}
