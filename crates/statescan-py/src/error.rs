//! Errors of the library as Python exceptions that speak of Python's argument names and layouts.

use crate::ops::ssd::heads_first;
use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use statescan::Error;

pyo3::create_exception!(
    statescan._native,
    UnknownArgument,
    PyTypeError,
    "An argument of a kind that the native functions do not know, found before anything is written: a tensor whose memory cannot be \
     read as it lies (sparse, lazily conjugated, without data, on another device), or an option of another type. PyTorch's dispatcher \
     may know what to do with it."
);

/// What the argument is called in Python.
fn name_in_python(op: &str, argument: &'static str) -> &'static str {
    match argument {
        "sequences" => "cu_seqlens or seq_idx",
        "dt_a" | "delta_a" => "deltaA",
        "grad of dt_a" | "grad of delta_a" => "grad of deltaA",
        // only linear_scan has small letters
        _ if op == "linear_scan" => argument,
        "a" => "A",
        "b" => "B",
        "c" => "C",
        "d" => "D",
        "grad of a" => "grad of A",
        "grad of b" => "grad of B",
        "grad of c" => "grad of C",
        "grad of d" => "grad of D",
        _ => argument,
    }
}

/// The error with Python's names and, for SSD, with heads before time.
fn as_seen_from_python(mut error: Error) -> Error {
    match &mut error {
        Error::Rank { op, argument, got, .. } => {
            if *op == "ssd" {
                *got = heads_first(argument, *got);
            }
            *argument = name_in_python(op, argument);
        }
        Error::Shape { op, argument, expected, got } => {
            if *op == "ssd" {
                (*expected, *got) = (heads_first(argument, *expected), heads_first(argument, *got));
            }
            *argument = name_in_python(op, argument);
        }
        Error::Overlap { op, argument, other } => {
            (*argument, *other) = (name_in_python(op, argument), name_in_python(op, other));
        }
        Error::DType { op, argument, .. }
        | Error::Device { op, argument, .. }
        | Error::Stride { op, argument, .. }
        | Error::Value { op, argument, .. }
        | Error::Index { op, argument, .. }
        | Error::Presence { op, argument, .. } => *argument = name_in_python(op, argument),
        _ => {}
    }
    error
}

/// The exception for an error.
pub fn to_python(error: Error) -> PyErr {
    let error = as_seen_from_python(error);
    let words = error.to_string();
    match error {
        Error::DType { .. } => PyTypeError::new_err(words),
        Error::OutOfMemory { .. } => PyMemoryError::new_err(words),
        Error::Unavailable { .. } | Error::Cuda { .. } | Error::Compile { .. } => PyRuntimeError::new_err(words),
        _ => PyValueError::new_err(words),
    }
}
