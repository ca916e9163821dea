//! This program measures the targets of the project, on the CPU or on a GPU, and fails if one is missed:
//!
//!     cargo bench -p statescan-benches --bench targets
//!     cargo bench -p statescan-benches --features cuda --bench targets -- --cuda

use clap::Parser;
use statescan_benches::targets::{Failure, TargetArgs, measure_all};
use std::process::ExitCode;

/// Measure the targets of the project; the exit status is 1 if one is missed.
#[derive(Debug, Parser)]
#[command(name = "targets")]
struct Command {
    #[command(flatten)]
    targets: TargetArgs,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<ExitCode, Failure> {
    let met = measure_all(&Command::parse().targets, &mut std::io::stdout())?;
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
