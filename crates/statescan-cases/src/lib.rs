//! Calls of the operations as data, for whatever runs them by name: the program, the fuzz targets, the benchmarks, tests.
//!
//! In layers, each of which uses those before it:
//!
//! 1. data: [`table`] (what an operation takes), [`tensors`], [`call`], [`sizes`], [`rng`] and the embedded text's [`features`];
//! 2. [`ops`]: the operations, each with samples and random calls; [`memory`] for results, [`on_device`] and [`compute`] for passes;
//! 3. files: [`mod@format`], [`case`] and [`files`];
//! 4. comparison: [`check`] with the oracle, on a [`part`] where that takes long, and [`verify`] with a file;
//! 5. [`measure`].

pub mod call;
pub mod case;
pub mod check;
pub mod compute;
pub mod error;
pub mod features;
pub mod files;
pub mod format;
pub mod measure;
pub mod memory;
pub mod on_device;
pub mod ops;
mod options;
pub mod packing;
pub mod part;
pub mod rng;
pub mod sizes;
pub mod table;
pub mod tensors;
pub mod verify;
pub mod work;

pub use error::{Error, Result};
