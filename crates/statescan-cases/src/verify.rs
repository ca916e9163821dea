//! The comparison of a case's results with those that its file expects.

use crate::case::Case;
use crate::check::{self, Comparison};
use crate::compute;
use crate::error::{Error, Result};
use crate::memory::{self, Limits};
use crate::pass;
use crate::tensors::Tensors;
use num_complex::Complex64;
use statescan::Exec;
use statescan::tensor::{Dense, ErrorBound, Tensor, difference};

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
        return Err(Error::Missing { op: op.signature.name, argument: "out", expected, got: String::new() });
    }
    if !case.gradients.is_empty() && case.cotangents.is_empty() {
        let expected = "`cot.NAME` tensors, which the gradients belong to".to_string();
        return Err(Error::Missing { op: op.signature.name, argument: "cot", expected, got: String::new() });
    }
    // arguments, results and what is expected of them as the oracle has them, and copies of these
    let elements = |tensor: &Tensor| tensor.shape().iter().product::<usize>() as u64;
    let arguments = call.inputs.iter().map(|input| elements(&input.buffer)).sum::<u64>();
    let expected = case.expected.iter().chain(&case.gradients).map(|(_, _, tensor)| elements(tensor)).sum::<u64>();
    memory::need("comparisons of this file", 16 * (2 * arguments + 4 * expected))?;
    let dense = |tensors: Tensors| tensors.iter().map(|(name, b)| (name, b.to_dense())).collect::<Vec<_>>();
    let mut saved = Tensors::default();
    let results = match exec {
        Some(exec) => {
            saved = memory::results(call, !case.gradients.is_empty(), limits)?;
            compute::forward(exec, call, &mut saved)?;
            dense(saved.clone())
        }
        None => pass::reference(call)?,
    };
    // kernels that compute chunks of steps at once spread over a chunk what is not finite among their arguments
    let spread = exec.is_some() && op.signature.facts.chunked && !call.is_finite();
    let mut all = Vec::new();
    let mut compare = |computed: &[(&'static str, Dense)], name: &str, key: &str, expected: &Tensor, bound| {
        if let Some((_, got)) = computed.iter().find(|(n, _)| *n == name) {
            all.push(compare_with_file(key.to_string(), got, expected, bound, spread));
        }
    };
    for (name, key, expected) in &case.expected {
        compare(&results, name, key, expected, RESULT);
    }
    if !case.gradients.is_empty() {
        let gradients = match exec {
            Some(exec) => {
                let mut grads = memory::gradients(call, limits)?;
                compute::backward(exec, call, &saved, &case.cotangents, &mut grads)?;
                dense(grads)
            }
            None => pass::reference_backward(call, &case.cotangents)?,
        };
        for (name, key, expected) in &case.gradients {
            compare(&gradients, name, key, expected, GRADIENT);
        }
    }
    Ok(all)
}

/// Elements that are NaN in the file and numbers here are left out and counted: reference functions of other projects overflow where
/// nothing has to. A tensor of nothing else fails. So are, with `spread`, elements that are not finite here.
fn compare_with_file(name: String, got: &Dense, file: &Tensor, bound: ErrorBound, spread: bool) -> Comparison {
    let is_nan = |v: &Complex64| v.re.is_nan() || v.im.is_nan();
    let expected = file.to_dense();
    let known = |tensor: &Dense| tensor.data().iter().any(|v| !is_nan(v));
    let comparable = known(got) && known(&expected);
    let left_out = |got: &Complex64, expected: &Complex64| {
        comparable && is_nan(expected) && !is_nan(got) || spread && !got.is_finite() && difference(*got, *expected) > 0.0
    };
    let (known, skipped) = check::without(got, &expected, left_out);
    Comparison { skipped, ..check::compare(name, got, &known, file.dtype(), bound) }
}
