//! The faults of a file or an argument. Each reads as one sentence that names what was expected and what came.

mod format;

pub use format::{FormatError, MAX_HEADER};
use statescan::DType;
use std::path::PathBuf;

/// Why something could not be done.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library refused the arguments.
    #[error("{error}{}", alias_note(.alias))]
    Op {
        /// The library's error.
        #[source]
        error: Box<statescan::Error>,
        /// (the name in the message, the name in the file) where they differ.
        alias: Option<(&'static str, String)>,
    },
    /// A file is not in the format.
    #[error("{}: {error}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The fault of its contents.
        #[source]
        error: FormatError,
    },
    /// A case (names, options) in a file is not usable.
    #[error("{}: {error}", path.display())]
    Case {
        /// The file.
        path: PathBuf,
        /// The fault of the case.
        #[source]
        error: Box<Error>,
    },
    /// A file cannot be read or written.
    #[error("{}: cannot be {verb}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// `read` or `written`.
        verb: &'static str,
        /// The system's error.
        #[source]
        error: std::io::Error,
    },
    /// There is no such operation.
    #[error("unknown operation `{got}`: expected one of {known}")]
    UnknownOperation {
        /// The name that came.
        got: String,
        /// The names there are.
        known: String,
    },
    /// The file is of another operation.
    #[error("the file is a case of `{file}`, but `{asked}` was asked for")]
    OtherOperation {
        /// The operation of the file.
        file: String,
        /// The operation that was asked for.
        asked: &'static str,
    },
    /// Nothing says what the operation is.
    #[error("no operation: the metadata entry `case` is missing, expected JSON with a name under `op`")]
    NoOperation,
    /// The metadata is not what it should be.
    #[error("the metadata entry `case` {expected}, got {got}")]
    Metadata {
        /// The expected value, in words.
        expected: &'static str,
        /// The value that came.
        got: String,
    },
    /// A tensor has a name that means nothing here.
    #[error("{op}: unknown {what} `{got}`, expected one of {known}")]
    UnknownName {
        /// The operation.
        op: &'static str,
        /// Argument, result or option.
        what: &'static str,
        /// The name that came.
        got: String,
        /// The names there are.
        known: String,
    },
    /// Something is given twice under two names.
    #[error("{op}: `{argument}` is given twice, as `{first}` and as `{second}`")]
    Twice {
        /// The operation.
        op: &'static str,
        /// The canonical name.
        argument: &'static str,
        /// One of the names.
        first: String,
        /// The other one.
        second: String,
    },
    /// A required argument is not there.
    #[error("{op}: `{argument}` is missing, expected {expected}{}", got_note(.got))]
    Missing {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// Its shape, in letters.
        expected: String,
        /// The arguments that came.
        got: String,
    },
    /// An option has a value of a wrong kind.
    #[error("{op}: option `{option}` must be {expected}, got {got}")]
    OptionValue {
        /// The operation.
        op: &'static str,
        /// The option.
        option: String,
        /// The expected value, in words.
        expected: String,
        /// The value that came.
        got: String,
    },
    /// A storage type that the operation does not take there.
    #[error("{op}: `{argument}` must be {expected}, got {got}")]
    DType {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: String,
        /// The expected type, in words.
        expected: &'static str,
        /// The type that came.
        got: DType,
    },
    /// A tensor to compare with has another shape than the result.
    #[error("{op}: `{argument}` must have shape {expected}, got {got}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The tensor, with its prefix.
        argument: String,
        /// The shape it should have.
        expected: String,
        /// The shape that came.
        got: String,
    },
    /// More memory or work than is sensible.
    #[error("{op}: `{argument}` asks for {got}, and the limit is {limit}")]
    TooLarge {
        /// The operation.
        op: &'static str,
        /// The argument that is too large.
        argument: String,
        /// How large.
        got: String,
        /// The limit.
        limit: String,
    },
    /// Memory is refused.
    #[error("{what} need {bytes} bytes of memory, which the system does not give")]
    NoRoom {
        /// The part that needs it.
        what: &'static str,
        /// How much.
        bytes: u64,
    },
    /// The operation has no gradients.
    #[error("{op}: it is a step in place and has no gradients")]
    NoGradients {
        /// The operation.
        op: &'static str,
    },
}

fn alias_note(alias: &Option<(&'static str, String)>) -> String {
    alias.as_ref().map_or(String::new(), |(name, given)| format!(" (`{name}` is called `{given}` there)"))
}

fn got_note(got: &str) -> String {
    if got.is_empty() { String::new() } else { format!("; got {got}") }
}

impl From<statescan::Error> for Error {
    fn from(error: statescan::Error) -> Self {
        Error::Op { error: Box::new(error), alias: None }
    }
}

/// The argument that an error of the library is about.
pub(crate) fn argument_of(error: &statescan::Error) -> Option<&'static str> {
    use statescan::Error as E;
    match error {
        E::Rank { argument, .. }
        | E::Shape { argument, .. }
        | E::DType { argument, .. }
        | E::Device { argument, .. }
        | E::Stride { argument, .. }
        | E::Overlap { argument, .. }
        | E::Value { argument, .. }
        | E::Index { argument, .. }
        | E::Presence { argument, .. } => Some(argument),
        _ => None,
    }
}

/// A result with [`enum@Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;
