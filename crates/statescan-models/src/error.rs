//! The faults of a folder, a prompt or a state. Each reads as one sentence that names the file and what was expected.

use std::path::PathBuf;

/// Why a model could not be loaded or run.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A path must lead to a file, and does not.
    #[error("{}: it is {is}, expected a file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// The kind of thing that it is, in words.
        is: String,
    },
    /// More memory is needed than the system has.
    #[error("{what}: it needs {gigabytes:.1} GB of memory, which the system does not give")]
    NoRoom {
        /// The part that needs it.
        what: String,
        /// How much.
        gigabytes: f64,
    },
    /// A file is not what its name says.
    #[error("{}: it is not {expected}: {why}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The expected kind of file.
        expected: &'static str,
        /// The reader's reason.
        why: String,
    },
    /// A setting of the configuration is missing, or has a value that no model here has.
    #[error("{}: `{key}` must be {expected}, got {got}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The setting.
        key: &'static str,
        /// The expected value, in words.
        expected: &'static str,
        /// The value in the file.
        got: String,
    },
    /// A configuration that cannot be written as the settings of a package.
    #[error("{package} has no setting for `{key}` of this model: it must be {expected}, got {got}")]
    Inexpressible {
        /// The package.
        package: &'static str,
        /// The field of the configuration.
        key: &'static str,
        /// The expected value, in words.
        expected: &'static str,
        /// The field's value.
        got: String,
    },
    /// A state of another model.
    #[error("the state is that of another model on a device")]
    ForeignState,
    /// A call that is for one sequence got a state of several, or none.
    #[error("this call carries one sequence on, got a state of {got}")]
    Sequences {
        /// Sequences of the state.
        got: usize,
    },
    /// Tokens that are not as many for each sequence.
    #[error("there must be as many tokens for each of {sequences} sequences, got {tokens} in all")]
    Uneven {
        /// All tokens.
        tokens: usize,
        /// Sequences of the state.
        sequences: usize,
    },
    /// There is no such folder; it may be the name of a model on a hub.
    #[error(
        "{folder}: there is no such folder; nothing is downloaded here, but `hf download NAME --local-dir {folder}` gets a model of Hugging Face's hub",
        folder = path.display()
    )]
    NoFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A folder has no weights that can be read.
    #[error("{}: it has no model.safetensors, no pytorch_model.bin and no index of several such files", path.display())]
    NoWeights {
        /// The folder.
        path: PathBuf,
    },
    /// A tensor that the model needs is not there.
    #[error("{}: the tensor `{tensor}` is missing", path.display())]
    Missing {
        /// The folder, or the file that an index says has it.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor that the model does not have is there.
    #[error("{}: the tensor `{tensor}` is not part of a {model} model of this configuration", path.display())]
    Surplus {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The kind of model.
        model: &'static str,
    },
    /// A tensor has another shape than the configuration says.
    #[error("{}: the tensor `{tensor}` must have shape {expected:?}, got {got:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape that follows from the configuration.
        expected: Vec<usize>,
        /// The shape that it has.
        got: Vec<usize>,
    },
    /// A tensor has a type that weights are not read in.
    #[error("{}: the tensor `{tensor}` must be f32, bf16 or f16, got {got}", path.display())]
    DType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The type that it has.
        got: String,
    },
    /// A weight is NaN or infinite.
    #[error("{}: the tensor `{tensor}` must be finite, got {got} at element {position}", path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The value.
        got: f64,
        /// Its position in row-major order.
        position: usize,
    },
    /// A weight is beyond the numbers of the type that it is to be written in.
    #[error("{}: the tensor `{tensor}` cannot be written in {dtype}, which does not reach {got} at element {position}", path.display())]
    Range {
        /// The folder.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The type.
        dtype: statescan::DType,
        /// The value.
        got: f64,
        /// Its position in row-major order.
        position: usize,
    },
    /// The head of a tied model is not its embedding.
    #[error("{}: the configuration ties the head to the embedding, but the tensor `lm_head.weight` is another", path.display())]
    Untied {
        /// The file.
        path: PathBuf,
    },
    /// A token that the model has no embedding of.
    #[error("token {token} at position {position} must be less than the model's vocabulary of {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// Its index among the tokens given.
        position: usize,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A text has no token that could be guessed from one before it.
    #[error("a text must have at least two tokens, so that one can be guessed from the other, got {got}")]
    NothingToGuess {
        /// Tokens of the text.
        got: usize,
    },
    /// There is nothing to go on from.
    #[error("a prompt must have at least one token")]
    EmptyPrompt,
    /// A state is not one of this model's.
    #[error("{what}: the state's `{tensor}` must have shape {expected:?}, got {got:?}: it is of another model")]
    State {
        /// The source of the state.
        what: String,
        /// Its part.
        tensor: String,
        /// The shape that the model's states have.
        expected: Vec<usize>,
        /// The shape that it has.
        got: Vec<usize>,
    },
    /// A state is one of another kind of model, or of other sizes.
    #[error("{what}: the state's `{key}` must be {expected}, got {got}: it is of another model")]
    OtherModel {
        /// The source of the state.
        what: String,
        /// The setting of the configuration in which the models differ.
        key: &'static str,
        /// The setting of this model.
        expected: String,
        /// The setting of the state's model.
        got: String,
    },
    /// A pass gave numbers that are NaN, infinite or too large for the norm behind them: the state has no use then.
    #[error("{part} gives {got} at step {step}: the model's weights, or its state, are too large for it")]
    Overflow {
        /// The layer that gave them, or the head.
        part: String,
        /// Tokens that were read before the one that it happened at.
        step: u64,
        /// The number.
        got: f32,
    },
    /// Nothing can be drawn from logits.
    #[error("logits to draw from must be finite or -inf, at least one of them finite, got {got}")]
    Logits {
        /// The numbers among the logits that are none to draw from, in words.
        got: String,
    },
    /// More steps are to be taken back than were taken.
    #[error("{steps} steps cannot be taken back, as there were only {taken}")]
    Rollback {
        /// Steps to take back.
        steps: usize,
        /// Steps that were taken.
        taken: usize,
    },
    /// An argument of a layer has another number of elements than its shape has.
    #[error("{layer}: `{argument}` must be {shape}, {expected} elements, got {got}")]
    Size {
        /// The layer.
        layer: &'static str,
        /// The argument.
        argument: &'static str,
        /// Its shape.
        shape: &'static str,
        /// Elements that it must have.
        expected: usize,
        /// Elements that it has.
        got: usize,
    },
    /// Sizes of a configuration do not fit together.
    #[error("configuration: `{key}` must be {expected}, got {got}")]
    Sizes {
        /// The setting.
        key: &'static str,
        /// The expected value, in words.
        expected: &'static str,
        /// The value.
        got: usize,
    },
    /// Tokens to learn from are not whole rows.
    #[error("tokens to learn from must be whole rows of {seqlen} + 1, at least one, got {got} tokens")]
    Rows {
        /// Tokens that are read in a row.
        seqlen: usize,
        /// Number of tokens.
        got: usize,
    },
    /// A text is too short to learn from.
    #[error("the text must have at least {least} {unit}s, which is ten rows and what follows each, got {got}")]
    TooShort {
        /// The fewest that it must have.
        least: usize,
        /// The unit of the count.
        unit: &'static str,
        /// How many it has.
        got: usize,
    },
    /// A training has come to numbers that nothing can be learned from.
    #[error("the loss of step {step} is {got}, so nothing can be learned any more: a rate below {rate} may keep it finite")]
    Diverged {
        /// The step, counted from 1.
        step: usize,
        /// Its loss.
        got: f64,
        /// The highest learning rate.
        rate: f64,
    },
    /// A setting of training is out of range.
    #[error("`{setting}` must be {expected}, got {got}")]
    Training {
        /// The setting.
        setting: &'static str,
        /// The expected value, in words.
        expected: &'static str,
        /// The value.
        got: f64,
    },
    /// Whoever was told of the progress did not want to go on.
    #[error("it was interrupted")]
    Interrupted,
    /// A setting of sampling is out of range.
    #[error("`{setting}` must be {expected}, got {got}")]
    Sampling {
        /// The setting.
        setting: &'static str,
        /// The expected value, in words.
        expected: &'static str,
        /// The value.
        got: f64,
    },
    /// A text is to become the tokens of a tokenizer, and is none.
    #[error("the text must be UTF-8, which it is not from byte {at} on")]
    NotText {
        /// The first byte that is part of no character.
        at: usize,
    },
    /// A folder has no tokenizer, and needs one.
    #[error(
        "{}: it has no tokenizer.json{beside}; name the folder of a tokenizer, which AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER) writes",
        path.display()
    )]
    NoTokenizer {
        /// The folder.
        path: PathBuf,
        /// A further reason, in words, or nothing.
        beside: String,
    },
    /// Text cannot become tokens, or tokens text.
    #[error("{}: {why}", path.display())]
    Tokenizer {
        /// The file, or the folder that lacks one.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// An operation refused a call.
    #[error(transparent)]
    Compute(#[from] statescan::Error),
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        |source| Error::Io { path, source }
    }
}

/// A result with [`enum@Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;
