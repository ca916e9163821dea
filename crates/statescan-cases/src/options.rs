//! Options of calls: their names, and from JSON to what the library takes.

use crate::error::{Error, Result};
use crate::ops::{self, Options};
use serde_json::Value as Json;
use statescan::ops::Operation;
use statescan::ops::call::Value;
use statescan::ops::signature::{Choice, OptionSpec};

/// Prefixes of options, here and in other projects, that ask for a result which is computed anyway.
const RETURN: &str = "return_";
const OUTPUT: &str = "output_";

/// The names of an operation's options.
pub fn names(op: &Operation) -> Vec<String> {
    let mut names: Vec<_> = op.signature.options.iter().map(|spec| spec.name.to_string()).collect();
    let states = ops::results(op).filter(|result| result.is_state && result.cotangent);
    names.extend(states.map(|state| format!("{RETURN}{}", state.name)));
    names
}

/// The name of an option that may be called otherwise elsewhere.
///
/// # Errors
/// [`Error::UnknownName`].
pub fn canonical_name(op: &Operation, given: &str) -> Result<String> {
    if let Some(at) = op.signature.option(given) {
        return Ok(op.signature.options[at].name.to_string());
    }
    let state = given
        .strip_prefix(RETURN)
        .or(given.strip_prefix(OUTPUT))
        .and_then(|name| ops::results(op).find(|result| result.is_called(name)));
    let name = state.map_or_else(|| given.to_string(), |state| format!("{RETURN}{}", state.name));
    let known = names(op);
    if known.contains(&name) {
        return Ok(name);
    }
    Err(Error::UnknownName { op: op.signature.name, what: "option", got: given.to_string(), known: known.join(", ") })
}

/// Replaces the values of options, which stand by position, by those that are given.
///
/// # Errors
/// [`Error::OptionValue`].
pub fn read(op: &Operation, options: &Options, values: &mut [Value]) -> Result<()> {
    for (spec, value) in op.signature.options.iter().zip(values) {
        if let Some(given) = given(options, spec.name) {
            *value = read_one(op, spec, given)?;
        }
    }
    Ok(())
}

/// The option of a name; `null` is as if it were not there.
fn given<'a>(options: &'a Options, name: &str) -> Option<&'a Json> {
    options.get(name).filter(|value| !value.is_null())
}

/// The value of one option.
fn read_one(op: &Operation, spec: &OptionSpec, given: &Json) -> Result<Value> {
    let value = match spec.choice {
        Choice::Flag(_) => given.as_bool().map(Value::Flag),
        Choice::Number(_) => given.as_f64().map(Value::Number),
        Choice::Count(_) => given.as_u64().and_then(|n| usize::try_from(n).ok()).map(Value::Count),
        Choice::Interval => interval(given),
        Choice::Word(words, default) => given.as_str().and_then(|word| match words.iter().position(|known| *known == word) {
            None if word == "none" && default.is_none() => Some(Value::Word(None)),
            at => at.map(|at| Value::Word(Some(at))),
        }),
    };
    value.ok_or_else(|| Error::OptionValue {
        op: op.signature.name,
        option: spec.name.to_string(),
        expected: expected(&spec.choice),
        got: given.to_string(),
    })
}

/// Two numbers; `"inf"` and `"-inf"` are infinite ends.
fn interval(given: &Json) -> Option<Value> {
    let end = |value: &Json| match value {
        Json::String(word) => word.parse().ok(),
        other => other.as_f64(),
    };
    match given.as_array()?.as_slice() {
        [low, high] => Some(Value::Interval(end(low)?, end(high)?)),
        _ => None,
    }
}

/// The values of an option in words.
fn expected(choice: &Choice) -> String {
    match *choice {
        Choice::Flag(_) => "true or false".to_string(),
        Choice::Number(_) => "a number".to_string(),
        Choice::Count(_) => "a whole number".to_string(),
        Choice::Interval => "two numbers, low and high".to_string(),
        Choice::Word(words, default) => {
            let none = default.is_none().then_some("none");
            format!("one of {}", none.into_iter().chain(words.iter().copied()).collect::<Vec<_>>().join(", "))
        }
    }
}
