//! An operation described once, as data: what it takes, what it gives, and how sizes hang together.
//!
//! Checks read the layouts, and whatever calls operations by name (the Python module, the program, tests that draw random calls) is driven by
//! the rest. A layout is a word of letters, one for each axis: `"BDL"` is (batch, dim, seqlen). The letters name the sizes of the call: the
//! same letter is the same size wherever it stands. A digit is the size itself.

mod facts;
mod named;

pub use facts::{Cost, Facts, Hardest, TensorCores, Terms};
use named::Named;
use std::borrow::Cow;

/// The most arguments of an operation.
pub const MAX_ARGUMENTS: usize = 14;
/// The most options of an operation.
pub const MAX_OPTIONS: usize = 6;
/// The most results of an operation.
const MAX_RESULTS: usize = 3;

/// The part that an argument plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Varies along the sequence: stored in the type of a model's activations.
    Activation,
    /// A weight.
    Parameter,
    /// A carried state. Where sequences are packed its leading axes are theirs.
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
    /// What errors call its gradient.
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

    /// The same under the name of a field of `Args`, and with the name of its gradient: `operation!` calls it.
    pub(crate) const fn field(mut self, field: &'static str, gradient_name: &'static str) -> Self {
        (self.field, self.gradient_name) = (field, gradient_name);
        if self.name.is_empty() {
            self.name = field;
        }
        self
    }

    /// The same with another name than that of its field.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// The same with names of other projects.
    pub const fn alias(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// The same, which must be there.
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// The same, which may be complex.
    pub const fn complex(mut self, complex: Complex) -> Self {
        self.complex = complex;
        self
    }

    /// The same state, whose gradient is complex where states are.
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

/// The layout of a rank among several.
fn layout_of(layouts: &'static [&'static str], rank: usize) -> Option<&'static str> {
    layouts.iter().find(|layout| layout.len() == rank).copied()
}

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
    /// What errors call its cotangent.
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

    /// The same under the name of a field of `Outputs`, and with the name of its cotangent: `operation!` calls it.
    pub(crate) const fn field(mut self, field: &'static str, cotangent_name: &'static str) -> Self {
        (self.name, self.cotangent_name) = (field, cotangent_name);
        self
    }

    /// The same with names of other projects.
    pub const fn alias(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// The same with another element type.
    pub const fn dtype(mut self, dtype: ResultType) -> Self {
        self.dtype = dtype;
        self
    }

    /// The same, which front ends leave out where an argument is not given.
    pub const fn beside(mut self, argument: &'static str) -> Self {
        self.beside = Some(argument);
        self
    }

    /// The same, which is complex in some calls or all.
    pub const fn complex(mut self, complex: Complex) -> Self {
        self.complex = complex;
        self
    }

    /// The same without a cotangent.
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

    /// The same under the name of a field of `Args`: `operation!` calls it.
    pub(crate) const fn field(mut self, field: &'static str) -> Self {
        self.name = field;
        self
    }

    /// The same with names of other projects.
    pub const fn alias(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }
}

/// What a forward pass keeps for the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Saved {
    /// Nothing.
    Nothing,
    /// A result, by its number.
    Result(usize),
    /// One state of this layout for each [`CHECKPOINT`](super::CHECKPOINT) steps, of real numbers in the carried type.
    States {
        /// The letters of one state.
        layout: &'static str,
        /// The letter whose size is filled up to whole vectors.
        padded: Option<char>,
        /// The letters of what is kept for every step besides, if something is.
        each_step: &'static str,
        /// Whether a number has two parts.
        complex: Complex,
        /// Whether kernels for CUDA keep them, too; they may compute them again.
        on_cuda: bool,
    },
}

/// How large the sizes of a call may be together.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// The sizes that multiply, in words.
    pub names: &'static str,
    /// The most bytes of scratch memory for each unit of their product, as a power of two.
    pub bytes: u32,
    /// Where so many are needed.
    pub what: &'static str,
}

