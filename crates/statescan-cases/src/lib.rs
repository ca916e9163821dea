//! Calls of the operations as data, for whatever runs them by name: the program, the fuzz targets, the benchmarks, tests.
//!
//! The arguments and results of an operation are read from the library's signatures. In layers, each of which uses those before
//! it:
//!
//! 1. data: [`ops`] and [`options`] (names), [`tensors`], [`call`], [`sizes`], [`rng`], [`packing`];
//! 2. [`pass`]: the library's passes over named tensors; [`memory`] for results, [`on_device`] and [`compute`] for other devices, [`work`];
//! 3. comparison: [`check`] with the oracle, on a [`part`] where that takes long;
//! 4. files: [`mod@format`], [`case`] and [`files`], and [`verify`] for what they expect;
//! 5. [`samples`] of each operation, and [`measure`].

mod aside;
pub mod call;
pub mod case;
pub mod check;
pub mod compute;
pub mod error;
pub mod files;
pub mod format;
pub mod measure;
pub mod memory;
pub mod on_device;
pub mod ops;
pub mod options;
pub mod packing;
pub mod part;
pub mod pass;
pub mod rng;
mod room;
pub mod samples;
pub mod sizes;
pub mod tensors;
pub mod verify;
pub mod work;

pub use error::{Error, Result};
