//! What an operation is to this program: names, layouts and options in a table, and a few calls into the library.
//!
//! Everything else (reading files, checking, comparing, narrowing, timing, printing) is written once over this trait; an operation is one
//! adapter file in `ops/`.

use crate::call::{Call, Options, Tensors};
use crate::error::{Error, Result};
use crate::shapes::Sizes;
use statescan::tensor::{Dense, Shape};
use statescan::{DType, Exec};

/// What part an argument plays; it decides what `--dtype` changes and how samples are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Varies along the sequence: stored in the type of the model's activations.
    Activation,
    /// A weight.
    Parameter,
    /// A carried state.
    State,
    /// Integers: sequence bounds, indices.
    Index,
    /// Checked, and without influence on any result: it has no gradient.
    Hint,
}

/// An argument of an operation.
#[derive(Debug)]
pub struct Argument {
    /// Its name in files and tables.
    pub name: &'static str,
    /// Its names in other projects and in the library's messages.
    pub aliases: &'static [&'static str],
    /// The layouts it may have, one letter for each axis, each of another rank. The letters name the sizes.
    pub layouts: &'static [&'static str],
    /// Its part.
    pub role: Role,
    /// Whether it must be there.
    pub required: bool,
    /// Whether it may be complex.
    pub complex: bool,
}

impl Argument {
    const fn new(name: &'static str, layouts: &'static [&'static str], role: Role) -> Self {
        Argument { name, aliases: &[], layouts, role, required: false, complex: false }
    }
    /// An argument that varies along the sequence.
    pub const fn activation(name: &'static str, layouts: &'static [&'static str]) -> Self {
        Self::new(name, layouts, Role::Activation)
    }
    /// A weight.
    pub const fn parameter(name: &'static str, layouts: &'static [&'static str]) -> Self {
        Self::new(name, layouts, Role::Parameter)
    }
    /// A carried state.
    pub const fn state(name: &'static str, layouts: &'static [&'static str]) -> Self {
        Self::new(name, layouts, Role::State)
    }
    /// Integers.
    pub const fn index(name: &'static str, layouts: &'static [&'static str]) -> Self {
        Self::new(name, layouts, Role::Index)
    }
    /// Numbers that are checked only.
    pub const fn hint(name: &'static str, layouts: &'static [&'static str]) -> Self {
        Self::new(name, layouts, Role::Hint)
    }
    /// It must be there.
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }
    /// It may be complex.
    pub const fn or_complex(mut self) -> Self {
        self.complex = true;
        self
    }
    /// Other names of it.
    pub const fn alias(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }
    /// Whether a name means this argument.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
    /// The layout of a rank.
    pub fn layout(&self, rank: usize) -> Option<&'static str> {
        self.layouts.iter().find(|l| l.len() == rank).copied()
    }
    /// The layouts in words.
    pub fn shapes(&self) -> String {
        let one = |layout: &&str| {
            let letters: Vec<_> = layout.chars().map(String::from).collect();
            format!("({}{})", letters.join(", "), if letters.len() == 1 { "," } else { "" })
        };
        self.layouts.iter().map(one).collect::<Vec<_>>().join(" or ")
    }
}

/// A result of an operation.
#[derive(Debug)]
pub struct Named {
    /// Its name in files and tables.
    pub name: &'static str,
    /// Its names in other projects.
    pub aliases: &'static [&'static str],
    /// The layouts it may have, one letter for each axis, each of another rank.
    pub layouts: &'static [&'static str],
}

impl Named {
    /// The layout of a rank.
    pub fn layout(&self, rank: usize) -> Option<&'static str> {
        self.layouts.iter().find(|l| l.len() == rank).copied()
    }
}

/// An option: a scalar, a flag or a word.
#[derive(Debug)]
pub struct Setting {
    /// Its name in the metadata; `--a-b` on the command line is `a_b`.
    pub name: &'static str,
    /// Its names in other projects.
    pub aliases: &'static [&'static str],
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

/// The amount of work in a call, for throughputs and floors.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// Elements of the state times steps: the unit that times are divided by.
    pub state_steps: f64,
    /// Additions and multiplications.
    pub flops: f64,
    /// Exponentials.
    pub exps: f64,
}

impl Work {
    /// So many operations and exponentials for each state and step.
    pub fn per_state_step(state_steps: f64, flops: f64, exps: f64) -> Self {
        Work { state_steps, flops: flops * state_steps, exps: exps * state_steps }
    }
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

/// Every operation.
pub fn all() -> &'static [&'static dyn Operation] {
    &crate::ops::ALL
}

/// The operation of a name.
///
/// # Errors
/// [`Error::UnknownOperation`].
pub fn find(name: &str) -> Result<&'static dyn Operation> {
    all().iter().copied().find(|op| op.name() == name).ok_or_else(|| Error::UnknownOperation {
        got: name.to_string(),
        known: all().iter().map(|op| op.name()).collect::<Vec<_>>().join(", "),
    })
}
