//! The signatures of all operations as plain values of Python's.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use statescan::ops::CHECKPOINT;
use statescan::ops::call::{LANES, SPARE};
use statescan::ops::operation::Operation;
use statescan::ops::signature::{Argument, Choice, Complex, OptionSpec, Output, ResultType, Role, Saved, Signature};

/// Every operation as a dictionary: see `_operations.py`.
#[pyfunction]
pub fn operations(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let all = PyList::empty(py);
    for (number, Operation { signature, .. }) in Operation::every().enumerate() {
        all.append(description(py, number, signature)?)?;
    }
    Ok(all)
}

fn description<'py>(py: Python<'py>, number: usize, signature: &'static Signature) -> PyResult<Bound<'py, PyDict>> {
    let of = PyDict::new(py);
    of.set_item("number", number)?;
    of.set_item("name", signature.name)?;
    of.set_item("sizes", signature.sizes.iter().map(|(letter, name)| (letter.to_string(), *name)).collect::<Vec<_>>())?;
    of.set_item("arguments", list(py, signature.arguments, argument)?)?;
    of.set_item("settings", list(py, signature.options, option)?)?;
    of.set_item("results", list(py, signature.results, output)?)?;
    of.set_item("decay", signature.decay.map(|decay| output(py, decay)).transpose()?)?;
    of.set_item("leaders", signature.leaders.to_vec())?;
    of.set_item("state", signature.in_place.map(|state| state.name))?;
    of.set_item("saved", saved(py, &signature.saved)?)?;
    Ok(of)
}

fn list<'py, T>(
    py: Python<'py>,
    items: &[T],
    describe: impl Fn(Python<'py>, &T) -> PyResult<Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, items.iter().map(|item| describe(py, item)).collect::<PyResult<Vec<_>>>()?)
}

fn argument<'py>(py: Python<'py>, argument: &Argument) -> PyResult<Bound<'py, PyDict>> {
    let of = PyDict::new(py);
    of.set_item("name", argument.name)?;
    of.set_item("layouts", argument.layouts.to_vec())?;
    of.set_item("aliases", argument.aliases.to_vec())?;
    of.set_item("required", argument.required)?;
    of.set_item("gradient", argument.gradient)?;
    of.set_item("sized", !matches!(argument.role, Role::State | Role::Index))?;
    Ok(of)
}

/// Names and defaults as a schema of PyTorch's has them.
fn option<'py>(py: Python<'py>, spec: &OptionSpec) -> PyResult<Bound<'py, PyDict>> {
    let of = PyDict::new(py);
    let name = spec.name;
    of.set_item("name", name)?;
    of.set_item("aliases", spec.aliases.to_vec())?;
    of.set_item("words", if let Choice::Word(words, _) = spec.choice { words.to_vec() } else { Vec::new() })?;
    match spec.choice {
        Choice::Flag(default) => of.set_item("schema", vec![(format!("bool {name}"), default)])?,
        Choice::Number(default) => of.set_item("schema", vec![(format!("float {name}"), default)])?,
        Choice::Count(default) => of.set_item("schema", vec![(format!("int {name}"), default)])?,
        Choice::Interval => {
            let bare = name.strip_suffix("_limit").unwrap_or(name);
            let limits = ["low", "high"].map(|end| (format!("float? {bare}_{end}"), None::<f64>));
            of.set_item("schema", limits.to_vec())?;
        }
        Choice::Word(words, Some(default)) => of.set_item("schema", vec![(format!("str {name}"), words[default])])?,
        Choice::Word(_, None) => of.set_item("schema", vec![(format!("str? {name}"), None::<&str>)])?,
    }
    Ok(of)
}

fn output<'py>(py: Python<'py>, output: &Output) -> PyResult<Bound<'py, PyDict>> {
    let (rule, names) = match output.dtype {
        ResultType::Of(name) => ("of", vec![name]),
        ResultType::OfFirst(a, b) => ("first", vec![a, b]),
        ResultType::Promoted(a, b) => ("promoted", vec![a, b]),
        ResultType::Carried(name) => ("carried", vec![name]),
        ResultType::CarriedByBoth(a, b) => ("carried", vec![a, b]),
    };
    let of = PyDict::new(py);
    of.set_item("name", output.name)?;
    of.set_item("layouts", output.layouts.to_vec())?;
    of.set_item("like", output.like)?;
    of.set_item("beside", output.beside)?;
    of.set_item("cotangent", output.cotangent)?;
    of.set_item("dtype", (rule, names))?;
    of.set_item("complex", complex(output.complex))?;
    Ok(of)
}

/// A word, and the names of the arguments that it is about.
fn complex(rule: Complex) -> (&'static str, Vec<&'static str>) {
    match rule {
        Complex::Never => ("never", Vec::new()),
        Complex::Always => ("always", Vec::new()),
        Complex::As(names) => ("as", names.to_vec()),
        Complex::Without(name) => ("without", vec![name]),
    }
}

fn saved<'py>(py: Python<'py>, saved: &Saved) -> PyResult<Option<Bound<'py, PyDict>>> {
    let of = PyDict::new(py);
    match *saved {
        Saved::Nothing => return Ok(None),
        Saved::Result(at) => of.set_item("result", at)?,
        Saved::States { layout, padded, each_step, complex: rule, on_cuda } => {
            of.set_item("layout", layout)?;
            of.set_item("padded", padded.map(String::from))?;
            of.set_item("each_step", each_step)?;
            of.set_item("complex", complex(rule))?;
            of.set_item("every", CHECKPOINT)?;
            of.set_item("lanes", LANES)?;
            of.set_item("spare", SPARE)?;
            of.set_item("on_cuda", on_cuda)?;
        }
    }
    Ok(Some(of))
}
