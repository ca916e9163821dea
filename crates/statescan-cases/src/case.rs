//! A call from a file, with what it should give.

use crate::call::{Call, Input, Operation, Options};
use crate::error::{Error, Result};
use crate::format::File;
use crate::ops;
use crate::packing::{Packing, pairs};
use crate::table::{Argument, Role};
use crate::tensors::Tensors;
use serde_json::{Map, Value};
use statescan::tensor::Tensor;

/// A call and what it should give.
#[derive(Clone)]
pub struct Case {
    /// The call.
    pub call: Call,
    /// Expected results: canonical name, name in the file, elements.
    pub expected: Vec<(&'static str, String, Tensor)>,
    /// Cotangents of the results.
    pub cotangents: Tensors,
    /// Expected gradients: canonical name, name in the file, elements.
    pub gradients: Vec<(&'static str, String, Tensor)>,
}

/// What the metadata entry `case` says.
#[derive(Default)]
struct Description {
    op: Option<String>,
    complex: Vec<String>,
    args: Options,
}

impl Description {
    fn parse(text: Option<&String>) -> Result<Self> {
        let Some(text) = text else { return Ok(Self::default()) };
        let bad = |expected, got: &dyn ToString| Error::Metadata { expected, got: got.to_string() };
        let value: Value = serde_json::from_str(text).map_err(|e| bad("must be JSON", &e))?;
        let Value::Object(mut map) = value else { return Err(bad("must be a JSON object", &value)) };
        let op = match map.remove("op") {
            None => None,
            Some(Value::String(op)) => Some(op),
            Some(other) => return Err(bad("must have a name under `op`", &other)),
        };
        let complex = match map.remove("complex") {
            None => Vec::new(),
            Some(value) => {
                serde_json::from_value(value.clone()).map_err(|_| bad("must have a list of names under `complex`", &value))?
            }
        };
        let args = match map.remove("args") {
            None => Map::new(),
            Some(Value::Object(args)) => args,
            Some(other) => return Err(bad("must have an object under `args`", &other)),
        };
        Ok(Description { op, complex, args: args.into_iter().collect() })
    }
}

impl Case {
    /// A case without expectations.
    pub fn of(call: Call) -> Self {
        Case { call, expected: Vec::new(), cotangents: Tensors::default(), gradients: Vec::new() }
    }

    /// Reads a file's names. `asked` is the operation of the command, `options` override the file's, `complex` adds to its list.
    ///
    /// # Errors
    /// Unknown names, names that repeat, missing arguments, metadata that is no description, another operation than the one asked for,
    /// options of a wrong kind, arguments that the operation refuses.
    pub fn from_file(file: File, asked: Option<&'static dyn Operation>, options: &Options, complex: &[String]) -> Result<Self> {
        let mut description = Description::parse(file.metadata.get("case"))?;
        description.complex.extend_from_slice(complex);
        let op = match (description.op.as_deref(), asked) {
            (None, None) => return Err(Error::NoOperation),
            (None, Some(op)) => op,
            (Some(name), None) => ops::find(name)?,
            (Some(name), Some(op)) if name == op.name() => op,
            (Some(name), Some(op)) => return Err(Error::OtherOperation { file: name.to_string(), asked: op.name() }),
        };
        let wanted: Options = description.args.iter().chain(options).map(|(k, v)| (k.clone(), v.clone())).collect();
        let op = op.variant(&wanted).unwrap_or(op);
        let mut call = Call::new(op);
        call.set_all(&wanted)?;
        let (mut results, mut cotangents, mut gradients) = (Vec::new(), Vec::new(), Vec::new());
        for (key, buffer) in file.tensors {
            match key.split_once('.') {
                Some(("out", name)) => results.push((find_result(op, name)?, key.clone(), buffer)),
                Some(("cot", name)) => cotangents.push((find_result(op, name)?, key.clone(), buffer)),
                Some(("grad", name)) => gradients.push((find_argument(op, name)?, key.clone(), buffer)),
                Some(("in", name)) => add_input(&mut call, name, buffer, &description.complex)?,
                _ => add_input(&mut call, &key, buffer, &description.complex)?,
            }
        }
        // the table's order reads better than the alphabet
        let place = |argument: &Argument| op.arguments().iter().position(|a| std::ptr::eq(a, argument));
        call.inputs.sort_by_key(|i| place(i.argument));
        for argument in op.arguments().iter().filter(|a| a.required) {
            call.need(argument.name)?;
        }
        for input in &call.inputs {
            let (dtype, index) = (input.buffer.dtype(), input.argument.role == Role::Index);
            if dtype.is_index() != index {
                let expected = if index { "i32 or i64" } else { "floating-point numbers" };
                return Err(Error::DType { op: op.name(), argument: input.given.clone(), expected, got: dtype });
            }
        }
        op.normalise(&mut call)?;
        let mut case = Case::of(call);
        case.read_expectations(results, cotangents, gradients).map_err(|e| case.call.locate(e))?;
        Ok(case)
    }

    fn read_expectations(
        &mut self,
        results: Vec<(&'static str, String, Tensor)>,
        cotangents: Vec<(&'static str, String, Tensor)>,
        gradients: Vec<(&'static Argument, String, Tensor)>,
    ) -> Result<()> {
        let op = self.call.op;
        let planned = op.plan(&self.call, false)?;
        let fit = |name: &'static str, key: &str, buffer: Tensor| {
            let plan = planned.iter().find(|p| p.name == name);
            let plan = plan.ok_or_else(|| Error::UnknownName {
                op: op.name(),
                what: "result with these arguments:",
                got: key.to_string(),
                known: planned.iter().map(|p| p.name).collect::<Vec<_>>().join(", "),
            })?;
            fit_to(op.name(), key, buffer, &plan.shape, plan.dtype.is_complex(), Packing::Pair)
        };
        let mut seen: Vec<(&'static str, String)> = Vec::new();
        let mut once = |prefix: &'static str, name: &'static str, key: &str| {
            if let Some((_, first)) = seen.iter().find(|(n, k)| *n == name && k.starts_with(prefix)) {
                return Err(Error::Twice { op: op.name(), argument: name, first: first.clone(), second: key.to_string() });
            }
            seen.push((name, key.to_string()));
            Ok(())
        };
        for (name, key, buffer) in results {
            once("out", name, &key)?;
            let buffer = fit(name, &key, buffer)?;
            self.expected.push((name, key, buffer));
        }
        for (name, key, buffer) in cotangents {
            once("cot", name, &key)?;
            let buffer = fit(name, &key, buffer)?;
            self.cotangents.push(name, buffer);
        }
        for (argument, key, buffer) in gradients {
            once("grad", argument.name, &key)?;
            let input = self.call.input(argument.name);
            let input = input.ok_or_else(|| Error::Missing {
                op: op.name(),
                argument: argument.name,
                expected: format!("it beside its gradient `{key}`"),
                got: String::new(),
            })?;
            let is_complex = input.buffer.dtype().is_complex();
            let packing = if input.packing == Packing::Interleaved { Packing::Interleaved } else { Packing::Pair };
            let buffer = fit_to(op.name(), &key, buffer, &input.buffer.shape(), is_complex, packing)?;
            self.gradients.push((argument.name, key, buffer));
        }
        Ok(())
    }
}

/// A stored tensor in the form of the tensor it belongs to.
fn fit_to(op: &'static str, key: &str, buffer: Tensor, shape: &[usize], complex: bool, packing: Packing) -> Result<Tensor> {
    if buffer.dtype().is_index() {
        return Err(Error::DType { op, argument: key.to_string(), expected: "floating-point numbers", got: buffer.dtype() });
    }
    if buffer.shape()[..] == *shape {
        return Ok(buffer);
    }
    if complex && let Some(paired) = pairs(&buffer, packing).filter(|b| b.shape()[..] == *shape) {
        return Ok(paired);
    }
    let (expected, got) = (format!("{shape:?}{}", if complex { " (complex)" } else { "" }), format!("{:?}", &buffer.shape()[..]));
    Err(Error::Shape { op, argument: key.to_string(), expected, got })
}

fn find_result(op: &'static dyn Operation, name: &str) -> Result<&'static str> {
    let found = op.results().iter().find(|r| r.name == name || r.aliases.contains(&name));
    let known = || op.results().iter().map(|r| r.name).collect::<Vec<_>>().join(", ");
    found.map(|r| r.name).ok_or_else(|| Error::UnknownName {
        op: op.name(),
        what: "result",
        got: name.to_string(),
        known: known(),
    })
}

fn find_argument(op: &'static dyn Operation, name: &str) -> Result<&'static Argument> {
    let known = || op.arguments().iter().map(|a| a.name).collect::<Vec<_>>().join(", ");
    let found = op.arguments().iter().find(|a| a.is_called(name));
    found.ok_or_else(|| Error::UnknownName { op: op.name(), what: "argument", got: name.to_string(), known: known() })
}

fn add_input(call: &mut Call, given: &str, buffer: Tensor, complex: &[String]) -> Result<()> {
    let op = call.op;
    let argument = find_argument(op, given)?;
    if let Some(first) = call.input(argument.name) {
        let (first, second) = (first.given.clone(), given.to_string());
        return Err(Error::Twice { op: op.name(), argument: argument.name, first, second });
    }
    let shape = buffer.shape();
    let listed = complex.iter().any(|name| argument.is_called(name));
    // one axis more than any layout has, of two numbers, can only be a complex tensor
    let evident = argument.complex
        && shape.last() == Some(&2)
        && argument.layout(shape.len()).is_none()
        && argument.layout(shape.len() - 1).is_some();
    let (buffer, packing) = match (listed || evident) && !buffer.dtype().is_complex() {
        true => match pairs(&buffer, Packing::Pair) {
            Some(paired) => (paired, Packing::Pair),
            None => {
                let expected = "f32 or f64 with a trailing axis of 2 (it is listed as complex)".to_string();
                let got = format!("{} {:?}", buffer.dtype(), &shape[..]);
                return Err(Error::Shape { op: op.name(), argument: given.to_string(), expected, got });
            }
        },
        false => (buffer, Packing::Plain),
    };
    call.inputs.push(Input { argument, given: given.to_string(), packing, buffer, placed: None });
    Ok(())
}
