//! The parts of the program `statescan`, as a library so that tests and fuzz targets reach them.

pub mod bench;
pub mod call;
pub mod case;
pub mod check;
pub mod cli;
pub mod compute;
pub mod device;
pub mod error;
pub mod format;
pub mod info;
pub mod operation;
mod ops;
pub mod run;
pub mod sample;
pub mod shapes;
mod text;
pub mod verify;

pub use error::{Error, Result};
