//! `run`: one operation on a file or on the embedded sample.

use crate::call::{Call, Options, Tensors};
use crate::case::{Case, write_case};
use crate::check::{self, Backward, Comparison};
use crate::cli::{CotangentName, RunArgs};
use crate::compute::{self, Limits};
use crate::device;
use crate::error::{Error, Result};
use crate::operation::{self, Operation, Work};
use crate::shapes::{Part, Sizes};
use crate::text;
use crate::{format, sample};
use serde_json::json;
use statescan::Exec;
use std::path::Path;
use std::time::Duration;

/// State-steps that the oracle does in a fraction of a second, forward and backward.
pub const ORACLE_BUDGET: f64 = 2e5;

/// Reads a file of tensors.
///
/// # Errors
/// What the system says; anything that is not the format.
pub fn read(path: &Path) -> Result<format::File> {
    let io = |error| Error::Io { path: path.to_path_buf(), verb: "read", error };
    let file = std::fs::File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(io(std::io::Error::other("it is not a regular file")));
    }
    let mut reader = std::io::BufReader::with_capacity(1 << 20, file);
    format::read_from(&mut reader, metadata.len()).map_err(|error| Error::Format { path: path.to_path_buf(), error })
}

/// Reads a file as a case.
///
/// # Errors
/// As [`read`] and [`Case::from_file`].
pub fn read_case(path: &Path, op: Option<&'static dyn Operation>, options: &Options, complex: &[String]) -> Result<Case> {
    let case = Case::from_file(read(path)?, op, options, complex);
    case.map_err(|error| Error::Case { path: path.to_path_buf(), error: Box::new(error) })
}

/// One pass and how long it took.
struct Pass {
    name: &'static str,
    time: Duration,
    bytes: usize,
    work: Work,
}

impl Pass {
    fn per_state_step(&self) -> f64 {
        self.time.as_nanos() as f64 / self.work.state_steps.max(1.0)
    }
    fn rate(&self, amount: f64) -> f64 {
        amount / self.time.as_nanos().max(1) as f64
    }
}

/// A computed case.
struct Outcome {
    passes: Vec<Pass>,
    results: Tensors,
    cotangents: Tensors,
    cotangents_from: &'static str,
    gradients: Tensors,
    part: Part,
    comparisons: Vec<Comparison>,
}

fn compute(exec: &Exec, case: &Case, grad: bool, kind: CotangentName) -> Result<Outcome> {
    let (call, limits, budget) = (&case.call, Limits::default(), Duration::from_millis(300));
    let sizes = Sizes::of_call(call);
    let mut results = compute::results(call, grad, limits)?;
    let bytes = call.bytes() + results.bytes();
    compute::forward(exec, call, &mut results)?;
    let elsewhere = device::is_elsewhere(exec);
    let time = match elsewhere {
        true => device::median(exec, &mut [device::OnDevice::new(exec, call, false)?], false)?,
        false => compute::median(budget, 50, || compute::again(exec, call, &mut results))?,
    };
    // what is computed in place has moved on
    compute::forward(exec, call, &mut results)?;
    let name = if call.op.time().is_some() { "forward" } else { "step" };
    let mut passes = vec![Pass { name, time, bytes, work: call.op.work(&sizes) }];

    let (mut cotangents, mut gradients, mut cotangents_from) = (Tensors::default(), Tensors::default(), "");
    if grad {
        (cotangents, cotangents_from) = match (case.cotangents.is_empty(), kind) {
            (false, _) => (case.cotangents.clone(), "the file's"),
            (true, CotangentName::Ones) => (compute::cotangents(call, kind, limits)?, "ones"),
            (true, CotangentName::Random) => (compute::cotangents(call, kind, limits)?, "normal numbers from seed 1"),
        };
        gradients = compute::gradients(call, limits)?;
        let bytes = call.bytes() + cotangents.bytes() + gradients.bytes();
        let time = match elsewhere {
            true => {
                compute::backward(exec, call, &results, &cotangents, &mut gradients)?;
                let mut copy = device::OnDevice::new(exec, call, true)?.with_cotangents(exec, &cotangents)?;
                copy.forward(exec)?;
                device::median(exec, &mut [copy], true)?
            }
            false => compute::median(budget, 50, || compute::backward(exec, call, &results, &cotangents, &mut gradients))?,
        };
        passes.push(Pass { name: "backward", time, bytes, work: call.op.work_backward(&sizes) });
    }
    let backward = grad.then_some(Backward { cotangents: &cotangents, gradients: &gradients });
    let (part, comparisons) = check::against_oracle(exec, call, &results, backward, ORACLE_BUDGET)?;
    Ok(Outcome { passes, results, cotangents, cotangents_from, gradients, part, comparisons })
}