/// An operation as data.
pub struct Signature {
    /// Its name.
    pub name: &'static str,
    /// What it computes, in a line.
    pub about: &'static str,
    /// The sizes that letters stand for.
    pub sizes: &'static [(char, &'static str)],
    /// The numbers of the arguments whose sizes count where others disagree, the first ones first.
    pub leaders: &'static [usize],
    /// Letters whose size each argument chooses for itself.
    pub free: &'static str,
    /// The letters of each form, where an operation has several: all arguments of a call have layouts of one form.
    pub forms: &'static [&'static str],
    /// Its arguments, in the order of calls by position.
    pub arguments: &'static [Argument],
    /// Its options, in the order of calls by position.
    pub options: &'static [OptionSpec],
    /// Its results.
    pub results: &'static [Output],
    /// The state that is updated in place, which is not among the arguments.
    pub in_place: Option<&'static Argument>,
    /// What a forward pass keeps.
    pub saved: Saved,
    /// The total decay in the [`Summary`](super::Summary) of a slice of time, for operations that have summaries: its layouts are the first letters
    /// of those of states.
    pub decay: Option<&'static Output>,
    /// Whether there is a backward pass.
    pub differentiable: bool,
    /// The limit of its sizes.
    pub limit: Limit,
    /// What is known of its calls.
    pub facts: Facts,
    /// Which arguments the results name, once [`Signature::resolved`] has looked: calls have no time for names.
    pub(crate) named: [Named; MAX_RESULTS],
}

impl core::fmt::Debug for Signature {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Signature({})", self.name)
    }
}

impl Signature {
    /// The same with what its results name.
    pub(crate) const fn resolved(mut self) -> Self {
        let mut at = 0;
        while at < self.results.len() {
            self.named[at] = Named::of(&self.results[at], self.arguments);
            at += 1;
        }
        self
    }

    /// The number of the argument that a name means.
    pub fn argument(&self, name: &str) -> Option<usize> {
        self.arguments.iter().position(|argument| argument.is_called(name))
    }

    /// The number of the option that a name means.
    pub fn option(&self, name: &str) -> Option<usize> {
        self.options.iter().position(|option| option.name == name || option.aliases.contains(&name))
    }

    /// What the size of a letter is called.
    pub fn size_name(&self, letter: char) -> &'static str {
        self.sizes.iter().find(|(known, _)| *known == letter).map_or("1", |(_, name)| name)
    }

    /// Layouts in words: `shape (batch, dim, seqlen) or (dim, dstate)`.
    pub fn shapes(&self, layouts: impl IntoIterator<Item = &'static str>) -> Cow<'static, str> {
        let one = |layout: &str| {
            let names: Vec<_> = layout.chars().map(|letter| self.size_name(letter)).collect();
            format!("({}{})", names.join(", "), if names.len() == 1 { "," } else { "" })
        };
        let all: Vec<_> = layouts.into_iter().map(one).collect();
        format!("shape {}", all.join(" or ")).into()
    }

    /// The form that a layout belongs to.
    pub(crate) fn form(&self, layout: &str) -> Option<&'static str> {
        self.forms.iter().find(|form| fits(layout, form)).copied()
    }
}

/// Whether a layout has letters of a form only.
pub(crate) fn fits(layout: &str, form: &str) -> bool {
    layout.bytes().all(|letter| letter.is_ascii_digit() || form.as_bytes().contains(&letter))
}

/// The sizes, letters and words that most operations share.
pub(crate) const BATCH: (char, &str) = ('B', "batch");
pub(crate) const DIM: (char, &str) = ('D', "dim");
pub(crate) const SEQLEN: (char, &str) = ('L', "seqlen");
pub(crate) const DSTATE: (char, &str) = ('N', "dstate");
pub(crate) const NGROUPS: (char, &str) = ('G', "ngroups");
pub(crate) const SEQUENCES: (char, &str) = ('S', "sequences");
pub(crate) const BOUNDS: (char, &str) = ('K', "sequences + 1");

/// The arguments that divide time: of operations that have `Args::sequences`.
pub(crate) mod sequences {
    use super::{Argument, index};

    /// The bounds of packed sequences.
    pub(crate) const CU_SEQLENS: Argument = index(&["K"]);
    /// The sequence of each step.
    pub(crate) const SEQ_IDX: Argument = index(&["BL"]);
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

/// What most scans are: differentiable, of one form.
pub(crate) const SCAN: Signature = Signature {
    name: "",
    about: "",
    sizes: &[],
    leaders: &[0],
    free: "",
    forms: &[],
    arguments: &[],
    options: &[],
    results: &[],
    in_place: None,
    saved: Saved::Nothing,
    decay: None,
    differentiable: true,
    limit: Limit { names: "", bytes: 0, what: "" },
    facts: Facts::NONE,
    named: [Named::NOTHING; MAX_RESULTS],
};
