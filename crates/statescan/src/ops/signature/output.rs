//! Results of operations.

use super::{Complex, layout_of};

/// The element type of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultType {
    /// The type of an argument, if it is real or complex as the result is; else the carried type.
    Of(&'static str),
    /// The type of the first of two arguments that is given.
    OfFirst(&'static str, &'static str),
    /// The common type of two arguments.
    Promoted(&'static str, &'static str),
    /// The type of carried values: `f32`, `f64` beside an argument in double precision, or their complex pairs.
    Carried(&'static str),
    /// The carried type beside the common type of two arguments.
    CarriedByBoth(&'static str, &'static str),
}

/// A result of an operation.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// Its name.
    pub name: &'static str,
    /// The name of its cotangent in errors.
    pub cotangent_name: &'static str,
    /// Its names in other projects.
    pub aliases: &'static [&'static str],
    /// The layouts that it may have, each of another rank (of each form).
    pub layouts: &'static [&'static str],
    /// Its element type.
    pub dtype: ResultType,
    /// Whether it is complex.
    pub complex: Complex,
    /// The argument whose shape it has; a result without one is a state.
    pub like: Option<&'static str>,
    /// The argument without which front ends leave it out.
    pub beside: Option<&'static str>,
    /// Whether the backward pass takes a cotangent of it.
    pub cotangent: bool,
}

impl Output {
    const fn new(dtype: ResultType, layouts: &'static [&'static str]) -> Self {
        let (name, complex) = ("", Complex::Never);
        Output { name, cotangent_name: name, aliases: &[], layouts, dtype, complex, like: None, beside: None, cotangent: true }
    }

    /// Sets the name to that of a field of `Outputs`, and the name of its cotangent: `operation!` calls it.
    pub(crate) const fn field(mut self, field: &'static str, cotangent_name: &'static str) -> Self {
        (self.name, self.cotangent_name) = (field, cotangent_name);
        self
    }

    /// Adds its names in other projects.
    pub const fn alias(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// Sets another element type.
    pub const fn dtype(mut self, dtype: ResultType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Makes front ends leave the result out where an argument is not given.
    pub const fn beside(mut self, argument: &'static str) -> Self {
        self.beside = Some(argument);
        self
    }

    /// Makes the result complex in some calls or all.
    pub const fn complex(mut self, complex: Complex) -> Self {
        self.complex = complex;
        self
    }

    /// Makes the result one without a cotangent.
    pub const fn constant(mut self) -> Self {
        self.cotangent = false;
        self
    }

    /// Whether a name means this result.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    /// The layout of a rank.
    pub fn layout(&self, rank: usize) -> Option<&'static str> {
        layout_of(self.layouts, rank)
    }
}

/// A real result of the shape and type of an argument.
pub(crate) const fn like(argument: &'static str, layouts: &'static [&'static str]) -> Output {
    Output { like: Some(argument), ..Output::new(ResultType::Of(argument), layouts) }
}

/// A real state in the carried type beside an argument.
pub(crate) const fn state_beside(argument: &'static str, layouts: &'static [&'static str]) -> Output {
    Output::new(ResultType::Carried(argument), layouts)
}
