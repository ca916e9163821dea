//! State-space scans as fast, differentiable operations.
#![deny(missing_docs)]

pub mod cpu;
pub mod error;
mod exec;
pub mod ops;
pub mod tensor;

pub use cpu::Level;
pub use error::{Error, Result};
pub use exec::Exec;
pub use ops::{Discretization, Sequences};
pub use tensor::{DType, Device, View, ViewMut};
