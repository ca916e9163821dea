//! `run`: one operation on a file or on the embedded sample.

mod outcome;
mod print;

use crate::error::{Error, Result};
use crate::exec::{ExecArgs, TypeName};
use crate::options::OptionArgs;
use crate::output::say;
use clap::{Args, ValueEnum};
use outcome::{Outcome, compute};
use print::{describe, print};
use statescan::Exec;
use statescan::ops::Operation;
use statescan_cases::case::Case;
use statescan_cases::files::{check_output, read_case, write_case};
use statescan_cases::memory::CotangentKind;
use statescan_cases::ops::{self, Options};
use statescan_cases::samples::{self, PASSAGE};
use std::path::PathBuf;

/// Which cotangents to use where the file has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CotangentName {
    /// All ones: the gradients of the sum of all results.
    Ones,
    /// Normal numbers from a fixed seed.
    Random,
}

impl From<CotangentName> for CotangentKind {
    fn from(name: CotangentName) -> CotangentKind {
        match name {
            CotangentName::Ones => CotangentKind::Ones,
            CotangentName::Random => CotangentKind::Random,
        }
    }
}

/// The arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The operation (`statescan info` lists them)
    pub op: String,
    /// Arguments by name, - for standard input: `x` or `in.x`, with the names of this project or of the original one; the embedded sample if not given
    pub file: Option<PathBuf>,
    /// Write results as `out.NAME`, gradients as `grad.NAME`
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write the arguments too, which makes the file one for `verify`
    #[arg(long, requires = "output")]
    pub with_inputs: bool,
    /// Compute gradients too, from the file's `cot.NAME`
    #[arg(long)]
    pub grad: bool,
    /// Cotangents where the file has none
    #[arg(long, value_enum, default_value = "ones", value_name = "KIND")]
    pub cotangents: CotangentName,
    /// Store the arguments in this type first
    #[arg(long, value_enum, value_name = "T")]
    pub dtype: Option<TypeName>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// The device, and how to compute on it.
    #[command(flatten)]
    pub exec: ExecArgs,
    /// Options of the operation.
    #[command(flatten)]
    pub options: OptionArgs,
}

/// Runs the command.
///
/// # Errors
/// Whatever keeps it from being done; no output file is left then.
pub fn run(args: &RunArgs) -> Result<u8> {
    let op = ops::find(&args.op)?;
    let exec = args.exec.exec()?;
    let options = args.options.options()?;
    args.output.as_deref().map(check_output).transpose()?;
    let mut case = match &args.file {
        Some(path) => read_case(path, Some(op), &options, &args.options.complex)?,
        None => embedded(op, &options)?,
    };
    if let Some(dtype) = args.dtype {
        case.call.cast(dtype.into())?;
    }
    if args.grad && !op.signature.differentiable {
        return Err(Error::NoGradients { op: op.signature.name });
    }
    let outcome = compute(&exec, &case, args.grad, args.cotangents.into())?;
    if let Some(path) = &args.output {
        let Outcome { results, cotangents, gradients, .. } = &outcome;
        write_case(path, &case.call, results, cotangents, gradients, args.with_inputs)?;
    }
    if args.json {
        say!("{}", describe(&exec, &case.call, &outcome))?;
    } else {
        let source = match &args.file {
            Some(path) => path.display().to_string(),
            None => embedded_source(),
        };
        print(&exec, &case.call, &outcome, &source)?;
        if let Some(path) = &args.output {
            say!("written to {}", path.display())?;
        }
    }
    Ok(u8::from(outcome.comparisons.iter().any(|c| !c.ok)))
}

fn embedded(op: &'static Operation, options: &Options) -> Result<Case> {
    let mut call = samples::embedded(op)?;
    call.set_all(options)?;
    Ok(Case::of(call))
}

fn embedded_source() -> String {
    format!("{} bytes of \"Alice's Adventures in Wonderland\"", PASSAGE.len())
}

/// Runs an example, as the program does without a command.
///
/// # Errors
/// Those of the operation.
pub fn demonstration() -> Result<u8> {
    let op = &Operation::ALL[0];
    let exec = Exec::cpu(0);
    let case = Case::of(samples::embedded(op)?);
    let outcome = compute(&exec, &case, true, CotangentKind::Ones)?;
    print(&exec, &case.call, &outcome, &embedded_source())?;
    say!("next:")?;
    for (command, what) in [
        ("statescan run ssd --grad", "another operation on the same text"),
        ("statescan run selective_scan FILE.safetensors -o OUT.safetensors", "your own arguments, x dt A B C .. by name"),
        ("statescan verify FILE.safetensors", "compare with results that you have"),
        ("statescan bench --quick", "shapes of real models"),
        ("statescan info", "the processor, and every operation with its arguments"),
    ] {
        say!("  {command}\n      {what}")?;
    }
    Ok(u8::from(outcome.comparisons.iter().any(|c| !c.ok)))
}
