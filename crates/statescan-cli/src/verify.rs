//! `verify`: results and gradients against those in files.

use crate::error::Result;
use crate::exec::ExecArgs;
use crate::output::{note, say};
use crate::text;
use clap::Args;
use serde_json::json;
use statescan::Exec;
use statescan_cases::Error;
use statescan_cases::check::Comparison;
use statescan_cases::files::read_case;
use statescan_cases::memory::Limits;
use statescan_cases::ops::Options;
use statescan_cases::verify::check;
use std::path::{Path, PathBuf};

/// The arguments of `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Files of test vectors, - for standard input
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Check the float64 oracle instead of the kernels
    #[arg(long)]
    pub oracle: bool,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
    /// The device, and how to compute on it.
    #[command(flatten)]
    pub exec: ExecArgs,
}

/// Runs the command: 0 if everything is within its bound, 1 if something is not, 2 if a file cannot be used.
///
/// # Errors
/// Bad options, standard output that cannot be written; files are reported one by one and do not end the command.
pub fn verify(args: &VerifyArgs) -> Result<u8> {
    let exec = args.exec.exec()?;
    let exec = (!args.oracle).then_some(&exec);
    let (mut outside, mut unusable, mut compared) = (0, 0, 0);
    for path in &args.files {
        match verify_one(path, exec) {
            Ok((op, comparisons)) => {
                compared += comparisons.len();
                outside += comparisons.iter().filter(|c| !c.ok).count();
                report(path, op, &comparisons, args.json)?;
            }
            Err(error) => {
                unusable += 1;
                if args.json {
                    say!("{}", json!({"file": path.display().to_string(), "error": error.to_string()}))?;
                }
                note!("error: {}", text::escaped(&error.to_string()));
            }
        }
    }
    if !args.json {
        say!("{compared} tensors compared: {} ok, {outside} outside, {unusable} files unusable", compared - outside)?;
    }
    Ok(if unusable > 0 { 2 } else { u8::from(outside > 0) })
}

fn verify_one(path: &Path, exec: Option<&Exec>) -> statescan_cases::Result<(&'static str, Vec<Comparison>)> {
    let case = read_case(path, None, &Options::new(), &[])?;
    let located = |error| match error {
        error @ (Error::Io { .. } | Error::Format { .. } | Error::Case { .. }) => error,
        error => Error::Case { path: path.to_path_buf(), error: Box::new(error) },
    };
    Ok((case.call.op.signature.name, check(&case, exec, Limits::default()).map_err(located)?))
}

fn report(path: &Path, op: &str, comparisons: &[Comparison], as_json: bool) -> Result<()> {
    let file = path.display().to_string();
    if !as_json {
        say!("{}", text::wrapped(&format!("{file}: {op}")))?;
        return say!("{}\n", text::comparisons(comparisons));
    }
    comparisons.iter().try_for_each(|c| {
        let line = json!({
            "file": file, "op": op, "tensor": c.name, "max_abs": text::json_number(c.max_abs),
            "relative": text::json_number(c.relative),
            "bound_absolute": c.bound.absolute, "bound_relative": c.bound.relative, "skipped": c.skipped, "ok": c.ok,
            "why": text::why(c),
        });
        say!("{line}")
    })
}
