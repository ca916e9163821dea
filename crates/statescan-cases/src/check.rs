//! Comparing results: with a file's, and with the oracle's.

use crate::call::Call;
use crate::compute;
use crate::error::Result;
use crate::memory::{self, Limits};
use crate::ops;
use crate::part::{self, Part};
use crate::pass;
use crate::tensors::Tensors;
use num_complex::Complex64;
use statescan::ops::operation::Exact;
use statescan::ops::signature::TensorCores;
use statescan::tensor::{Dense, ErrorBound, Shape, Tensor, difference, largest, max_errors};
use statescan::{DType, Device, Exec};
use std::fmt;

/// How one tensor compares.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Its name, with its prefix (`out.y`, `grad.x`).
    pub name: String,
    /// The largest difference.
    pub max_abs: f64,
    /// The largest difference relative to the largest expected magnitude.
    pub relative: f64,
    /// How far it may be.
    pub bound: ErrorBound,
    /// Whether every element is within.
    pub ok: bool,
    /// Why it is not.
    pub mismatch: Option<Mismatch>,
    /// Elements that are not finite, and were not compared.
    pub skipped: usize,
}

/// Why a tensor is not the expected one.
#[derive(Debug, Clone, PartialEq)]
pub enum Mismatch {
    /// It has another shape.
    Shape {
        /// The tensor's shape.
        got: Shape,
        /// The shape that was expected.
        expected: Shape,
    },
    /// Elements are too far away, or NaN or infinite where they should not be.
    Elements {
        /// The index of the first one, of those that are not finite if there are any.
        index: Vec<usize>,
        /// The element of the tensor.
        got: Complex64,
        /// The element that was expected.
        expected: Complex64,
        /// How many there are.
        count: usize,
        /// Elements of the tensor.
        of: usize,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |v: &Complex64| if v.im == 0.0 { format!("{:e}", v.re) } else { format!("({:e}, {:e})", v.re, v.im) };
        match self {
            Mismatch::Shape { got, expected } => write!(f, "its shape is {got}, expected {expected}"),
            Mismatch::Elements { index, got, expected, count, of } => {
                write!(f, "{} at {index:?}, expected {}; {count} of {of} elements are outside", number(got), number(expected))
            }
        }
    }
}

/// Compares two tensors, of which one is stored in a type: beyond its range an infinity is right.
pub fn compare(name: String, got: &Dense, expected: &Dense, stored: DType, bound: ErrorBound) -> Comparison {
    let (got, expected) = (&in_range(got, stored), &in_range(expected, stored));
    let (max_abs, relative, within) = max_errors(got.data(), expected.data(), bound);
    // a long product of decays ends among the subnormal numbers of f32, which have no relative precision
    let tiny = max_abs <= f64::from(f32::MIN_POSITIVE);
    let ok = (within || tiny) && got.shape() == expected.shape();
    let mismatch = (!ok).then(|| mismatch(got, expected, bound));
    Comparison { name, max_abs, relative, bound, ok, mismatch, skipped: 0 }
}

/// How results, or gradients, are compared with the oracle's.
struct Rule {
    gradients: bool,
    bound: ErrorBound,
    /// Whether every argument is finite.
    finite: bool,
    /// Whether kernels compute chunks of steps at once.
    chunked: bool,
}

impl Rule {
    /// Elements are left out and counted for which loops are no measure, where not all arguments are finite. Whether a sum of infinities is one
    /// or NaN depends on its order; a chunk of steps that is computed at once is not finite where one of its steps is not; and neither is a
    /// gradient wherever its forward pass is not.
    fn compare(&self, name: &str, got: &Dense, expected: &Dense, stored: DType) -> Comparison {
        let left_out = |got: &Complex64, expected: &Complex64| match (got.is_finite(), expected.is_finite()) {
            _ if self.finite => false,
            (false, false) => difference(*got, *expected) > 0.0,
            (false, true) => self.chunked || self.gradients,
            (true, false) => self.gradients,
            (true, true) => false,
        };
        let (known, skipped) = without(got, expected, left_out);
        let prefix = if self.gradients { "grad" } else { "out" };
        Comparison { skipped, ..compare(format!("{prefix}.{name}"), got, &known, stored, self.bound) }
    }
}

