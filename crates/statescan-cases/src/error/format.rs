//! The faults of a file itself.

use safetensors::Dtype;
use statescan::tensor::MAX_RANK;

/// The longest header that is read.
pub const MAX_HEADER: u64 = 16 << 20;

/// The fault of a file.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The file ends early.
    #[error("not a safetensors file: expected at least {expected} bytes for {what}, got {got}")]
    Truncated {
        /// The part that does not fit.
        what: &'static str,
        /// The bytes needed.
        expected: u64,
        /// The bytes there are.
        got: u64,
    },
    /// The header is longer than is sensible.
    #[error("not a safetensors file: expected a header of at most {MAX_HEADER} bytes, got a length of {got}")]
    HeaderTooLong {
        /// The length it says it has.
        got: u64,
    },
    /// The header is not what it should be.
    #[error("not a safetensors file: the header must be JSON as the format describes, got one with {0}")]
    Header(String),
    /// A name stands twice in the header.
    #[error("the header must name each tensor once, got `{0}` twice")]
    Duplicate(String),
    /// The tensors do not cover the data.
    #[error("the tensors must cover the data exactly, which is {expected} bytes, got offsets up to {got}")]
    Coverage {
        /// Bytes after the header.
        expected: u64,
        /// The end of the last tensor.
        got: u64,
    },
    /// A storage type that no operation takes.
    #[error("tensor `{name}` must be f32, f64, bf16, f16, complex64, i32 or i64, got {got:?}")]
    DType {
        /// The tensor.
        name: String,
        /// Its type.
        got: Dtype,
    },
    /// More axes than a tensor can have.
    #[error("tensor `{name}` must have at most {MAX_RANK} axes, got {got}")]
    Rank {
        /// The tensor.
        name: String,
        /// Its number of axes.
        got: usize,
    },
    /// An empty tensor whose other axes are absurd.
    #[error("tensor `{name}` must have axes that fit a file of this length, got shape {shape:?}")]
    Empty {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Memory for the tensors is refused.
    #[error("its tensors need {bytes} bytes of memory, which the system does not give")]
    Memory {
        /// Their size.
        bytes: u64,
    },
    /// The system could not read on.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
}
