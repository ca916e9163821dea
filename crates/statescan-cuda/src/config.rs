//! The configuration of a kernel: the constants that make its text specific. Small, printable, hashable.

use crate::Scalar;
use core::cell::Cell;
use core::fmt;
use core::hash::{Hash, Hasher};

/// The value of a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// A name of a type of elements.
    Type(Scalar),
    /// An `int`.
    Int(usize),
    /// A `bool`.
    Flag(bool),
    /// A variant of an enumeration in the text: its type and its name.
    Name(&'static str, &'static str),
}

type Line = (&'static str, Value);

thread_local! {
    /// The lines of the last configuration on this thread, for the memory that they have: one is made for nearly every launch.
    static SPARE: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Named constants in a fixed order.
#[derive(Debug, Clone)]
pub struct Config {
    lines: Vec<Line>,
}

impl Default for Config {
    fn default() -> Self {
        let mut lines = SPARE.take();
        lines.clear();
        Config { lines }
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        SPARE.set(core::mem::take(&mut self.lines));
    }
}

impl Config {
    /// Two configurations of a kernel have the same names: their values tell them apart.
    fn values(&self) -> impl Iterator<Item = Value> {
        self.lines.iter().map(|&(_, value)| value)
    }
}

impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        self.values().eq(other.values())
    }
}

impl Eq for Config {}

impl Hash for Config {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for value in self.values() {
            match value {
                Value::Int(value) => state.write_usize(value),
                Value::Type(scalar) => state.write_usize(scalar as usize),
                Value::Flag(flag) => state.write_usize(flag as usize),
                Value::Name(_, name) => state.write_usize(name.len() << 8 | usize::from(name.as_bytes()[0])),
            }
        }
    }
}

impl Config {
    /// Adds a constant; a program's configurations have the same names in the same order.
    pub fn set(mut self, name: &'static str, value: Value) -> Self {
        self.lines.push((name, value));
        self
    }

    /// Adds a type of elements.
    pub fn dtype(self, name: &'static str, scalar: impl Into<Scalar>) -> Self {
        self.set(name, Value::Type(scalar.into()))
    }

    /// Adds an `int`.
    pub fn int(self, name: &'static str, value: usize) -> Self {
        self.set(name, Value::Int(value))
    }

    /// Adds a `bool`.
    pub fn flag(self, name: &'static str, value: bool) -> Self {
        self.set(name, Value::Flag(value))
    }

    /// Adds the constants of something that kernels share.
    pub fn with(self, part: &impl Constants) -> Self {
        part.add_to(self)
    }
}

/// A part of a launch with constants of its own in the configurations of several kernels.
pub trait Constants {
    /// The configuration with these constants too.
    fn add_to(&self, config: Config) -> Config;
}

/// The constants as they stand in a program.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.lines {
            match value {
                Value::Type(scalar) => writeln!(f, "typedef {scalar} {name};")?,
                Value::Int(n) => writeln!(f, "constexpr int {name} = {n};")?,
                Value::Flag(flag) => writeln!(f, "constexpr bool {name} = {flag};")?,
                Value::Name(of, variant) => writeln!(f, "constexpr {of} {name} = {of}::{variant};")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TileCopy;

    #[test]
    fn constants_are_lines_of_the_program() {
        let config = Config::default()
            .dtype("X", Scalar::BF16)
            .int("STEPS", 32)
            .flag("HAS_Z", true)
            .set("X_COPY", TileCopy::Time.value())
            .set("METHOD", Value::Name("Discretization", "Zoh"));
        let expected = "typedef bf16 X;\nconstexpr int STEPS = 32;\nconstexpr bool HAS_Z = true;\nconstexpr Copy X_COPY = Copy::Time;\n\
                        constexpr Discretization METHOD = Discretization::Zoh;\n";
        assert_eq!(config.to_string(), expected);
    }
}
