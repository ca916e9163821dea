//! The operations by their names: what they take and give, from the library's signatures.
//!
//! An operation in place has its state among the arguments, and once more among the results.

use crate::error::{Error, Result};
use serde_json::Value;
use statescan::ops::Operation;
use statescan::ops::signature::{Argument, Complex};
use std::collections::BTreeMap;

/// Options by name, as JSON values.
pub type Options = BTreeMap<String, Value>;

/// Every operation.
pub fn all() -> impl Iterator<Item = &'static Operation> {
    Operation::ALL.iter()
}

/// The operation of a name.
///
/// # Errors
/// [`Error::UnknownOperation`].
pub fn find(name: &str) -> Result<&'static Operation> {
    all().find(|op| op.signature.name == name).ok_or_else(|| Error::UnknownOperation {
        got: name.to_string(),
        known: all().map(|op| op.signature.name).collect::<Vec<_>>().join(", "),
    })
}

/// The arguments of an operation, a state in place first.
pub fn arguments(op: &Operation) -> impl Iterator<Item = &'static Argument> + use<> {
    op.signature.in_place.into_iter().chain(op.signature.arguments)
}

/// The argument of a name.
pub fn argument(op: &Operation, name: &str) -> Option<&'static Argument> {
    arguments(op).find(|argument| argument.is_called(name) || name == "state" && is_state(op, argument))
}

/// Whether an argument is the state that an operation updates in place.
pub fn is_state(op: &Operation, argument: &Argument) -> bool {
    op.signature.in_place.is_some_and(|state| std::ptr::eq(state, argument))
}

/// Whether an argument must be there.
pub fn is_required(op: &Operation, argument: &Argument) -> bool {
    argument.required || is_state(op, argument)
}

/// Whether an argument may be complex.
pub fn may_be_complex(argument: &Argument) -> bool {
    argument.complex != Complex::Never
}

/// The names of an argument in the library and in other projects, where they differ from its own.
pub fn aliases(argument: &Argument) -> Vec<&'static str> {
    let field = (argument.field != argument.name).then_some(argument.field);
    field.into_iter().chain(argument.aliases.iter().copied()).collect()
}

/// The layouts of an argument in letters: `(B, D, L) or (D, N)`.
pub fn shapes(argument: &Argument) -> String {
    let one = |layout: &&str| {
        let letters: Vec<_> = layout.chars().map(String::from).collect();
        format!("({}{})", letters.join(", "), if letters.len() == 1 { "," } else { "" })
    };
    argument.layouts.iter().map(one).collect::<Vec<_>>().join(" or ")
}

/// A result of an operation.
#[derive(Debug, Clone, Copy)]
pub struct Named {
    /// Its name in files and tables.
    pub name: &'static str,
    /// Its names in other projects.
    pub aliases: &'static [&'static str],
    /// The layouts it may have, one letter for each axis, each of another rank.
    pub layouts: &'static [&'static str],
    /// Whether it is a state after the last step.
    pub is_state: bool,
    /// Whether the backward pass takes a cotangent of it.
    pub cotangent: bool,
}

impl Named {
    /// The layout of a rank.
    pub fn layout(&self, rank: usize) -> Option<&'static str> {
        self.layouts.iter().find(|layout| layout.len() == rank).copied()
    }

    /// Whether a name means this result.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

/// The results of an operation, a state in place last.
pub fn results(op: &Operation) -> impl Iterator<Item = Named> + use<> {
    let outputs = op.signature.results.iter().map(|output| Named {
        name: output.name,
        aliases: output.aliases,
        layouts: output.layouts,
        is_state: output.like.is_none(),
        cotangent: output.cotangent,
    });
    let state = op.signature.in_place.map(|state| Named {
        name: state.name,
        aliases: &["final_state", "last_state", "state"],
        layouts: state.layouts,
        is_state: true,
        cotangent: false,
    });
    outputs.chain(state)
}

/// The layout of a result of a rank.
pub fn result_layout(op: &Operation, name: &str, rank: usize) -> &'static str {
    results(op).find(|result| result.name == name).and_then(|result| result.layout(rank)).unwrap_or("")
}

/// Letter of the time axis, where an operation has one.
pub fn time(op: &Operation) -> Option<char> {
    op.signature.sizes.iter().map(|(letter, _)| *letter).find(|&letter| letter == 'L')
}

/// `forward`, or `step` where there is one step only.
pub fn pass_name(op: &Operation) -> &'static str {
    if time(op).is_some() { "forward" } else { "step" }
}
