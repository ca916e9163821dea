//! The operations, one folder each: `mod.rs` (mathematics, the operation's table, public functions), `problem.rs` (arguments, checked once, in
//! normal form), `reference.rs` (the float64 oracle), `cpu/` and `cuda/` (plans and kernels), `update/` (the one-step form, laid out alike).
//!
//! **The public calls** are the functions of these modules: `run` and `gradients` make their results, `forward` and `backward`
//! write into memory that is there, `update` takes a step, and a [`pool::StatePool`] holds states as servers keep them. Calls of
//! any operation by its name or by position are in [`advanced`].
//!
//! **Calls.** An operation's `forward` and `backward` check their arguments and run. Its `prepare` checks them too, and gives a `Prepared` call, which
//! says what results it has and how much memory it wants, and runs without another look at them; [`Operation::prepare`] does it by position.
//!
//! **Sizes.** A view with strides of 0 can claim any size. The sizes of a call (batch, channels, steps, states), each counted as at least
//! 16, may multiply to 2^52 at most, which is more than any machine has memory for, and a channel of a selective scan may have 2^20 states.
//! Other calls are an [`Error::Value`](crate::Error::Value).

mod advice;
pub(crate) mod builder;
#[doc(hidden)]
pub mod call;
pub mod causal_conv1d;
#[doc(hidden)]
pub mod check;
pub(crate) mod checked;
pub mod discretization;
pub mod gated_delta_rule;
pub mod linear_scan;
pub mod norm;
pub(crate) mod normal;
pub(crate) mod on_cuda;
pub(crate) mod op;
#[doc(hidden)]
pub mod operation;
pub(crate) mod oracle;
pub mod pool;
pub(crate) mod prepared;
#[doc(hidden)]
pub mod ranks;
pub(crate) mod rules;
pub mod selective_scan;
pub(crate) mod sequences;
#[doc(hidden)]
pub mod signature;
pub mod simplified_scan;
pub(crate) mod slots;
pub mod slotted;
pub mod ssd;
pub(crate) mod states;
pub(crate) mod summary;
pub(crate) mod table;
pub mod turned_maps;

pub use builder::IntoField;
#[doc(hidden)]
pub use call::{Call, Given, Written};
pub use discretization::Discretization;
#[doc(hidden)]
pub use operation::Operation;
#[doc(hidden)]
pub use oracle::Scalar;
#[doc(hidden)]
pub use prepared::Prepared;
pub use sequences::Sequences;
#[doc(hidden)]
pub use signature::Signature;
pub use summary::Summary;

/// Calls of any operation by its name, with arguments by position, and the tables that say what they are: what front ends, checks and kernels of one's own
/// are built from. Minor versions may change it.
pub mod advanced {
    #[doc(inline)]
    pub use super::{Call, Given, Operation, Prepared, Scalar, Signature, Written, call, check, operation, ranks, signature};
}

/// Steps between the states that forward passes save.
pub const CHECKPOINT: usize = 64;
