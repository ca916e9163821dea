//! Comparing results: with a file's, and with the oracle's.

use crate::call::{Call, Tensors};
use crate::compute::{self, Limits};
use crate::error::Result;
use crate::shapes::{self, Part, Sizes};
use statescan::Exec;
use statescan::tensor::{Dense, ErrorBound, max_errors};

/// How one tensor compares.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Its name, with its prefix (`out.y`, `grad.x`).
    pub name: String,
    /// The largest difference.
    pub max_abs: f64,
    /// That, relative to the largest expected magnitude.
    pub relative: f64,
    /// How far it may be.
    pub bound: ErrorBound,
    /// Whether every element is within.
    pub ok: bool,
    /// Elements that could not be compared.
    pub skipped: usize,
}

/// Compares two tensors.
pub fn compare(name: String, got: &Dense, expected: &Dense, bound: ErrorBound) -> Comparison {
    let (max_abs, relative, within) = max_errors(got.data(), expected.data(), bound);
    // a long product of decays ends among the subnormal numbers of f32, which have no relative precision
    let finite = expected.data().iter().all(|v| v.re.is_finite() && v.im.is_finite());
    let tiny = finite && max_abs <= f64::from(f32::MIN_POSITIVE);
    Comparison { name, max_abs, relative, bound, ok: (within || tiny) && got.shape() == expected.shape(), skipped: 0 }
}

/// Gradients to be checked: the cotangents that gave them, what the forward pass saved is not needed.
pub struct Backward<'a> {
    /// Cotangents of the results.
    pub cotangents: &'a Tensors,
    /// The gradients.
    pub gradients: &'a Tensors,
}

/// Compares results (and gradients) with the oracle, on a part of the call that it can do within a budget of state-steps.
///
/// A tensor that the part does not determine in the whole call (a sum over other channels) is computed again on the part.
///
/// # Errors
/// Those of the operation.
pub fn against_oracle(
    exec: &Exec,
    call: &Call,
    results: &Tensors,
    backward: Option<Backward<'_>>,
    budget: f64,
) -> Result<(Part, Vec<Comparison>)> {
    let op = call.op;
    let part = shapes::choose(op, call, budget);
    let narrowed = if part.is_whole() { call.clone() } else { shapes::narrow(call, &part)? };
    let (dtype, length) = (call.dtype(), Sizes::of_call(&narrowed).get(op.time().unwrap_or(' ')));
    let cut_in_time = op.time().is_some_and(|letter| part.0.contains_key(&letter));
    let mut all = Vec::new();

    let exact = op.reference(&narrowed).map_err(|e| narrowed.locate(e))?;
    let mut again = None;
    for (name, expected) in &exact {
        let Some(whole) = results.get(name) else { continue };
        let layout = op.results().iter().find(|r| r.name == *name).and_then(|r| r.layout(whole.shape().len())).unwrap_or("");
        let got = if part.keeps(layout) {
            Dense::from_view(&part.of(whole.view(), layout))
        } else {
            let computed = match &again {
                Some(computed) => computed,
                None => {
                    let mut out = compute::results(&narrowed, false, Limits::default())?;
                    compute::forward(exec, &narrowed, &mut out)?;
                    again.insert(out)
                }
            };
            computed.get(name).map(|b| b.to_dense()).unwrap_or_else(|| expected.clone())
        };
        all.push(compare(format!("out.{name}"), &got, expected, ErrorBound::for_scan(dtype, length)));
    }

    if let Some(backward) = backward {
        let cotangents = shapes::narrow_results(op, backward.cotangents, &part);
        let exact = op.reference_backward(&narrowed, &cotangents).map_err(|e| narrowed.locate(e))?;
        let mut again = None;
        for (name, expected) in &exact {
            let Some(whole) = backward.gradients.get(name) else { continue };
            let layout = call.input(name).and_then(|i| i.argument.layout(whole.shape().len())).unwrap_or("");
            let got = if part.is_whole() || (part.keeps(layout) && !cut_in_time) {
                Dense::from_view(&part.of(whole.view(), layout))
            } else {
                let computed = match &again {
                    Some(computed) => computed,
                    None => {
                        let mut grads = compute::gradients(&narrowed, Limits::default())?;
                        compute::backward(exec, &narrowed, &Tensors::default(), &cotangents, &mut grads)?;
                        again.insert(grads)
                    }
                };
                computed.get(name).map(|b| b.to_dense()).unwrap_or_else(|| expected.clone())
            };
            all.push(compare(format!("grad.{name}"), &got, expected, ErrorBound::for_gradient(dtype, length)));
        }
    }
    Ok((part, all))
}
