//! An operation described once, as data: what it takes, what it gives, and how sizes hang together.
//!
//! Checks read the layouts, and whatever calls operations by name (the Python module, the program, tests that draw random calls) is driven by
//! the rest. A layout is a word of letters, one for each axis: `"BDL"` is (batch, dim, seqlen). The letters name the sizes of the call: the
//! same letter is the same size wherever it stands. A digit is the size itself.

mod argument;
mod facts;
mod named;
mod option;
mod output;
mod sound;

pub use argument::{Argument, Complex, Role};
pub(crate) use argument::{activation, index, parameter, state};
pub use facts::{Cost, Facts, Hardest, TensorCores, Terms};
use named::Named;
pub use option::{Choice, OptionSpec};
pub(crate) use option::{DT_LIMIT, DT_SOFTPLUS, REVERSE, discretization};
pub use output::{Output, ResultType};
pub(crate) use output::{like, state_beside};
pub(crate) use sound::same;
use std::borrow::Cow;

/// The most arguments of an operation.
pub const MAX_ARGUMENTS: usize = 14;
/// The most options of an operation.
pub const MAX_OPTIONS: usize = 6;
/// The most results of an operation.
const MAX_RESULTS: usize = 3;

/// The values that a forward pass saves for the backward pass.
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
    /// The use of so many, in words.
    pub what: &'static str,
}

/// An operation as data.
pub struct Signature {
    /// Its name.
    pub name: &'static str,
    /// A description in one line.
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
    /// The values that a forward pass saves.
    pub saved: Saved,
    /// The total decay in the [`Summary`](super::Summary) of a slice of time, for operations that have summaries: its layouts are the first letters
    /// of those of states.
    pub decay: Option<&'static Output>,
    /// Whether there is a backward pass.
    pub differentiable: bool,
    /// The limit of its sizes.
    pub limit: Limit,
    /// Facts about its calls.
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
    /// Looks up the arguments that its results name. A table that is wrong does not compile.
    pub(crate) const fn resolved(mut self) -> Self {
        sound::check(&self);
        let mut at = 0;
        while at < self.results.len() {
            self.named[at] = Named::of(self.name, &self.results[at], self.arguments);
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

    /// Returns the name of a letter's size.
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

/// The layout of a rank among several.
fn layout_of(layouts: &'static [&'static str], rank: usize) -> Option<&'static str> {
    layouts.iter().find(|layout| layout.len() == rank).copied()
}

/// The sizes, letters and words that most operations share.
pub(crate) const BATCH: (char, &str) = ('B', "batch");
pub(crate) const DIM: (char, &str) = ('D', "dim");
pub(crate) const SEQLEN: (char, &str) = ('L', "seqlen");
pub(crate) const DSTATE: (char, &str) = ('N', "dstate");
pub(crate) const NGROUPS: (char, &str) = ('G', "ngroups");
pub(crate) const SEQUENCES: (char, &str) = ('S', "sequences");
/// The slots of a pool of states.
pub(crate) const SLOTS: (char, &str) = ('U', "slots");
pub(crate) const PIECES: (char, &str) = ('Q', "pieces");
pub(crate) const BOUNDS: (char, &str) = ('K', "sequences + 1");

/// The arguments that divide time: of operations that have `Args::sequences`.
pub(crate) mod sequences {
    use super::{Argument, index};

    /// The bounds of packed sequences.
    pub(crate) const CU_SEQLENS: Argument = index(&["K"]);
    /// The sequence of each step.
    pub(crate) const SEQ_IDX: Argument = index(&["BL"]);
}

/// The signature that most scans start from: differentiable, of one form.
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
