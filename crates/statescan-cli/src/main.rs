//! `statescan`: run, verify and time state-space scans.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match statescan_cli::cli::main(statescan_cli::cli::Cli::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
