//! Test vectors: inputs, results and gradients from other people's reference functions, one safetensors file for each case.

use safetensors::{Dtype, SafeTensors};
use statescan::Tensor;
use statescan::tensor::{Dense, ErrorBound, max_errors};
use std::path::PathBuf;

/// The folder of the files: the one named by `STATESCAN_VECTORS`, or `shared/vectors` beside the workspace.
pub fn folder() -> PathBuf {
    match std::env::var_os("STATESCAN_VECTORS") {
        Some(folder) => folder.into(),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors"),
    }
}

/// The tensors of one case.
pub struct Case {
    name: String,
    bytes: Vec<u8>,
}

impl Case {
    /// Reads a case; without the file it says so and gives `None`.
    pub fn read(name: &str) -> Option<Self> {
        let path = folder().join(name).with_extension("safetensors");
        match std::fs::read(&path) {
            Ok(bytes) => Some(Case { name: name.to_owned(), bytes }),
            Err(error) => {
                println!("skipped: no test vector {name} ({error}); STATESCAN_VECTORS names their folder");
                None
            }
        }
    }

    /// One tensor of f32 elements, dense.
    pub fn tensor(&self, key: &str) -> Option<Tensor> {
        let file = SafeTensors::deserialize(&self.bytes).expect("a safetensors file");
        let tensor = file.tensor(key).ok()?;
        assert_eq!(tensor.dtype(), Dtype::F32, "{key}");
        let values: Vec<f32> = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let dense = Dense::from_slice(&values, tensor.shape()).unwrap();
        Some(Tensor::from_dense(&dense, statescan::DType::F32))
    }

    /// One tensor that must be there.
    pub fn need(&self, key: &str) -> Tensor {
        self.tensor(key).unwrap_or_else(|| panic!("{} has no {key}", self.name))
    }

    /// Fails unless `got` is as near to the tensor as two computations in single precision are: gradients ten times less so.
    #[track_caller]
    pub fn assert_close(&self, key: &str, got: &Dense) {
        let expected = self.need(key).to_dense();
        let factor = if key.starts_with("grad.") { 10.0 } else { 1.0 };
        let bound = ErrorBound { absolute: 1e-5 * factor, relative: 1e-4 * factor };
        assert_eq!(got.shape(), expected.shape(), "{} {key}: shape", self.name);
        let (absolute, relative, within) = max_errors(got.data(), expected.data(), bound);
        assert!(within, "{} {key}: error {absolute:.3e}, relative to the largest {relative:.3e}", self.name);
    }
}
