//! How much there is to do in a call: the facts of its operation with the call's sizes.

use crate::sizes::Sizes;
use statescan::ops::Operation;
use statescan::ops::signature::{Cost, Terms};

/// The amount of work in a pass, for throughputs and floors.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// Elements of the state times steps: the unit that times are divided by.
    pub state_steps: f64,
    /// Additions and multiplications.
    pub flops: f64,
    /// Exponentials.
    pub exps: f64,
}

/// Work of a forward pass of an operation, or of a step.
pub fn forward(op: &Operation, sizes: &Sizes) -> Work {
    work(op, sizes, &op.signature.facts.forward)
}

/// Work of a backward pass of an operation.
pub fn backward(op: &Operation, sizes: &Sizes) -> Work {
    if op.signature.differentiable { work(op, sizes, &op.signature.facts.backward) } else { Work::default() }
}

/// Returns the work of the oracle, in state-steps.
pub fn oracle_cost(op: &Operation, sizes: &Sizes) -> f64 {
    sum(op.signature.facts.oracle, sizes)
}

fn work(op: &Operation, sizes: &Sizes, cost: &Cost) -> Work {
    let state_steps = sizes.product(op.signature.facts.state_steps);
    Work { state_steps, flops: sum(cost.flops, sizes), exps: sum(cost.exps, sizes) }
}

fn sum(terms: Terms, sizes: &Sizes) -> f64 {
    terms.iter().map(|(factor, letters)| factor * sizes.product(letters)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops;

    /// The table asks an operation for facts; these are what measurements divide by.
    #[test]
    fn facts_are_about_the_sizes_of_their_operation() {
        for op in ops::all() {
            let (name, facts) = (op.signature.name, op.signature.facts);
            let known = |letter: char| op.signature.sizes.iter().any(|(size, _)| *size == letter);
            let terms = [facts.forward.flops, facts.forward.exps, facts.backward.flops, facts.backward.exps, facts.oracle];
            let letters = terms.into_iter().flatten().map(|(_, letters)| *letters).chain([facts.state_steps]);
            assert!(letters.flat_map(str::chars).all(known), "{name}: {facts:?}");
            let parts = facts.independent.iter().flat_map(|&(letter, groups)| [Some(letter), groups]).flatten();
            assert!(parts.chain(facts.small.iter().map(|(letter, _)| *letter)).all(known), "{name}: {facts:?}");
            let sizes = Sizes::of(facts.small);
            assert!(forward(op, &sizes).flops > 0.0 && oracle_cost(op, &sizes) > 0.0, "{name}: {facts:?}");
            assert_eq!(backward(op, &sizes).flops > 0.0, op.signature.differentiable, "{name}: {facts:?}");
        }
    }

    #[test]
    fn work_is_counted_by_sizes() {
        let op = ops::find("selective_scan").unwrap();
        let Work { state_steps, flops, exps } = backward(op, &Sizes::of(&[('B', 2), ('D', 3), ('L', 5), ('N', 7)]));
        assert_eq!((state_steps, flops, exps), (210.0, 4620.0, 210.0));
        let op = ops::find("ssd").unwrap();
        let work = forward(op, &Sizes::of(&[('B', 1), ('L', 10), ('H', 2), ('P', 4), ('N', 8)]));
        assert_eq!((work.state_steps, work.flops, work.exps), (640.0, 4.0 * 640.0 + 64.0 * 160.0, 640.0));
    }
}
