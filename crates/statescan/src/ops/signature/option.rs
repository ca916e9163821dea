//! Options of operations, and those that most of them share.

/// The values that an option takes, with the default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choice {
    /// Yes or no.
    Flag(bool),
    /// A whole number, at least 1.
    Count(usize),
    /// Any number.
    Number(f64),
    /// Lowest and highest value; without limits by default.
    Interval,
    /// One of these words; the number of the default, or none.
    Word(&'static [&'static str], Option<usize>),
}

/// An option of an operation.
#[derive(Debug)]
pub struct OptionSpec {
    /// Its name.
    pub name: &'static str,
    /// Its names in other projects.
    pub aliases: &'static [&'static str],
    /// Its values.
    pub choice: Choice,
}

impl OptionSpec {
    /// An option, which has the name of its field in the table of its operation.
    pub(crate) const fn new(choice: Choice) -> Self {
        OptionSpec { name: "", aliases: &[], choice }
    }

    /// Sets the name to that of a field of `Args`: `operation!` calls it.
    pub(crate) const fn field(mut self, field: &'static str) -> Self {
        self.name = field;
        self
    }

    /// Adds its names in other projects.
    pub const fn alias(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }
}

/// Whether step sizes go through softplus.
pub(crate) const DT_SOFTPLUS: OptionSpec = OptionSpec::new(Choice::Flag(false)).alias(&["delta_softplus"]);
/// Limits of step sizes.
pub(crate) const DT_LIMIT: OptionSpec = OptionSpec::new(Choice::Interval);
/// The direction of time.
pub(crate) const REVERSE: OptionSpec = OptionSpec::new(Choice::Flag(false));

/// How (A, B) become a recurrence: the words are [`Discretization::ALL`](super::Discretization::ALL).
pub(crate) const fn discretization(default: usize) -> OptionSpec {
    OptionSpec::new(Choice::Word(&["mamba", "zoh", "bilinear", "dirac"], Some(default)))
}
