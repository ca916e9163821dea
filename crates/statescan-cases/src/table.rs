//! What an operation takes and gives: names, layouts, parts, options.

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
