//! Calls of each operation as models make them: a small one from a passage of text, and ones of chosen sizes.

mod causal_conv1d;
mod causal_conv1d_update;
mod drawn;
mod features;
mod gated_delta_rule;
mod gated_delta_rule_update;
mod last_step;
mod linear_scan;
mod norm;
mod selective_scan;
mod selective_state_update;
mod simplified_scan;
mod simplified_state_update;
mod ssd;
mod turned_maps;

use crate::call::Call;
use crate::error::Result;
use crate::sizes::Sizes;
pub use features::PASSAGE;
use statescan::DType;
use statescan::ops::Operation;

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
const SAMPLES: [(&str, Samples); 13] = [
    ("selective_scan", samples!(selective_scan)),
    ("ssd", samples!(ssd)),
    ("gated_delta_rule", samples!(gated_delta_rule)),
    ("simplified_scan", samples!(simplified_scan)),
    ("s5_inner", samples!(simplified_scan)),
    ("linear_scan", samples!(linear_scan)),
    ("causal_conv1d", samples!(causal_conv1d)),
    ("norm", Samples { random: norm::random, shapes: |_| norm::shapes(), ..DRAWN }),
    ("turned_maps", samples!(turned_maps)),
    ("selective_state_update", samples!(selective_state_update)),
    ("gated_delta_rule_update", samples!(gated_delta_rule_update)),
    ("simplified_state_update", samples!(simplified_state_update)),
    ("causal_conv1d_update", samples!(causal_conv1d_update)),
];

fn samples(op: &Operation) -> &'static Samples {
    let found = SAMPLES.iter().find(|(name, _)| *name == op.signature.name);
    found.map(|(_, samples)| samples).expect("every operation has samples")
}

/// A small call from a passage of text.
///
/// # Errors
/// Memory that is not there.
pub fn embedded(op: &'static Operation) -> Result<Call> {
    (samples(op).embedded)(op)
}

/// A call of chosen sizes with reproducible random numbers, as a model would see.
///
/// # Errors
/// Memory that is not there.
pub fn random(op: &'static Operation, sizes: &Sizes, dtype: DType) -> Result<Call> {
    (samples(op).random)(op, sizes, dtype)
}

/// Shapes of models: a label and the sizes. The first is the quickest.
pub fn shapes(op: &'static Operation) -> Vec<Labelled> {
    (samples(op).shapes)(op)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops;

    #[test]
    fn every_operation_has_samples() {
        let names: Vec<_> = ops::all().map(|op| op.signature.name).collect();
        assert!(SAMPLES.iter().all(|(name, _)| names.contains(name)));
        assert!(names.iter().all(|name| SAMPLES.iter().any(|(known, _)| known == name)), "{names:?}");
    }
}
