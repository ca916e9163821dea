//! The print-out of `run`.

use super::outcome::{Outcome, Pass};
use crate::error::Result;
use crate::output::say;
use crate::text;
use serde_json::json;
use statescan::Exec;
use statescan_cases::call::{Call, Input};
use statescan_cases::on_device::is_elsewhere;

/// Prints tables.
pub(super) fn print(exec: &Exec, call: &Call, outcome: &Outcome, source: &str) -> Result<()> {
    let options: Vec<_> = call.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
    say!("{}", text::wrapped(&format!("{}: {}", call.op.signature.name, call.op.signature.about)))?;
    let place = match is_elsewhere(exec) {
        true => exec.device().to_string(),
        false => format!("{} threads, {}", exec.threads(), exec.level()),
    };
    say!("{}", text::wrapped(&format!("on {source}; {place}")))?;
    if !options.is_empty() {
        say!("{}", text::labelled("options: ", &options.join(" ")))?;
    }
    let row = |i: &Input| {
        let layout = i.argument.layout(i.buffer.shape().len()).unwrap_or("");
        vec![i.given.clone(), i.buffer.dtype().to_string(), i.buffer.shape().to_string(), spaced(layout)]
    };
    say!("{}", text::table(&["argument", "type", "shape", "axes"], 9, call.inputs.iter().map(row)))?;
    let row = |p: &Pass| {
        vec![
            p.name.to_string(),
            text::time(p.time),
            text::figure(p.per_state_step()),
            text::figure(p.rate(p.bytes as f64)),
            text::figure(p.rate(p.work.flops)),
        ]
    };
    say!("{}", text::table(&["pass", "median", "ns / state-step", "GB/s", "GFLOP/s"], 1, outcome.passes.iter().map(row)))?;
    if !outcome.cotangents_from.is_empty() {
        say!("cotangents: {}", outcome.cotangents_from)?;
    }
    match outcome.part.is_whole() {
        true => say!("against the float64 oracle, all of it:")?,
        false => say!("against the float64 oracle, on {}:", outcome.part.describe(&call.sizes()))?,
    }
    say!("{}", text::comparisons(&outcome.comparisons))
}

fn spaced(layout: &str) -> String {
    layout.chars().map(String::from).collect::<Vec<_>>().join(" ")
}

/// Returns the outcome as a JSON object.
pub(super) fn describe(exec: &Exec, call: &Call, outcome: &Outcome) -> serde_json::Value {
    let tensor =
        |name: &str, dtype: statescan::DType, shape: &[usize]| json!({"name": name, "dtype": dtype.to_string(), "shape": shape});
    json!({
        "op": call.op.signature.name,
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
            "tensor": c.name, "max_abs": text::json_number(c.max_abs), "relative": text::json_number(c.relative),
            "ok": c.ok, "why": text::why(c),
        })).collect::<Vec<_>>(),
    })
}
