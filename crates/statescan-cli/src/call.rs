//! A call in memory: an operation, named arguments, options.

use crate::error::{Error, Result, argument_of};
use crate::operation::{Argument, Operation, Role};
use serde_json::Value;
use statescan::cuda::DeviceTensor;
use statescan::tensor::Buffer;
use statescan::{DType, Exec, View, ViewMut};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Options by name, as JSON values.
pub type Options = BTreeMap<String, Value>;

/// How a complex tensor lies in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// As it is: real, or of a complex type.
    Plain,
    /// A trailing axis of 2.
    Pair,
    /// Real and imaginary parts alternate along the last axis.
    Interleaved,
}

/// One argument.
#[derive(Debug, Clone)]
pub struct Input {
    /// Which one.
    pub argument: &'static Argument,
    /// What the file calls it.
    pub given: String,
    /// How the file stores it.
    pub packing: Packing,
    /// Its elements.
    pub buffer: Buffer,
    /// A copy of them on a device, which passes read instead.
    pub placed: Option<Placed>,
}

/// A tensor in the memory of a device.
#[derive(Clone)]
pub struct Placed(Arc<DeviceTensor>);

impl fmt::Debug for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Placed({:?})", self.0.view())
    }
}

/// An operation with its arguments.
#[derive(Clone)]
pub struct Call {
    /// The operation.
    pub op: &'static dyn Operation,
    /// Its arguments.
    pub inputs: Vec<Input>,
    /// Its options.
    pub options: Options,
}

/// Tensors by canonical name.
#[derive(Default)]
pub struct Tensors(Vec<Tensor>);

struct Tensor {
    name: &'static str,
    buffer: Buffer,
    /// A copy on a device, which passes read and write instead.
    placed: Option<DeviceTensor>,
}

impl Tensor {
    fn writer(&mut self) -> (&'static str, ViewMut<'_>) {
        match &mut self.placed {
            Some(placed) => (self.name, placed.view_mut()),
            None => (self.name, self.buffer.view_mut()),
        }
    }
}

/// A copy is on the host.
impl Clone for Tensors {
    fn clone(&self) -> Self {
        Tensors(self.0.iter().map(|t| Tensor { name: t.name, buffer: t.buffer.clone(), placed: None }).collect())
    }
}

impl fmt::Debug for Tensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Tensors {
    /// Adds one.
    pub fn push(&mut self, name: &'static str, buffer: Buffer) {
        self.0.push(Tensor { name, buffer, placed: None });
    }
    /// One of them, as it is on the host.
    pub fn get(&self, name: &str) -> Option<&Buffer> {
        self.0.iter().find(|t| t.name == name).map(|t| &t.buffer)
    }
    /// One of them, as a view for a pass.
    pub fn view(&self, name: &str) -> Option<View<'_>> {
        let tensor = self.0.iter().find(|t| t.name == name)?;
        Some(tensor.placed.as_ref().map_or_else(|| tensor.buffer.view(), DeviceTensor::view))
    }
    /// All of them, as they are on the host.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Buffer)> {
        self.0.iter().map(|t| (t.name, &t.buffer))
    }
    /// Copies all of them to the executor's device.
    ///
    /// # Errors
    /// Memory that is not there.
    pub fn place(&mut self, exec: &Exec) -> Result<()> {
        for tensor in &mut self.0 {
            tensor.placed = Some(DeviceTensor::from_host(exec, &tensor.buffer.view())?);
        }
        Ok(())
    }
    /// Copies from the device what another collection has on the host.
    ///
    /// # Errors
    /// What the device says.
    pub fn fetch_into(&self, out: &mut Tensors) -> Result<()> {
        for target in &mut out.0 {
            let source = self.0.iter().find(|t| t.name == target.name && t.buffer.shape() == target.buffer.shape());
            if let Some(placed) = source.and_then(|t| t.placed.as_ref()) {
                placed.to_host(&mut target.buffer.view_mut())?;
            }
        }
        Ok(())
    }
    /// Overwrites one of them with the argument of the same name, for what is computed in place.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn copy_from(&mut self, name: &'static str, call: &Call) -> Result<()> {
        call.need(name)?;
        let source = call.input(name).map(|i| &i.buffer);
        let target = self.0.iter_mut().find(|t| t.name == name).map(|t| &mut t.buffer);
        if let (Some(source), Some(target)) = (source, target)
            && source.shape() == target.shape()
        {
            target.copy_from(&source.to_dense());
        }
        Ok(())
    }
    /// Writable views of all of them, to be taken by name.
    pub fn writers(&mut self) -> Writers<'_> {
        Writers(self.0.iter_mut().map(Tensor::writer).collect())
    }
    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.iter().map(|(_, b)| b.shape().iter().product::<usize>() * b.dtype().size()).sum()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Writable views by name.
