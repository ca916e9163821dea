//! The functions that oracles of several operations share, in `f64`: their numbers, and functions of gates.

use crate::tensor::View;
use core::ops::{AddAssign, Mul, MulAssign};
use num_complex::{Complex64, ComplexFloat};

/// The numbers that an oracle computes with: `f64` where every argument is real, else [`Complex64`].
///
/// A real problem in complex numbers would have other results where something is infinite, since an infinity times an imaginary part of zero is NaN. For
/// the same reason a real factor of a complex number scales its parts, and is no complex number itself.
pub trait Scalar: ComplexFloat<Real = f64> + Mul<f64, Output = Self> + AddAssign + MulAssign + Into<Complex64> {
    /// The number itself, or its real part.
    fn of(value: Complex64) -> Self;
}

impl Scalar for f64 {
    fn of(value: Complex64) -> Self {
        value.re
    }
}

impl Scalar for Complex64 {
    fn of(value: Complex64) -> Self {
        value
    }
}

/// The results of an oracle's backward pass: gradients by these arguments, by these if they were given, and by these whether or not.
macro_rules! gradients {
    ($($required:ident),*; $($optional:ident),*; $($zero:ident),*) => {
        /// Results of [`backward`]; the gradients of arguments that were not given are `None`.
        #[derive(Debug, Clone)]
        pub struct Backward {
            $(#[doc = concat!("By `", stringify!($required), "`.")]
            pub $required: Dense,)*
            $(#[doc = concat!("By `", stringify!($optional), "`.")]
            pub $optional: Option<Dense>,)*
            $(#[doc = concat!("By `", stringify!($zero), "` (zero or given).")]
            pub $zero: Dense,)*
        }

        impl Backward {
            /// The gradients in the order of the arguments.
            pub(crate) fn by_position(self) -> Vec<Option<Dense>> {
                vec![ $( Some(self.$required), )* $( self.$optional, )* $( Some(self.$zero), )* ]
            }
        }
    };
}
pub(crate) use gradients;

/// An element of a view.
pub(crate) fn read<S: Scalar>(view: &View<'_>, index: &[usize]) -> S {
    S::of(view.at(index))
}

/// The sum from zero on: that of the standard library begins with -0.
pub(crate) fn sum<S: Scalar>(terms: impl Iterator<Item = S>) -> S {
    terms.fold(S::zero(), |sum, term| sum + term)
}

/// silu and its derivative.
pub(crate) fn silu(v: f64) -> (f64, f64) {
    let s = 1.0 / (1.0 + (-v).exp());
    (v * s, s * (1.0 + v * (1.0 - s)))
}