/// Runs the command.
///
/// # Errors
/// Whatever keeps it from being done; no output file is left then.
pub fn run(args: &RunArgs) -> Result<u8> {
    let op = operation::find(&args.op)?;
    let exec = args.exec.exec()?;
    let options = args.options.options()?;
    let mut case = match &args.file {
        Some(path) => read_case(path, Some(op), &options, &args.options.complex)?,
        None => embedded(op, &options)?,
    };
    if let Some(dtype) = args.dtype {
        case.call.cast(dtype.into());
    }
    if args.grad && !op.differentiable() {
        return Err(Error::NoGradients { op: op.name() });
    }
    let outcome = compute(&exec, &case, args.grad, args.cotangents)?;
    if let Some(path) = &args.output {
        let Outcome { results, cotangents, gradients, .. } = &outcome;
        write_case(path, &case.call, results, cotangents, gradients, args.with_inputs)?;
    }
    if args.json {
        println!("{}", describe(&exec, &case.call, &outcome));
    } else {
        let source = match &args.file {
            Some(path) => path.display().to_string(),
            None => embedded_source(),
        };
        print(&exec, &case.call, &outcome, &source);
        if let Some(path) = &args.output {
            println!("written to {}", path.display());
        }
    }
    Ok(u8::from(outcome.comparisons.iter().any(|c| !c.ok)))
}

fn embedded(op: &'static dyn Operation, options: &Options) -> Result<Case> {
    let mut call = op.variant(options).unwrap_or(op).sample()?;
    call.set_all(options)?;
    Ok(Case::of(call))
}

fn embedded_source() -> String {
    format!("{} bytes of \"Alice's Adventures in Wonderland\"", sample::PASSAGE.len())
}

/// What happens without a command.
///
/// # Errors
/// Those of the operation.
pub fn demonstration() -> Result<u8> {
    let op = operation::all()[0];
    let exec = Exec::cpu(0);
    let case = Case::of(op.sample()?);
    let outcome = compute(&exec, &case, true, CotangentName::Ones)?;
    print(&exec, &case.call, &outcome, &embedded_source());
    println!("next:");
    for (command, what) in [
        ("statescan run ssd --grad", "another operation on the same text"),
        ("statescan run selective_scan FILE.safetensors -o OUT.safetensors", "your own arguments, x dt A B C .. by name"),
        ("statescan verify FILE.safetensors", "compare with results that you have"),
        ("statescan bench --quick", "shapes of real models"),
        ("statescan info", "the processor, and every operation with its arguments"),
    ] {
        println!("  {command:<66} {what}");
    }
    Ok(u8::from(outcome.comparisons.iter().any(|c| !c.ok)))
}

fn print(exec: &Exec, call: &Call, outcome: &Outcome, source: &str) {
    let options: Vec<_> = call.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
    println!("{}: {}", call.op.name(), call.op.about());
    match device::is_elsewhere(exec) {
        true => println!("on {source}; {}", exec.device()),
        false => println!("on {source}; {} threads, {}", exec.threads(), exec.level()),
    }
    if !options.is_empty() {
        println!("options: {}", options.join(" "));
    }
    let row = |i: &crate::call::Input| {
        let layout = i.argument.layout(i.buffer.shape().len()).unwrap_or("");
        vec![i.given.clone(), i.buffer.dtype().to_string(), i.buffer.shape().to_string(), spaced(layout)]
    };
    println!("{}", text::table(&["argument", "type", "shape", "axes"], 9, call.inputs.iter().map(row)));
    let row = |p: &Pass| {
        vec![
            p.name.to_string(),
            text::time(p.time),
            text::figure(p.per_state_step()),
            text::figure(p.rate(p.bytes as f64)),
            text::figure(p.rate(p.work.flops)),
        ]
    };
    println!("{}", text::table(&["pass", "median", "ns / state-step", "GB/s", "GFLOP/s"], 1, outcome.passes.iter().map(row)));
    if !outcome.cotangents_from.is_empty() {
        println!("cotangents: {}", outcome.cotangents_from);
    }
    match outcome.part.is_whole() {
        true => println!("against the float64 oracle, all of it:"),
        false => println!("against the float64 oracle, on {}:", outcome.part.describe(&Sizes::of_call(call))),
    }
    println!("{}", text::comparisons(&outcome.comparisons));
}

fn spaced(layout: &str) -> String {
    layout.chars().map(String::from).collect::<Vec<_>>().join(" ")
}

fn describe(exec: &Exec, call: &Call, outcome: &Outcome) -> serde_json::Value {
    let tensor =
        |name: &str, dtype: statescan::DType, shape: &[usize]| json!({"name": name, "dtype": dtype.to_string(), "shape": shape});
    json!({
        "op": call.op.name(),
        "device": exec.device().to_string(),
        "threads": exec.threads(),
        "level": exec.level().name(),
        "options": call.options,
        "arguments": call.inputs.iter().map(|i| tensor(&i.given, i.buffer.dtype(), &i.buffer.shape())).collect::<Vec<_>>(),
        "cotangents": if outcome.cotangents_from.is_empty() { None } else { Some(outcome.cotangents_from) },
        "passes": outcome.passes.iter().map(|p| json!({
            "pass": p.name,
            "median_ns": p.time.as_nanos() as u64,
            "ns_per_state_step": p.per_state_step(),
            "gb_per_s": p.rate(p.bytes as f64),
            "gflop_per_s": p.rate(p.work.flops),
        })).collect::<Vec<_>>(),
        "sample": outcome.part.0.iter().map(|(l, r)| (l.to_string(), json!([r.start, r.end]))).collect::<serde_json::Map<_, _>>(),
        "errors": outcome.comparisons.iter().map(|c| json!({
            "tensor": c.name, "max_abs": c.max_abs, "relative": c.relative, "ok": c.ok,
        })).collect::<Vec<_>>(),
    })
}
