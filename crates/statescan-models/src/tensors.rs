//! [`Tensors`]: parameters, gradients and moments, in f32 and by name.

use crate::error::{Error, Result};
use crate::weight::{Weight, file_dtype};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use statescan::DType;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// A tensor of f32 that the process owns, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Sizes of the axes.
    pub shape: Vec<usize>,
    /// Elements.
    pub data: Vec<f32>,
}

impl Array {
    /// Returns an array of this shape, all zero.
    pub(crate) fn zeros_like(&self) -> Self {
        Array { shape: self.shape.clone(), data: vec![0.0; self.data.len()] }
    }

    /// Adds the numbers of another one of the same shape.
    pub(crate) fn add(&mut self, more: &Array) {
        self.data.iter_mut().zip(&more.data).for_each(|(sum, x)| *sum += x);
    }
}

/// Tensors by their names in checkpoints, in the order of names.
pub type Tensors = BTreeMap<String, Array>;

/// Tensors of the same names and shapes, all zero.
pub(crate) fn zeros_like(tensors: &Tensors) -> Tensors {
    tensors.iter().map(|(name, array)| (name.clone(), array.zeros_like())).collect()
}

/// The bytes of a safetensors file of tensors, some of them under prefixes, in a type of weights.
pub(crate) fn to_bytes(groups: &[(&str, &Tensors)], dtype: DType, metadata: Option<HashMap<String, String>>) -> Result<Vec<u8>> {
    let mut weights = Vec::new();
    for (prefix, tensors) in groups {
        for (name, array) in *tensors {
            weights.push((format!("{prefix}{name}"), Weight::rounded(&array.data, dtype, &array.shape)?));
        }
    }
    let views = weights.iter().map(|(name, weight)| {
        let dtype = file_dtype(weight.dtype()).expect("a type of weights");
        let view = TensorView::new(dtype, weight.shape().to_vec(), weight.bytes());
        (name, view.expect("as many bytes as the shape has"))
    });
    Ok(safetensors::serialize(views, metadata).expect("names and shapes that the format has"))
}

/// The tensors of a file under a prefix, which must have the names and shapes of others.
pub(crate) fn from_file(file: &SafeTensors<'_>, path: &Path, prefix: &str, like: &Tensors) -> Result<Tensors> {
    let read = |(name, array): (&String, &Array)| {
        let view = check_tensor(file, path, &format!("{prefix}{name}"), &array.shape)?;
        let data = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        Ok((name.clone(), Array { shape: array.shape.clone(), data }))
    };
    like.iter().map(read).collect()
}

/// A tensor of a file, which must be there, of a shape and in f32.
pub(crate) fn check_tensor<'f>(file: &SafeTensors<'f>, path: &Path, tensor: &str, shape: &[usize]) -> Result<TensorView<'f>> {
    let (path, tensor) = (path.to_owned(), tensor.to_owned());
    let Ok(view) = file.tensor(&tensor) else { return Err(Error::Missing { path, tensor }) };
    if view.shape() != shape {
        return Err(Error::Shape { path, tensor, expected: shape.to_vec(), got: view.shape().to_vec() });
    }
    if view.dtype() != Dtype::F32 {
        return Err(Error::DType { path, tensor, got: format!("{:?}", view.dtype()).to_lowercase() });
    }
    Ok(view)
}
