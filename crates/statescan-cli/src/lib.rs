//! The parts of the program `statescan`: commands, what they print, and how they end.

pub mod bench;
pub mod cli;
pub mod convert;
mod destination;
pub mod error;
pub mod eval;
pub mod exec;
pub mod generate;
pub mod info;
pub mod options;
mod progress;
mod reader;
pub mod run;
pub mod text;
pub mod train;
pub mod verify;

pub use error::{Error, Result};
