//! One step of a simplified scan (S5), with the state updated in place: what decoding needs.
//!
//! ```text
//! x <- Abar x + Bbar (B u)        y = C x,  or  f Re(C x) + D Re(u)
//! ```
//!
//! The formulas are those of [`simplified_scan`](super): L steps give its result, for every discretization and head.
//! B batch, H dim, P dstate, S states (B, or more with indices).
//!
//! | argument | shape | type |
//! |---|---|---|
//! | state | (S, P) | complex; read and written |
//! | u | (B, H) | real or complex |
//! | delta, delta_a | (B, P) or (P,) | real |
//! | a | (P,) or (P, 1) | real or complex |
//! | b, c | (P, H), (H, P) | real or complex |
//! | state_batch_indices | (B,) | i32 or i64: the state that a row uses, negative for none |
//! | -> y | (B, H) | complex; real for [`Head::Real`] |
//!
//! Each argument may have its own storage type and any strides. Where an index is negative, `y` is zero and no state is touched.
//! Sums are `f32`, or `f64` where `u` or the state is. The maps are read once for up to 64 rows, where they lie; nothing is packed.
//!
//! **CUDA.** Everything runs there but a `u` or a state in `f64`. Only the device reads indices: one that is out of range counts as negative,
//! one that is used twice gives wrong results.

mod cpu;
mod cuda;
pub(crate) mod dynamic;
mod problem;
pub mod reference;
mod signature;

use super::Head;
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::builder::builder;
use crate::ops::check::{Checker, Kind};
use crate::ops::discretization::Discretization;
use crate::tensor::{View, ViewMut};
pub(crate) use problem::{Problem, Targets};
pub use signature::SIGNATURE;

const OP: &str = SIGNATURE.name;

builder! {
    /// The arguments of a step; see the [module](self) for shapes and types.
    #[derive(Debug, Clone, Copy)]
    pub struct Args<'a> {
        /// Input, (B, H).
        pub u: View<'a>,
        /// Step sizes, (B, P) or (P,).
        pub delta: View<'a>,
        /// State matrix, diagonal, (P,) or (P, 1).
        pub a: View<'a>,
        /// Input map, (P, H).
        pub b: View<'a>,
        /// Output map, (H, P).
        pub c: View<'a>,
        /// The decay's own step sizes, (B, P) or (P,).
        pub delta_a: Option<View<'a>>,
        /// How (A, B) become a recurrence.
        pub discretization: Discretization,
        /// What becomes of `C x`.
        pub head: Head<'a>,
        /// The state that each row uses, (B,); negative for none.
        pub state_batch_indices: Option<View<'a>>,
    }
}

impl<'a> Args<'a> {
    /// The five required arguments, bilinear, complex output.
    pub fn new(u: View<'a>, delta: View<'a>, a: View<'a>, b: View<'a>, c: View<'a>) -> Self {
        Args {
            u,
            delta,
            a,
            b,
            c,
            delta_a: None,
            discretization: Discretization::Bilinear,
            head: Head::Complex,
            state_batch_indices: None,
        }
    }
}

/// Moves `state` on by one step and writes `y`.
///
/// # Errors
/// Any argument of a wrong shape, type or device, views that overlap, an index that is out of range or used twice. Nothing is written then.
pub fn update(exec: &Exec, args: &Args<'_>, state: &mut ViewMut<'_>, y: &mut ViewMut<'_>) -> Result<()> {
    let mut checker = Checker::new(OP, exec.device());
    let mut problem = Problem::new(args, &mut checker, &[state.shape()])?;
    checker.write("state", state, Kind::Complex, &[problem.states, problem.dstate])?;
    checker.write("y", y, Kind::exactly(problem.real_factor.is_none()), &[problem.batch, problem.dim])?;
    checker.finish()?;
    problem.double |= state.dtype().is_double();
    let targets = Targets { state: state.raw(), y: y.raw() };
    match exec.stream() {
        Some(stream) => cuda::update(stream, &problem, args.state_batch_indices, &targets),
        None => {
            cpu::update(exec, &problem, &targets);
            Ok(())
        }
    }
}
