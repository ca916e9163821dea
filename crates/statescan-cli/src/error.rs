//! The faults of a command. Each reads as one sentence that names what was expected and what came.

/// Why a command could not do its work.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file, an argument or an option is not usable.
    #[error(transparent)]
    Case(#[from] statescan_cases::Error),
    /// A model's folder, a prompt or a state is not usable.
    #[error(transparent)]
    Model(#[from] statescan_models::Error),
    /// A file is there that somebody else has made.
    #[error("{}: it is there already; {instead}", path.display())]
    Exists {
        /// The file.
        path: std::path::PathBuf,
        /// The options that replace it, in words.
        instead: &'static str,
    },
    /// One of several texts is not usable.
    #[error("{name}: {source}")]
    Text {
        /// The file.
        name: String,
        /// The fault of the text.
        source: statescan_models::Error,
    },
    /// A file cannot be read, or text cannot be written.
    #[error("{name}: {source}")]
    Io {
        /// The file.
        name: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Contents that would be overwritten.
    #[error("{}: it has {has} ({name}); {instead}", path.display())]
    Occupied {
        /// The folder.
        path: std::path::PathBuf,
        /// Its contents, in words.
        has: &'static str,
        /// The file that says so.
        name: &'static str,
        /// The remedy, in words.
        instead: &'static str,
    },
    /// Somebody else writes there.
    #[error("{}: another process is writing this folder, wait for it or name another one", path.display())]
    Busy {
        /// The folder.
        path: std::path::PathBuf,
    },
    /// Standard output cannot be written.
    #[error("standard output: {0}")]
    Output(#[source] std::io::Error),
    /// Gradients of an operation that has none.
    #[error("{op}: it is a step in place and has no gradients, expected a command without --grad")]
    NoGradients {
        /// The operation.
        op: &'static str,
    },
    /// A command-line value that clap cannot judge.
    #[error("{option} must be {expected}, got `{got}`")]
    Usage {
        /// The option.
        option: &'static str,
        /// The expected value, in words.
        expected: &'static str,
        /// The value that came.
        got: String,
    },
}

impl From<statescan::Error> for Error {
    fn from(error: statescan::Error) -> Self {
        Error::Case(error.into())
    }
}

/// A result with [`enum@Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;
