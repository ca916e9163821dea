//! The kernels of training on a GPU beside the gradients of scans, convolutions, norms and products.
//!
//! | call | what it computes |
//! |---|---|
//! | [`column_sums`] | sums over rows: the gradient by a bias |
//! | [`embedding_backward`] | rows added to those of a table, by their numbers |
//! | [`cross_entropy`] | the loss of each row of logits, and its gradient |
//! | [`dropout`] | random zeros, rows converted or added up |
//! | [`scale_by`], [`clear`] | `y = y x`, `y = 0` |
//! | [`Optimizer`] | a step of AdamW, all weights in one launch |
//!
//! Sums have a fixed order, so every result is the same from run to run. Gradients of products are products, of transposed factors
//! ([`Products::multiply`](super::Products::multiply)).

mod adamw;
mod columns;
mod dropout;
mod embedding;
mod entropy;
#[cfg(test)]
mod tests;

pub use adamw::{AdamW, Form, Optimizer, Param};
pub use columns::{column_sums, column_sums_workspace_len};
pub use dropout::{Zeros, clear, dropout, scale_by};
pub use embedding::{TokenRows, embedding_backward};
pub use entropy::cross_entropy;
