//! The kernels of language models on a GPU beside scans and convolutions: products of matrices, rows of an embedding, and the
//! kernels of a decoded token. Norms of many rows are an [operation](statescan::ops::norm).
//!
//! | call | what it computes | by |
//! |---|---|---|
//! | [`Products::multiply`], [`Products::multiply_add`], [`Products::add_multiple`] | `y = x W^T + bias` for many rows, and added to others | cuBLASLt |
//! | [`embedding`] | rows of a table by their numbers | own kernel |
//! | [`row_product`] | `y = factor W f(x) + bias` for one row in f32, f nothing, a norm or a step of the convolution | own kernel, weights read once |
//! | [`mamba_step`], [`mamba2_step`] | one step between the products | own kernels |
//! | [`largest`], [`set_token`] | the most likely token, a token | own kernel |
//!
//! Everything is in the order of the executor's stream, allocates nothing but [`Products::new`], and can be recorded in a
//! [`Graph`](statescan::cuda::Graph). On devices of compute capability 9.0 and newer [`row_product`], [`largest`] and the steps begin while the kernel before them ends, and
//! read weights, and the states that they alone write, before that: such memory is written by no kernel that is put into the stream right before.
//!
//! Hybrids' further kernels are in [`hybrid`], and those of training in [`training`].
//!
//! Rows are neighbours in memory or lie the same distance apart; leading axes count as rows. On the CPU there is [`linear`](statescan::linear).

mod dense;
mod embedding;
pub mod hybrid;
mod largest;
mod mamba2_step;
mod mamba_step;
mod products;
mod row_product;
mod rows;
#[cfg(test)]
mod tests;
pub mod training;

pub use embedding::embedding;
pub use largest::{largest, set_token};
pub use mamba_step::{MambaStep, mamba_step};
pub use mamba2_step::{Mamba2Step, mamba2_step};
pub use products::Products;
pub use row_product::{Before, Conv, RowProduct, row_product};

/// The header that the kernels share.
const LAYERS: statescan_cuda::Header = statescan_cuda::header!("layers.cuh");
