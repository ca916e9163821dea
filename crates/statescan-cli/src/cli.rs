//! The command line.

use crate::bench::{BenchArgs, bench};
use crate::convert::{ConvertArgs, convert};
use crate::error::Result;
use crate::eval::{EvalArgs, eval};
use crate::generate::{GenerateArgs, generate};
use crate::info::info;
use crate::run::{RunArgs, demonstration, run};
use crate::train::{TrainArgs, train};
use crate::verify::{VerifyArgs, verify};
use clap::{Parser, Subcommand};

/// State-space scans (selective scan, SSD, S5) as fast, differentiable operations: run, verify and time them.
///
/// Without a command it runs the selective scan, forward and backward, on what a Mamba layer sees for a passage of text.
#[derive(Debug, Parser)]
#[command(name = "statescan", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run one operation on a file, or on the embedded sample
    Run(RunArgs),
    /// Compare results and gradients with those in files of test vectors
    Verify(VerifyArgs),
    /// Time the operations at shapes of real models
    Bench(BenchArgs),
    /// Continue a text with a Mamba language model
    Generate(GenerateArgs),
    /// Train a language model on a text
    Train(TrainArgs),
    /// Say how well a language model guesses a text
    Eval(EvalArgs),
    /// Write a language model's folder in another form
    Convert(ConvertArgs),
    /// Show the processor, the versions and the operations
    Info {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Runs a command; the number is the exit status.
///
/// # Errors
/// Whatever keeps it from being done.
pub fn main(cli: Cli) -> Result<u8> {
    match cli.command {
        None => demonstration(),
        Some(Command::Run(args)) => run(&args),
        Some(Command::Verify(args)) => verify(&args),
        Some(Command::Bench(args)) => bench(&args),
        Some(Command::Generate(args)) => generate(&args),
        Some(Command::Train(args)) => train(&args),
        Some(Command::Eval(args)) => eval(&args),
        Some(Command::Convert(args)) => convert(&args),
        Some(Command::Info { json }) => info(json),
    }
}
