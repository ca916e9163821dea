//! Calls drawn from the signature alone, for operations of which nothing else is known.

use crate::call::Call;
use crate::error::Result;
use crate::ops;
use crate::rng::Rng;
use crate::sizes::Sizes;
use crate::tensors::real;
use statescan::DType;
use statescan::ops::Operation;
use statescan::ops::call::carried;
use statescan::ops::signature::{Argument, Complex, Role};

/// A small call.
pub(super) fn embedded(op: &'static Operation) -> Result<Call> {
    random(op, &sizes(op), DType::F32)
}

/// A call of these sizes with the arguments that must be there, all of them small numbers.
pub(super) fn random(op: &'static Operation, sizes: &Sizes, dtype: DType) -> Result<Call> {
    let (mut call, mut rng) = (Call::new(op), Rng::new(91));
    for argument in ops::arguments(op).filter(|argument| ops::is_required(op, argument)) {
        let Some(layout) = layout(argument, sizes) else { continue };
        let dtype = match argument.role {
            Role::Activation => dtype,
            // a state that may be complex beside real arguments always is
            role => carried(dtype, role == Role::State && argument.complex == Complex::Always),
        };
        call = call.with(argument.name, real(dtype, &sizes.shape(layout), || rng.uniform(-0.5, 0.5))?);
    }
    Ok(call)
}

/// One small shape.
pub(super) fn shapes(op: &'static Operation) -> Vec<(&'static str, Sizes)> {
    vec![("small", sizes(op))]
}

/// The first form's sizes. An argument with sizes of its own has one of each, and there is a state for each row.
fn sizes(op: &Operation) -> Sizes {
    let signature = op.signature;
    let form = |letter: &char| signature.forms.first().is_none_or(|form| form.contains(*letter));
    let size = |letter| match letter {
        'L' => 64,
        'B' | 'S' => 2,
        // angles, one for a pair of columns at most
        'A' => 4,
        _ if signature.free.contains(letter) => 1,
        _ => 8,
    };
    let letters = signature.sizes.iter().map(|(letter, _)| *letter).filter(form);
    Sizes::of(&letters.map(|letter| (letter, size(letter))).collect::<Vec<_>>())
}

/// The longest layout of an argument whose sizes are known.
fn layout(argument: &Argument, sizes: &Sizes) -> Option<&'static str> {
    let known = |layout: &&&'static str| layout.chars().all(|letter| letter.is_ascii_digit() || sizes.has(letter));
    argument.layouts.iter().filter(known).max_by_key(|layout| layout.len()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::measured::Measured;
    use statescan::Exec;

    #[test]
    fn what_is_drawn_runs_and_agrees_with_the_oracle() -> Result<()> {
        for op in Operation::ALL {
            let wrong = Measured::new(embedded(op)?)?.check(&Exec::cpu(1))?;
            assert!(wrong.is_empty(), "{op:?}: {wrong:?}");
        }
        Ok(())
    }
}
