//! Errors of the library as Python exceptions that speak of Python's argument names.

use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use statescan::Error;
use statescan::ops::operation::Operation;

pyo3::create_exception!(
    statescan._native,
    UnknownArgument,
    PyTypeError,
    "An argument of a kind that the native functions do not know, found before anything is written: a tensor whose memory cannot be \
     read as it lies (sparse, lazily conjugated, without data, on another device), or an option of another type. PyTorch's dispatcher \
     may know what to do with it."
);

/// The operation and the argument that an error is about.
fn subject(error: &Error) -> Option<(&'static str, &'static str)> {
    match *error {
        Error::Rank { op, argument, .. }
        | Error::Shape { op, argument, .. }
        | Error::DType { op, argument, .. }
        | Error::Device { op, argument, .. }
        | Error::Stride { op, argument, .. }
        | Error::Overlap { op, argument, .. }
        | Error::Value { op, argument, .. }
        | Error::Limits { op, argument, .. }
        | Error::Index { op, argument, .. }
        | Error::Presence { op, argument, .. } => Some((op, argument)),
        _ => None,
    }
}

/// Words with Python's names of element types.
fn with_types(words: &str) -> String {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let named = |word| match word {
        "f16" => "float16",
        "bf16" => "bfloat16",
        "f32" => "float32",
        "f64" => "float64",
        "i32" => "int32",
        "i64" => "int64",
        _ => word,
    };
    // each piece is a word and the sign behind it
    let pieces = words
        .split_inclusive(|letter| !is_part(letter))
        .map(|piece| piece.split_at(piece.trim_end_matches(|letter| !is_part(letter)).len()));
    pieces.flat_map(|(word, sign)| [named(word), sign]).collect()
}

/// The words of an error with Python's names for arguments and types.
pub fn in_python(error: &Error) -> String {
    let words = with_types(&error.to_string());
    let Some((op, argument)) = subject(error) else { return words };
    if argument == "sequences" {
        return words.replace("`sequences`", "`cu_seqlens or seq_idx`");
    }
    let Some(operation) = Operation::find(op) else { return words };
    // the words may name other arguments, too
    operation.signature.arguments.iter().filter(|known| known.name != known.field).fold(words, |words, known| {
        let in_python =
            |words: String, what: &str| words.replace(&format!("`{what}{}`", known.field), &format!("`{what}{}`", known.name));
        in_python(in_python(words, ""), "grad of ")
    })
}

/// The exception for an error.
pub fn to_python(error: Error) -> PyErr {
    let words = in_python(&error);
    match error {
        Error::DType { .. } => PyTypeError::new_err(words),
        Error::OutOfMemory { .. } => PyMemoryError::new_err(words),
        Error::Unavailable { .. } | Error::Cuda { .. } | Error::Compile { .. } => PyRuntimeError::new_err(words),
        _ => PyValueError::new_err(words),
    }
}
