//! A call from a file, with what it should give.

use crate::call::{Call, Input};
use crate::error::{Error, Result};
use crate::format::File;
use crate::ops::{self, Options};
use crate::packing::{Packing, pairs};
use crate::pass;
use crate::tensors::Tensors;
use serde_json::{Map, Value};
use statescan::ops::Operation;
use statescan::ops::signature::{Argument, Complex, Role};
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

/// The contents of the metadata entry `case`.
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

    /// The operation that a command asks for, or else that of the file.
    fn operation(&self, asked: Option<&'static Operation>) -> Result<&'static Operation> {
        match (self.op.as_deref(), asked) {
            (None, None) => Err(Error::NoOperation),
            (None, Some(op)) => Ok(op),
            (Some(name), None) => ops::find(name),
            (Some(name), Some(op)) if name == op.signature.name => Ok(op),
            (Some(name), Some(op)) => Err(Error::OtherOperation { file: name.to_string(), asked: op.signature.name }),
        }
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
    pub fn from_file(file: File, asked: Option<&'static Operation>, options: &Options, complex: &[String]) -> Result<Self> {
        let mut description = Description::parse(file.metadata.get("case"))?;
        description.complex.extend_from_slice(complex);
        let wanted: Options = description.args.iter().chain(options).map(|(k, v)| (k.clone(), v.clone())).collect();
        let op = description.operation(asked)?;
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
        // the signature's order reads better than the alphabet
        let place = |argument: &Argument| ops::arguments(op).position(|a| std::ptr::eq(a, argument));
        call.inputs.sort_by_key(|i| place(i.argument));
        check_inputs(&call)?;
        pair_interleaved(&mut call);
        let mut case = Case::of(call);
        case.read_expectations(results, cotangents, gradients)?;
        Ok(case)
    }

    fn read_expectations(
        &mut self,
        results: Vec<(&'static str, String, Tensor)>,
        cotangents: Vec<(&'static str, String, Tensor)>,
        gradients: Vec<(&'static Argument, String, Tensor)>,
    ) -> Result<()> {
        let op = self.call.op.signature.name;
        let planned = pass::plan(&self.call, false)?;
        let fit = |name: &'static str, key: &str, buffer: Tensor| {
            let plan = planned.iter().find(|p| p.name == name);
            let plan = plan.ok_or_else(|| Error::UnknownName {
                op,
                what: "result with these arguments:",
                got: key.to_string(),
                known: planned.iter().map(|p| p.name).collect::<Vec<_>>().join(", "),
            })?;
            fit_to(op, key, buffer, &plan.shape, plan.dtype.is_complex(), Packing::Pair)
        };
        let mut seen: Vec<(&'static str, String)> = Vec::new();
        let mut once = |prefix: &'static str, name: &'static str, key: &str| {
            if let Some((_, first)) = seen.iter().find(|(n, k)| *n == name && k.starts_with(prefix)) {
                return Err(Error::Twice { op, argument: name, first: first.clone(), second: key.to_string() });
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
                op,
                argument: argument.name,
                expected: format!("it beside its gradient `{key}`"),
                got: String::new(),
            })?;
            let is_complex = input.buffer.dtype().is_complex();
            let packing = if input.packing == Packing::Interleaved { Packing::Interleaved } else { Packing::Pair };
            let buffer = fit_to(op, &key, buffer, &input.buffer.shape(), is_complex, packing)?;
            self.gradients.push((argument.name, key, buffer));
        }
        Ok(())
    }
}

/// Whether all arguments are there that must be, integers where integers belong.
fn check_inputs(call: &Call) -> Result<()> {
    for argument in ops::arguments(call.op).filter(|argument| ops::is_required(call.op, argument)) {
        call.need(argument)?;
    }
    for input in &call.inputs {
        let (got, index) = (input.buffer.dtype(), input.argument.role == Role::Index);
        if got.is_index() != index {
            let expected = if index { "i32 or i64" } else { "floating-point numbers" };
            return Err(Error::DType { op: call.op.signature.name, argument: input.given.clone(), expected, got });
        }
    }
    Ok(())
}

/// Joins pairs: arguments that vary along the sequence and belong to complex weights may hold real and imaginary parts in turn
/// along the last axis.
fn pair_interleaved(call: &mut Call) {
    let Some(time) = ops::time(call.op) else { return };
    let steps = call.sizes().get(time);
    let complex: Vec<&str> = call.inputs.iter().filter(|i| i.buffer.dtype().is_complex()).map(|i| i.argument.name).collect();
    let belongs = |argument: &Argument| match argument.complex {
        Complex::As(names) => argument.role == Role::Activation && names.iter().any(|name| complex.contains(name)),
        _ => false,
    };
    for input in call.inputs.iter_mut().filter(|i| belongs(i.argument)) {
        let shape = input.buffer.shape();
        let varies = input.argument.layout(shape.len()).is_some_and(|layout| layout.ends_with(time));
        let twice = steps > 0 && shape.last() == Some(&(2 * steps));
        if let Some(paired) = (varies && twice).then(|| pairs(&input.buffer, Packing::Interleaved)).flatten() {
            (input.buffer, input.packing) = (paired, Packing::Interleaved);
        }
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

fn find_result(op: &Operation, name: &str) -> Result<&'static str> {
    let found = ops::results(op).find(|result| result.is_called(name));
    let known = || ops::results(op).map(|result| result.name).collect::<Vec<_>>().join(", ");
    let unknown = || Error::UnknownName { op: op.signature.name, what: "result", got: name.to_string(), known: known() };
    found.map(|result| result.name).ok_or_else(unknown)
}

fn find_argument(op: &Operation, name: &str) -> Result<&'static Argument> {
    let known = || ops::arguments(op).map(|argument| argument.name).collect::<Vec<_>>().join(", ");
    let unknown = || Error::UnknownName { op: op.signature.name, what: "argument", got: name.to_string(), known: known() };
    ops::argument(op, name).ok_or_else(unknown)
}

fn add_input(call: &mut Call, given: &str, buffer: Tensor, complex: &[String]) -> Result<()> {
    let (op, argument) = (call.op.signature.name, find_argument(call.op, given)?);
    if let Some(first) = call.input(argument.name) {
        let (first, second) = (first.given.clone(), given.to_string());
        return Err(Error::Twice { op, argument: argument.name, first, second });
    }
    let shape = buffer.shape();
    let listed = complex.iter().any(|name| argument.is_called(name));
    // one axis more than any layout has, of two numbers, can only be a complex tensor
    let evident = ops::may_be_complex(argument)
        && shape.last() == Some(&2)
        && argument.layout(shape.len()).is_none()
        && argument.layout(shape.len() - 1).is_some();
    let (buffer, packing) = match (listed || evident) && !buffer.dtype().is_complex() {
        true => match pairs(&buffer, Packing::Pair) {
            Some(paired) => (paired, Packing::Pair),
            None => {
                let expected = "f32 or f64 with a trailing axis of 2 (it is listed as complex)".to_string();
                let got = format!("{} {:?}", buffer.dtype(), &shape[..]);
                return Err(Error::Shape { op, argument: given.to_string(), expected, got });
            }
        },
        false => (buffer, Packing::Plain),
    };
    call.inputs.push(Input { argument, given: given.to_string(), packing, buffer, placed: None });
    Ok(())
}