/// Returns the expected tensor without elements that cannot be compared, which are as they came, and how many these are.
pub(crate) fn without(got: &Dense, expected: &Dense, left_out: impl Fn(&Complex64, &Complex64) -> bool) -> (Dense, usize) {
    let (mut known, mut count) = (expected.clone(), 0);
    if got.shape() == expected.shape() {
        for (known, got) in known.data_mut().iter_mut().zip(got.data()).filter(|(known, got)| left_out(got, known)) {
            (*known, count) = (*got, count + 1);
        }
    }
    (known, count)
}

/// A tensor with infinities where a type has no number as large.
fn in_range(dense: &Dense, stored: DType) -> Dense {
    let (rounded, mut ranged) = (Tensor::from_dense(dense, stored).to_dense(), dense.clone());
    for (value, rounded) in ranged.data_mut().iter_mut().zip(rounded.data()) {
        let part = |value: f64, rounded: f64| if rounded.is_infinite() { rounded } else { value };
        *value = Complex64::new(part(value.re, rounded.re), part(value.im, rounded.im));
    }
    ranged
}

/// Returns the fault of a tensor that is not within the bound.
fn mismatch(got: &Dense, expected: &Dense, bound: ErrorBound) -> Mismatch {
    let shape = expected.shape();
    if got.shape() != shape {
        return Mismatch::Shape { got: got.shape(), expected: shape };
    }
    let errors: Vec<f64> = got.data().iter().zip(expected.data()).map(|(a, b)| difference(*a, *b)).collect();
    let scale = largest(expected.data());
    let outside: Vec<usize> = (0..errors.len()).filter(|&i| errors[i] > bound.at(expected.data()[i], scale)).collect();
    let not_finite = outside.iter().find(|&&i| errors[i].is_infinite());
    let first = not_finite.or(outside.first()).copied().unwrap_or(0);
    let (mut index, mut rest) = (vec![0; shape.len()], first);
    for (at, &size) in index.iter_mut().zip(shape.iter()).rev() {
        (*at, rest) = (rest % size, rest / size);
    }
    let (got, expected) = (got.data()[first], expected.data()[first]);
    Mismatch::Elements { index, got, expected, count: outside.len(), of: errors.len() }
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
    let part = part::choose(call, budget);
    let narrowed = if part.is_whole() { call.clone() } else { part::narrow(call, &part)? };
    let rule = |gradients, of| {
        let (bound, chunked) = (bound(exec, &narrowed, of), call.op.signature.facts.chunked);
        Rule { gradients, bound, finite: call.is_finite(), chunked }
    };
    let mut all = compare_results(exec, &narrowed, results, &part, &rule(false, ErrorBound::for_scan))?;
    if let Some(backward) = backward {
        all.extend(compare_gradients(exec, &narrowed, backward, &part, &rule(true, ErrorBound::for_gradient))?);
    }
    Ok((part, all))
}

/// A bound where a call runs: GPUs multiply some matrices on their tensor cores, and tf32 keeps as many bits of a factor as f16.
fn bound(exec: &Exec, call: &Call, of: fn(DType, usize) -> ErrorBound) -> ErrorBound {
    let short = call.dtype().size() == 2;
    let products = call.op.signature.facts.tensor_cores;
    let (kept, in_products) = match products {
        TensorCores::Tf32 | TensorCores::Always if exec.allows_tf32() && !short => (DType::F16, true),
        _ => (call.dtype(), products == TensorCores::Always && exec.device() != Device::Cpu),
    };
    let bound = of(kept, call.steps());
    if in_products { bound.in_products(kept) } else { bound }
}

/// Compares results of a whole call with the oracle's of the call that was cut down to a part.
fn compare_results(exec: &Exec, narrowed: &Call, results: &Tensors, part: &Part, rule: &Rule) -> Result<Vec<Comparison>> {
    let op = narrowed.op;
    let exact = pass::reference(narrowed)?;
    let part_of = |name: &str, whole: &Tensor| {
        let layout = ops::result_layout(op, name, whole.shape().len());
        part.keeps(layout).then(|| Dense::from_view(&part.of(whole.view(), layout)))
    };
    let again = || {
        let mut out = memory::results(narrowed, false, Limits::default())?;
        compute::forward(exec, narrowed, &mut out)?;
        Ok(out)
    };
    compare_parts((rule, narrowed), &exact, results, part_of, again)
}