pub struct Writers<'a>(Vec<(&'static str, ViewMut<'a>)>);

impl<'a> Writers<'a> {
    /// The view of a name, if there is one.
    pub fn take(&mut self, name: &str) -> Option<ViewMut<'a>> {
        let at = self.0.iter().position(|(n, _)| *n == name)?;
        Some(self.0.swap_remove(at).1)
    }
}

impl Call {
    /// A call without arguments yet.
    pub fn new(op: &'static dyn Operation) -> Self {
        Call { op, inputs: Vec::new(), options: Options::new() }
    }

    /// Adds an argument under its canonical name.
    ///
    /// # Panics
    /// If the operation has no such argument: samples are written with the table at hand.
    pub fn with(mut self, name: &str, buffer: Buffer) -> Self {
        let argument = self.op.arguments().iter().find(|a| a.is_called(name)).expect("an argument of the operation");
        self.inputs.push(Input { argument, given: argument.name.to_string(), packing: Packing::Plain, buffer, placed: None });
        self
    }

    /// Adds an option.
    pub fn set(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.options.insert(name.to_string(), value.into());
        self
    }

    /// Sets options under any of their names.
    ///
    /// # Errors
    /// [`Error::UnknownName`].
    pub fn set_all(&mut self, options: &Options) -> Result<()> {
        let op = self.op;
        for (name, value) in options {
            let setting = op.settings().iter().find(|s| s.name == name || s.aliases.contains(&name.as_str()));
            let known = || op.settings().iter().map(|s| s.name).collect::<Vec<_>>().join(", ");
            let unknown = || Error::UnknownName { op: op.name(), what: "option", got: name.clone(), known: known() };
            self.options.insert(setting.ok_or_else(unknown)?.name.to_string(), value.clone());
        }
        Ok(())
    }

    /// An argument, if it is there.
    pub fn input(&self, name: &str) -> Option<&Input> {
        self.inputs.iter().find(|i| i.argument.name == name)
    }

