//! `verify`: results and gradients against those in files.

use crate::error::Result;
use crate::exec::ExecArgs;
use crate::text;
use clap::Args;
use serde_json::json;
use statescan::Exec;
use statescan_cases::Error;
use statescan_cases::check::Comparison;
use statescan_cases::files::read_case;
use statescan_cases::memory::Limits;
use statescan_cases::ops::{self, Options};
use statescan_cases::verify::check;
use std::path::{Path, PathBuf};

/// The arguments of `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Files of test vectors
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Check the float64 oracle instead of the kernels
    #[arg(long)]
    pub oracle: bool,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
    /// Where and how to compute.
    #[command(flatten)]
    pub exec: ExecArgs,
}

/// Runs the command: 0 if everything is within its bound, 1 if something is not, 2 if a file cannot be used.
///
/// # Errors
/// Bad options; files are reported one by one and do not end the command.
pub fn verify(args: &VerifyArgs) -> Result<u8> {
    let exec = args.exec.exec()?;
    let exec = (!args.oracle).then_some(&exec);
    let (mut outside, mut unusable, mut compared) = (0, 0, 0);
    for path in &args.files {
        match verify_one(path, exec) {
            Ok((op, comparisons)) => {
                for c in &comparisons {
                    compared += 1;
                    outside += usize::from(!c.ok);
                    report(path, op, c, args.json);
                }
            }
            Err(error) => {
                unusable += 1;
                if args.json {
                    println!("{}", json!({"file": path.display().to_string(), "error": error.to_string()}));
                }
                eprintln!("error: {error}");
            }
        }
    }
    if !args.json {
        println!("{compared} tensors compared: {} ok, {outside} outside, {unusable} files unusable", compared - outside);
    }
    Ok(if unusable > 0 { 2 } else { u8::from(outside > 0) })
}

fn verify_one(path: &Path, exec: Option<&Exec>) -> statescan_cases::Result<(&'static str, Vec<Comparison>)> {
    let case = read_case(path, None, &Options::new(), &[])?;
    let located = |error| match error {
        error @ (Error::Io { .. } | Error::Format { .. } | Error::Case { .. }) => error,
        error => Error::Case { path: path.to_path_buf(), error: Box::new(error) },
    };
    Ok((ops::name(case.call.op), check(&case, exec, Limits::default()).map_err(located)?))
}

fn report(path: &Path, op: &str, c: &Comparison, as_json: bool) {
    let file = path.display().to_string();
    if as_json {
        let line = json!({
            "file": file, "op": op, "tensor": c.name, "max_abs": text::json_number(c.max_abs),
            "relative": text::json_number(c.relative),
            "bound_absolute": c.bound.absolute, "bound_relative": c.bound.relative, "skipped": c.skipped, "ok": c.ok,
            "why": text::why(c),
        });
        println!("{line}");
    } else {
        let name = path.file_stem().map_or(file, |s| s.to_string_lossy().into_owned());
        let verdict = match (c.ok, c.skipped) {
            (false, _) => "FAIL".to_string(),
            (true, 0) => "ok".to_string(),
            (true, n) => format!("ok, but {n} elements are NaN in the file"),
        };
        println!(
            "{name:<28} {:<18} max abs {:>8.1e}  relative {:>8.1e}  bound {}  {verdict}",
            c.name,
            c.max_abs,
            c.relative,
            text::bound(c)
        );
        if let Some(why) = text::why(c) {
            println!("  {why}");
        }
    }
}
