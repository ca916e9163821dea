//! Calls of each operation as models make them: a small one from a passage of text, and ones of chosen sizes.

mod causal_conv1d;
mod causal_conv1d_update;
mod drawn;
mod features;
mod last_step;
mod linear_scan;
mod norm;
mod selective_scan;
mod selective_state_update;
mod simplified_scan;
mod simplified_state_update;
mod ssd;

use crate::call::{Call, Input};
use crate::error::Result;
use crate::ops::{self, LAYOUT};
use crate::sizes::Sizes;
pub use features::PASSAGE;
use statescan::DType;
use statescan::ops::Operation;
use statescan::tensor::{Dense, Tensor};

/// Sizes with what they are called.
pub type Labelled = (&'static str, Sizes);

/// How calls of an operation are made.
struct Samples {
    embedded: fn(&'static Operation) -> Result<Call>,
    random: fn(&'static Operation, &Sizes, DType) -> Result<Call>,
    shapes: fn(&'static Operation) -> Vec<Labelled>,
}

macro_rules! samples {
    ($module:ident) => {
        Samples { embedded: $module::embedded, random: $module::random, shapes: |_| $module::shapes() }
    };
}

/// Calls drawn from the signature.
const DRAWN: Samples = Samples { embedded: drawn::embedded, random: drawn::random, shapes: drawn::shapes };

/// How calls of each operation are made: a test looks that none is missing.
const SAMPLES: [(&str, Samples); 10] = [
    ("selective_scan", samples!(selective_scan)),
    ("ssd", samples!(ssd)),
    ("simplified_scan", samples!(simplified_scan)),
    ("s5_inner", samples!(simplified_scan)),
    ("linear_scan", samples!(linear_scan)),
    ("causal_conv1d", samples!(causal_conv1d)),
    ("norm", Samples { random: norm::random, shapes: |_| norm::shapes(), ..DRAWN }),
    ("selective_state_update", samples!(selective_state_update)),
    ("simplified_state_update", samples!(simplified_state_update)),
    ("causal_conv1d_update", samples!(causal_conv1d_update)),
];

fn samples(op: &Operation) -> &'static Samples {
    let found = SAMPLES.iter().find(|(name, _)| *name == ops::name(op));
    found.map(|(_, samples)| samples).expect("every operation has samples")
}

/// A small call from a passage of text.
///
/// # Errors
/// Memory that is not there.
pub fn embedded(op: &'static Operation) -> Result<Call> {
    laid_out((samples(op).embedded)(ops::find(ops::name(op))?)?, op)
}

/// A call of chosen sizes with reproducible random numbers, as a model would see.
///
/// # Errors
/// Memory that is not there.
pub fn random(op: &'static Operation, sizes: &Sizes, dtype: DType) -> Result<Call> {
    laid_out((samples(op).random)(ops::find(ops::name(op))?, sizes, dtype)?, op)
}

/// Shapes of models: a label and the sizes. The first is the quickest.
pub fn shapes(op: &'static Operation) -> Vec<Labelled> {
    (samples(op).shapes)(op)
}

/// The same call in another layout of its operation.
fn laid_out(call: Call, op: &'static Operation) -> Result<Call> {
    let own = |(_, of): &(_, &Operation)| of.signature.name == op.signature.name;
    let layout = op.signature.canonical.and_then(|_| ops::layouts(op).into_iter().find(own));
    let Some((word, _)) = layout else { return Ok(call) };
    let mut other = Call { options: call.options.clone(), ..Call::new(op) }.set(LAYOUT, word);
    for Input { argument, buffer, .. } in call.inputs {
        other = other.with(argument.name, rearranged(op, argument.name, argument.layout(buffer.shape().len()), buffer));
    }
    Ok(other)
}

/// A tensor with the axes of one layout in the order that an operation has them.
fn rearranged(op: &Operation, name: &str, from: Option<&str>, buffer: Tensor) -> Tensor {
    let to = ops::argument(op, name).and_then(|argument| argument.layout(buffer.shape().len()));
    let order: Option<Vec<usize>> = from.zip(to).and_then(|(from, to)| to.chars().map(|letter| from.find(letter)).collect());
    let Some(order) = order else { return buffer };
    Tensor::from_dense(&Dense::from_view(&buffer.view().permute(&order)), buffer.dtype())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_samples() {
        let names: Vec<_> = ops::all().map(ops::name).collect();
        assert!(SAMPLES.iter().all(|(name, _)| names.contains(name)));
        assert!(names.iter().all(|name| SAMPLES.iter().any(|(known, _)| known == name)), "{names:?}");
    }
}