/// Compares gradients in the same way.
fn compare_gradients(exec: &Exec, narrowed: &Call, backward: Backward<'_>, part: &Part, rule: &Rule) -> Result<Vec<Comparison>> {
    let op = narrowed.op;
    // a gradient depends on the steps after its own too
    let cut_in_time = ops::time(op).is_some_and(|letter| part.0.contains_key(&letter));
    let cotangents = part::narrow_results(op, backward.cotangents, part);
    let exact = pass::reference_backward(narrowed, &cotangents)?;
    let part_of = |name: &str, whole: &Tensor| {
        let layout = narrowed.input(name).and_then(|i| i.argument.layout(whole.shape().len())).unwrap_or("");
        let determined = part.is_whole() || (part.keeps(layout) && !cut_in_time);
        determined.then(|| Dense::from_view(&part.of(whole.view(), layout)))
    };
    let again = || {
        let mut grads = memory::gradients(narrowed, Limits::default())?;
        compute::backward(exec, narrowed, &Tensors::default(), &cotangents, &mut grads)?;
        Ok(grads)
    };
    compare_parts((rule, narrowed), &exact, backward.gradients, part_of, again)
}

/// Compares exact tensors with what `part_of` finds in those of the whole call, or with what is computed `again` where it finds nothing.
fn compare_parts(
    (rule, call): (&Rule, &Call),
    exact: &Exact,
    whole: &Tensors,
    part_of: impl Fn(&str, &Tensor) -> Option<Dense>,
    again: impl Fn() -> Result<Tensors>,
) -> Result<Vec<Comparison>> {
    let (mut all, mut computed) = (Vec::new(), None);
    for (name, expected) in exact {
        let Some(tensor) = whole.get(name) else { continue };
        let got = match part_of(name, tensor) {
            Some(got) => got,
            None => {
                let computed: &Tensors = match &computed {
                    Some(computed) => computed,
                    None => computed.insert(again()?),
                };
                computed.get(name).map_or_else(|| expected.clone(), Tensor::to_dense)
            }
        };
        all.push(rule.compare(call.given(name), &got, expected, tensor.dtype()));
    }
    Ok(all)
}

#[cfg(test)]
mod not_finite;

#[cfg(test)]
mod tests {
    use super::*;

    fn dense(values: &[f64]) -> Dense {
        Dense::from_slice(values, &[1, values.len()]).unwrap()
    }

    fn compared(got: &[f64], expected: &[f64], stored: DType) -> Comparison {
        compare("y".into(), &dense(got), &dense(expected), stored, ErrorBound { absolute: 0.0, relative: 1e-3 })
    }

    #[test]
    fn an_infinity_is_right_where_the_type_has_no_number_as_large() {
        let inf = f64::INFINITY;
        for (stored, large) in [(DType::F32, 1e39), (DType::BF16, 1e39), (DType::F16, 7e4)] {
            assert!(compared(&[1.0, inf], &[1.0, large], stored).ok, "{stored}");
            assert!(compared(&[1.0, large], &[1.0, inf], stored).ok, "the oracle against a file of {stored}");
            assert!(!compared(&[1.0, inf], &[1.0, -large], stored).ok, "{stored}");
            assert!(!compared(&[1.0, inf], &[1.0, 1e3], stored).ok, "{stored}");
        }
        let comparison = compared(&[inf], &[1e39], DType::F64);
        assert_eq!((comparison.ok, comparison.max_abs), (false, inf));
    }

    #[test]
    fn what_differs_in_kind_is_named_before_what_is_far_away() {
        let why = |comparison: Comparison| comparison.mismatch.map(|mismatch| mismatch.to_string());
        assert_eq!(why(compared(&[1.0, 2.0], &[1.0, 2.0], DType::F32)), None);
        let both = compared(&[1.0, 2.0, f64::NAN], &[1.0, 3.0, f64::INFINITY], DType::F32);
        assert_eq!(why(both).unwrap(), "NaN at [0, 2], expected inf; 2 of 3 elements are outside");
        let far = compared(&[1.0, 2.0], &[1.0, 3.0], DType::F32);
        assert_eq!(why(far).unwrap(), "2e0 at [0, 1], expected 3e0; 1 of 2 elements are outside");
        let shape =
            compare("y".into(), &dense(&[1.0]), &dense(&[1.0; 2]), DType::F32, ErrorBound { absolute: 0.0, relative: 0.0 });
        assert_eq!(why(shape).unwrap(), "its shape is (1, 1), expected (1, 2)");
    }
}
