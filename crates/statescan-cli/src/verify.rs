//! `verify`: results and gradients against those in files.

use crate::call::{Options, Tensors};
use crate::case::Case;
use crate::check::{self, Comparison};
use crate::cli::VerifyArgs;
use crate::compute::{self, Limits};
use crate::error::{Error, Result};
use crate::run::read_case;
use crate::text;
use num_complex::Complex64;
use serde_json::json;
use statescan::Exec;
use statescan::tensor::{Dense, ErrorBound};
use std::path::Path;

/// How far results may be from a file's: other projects compute in `f32`.
pub const RESULT: ErrorBound = ErrorBound { absolute: 1e-5, relative: 1e-4 };

/// How far gradients may be from a file's.
pub const GRADIENT: ErrorBound = ErrorBound { absolute: 1e-4, relative: 1e-3 };

/// Compares everything that a case expects. With `exec` the kernels compute, without it the oracle.
///
/// # Errors
/// Arguments that the operation refuses; gradients without cotangents; nothing to compare.
pub fn check(case: &Case, exec: Option<&Exec>, limits: Limits) -> Result<Vec<Comparison>> {
    let (call, op) = (&case.call, case.call.op);
    if case.expected.is_empty() && case.gradients.is_empty() {
        let expected = "`out.NAME` or `grad.NAME` tensors to compare with".to_string();
        return Err(Error::Missing { op: op.name(), argument: "out", expected, got: String::new() });
    }
    if !case.gradients.is_empty() && case.cotangents.is_empty() {
        let expected = "`cot.NAME` tensors, which the gradients belong to".to_string();
        return Err(Error::Missing { op: op.name(), argument: "cot", expected, got: String::new() });
    }
    let exact = |all: crate::operation::Exact| all.into_iter().collect::<Vec<_>>();
    let dense = |tensors: Tensors| tensors.iter().map(|(name, b)| (name, b.to_dense())).collect::<Vec<_>>();
    let mut saved = Tensors::default();
    let results = match exec {
        Some(exec) => {
            saved = compute::results(call, !case.gradients.is_empty(), limits)?;
            compute::forward(exec, call, &mut saved)?;
            dense(saved.clone())
        }
        None => exact(op.reference(call).map_err(|e| call.locate(e))?),
    };
    let mut all = Vec::new();
    let mut compare = |computed: &[(&'static str, Dense)], name: &str, key: &str, expected: &Dense, bound| {
        if let Some((_, got)) = computed.iter().find(|(n, _)| *n == name) {
            all.push(compare_with_file(key.to_string(), got, expected, bound));
        }
    };
    for (name, key, expected) in &case.expected {
        compare(&results, name, key, &expected.to_dense(), RESULT);
    }
    if !case.gradients.is_empty() {
        let gradients = match exec {
            Some(exec) => {
                let mut grads = compute::gradients(call, limits)?;
                compute::backward(exec, call, &saved, &case.cotangents, &mut grads)?;
                dense(grads)
            }
            None => exact(op.reference_backward(call, &case.cotangents).map_err(|e| call.locate(e))?),
        };
        for (name, key, expected) in &case.gradients {
            compare(&gradients, name, key, &expected.to_dense(), GRADIENT);
        }
    }
    Ok(all)
}

/// Elements that are NaN in the file and numbers here are left out and counted: reference functions of other projects overflow where
/// nothing has to. A tensor of nothing else fails.
fn compare_with_file(name: String, got: &Dense, expected: &Dense, bound: ErrorBound) -> Comparison {
    let is_nan = |v: &Complex64| v.re.is_nan() || v.im.is_nan();
    let mut known = expected.clone();
    let mut skipped = 0;
    if got.shape() == expected.shape() {
        let same = got.data().iter().filter(|v| !is_nan(v)).count() > 0 && expected.data().iter().any(|v| !is_nan(v));
        for (target, value) in known.data_mut().iter_mut().zip(got.data()).filter(|(t, v)| same && is_nan(t) && !is_nan(v)) {
            *target = *value;
            skipped += 1;
        }
    }
    Comparison { skipped, ..check::compare(name, got, &known, bound) }
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

fn verify_one(path: &Path, exec: Option<&Exec>) -> Result<(&'static str, Vec<Comparison>)> {
    let case = read_case(path, None, &Options::new(), &[])?;
    let located = |error| match error {
        error @ (Error::Io { .. } | Error::Format { .. } | Error::Case { .. }) => error,
        error => Error::Case { path: path.to_path_buf(), error: Box::new(error) },
    };
    Ok((case.call.op.name(), check(&case, exec, Limits::default()).map_err(located)?))
}

fn report(path: &Path, op: &str, c: &Comparison, as_json: bool) {
    let file = path.display().to_string();
    if as_json {
        let line = json!({
            "file": file, "op": op, "tensor": c.name, "max_abs": finite(c.max_abs), "relative": finite(c.relative),
            "bound_absolute": c.bound.absolute, "bound_relative": c.bound.relative, "skipped": c.skipped, "ok": c.ok,
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
    }
}

/// JSON has no infinity.
fn finite(value: f64) -> serde_json::Value {
    if value.is_finite() { json!(value) } else { json!(value.to_string()) }
}
