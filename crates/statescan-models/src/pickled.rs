//! Weights as PyTorch pickles them, `pytorch_model.bin`: of the program that a pickle is, only what makes tensors and dictionaries is known; nothing else
//! can be called, so that a file runs no code.

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
#[cfg(feature = "pytorch")]
use crate::guard::guarded;
use std::path::Path;

#[cfg(feature = "pytorch")]
impl Checkpoint {
    /// The tensors of one file, which are read into memory.
    pub(crate) fn add_pickled(&mut self, path: &Path) -> Result<()> {
        let bad = |why: String| Error::Format { path: path.to_owned(), expected: "a file of pickled tensors", why };
        let file = guarded(|| pytorch_reader::PytorchReader::new(path).map_err(|error| error.to_string()));
        let tensors = file.flatten().map_err(bad)?.into_tensors();
        let bytes = tensors.values().fold(0usize, |sum, tensor| sum.saturating_add(tensor.byte_len()));
        crate::memory::check(&path.display().to_string(), bytes)?;
        for (name, tensor) in tensors {
            let bytes = guarded(|| tensor.read().map_err(|error| error.to_string())).flatten().map_err(bad)?;
            self.insert(&name, path, (file_dtype(tensor.dtype()), tensor.shape()), bytes);
        }
        Ok(())
    }
}

#[cfg(not(feature = "pytorch"))]
impl Checkpoint {
    pub(crate) fn add_pickled(&mut self, path: &Path) -> Result<()> {
        let why = "this build cannot read pickled tensors, as it lacks the feature `pytorch` (cargo build --release --features pytorch)";
        Err(Error::Format { path: path.to_owned(), expected: "a safetensors file", why: why.into() })
    }
}

/// Returns this type in safetensors files.
#[cfg(feature = "pytorch")]
fn file_dtype(dtype: pytorch_reader::DType) -> safetensors::Dtype {
    use pytorch_reader::DType;
    use safetensors::Dtype;
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U16 => Dtype::U16,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}
