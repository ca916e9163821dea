//! A call in memory: an operation, named arguments, options; and what an operation is to this crate.

use crate::error::{Error, Result, argument_of};
use crate::packing::Packing;
use crate::sizes::Sizes;
use crate::table::{Argument, Named, Role, Setting};
use crate::tensors::Tensors;
use crate::work::Work;
use serde_json::Value;
use statescan::tensor::{Dense, Shape, Tensor};
use statescan::{DType, Exec, View};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Options by name, as JSON values.
pub type Options = BTreeMap<String, Value>;

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
    pub buffer: Tensor,
    /// A copy of them on a device, which passes read instead.
    pub placed: Option<Arc<Tensor>>,
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

impl Call {
    /// A call without arguments yet.
    pub fn new(op: &'static dyn Operation) -> Self {
        Call { op, inputs: Vec::new(), options: Options::new() }
    }

    /// Adds an argument under its canonical name.
    ///
    /// # Panics
    /// If the operation has no such argument: samples are written with the table at hand.
    pub fn with(mut self, name: &str, buffer: Tensor) -> Self {
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
        self.input(name).map(|i| i.placed.as_ref().map_or_else(|| i.buffer.view(), |placed| placed.view()))
    }

    /// Copies the arguments to the executor's device.
    ///
    /// # Errors
    /// Memory that is not there.
    pub fn place(&mut self, exec: &Exec) -> Result<()> {
        for input in &mut self.inputs {
            input.placed = Some(Arc::new(input.buffer.to(exec)?));
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

    /// Whether it scans backwards in time.
    pub fn reversed(&self) -> bool {
        self.flag("reverse").unwrap_or(false)
    }

    /// Whether a row holds several sequences.
    pub fn packed(&self) -> bool {
        self.inputs.iter().any(|i| i.argument.role == Role::Index)
    }

    /// The size of each letter, from the first argument that has it.
    pub fn sizes(&self) -> Sizes {
        let mut sizes = Sizes::default();
        for input in &self.inputs {
            let shape = input.buffer.shape();
            for (letter, &size) in input.argument.layout(shape.len()).unwrap_or("").chars().zip(shape.iter()) {
                if !sizes.has(letter) {
                    sizes = sizes.with(letter, size);
                }
            }
        }
        sizes
    }

    /// Number of steps.
    pub fn steps(&self) -> usize {
        self.op.time().map_or(1, |letter| self.sizes().get(letter))
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
                input.buffer = Tensor::from_dense(&input.buffer.to_dense(), new);
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

/// What a result will be.
#[derive(Debug, Clone)]
pub struct Planned {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
}

/// Results in `f64`, by name.
pub type Exact = Vec<(&'static str, Dense)>;

/// One operation of the library.
pub trait Operation: Sync {
    /// Its name.
    fn name(&self) -> &'static str;
    /// What it computes, in a line.
    fn about(&self) -> &'static str;
    /// Its arguments.
    fn arguments(&self) -> &'static [Argument];
    /// Its results.
    fn results(&self) -> &'static [Named];
    /// Its options.
    fn settings(&self) -> &'static [Setting];
    /// The letters along which independent parts lie, the preferred ones first, each with the letter that is divided in proportion (groups).
    fn independent(&self) -> &'static [(char, Option<char>)];
    /// The same operation under a layout that an option chooses.
    fn variant(&self, _options: &Options) -> Option<&'static dyn Operation> {
        None
    }
    /// Letter of the time axis.
    fn time(&self) -> Option<char> {
        Some('L')
    }
    /// Whether it has a backward pass.
    fn differentiable(&self) -> bool {
        true
    }
    /// Brings arguments to the library's form (interleaved complex numbers).
    fn normalise(&self, _call: &mut Call) -> Result<()> {
        Ok(())
    }
    /// The results of a call. With `save`, also what the backward pass wants kept.
    fn plan(&self, call: &Call, save: bool) -> Result<Vec<Planned>>;
    /// Fills what a forward pass changes in place.
    fn prepare(&self, _call: &Call, _out: &mut Tensors) -> Result<()> {
        Ok(())
    }
    /// Elements of f32 that a forward pass wants as scratch memory, under the name `workspace`.
    fn workspace(&self, _exec: &Exec, _call: &Call) -> Result<usize> {
        Ok(0)
    }
    /// The same for a backward pass.
    fn workspace_backward(&self, _exec: &Exec, _call: &Call, _saved: &Tensors) -> Result<usize> {
        Ok(0)
    }
    /// Computes the results that `out` has room for.
    fn forward(&self, exec: &Exec, call: &Call, out: &mut Tensors) -> Result<()>;
    /// Computes the gradients that `grads` has room for; `saved` are the results of a forward pass.
    fn backward(&self, exec: &Exec, call: &Call, saved: &Tensors, cotangents: &Tensors, grads: &mut Tensors) -> Result<()>;
    /// The results in `f64`.
    fn reference(&self, call: &Call) -> Result<Exact>;
    /// The gradients in `f64`.
    fn reference_backward(&self, call: &Call, cotangents: &Tensors) -> Result<Exact>;
    /// Whether the backward pass takes a cotangent of a result.
    fn has_cotangent(&self, _result: &str) -> bool {
        true
    }
    /// What the oracle has to do, in state-steps.
    fn oracle_cost(&self, sizes: &Sizes) -> f64 {
        self.work(sizes).state_steps
    }
    /// Work of a forward pass.
    fn work(&self, sizes: &Sizes) -> Work;
    /// Work of a backward pass.
    fn work_backward(&self, sizes: &Sizes) -> Work;
    /// A small case made from a passage of text.
    fn sample(&self) -> Result<Call>;
    /// A case of chosen sizes with reproducible random numbers, as a model would see.
    fn random(&self, sizes: &Sizes, dtype: DType) -> Result<Call>;
    /// The shapes that `bench` times: a label and the sizes. The first is the quickest.
    fn bench(&self) -> Vec<(&'static str, Sizes)>;
}
