//! Linear recurrences as fast, differentiable operations: Mamba's selective scan, Mamba-2's SSD, S5's simplified scan, the gated delta rule, the linear scan
//! under them, the causal convolution in front of them, and their one-step updates for decoding.
//!
//! ```
//! use statescan::ops::selective_scan::{self, Args, Cotangents};
//! use statescan::{Exec, Tensor};
//!
//! let exec = Exec::cpu(0); // on a GPU, with the feature `cuda`: Exec::cuda(0)?
//! let filled = |shape: &[usize], value: f32| Tensor::from_slice(&exec, &vec![value; shape.iter().product()], shape);
//! let (batch, dim, seqlen, dstate) = (1, 4, 8, 2);
//! let (x, dt, a) = (filled(&[batch, dim, seqlen], 1.0)?, filled(&[batch, dim, seqlen], 0.1)?, filled(&[dim, dstate], -1.0)?);
//! let (b, c) = (filled(&[batch, dstate, seqlen], 0.5)?, filled(&[batch, dstate, seqlen], 0.5)?);
//!
//! let args = Args::new(&x, &dt, &a, &b, &c);
//! let results = selective_scan::run(&exec, &args)?;
//! assert!((results.y.to_vec::<f32>()?[0] - 2.0 * 0.5 * 0.1 * 0.5).abs() < 1e-6);
//! // the gradients of the sum of y
//! let gradients = selective_scan::gradients(&exec, &args, &Cotangents::default().y(&filled(&[batch, dim, seqlen], 1.0)?))?;
//! assert_eq!(gradients.a.shape()[..], [dim, dstate]);
//! # Ok::<(), statescan::Error>(())
//! ```
//!
//! # Operations
//!
//! | module | recurrence | passes |
//! |---|---|---|
//! | [`ops::selective_scan`] | `h[t] = exp(dt[t] A) h[t-1] + dt[t] B[t] x[t]`, `y[t] = <C[t], h[t]>` | forward, backward |
//! | [`ops::ssd`] | the same with one scalar decay for each head, as matrix products | forward, backward |
//! | [`ops::simplified_scan`] | `x[t] = Abar[t] x[t-1] + Bbar[t] (B u[t])`, `y[t] = C x[t]`, complex | forward, backward |
//! | [`ops::gated_delta_rule`] | `S[t] = S' + k[t] d[t]^T`, `d = beta (v - S'^T k)`, `S' = exp(g[t]) S[t-1]` | forward, backward |
//! | [`ops::linear_scan`] | `h[t] = a[t] h[t-1] + b[t]` | forward, backward |
//! | [`ops::causal_conv1d`] | depthwise causal convolution | forward, backward |
//! | [`ops::norm`] | RMS and layer norm, gated, of a residual sum | forward, backward |
//! | [`ops::turned_maps`] | maps of heads, biased and turned by angles that add up over time | forward, backward |
//! | [`ops::causal_conv1d::update`] | one or a few steps of it, in place | update |
//! | [`ops::selective_scan::update`] | one step of the selective scan or of SSD, in place | update |
//! | [`ops::gated_delta_rule::update`] | one step of the gated delta rule, in place | update |
//! | [`ops::simplified_scan::update`] | one step of the simplified scan, in place | update |
//! | [`linear`] | products of rows with weights, `y = x W^T` | forward, backward |
//!
//! Each module's page gives the mathematics, shapes, types and errors; each has a `reference` module, the same operation in plain `f64`
//! loops with every gradient.
//!
//! # Debug builds
//!
//! Kernels are slow in a debug build: a scan of a Mamba layer takes 1.4 s instead of 6 ms. With these lines in the `Cargo.toml` of the workspace
//! it takes 11 ms, and the rest of the program stays as it is in a debug build:
//!
//! ```toml
//! [profile.dev.package.statescan]
//! opt-level = 2
//! debug-assertions = false
//! overflow-checks = false
//! ```
//!
//! # How a call works
//!
//! Arguments are borrowed, strided [`View`]s of memory that the caller owns, of any floating-point type each; results go into
//! [`ViewMut`]s. An [`Exec`] says where and with how many threads: [`Exec::cpu`] has threads of its own, [`Exec::cpu_on`] runs on those
//! of another library, [`Exec::cuda`] on a GPU, [`Exec::cuda_stream`] there on a stream of the caller's. Everything is checked before
//! anything is written, and an [`Error`] names the operation and the argument. Results are bit-identical for any number of threads.
//!
//! `run` and `gradients` make the tensors of their results; `forward` and `backward` write into memory that is there. Then a forward pass saves some states for the backward pass where it is given room for them, and a backward pass computes the gradients
//! that it is given room for. Nothing is allocated on a GPU behind the caller's back; where an operation wants scratch memory there, it says
//! how much. Here the room is in [`Tensor`]s, on the device of the executor, and in a [`tensor::Workspace`], which further calls may use:
//!
//! ```
//! use statescan::ops::selective_scan::{self, Args, Cotangents, Gradients, Outputs};
//! use statescan::tensor::Workspace;
//! use statescan::{DType, Exec, Tensor};
//!
//! let exec = Exec::cpu(2); // on a GPU: Exec::cuda(0)?
//! let filled = |shape: &[usize], value: f32| Tensor::from_slice(&exec, &vec![value; shape.iter().product()], shape);
//! let (batch, dim, seqlen, dstate) = (1, 4, 100, 2);
//! let (x, dt) = (filled(&[batch, dim, seqlen], 1.0)?, filled(&[batch, dim, seqlen], 0.1)?);
//! let (b, c) = (filled(&[batch, dstate, seqlen], 0.5)?, filled(&[batch, dstate, seqlen], 0.5)?);
//! let a = filled(&[dim, dstate], -1.0)?;
//! let args = Args::new(&x, &dt, &a, &b, &c);
//!
//! let mut y = Tensor::like(&exec, &x.view())?;
//! let mut saved = Tensor::empty(&exec, DType::F32, &[selective_scan::checkpoints_len(&args)?])?;
//! let mut out = Outputs::default().y(&mut y).checkpoints(&mut saved);
//! selective_scan::forward(&exec, &args, &mut out)?;
//!
//! // the gradients of the sum of y, whose cotangent is one everywhere
//! let ones = filled(&[batch, dim, seqlen], 1.0)?;
//! let cotangents = Cotangents::default().y(&ones);
//! let (mut dx, mut da) = (Tensor::like(&exec, &x.view())?, Tensor::like(&exec, &a.view())?);
//! let mut workspace = Workspace::default();
//! let scratch = workspace.view_mut(&exec, selective_scan::backward_workspace_len(&exec, &args, true)?)?;
//! let mut grads = Gradients::default().x(&mut dx).a(&mut da).workspace(scratch);
//! selective_scan::backward(&exec, &args, Some(saved.view()), &cotangents, &mut grads)?;
//!
//! // the last input reaches the last output alone: twice C dt B
//! let last = dx.to_vec::<f32>()?[seqlen - 1];
//! assert!((last - 2.0 * 0.5 * 0.1 * 0.5).abs() < 1e-6);
//! # Ok::<(), statescan::Error>(())
//! ```
//!
//! # Features
//!
//! None is on by default.
//!
//! | feature | what it adds |
//! |---|---|
//! | `cuda` | NVIDIA GPUs: without it [`Exec::cuda`] and [`Exec::cuda_stream`] answer [`Error::Unavailable`] |
//! | `ndarray` | views from arrays of the crate `ndarray` |
//!
//! Nothing of CUDA is needed to build: driver and NVRTC are found at run time. The [module](cuda) says where compiled kernels are kept.

#![deny(missing_docs)]

pub mod cpu;
pub mod cuda;
mod device;
mod dtype;
pub mod error;
mod exec;
pub mod linear;
pub mod ops;
mod shape;
mod step_size;
pub mod tensor;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

pub use cpu::Level;
pub use error::{Error, Result};
pub use exec::{Exec, ForeignThreads};
pub use ops::{Discretization, Sequences};
pub use tensor::{DType, Device, Tensor, View, ViewMut};
/// The crates whose numbers views and tensors have: [`half::bf16`] and [`half::f16`], and complex ones.
pub use {half, num_complex};

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct Guide;
