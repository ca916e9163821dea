//! Arguments of operations.

use super::layout_of;

/// The part that an argument plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Varies along the sequence: stored in the type of a model's activations.
    Activation,
    /// A weight.
    Parameter,
    /// A carried state. Its leading axes are those of the sequences if these are packed.
    State,
    /// Integers: sequence bounds, indices.
    Index,
}

/// Whether numbers may be, or are, complex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Complex {
    /// Real.
    Never,
    /// Real or complex, as the caller likes; of a result: complex.
    Always,
    /// As one of these arguments is; an argument itself may be real all the same.
    As(&'static [&'static str]),
    /// Unless this argument is given.
    Without(&'static str),
}

/// An argument of an operation.
#[derive(Debug, Clone, Copy)]
pub struct Argument {
    /// Its name in papers, in Python and in files.
    pub name: &'static str,
    /// Its name in `Args` and in errors.
    pub field: &'static str,
    /// The name of its gradient in errors.
    pub gradient_name: &'static str,
    /// Its names in other projects.
    pub aliases: &'static [&'static str],
    /// The layouts that it may have, each of another rank (of each form).
    pub layouts: &'static [&'static str],
    /// Its part.
    pub role: Role,
    /// Whether it must be there.
    pub required: bool,
    /// Whether it may be complex.
    pub complex: Complex,
    /// Whether the backward pass has a gradient of it.
    pub gradient: bool,
    /// Whether the gradient of a state is complex where states are, even beside a real state.
    pub carried_gradient: bool,
}

impl Argument {
    const fn new(layouts: &'static [&'static str], role: Role, gradient: bool) -> Self {
        let (name, complex) = ("", Complex::Never);
        Argument {
            name,
            field: name,
            gradient_name: name,
            aliases: &[],
            layouts,
            role,
            required: false,
            complex,
            gradient,
            carried_gradient: false,
        }
    }

    /// Sets the name to that of a field of `Args`, and the name of its gradient: `operation!` calls it.
    pub(crate) const fn field(mut self, field: &'static str, gradient_name: &'static str) -> Self {
        (self.field, self.gradient_name) = (field, gradient_name);
        if self.name.is_empty() {
            self.name = field;
        }
        self
    }

    /// Sets a name other than that of its field.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// Adds its names in other projects.
    pub const fn alias(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// Makes the argument required.
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Allows complex elements.
    pub const fn complex(mut self, complex: Complex) -> Self {
        self.complex = complex;
        self
    }

    /// Makes the gradient of a state complex where states are.
    pub const fn carried_gradient(mut self) -> Self {
        self.carried_gradient = true;
        self
    }

    /// Whether it is a state.
    pub fn is_state(&self) -> bool {
        self.role == Role::State
    }

    /// Whether a name means this argument.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.field == name || self.aliases.contains(&name)
    }

    /// The layout of a rank.
    pub fn layout(&self, rank: usize) -> Option<&'static str> {
        layout_of(self.layouts, rank)
    }
}

/// An optional real argument that varies along the sequence; as the others, it has the name of its field in the table of its operation.
pub(crate) const fn activation(layouts: &'static [&'static str]) -> Argument {
    Argument::new(layouts, Role::Activation, true)
}

/// An optional real weight.
pub(crate) const fn parameter(layouts: &'static [&'static str]) -> Argument {
    Argument::new(layouts, Role::Parameter, true)
}

/// An optional real state.
pub(crate) const fn state(layouts: &'static [&'static str]) -> Argument {
    Argument::new(layouts, Role::State, true)
}

/// Optional integers.
pub(crate) const fn index(layouts: &'static [&'static str]) -> Argument {
    Argument::new(layouts, Role::Index, false)
}
