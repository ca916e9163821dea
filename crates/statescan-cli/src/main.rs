//! `statescan`: run, verify and time state-space scans.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(statescan_cli::cli::run_program(std::env::args_os()))
}
