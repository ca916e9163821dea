//! What this project wants to reach, measured, on the CPU or on a GPU; fails if something is missed:
//!
//!     cargo bench -p statescan-benches --bench targets
//!     cargo bench -p statescan-benches --features cuda --bench targets -- --cuda

use clap::Parser;
use statescan_benches::targets::{Failure, TargetArgs, measure_all};
use std::process::ExitCode;

/// What this project wants to reach, measured; the exit status is 1 if something is missed.
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
