//! `statescan`: run, verify and time state-space scans.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    // a reader that has seen enough (`statescan info | head`) ends the program quietly, as it does others
    sigpipe::reset();
    match statescan_cli::cli::main(statescan_cli::cli::Cli::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {}", statescan_cli::text::escaped(&error.to_string()));
            ExitCode::from(2)
        }
    }
}
