//! A call in memory: an operation, named arguments, options.

use crate::error::{Error, Result, argument_of};
use crate::ops::{self, Options};
use crate::options;
use crate::packing::Packing;
use crate::room::need;
use crate::sizes::Sizes;
use serde_json::Value;
use statescan::ops::signature::{Argument, Role};
use statescan::ops::{Operation, call};
use statescan::tensor::Tensor;
use statescan::{DType, Exec, View};
use std::sync::Arc;

/// One argument.
#[derive(Debug, Clone)]
pub struct Input {
    /// The argument, in the operation's signature.
    pub argument: &'static Argument,
    /// Its name in the file.
    pub given: String,
    /// How the file stores it.
    pub packing: Packing,
    /// Its elements.
    pub buffer: Tensor,
    /// A copy of them on a device, which passes read instead.
    pub placed: Option<Arc<Tensor>>,
}

impl Input {
    /// Its elements as a view for a pass.
    pub fn view(&self) -> View<'_> {
        self.placed.as_ref().map_or_else(|| self.buffer.view(), |placed| placed.view())
    }
}

/// An operation with its arguments.
#[derive(Debug, Clone)]
pub struct Call {
    /// The operation.
    pub op: &'static Operation,
    /// Its arguments.
    pub inputs: Vec<Input>,
    /// Its options.
    pub options: Options,
}

impl Call {
    /// A call without arguments yet.
    pub fn new(op: &'static Operation) -> Self {
        Call { op, inputs: Vec::new(), options: Options::new() }
    }

    /// Adds an argument under its canonical name.
    ///
    /// # Panics
    /// If the operation has no such argument: samples are written with the signature at hand.
    pub fn with(mut self, name: &str, buffer: Tensor) -> Self {
        let argument = ops::argument(self.op, name).expect("an argument of the operation");
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
        for (name, value) in options {
            self.options.insert(options::canonical_name(self.op, name)?, value.clone());
        }
        Ok(())
    }

    /// An argument, if it is there.
    pub fn input(&self, name: &str) -> Option<&Input> {
        self.inputs.iter().find(|i| i.argument.name == name)
    }

    /// The call as the library takes it: views by position, and values of options.
    ///
    /// # Errors
    /// [`Error::OptionValue`].
    pub fn bind(&self) -> Result<call::Call<'_>> {
        let signature = self.op.signature;
        let mut bound = call::Call::new(signature);
        for input in &self.inputs {
            match signature.arguments.iter().position(|argument| std::ptr::eq(argument, input.argument)) {
                Some(at) => bound.views[at] = Some(input.view()),
                None => bound.state = Some(input.view()),
            }
        }
        options::read(self.op, &self.options, &mut bound.values)?;
        Ok(bound)
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

    /// Whether an argument is there that must be.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn need(&self, argument: &Argument) -> Result<()> {
        if self.input(argument.name).is_some() {
            return Ok(());
        }
        let got: Vec<_> = self.inputs.iter().map(|i| format!("`{}`", i.given)).collect();
        let (op, expected) = (self.op.signature.name, ops::shapes(argument));
        Err(Error::Missing { op, argument: argument.name, expected, got: got.join(", ") })
    }

    /// Whether it scans backwards in time.
    pub fn reversed(&self) -> bool {
        self.options.get("reverse").and_then(Value::as_bool).unwrap_or(false)
    }

    /// Whether a row holds several sequences.
    pub fn packed(&self) -> bool {
        self.inputs.iter().any(|i| i.argument.role == Role::Index)
    }

    /// Whether every number of its arguments is finite.
    pub fn is_finite(&self) -> bool {
        self.inputs.iter().all(|input| input.buffer.to_dense().data().iter().all(|number| number.is_finite()))
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

    /// Returns the name of an argument or a result in the source of the call: who came with another project's names gets its
    /// names back.
    pub fn given<'a>(&'a self, name: &'a str) -> &'a str {
        if let Some(input) = self.input(name) {
            return &input.given;
        }
        let theirs = self.inputs.iter().any(|i| matches!(i.given.as_str(), "u" | "delta" | "delta_bias"));
        let result = ops::results(self.op).find(|result| theirs && result.name == name);
        result.and_then(|result| result.aliases.iter().find(|alias| alias.ends_with("state"))).map_or(name, |alias| *alias)
    }

    /// Number of steps.
    pub fn steps(&self) -> usize {
        ops::time(self.op).map_or(1, |letter| self.sizes().get(letter))
    }

    /// Bytes of all arguments.
    pub fn bytes(&self) -> usize {
        self.inputs.iter().map(|i| i.buffer.shape().iter().product::<usize>() * i.buffer.dtype().size()).sum()
    }

    /// The storage type of the argument that varies along the sequence, which gives the whole call its type.
    pub fn dtype(&self) -> DType {
        self.inputs
            .iter()
            .find(|i| i.argument.role == Role::Activation)
            .or(self.inputs.first())
            .map_or(DType::F32, |i| i.buffer.dtype().real())
    }

    /// Stores the arguments in another type: f32 and f64 for all; bf16 and f16 for what varies along the sequence, and f32 for the rest.
    ///
    /// # Errors
    /// [`Error::NoRoom`].
    pub fn cast(&mut self, dtype: DType) -> Result<()> {
        // all of them in their new type, and one in that of the oracle on the way
        let elements = |input: &Input| input.buffer.shape().iter().product::<usize>() as u64;
        let largest = self.inputs.iter().map(elements).max().unwrap_or(0);
        need("arguments in another type", 16 * largest + dtype.size() as u64 * self.inputs.iter().map(elements).sum::<u64>())?;
        for input in &mut self.inputs {
            let old = input.buffer.dtype();
            let new = match (old.is_index(), old.is_complex(), dtype, input.argument.role) {
                (true, ..) => old,
                (_, true, DType::F64, _) => DType::Complex128,
                (_, true, ..) => DType::Complex64,
                (_, _, DType::BF16 | DType::F16, Role::Parameter | Role::State) => DType::F32,
                _ => dtype,
            };
            if new != old {
                input.buffer = Tensor::from_dense(&input.buffer.to_dense(), new);
            }
        }
        Ok(())
    }

    /// An error of the library, with what the file calls the argument that it is about.
    pub fn locate(&self, error: statescan::Error) -> Error {
        let alias = argument_of(&error).and_then(|name| {
            let bare = name.strip_prefix("grad of ").unwrap_or(name);
            let input = self.inputs.iter().find(|i| i.argument.is_called(bare))?;
            (!input.given.eq_ignore_ascii_case(bare)).then(|| (name, input.given.clone()))
        });
        Error::Op { error: Box::new(error), alias }
    }
}