    /// An argument as a view for a pass, if it is there.
    pub fn view(&self, name: &str) -> Option<View<'_>> {
        self.input(name).map(|i| i.placed.as_ref().map_or_else(|| i.buffer.view(), |placed| placed.0.view()))
    }

    /// Copies the arguments to the executor's device.
    ///
    /// # Errors
    /// Memory that is not there.
    pub fn place(&mut self, exec: &Exec) -> Result<()> {
        for input in &mut self.inputs {
            input.placed = Some(Placed(Arc::new(DeviceTensor::from_host(exec, &input.buffer.view())?)));
        }
        Ok(())
    }

    /// An argument that must be there.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn need(&self, name: &'static str) -> Result<View<'_>> {
        self.view(name).ok_or_else(|| {
            let expected = self.op.arguments().iter().find(|a| a.name == name).map_or(String::new(), Argument::shapes);
            let got: Vec<_> = self.inputs.iter().map(|i| format!("`{}`", i.given)).collect();
            Error::Missing { op: self.op.name(), argument: name, expected, got: got.join(", ") }
        })
    }

    fn bad(&self, option: &str, expected: &'static str, got: &Value) -> Error {
        Error::OptionValue { op: self.op.name(), option: option.to_string(), expected, got: got.to_string() }
    }

    fn option(&self, name: &str) -> Option<&Value> {
        self.options.get(name).filter(|v| !v.is_null())
    }

    /// A flag; false where it is not given.
    ///
    /// # Errors
    /// [`Error::OptionValue`].
    pub fn flag(&self, name: &str) -> Result<bool> {
        self.flag_or(name, false)
    }

    /// A flag with another default.
    ///
    /// # Errors
    /// [`Error::OptionValue`].
    pub fn flag_or(&self, name: &str, default: bool) -> Result<bool> {
        self.option(name).map_or(Ok(default), |v| v.as_bool().ok_or_else(|| self.bad(name, "true or false", v)))
    }

    /// A count.
    ///
    /// # Errors
    /// [`Error::OptionValue`].
    pub fn count(&self, name: &str) -> Result<Option<usize>> {
        let read = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok());
        self.option(name).map(|v| read(v).ok_or_else(|| self.bad(name, "a whole number", v))).transpose()
    }

    /// An interval; `"inf"` and `"-inf"` are its infinite ends.
    ///
    /// # Errors
    /// [`Error::OptionValue`].
    pub fn interval(&self, name: &str) -> Result<Option<(f64, f64)>> {
        let end = |v: &Value| match v {
            Value::String(word) => word.parse().ok(),
            other => other.as_f64(),
        };
        let read = |v: &Value| match v.as_array().map(Vec::as_slice) {
            Some([low, high]) => end(low).zip(end(high)),
            _ => None,
        };
        self.option(name).map(|v| read(v).ok_or_else(|| self.bad(name, "two numbers, low and high", v))).transpose()
    }

    /// A word.
    ///
    /// # Errors
    /// [`Error::OptionValue`].
    pub fn word(&self, name: &str) -> Result<Option<&str>> {
        self.option(name).map(|v| v.as_str().ok_or_else(|| self.bad(name, "a word", v))).transpose()
    }

    /// A word that means a value.
    ///
    /// # Errors
    /// [`Error::OptionValue`].
    pub fn parsed<T: std::str::FromStr>(&self, name: &str, expected: &'static str, default: T) -> Result<T> {
        match (self.word(name)?, self.option(name)) {
            (Some(word), Some(value)) => word.parse().map_err(|_| self.bad(name, expected, value)),
            _ => Ok(default),
        }
    }

    /// Whether it scans backwards in time.
    pub fn reversed(&self) -> bool {
        self.flag("reverse").unwrap_or(false)
    }

    /// Whether a row holds several sequences.
    pub fn packed(&self) -> bool {
        self.inputs.iter().any(|i| i.argument.role == Role::Index)
    }

    /// Bytes of all arguments.
    pub fn bytes(&self) -> usize {
        self.inputs.iter().map(|i| i.buffer.shape().iter().product::<usize>() * i.buffer.dtype().size()).sum()
    }

    /// The storage type of the argument that varies along the sequence: what the call counts as.
    pub fn dtype(&self) -> DType {
        self.inputs
            .iter()
            .find(|i| i.argument.role == Role::Activation)
            .or(self.inputs.first())
            .map_or(DType::F32, |i| i.buffer.dtype().real())
    }

    /// Stores the arguments in another type: f32 and f64 for all; bf16 and f16 for what varies along the sequence, and f32 for the rest.
    pub fn cast(&mut self, dtype: DType) {
        for input in &mut self.inputs {
            let old = input.buffer.dtype();
            let new = match (old.is_index(), old.is_complex(), dtype, input.argument.role) {
                (true, ..) => old,
                (_, true, DType::F64, _) => DType::Complex128,
                (_, true, ..) => DType::Complex64,
                (_, _, DType::BF16 | DType::F16, Role::Parameter | Role::State | Role::Hint) => DType::F32,
                _ => dtype,
            };
            if new != old {
                input.buffer = Buffer::from_dense(&input.buffer.to_dense(), new);
            }
        }
    }

    /// Adds what the file calls the argument of a library's error.
    pub fn locate(&self, error: Error) -> Error {
        match error {
            Error::Op { error, alias: None } => {
                let alias = argument_of(&error).and_then(|name| {
                    let bare = name.strip_prefix("grad of ").unwrap_or(name);
                    let input = self.inputs.iter().find(|i| i.argument.is_called(bare))?;
                    (!input.given.eq_ignore_ascii_case(bare)).then(|| (name, input.given.clone()))
                });
                Error::Op { error, alias }
            }
            other => other,
        }
    }
}

/// A tensor of a type from real numbers.
///
/// # Errors
/// As [`Buffer::zeros`].
pub fn real(dtype: DType, shape: &[usize], mut value: impl FnMut() -> f64) -> Result<Buffer> {
    let mut buffer = Buffer::zeros(dtype, shape)?;
    buffer.fill_with(|| value().into());
    Ok(buffer)
}
