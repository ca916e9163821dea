//! The tests of the program from outside, as one program, which is linked once: `cargo test --test program train::` runs those of one module.

mod chat;
mod common;
mod folders;
mod generate;
mod generate_options;
mod hostile;
mod limits;
mod not_finite;
mod output;
mod train;
mod verdicts;
