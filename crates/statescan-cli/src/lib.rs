//! The parts of the program `statescan`: commands, what they print, and how they end.

pub mod bench;
pub mod chat;
pub mod cli;
pub mod convert;
mod destination;
pub mod error;
pub mod eval;
pub mod exec;
pub mod generate;
pub mod info;
mod interrupt;
pub mod language;
pub mod options;
mod output;
mod progress;
mod reader;
pub mod run;
pub mod sampling;
mod text;
pub mod train;
pub mod verify;
mod writing;

pub use error::{Error, Result};
