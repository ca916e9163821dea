//! Elementary functions on vectors, written once for every instruction set and both compute types.
//!
//! Each file states its method and its largest error in ulp; the tests force every level and hold it to that. Nothing here calls libm,
//! except `sincos` for huge arguments. No function changes the floating-point environment or depends on it.

mod activation;
mod exp;
mod phi;
#[cfg(test)]
mod tests;
mod trig;

pub(crate) use activation::{sigmoid, silu, silu_and_derivative, silu_each, softplus_derivative, softplus_each};
pub(crate) use exp::{Exp, exp, exp_reduced};
pub(crate) use phi::{exp_phi1, exp_phi1_derivative, phi1};
pub(crate) use trig::sincos;
