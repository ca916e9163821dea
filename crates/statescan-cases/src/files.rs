//! Files of calls: reading them, and writing what `verify` reads.

use crate::call::Call;
use crate::case::Case;
use crate::error::{Error, Result};
use crate::format::{self, Entry};
use crate::ops::{self, Options};
use crate::packing::Packing;
use crate::tensors::Tensors;
use serde_json::json;
use statescan::ops::Operation;
use statescan::tensor::{MAX_RANK, Tensor};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// Reads a file of tensors, or standard input where it is `-`.
///
/// # Errors
/// Errors of the system; anything that is not the format.
pub fn read(path: &Path) -> Result<format::File> {
    let io = |error| Error::Io { path: path.to_path_buf(), verb: "read", error };
    let format = |error| Error::Format { path: path.to_path_buf(), error };
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map_err(io)?;
        return format::read(&bytes).map_err(format);
    }
    // looked at before it is opened, for a pipe would wait for somebody who writes it
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(io(std::io::Error::other("it is not a regular file; - reads standard input")));
    }
    let file = std::fs::File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    let mut reader = std::io::BufReader::with_capacity(1 << 20, file);
    format::read_from(&mut reader, length).map_err(format)
}

/// Reads a file as a case.
///
/// # Errors
/// As [`read`] and [`Case::from_file`].
pub fn read_case(path: &Path, op: Option<&'static Operation>, options: &Options, complex: &[String]) -> Result<Case> {
    let case = Case::from_file(read(path)?, op, options, complex);
    case.map_err(|error| Error::Case { path: path.to_path_buf(), error: Box::new(error) })
}

/// A tensor for a file, in the packing of the argument it belongs to.
pub fn entry<'a>(key: String, buffer: &'a Tensor, packing: Packing) -> Entry<'a> {
    let mut entry = Entry::new(key, buffer);
    if packing == Packing::Interleaved && buffer.dtype().is_complex() && entry.shape.len() > 1 {
        let pair = entry.shape.pop().unwrap_or(1);
        if let Some(last) = entry.shape.last_mut() {
            *last *= pair;
        }
    }
    debug_assert!(entry.shape.len() <= MAX_RANK + 1);
    entry
}

/// Writes results, cotangents and gradients, and the arguments if asked, as a file that `verify` reads.
///
/// # Errors
/// Errors of the system.
pub fn write_case(
    path: &Path,
    call: &Call,
    results: &Tensors,
    cotangents: &Tensors,
    gradients: &Tensors,
    with_inputs: bool,
) -> Result<()> {
    let (mut entries, mut complex) = (Vec::new(), Vec::new());
    for result in ops::results(call.op) {
        let given = call.given(result.name);
        for (prefix, tensors) in [("out", results), ("cot", cotangents)] {
            if let Some(buffer) = tensors.get(result.name) {
                entries.push(entry(format!("{prefix}.{given}"), buffer, Packing::Plain));
            }
        }
    }
    for input in &call.inputs {
        if input.buffer.dtype().is_complex() && input.packing != Packing::Interleaved {
            complex.push(input.given.clone());
        }
        if with_inputs {
            entries.push(entry(format!("in.{}", input.given), &input.buffer, input.packing));
        }
        if let Some(grad) = gradients.get(input.argument.name) {
            entries.push(entry(format!("grad.{}", input.given), grad, input.packing));
        }
    }
    let origin = format!("statescan {}", env!("CARGO_PKG_VERSION"));
    let case = json!({"op": call.op.signature.name, "origin": origin, "complex": complex, "args": call.options});
    let metadata = BTreeMap::from([("case".to_string(), case.to_string())]);
    format::write_file(path, &entries, &metadata).map_err(not_written(path))
}

/// Whether [`write_case`] can write a file there, which is better known before long work than after it. Nothing is left.
///
/// # Errors
/// Errors of the system.
pub fn check_output(path: &Path) -> Result<()> {
    format::try_file(path).map_err(not_written(path))
}

fn not_written(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    |error| Error::Io { path: path.to_path_buf(), verb: "written", error }
}
