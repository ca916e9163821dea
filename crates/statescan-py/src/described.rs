//! Tensors that are described, and are not there yet.

use crate::tensor::{DTYPES, Parts, too_many_axes, unknown_dtype};
use pyo3::prelude::*;
use statescan::Device;
use statescan::tensor::MAX_RANK;

/// A tensor by its type and shape.
#[pyclass(frozen, module = "statescan._native")]
pub struct Described {
    dtype: String,
    shape: Vec<usize>,
}

#[pymethods]
impl Described {
    #[new]
    fn new(dtype: String, shape: Vec<usize>) -> Self {
        Described { dtype, shape }
    }
}

/// The distance in bytes between the pretended addresses of a described call's tensors: nobody looks there.
pub const APART: usize = 1 << 56;

impl Described {
    /// The tensor, as if it were on a CUDA device, whose memory no check reads, and as if it were the call's with this number.
    pub fn parts(&self, argument: &str, number: usize, device: Device) -> PyResult<Parts> {
        let known = DTYPES.iter().find(|(name, _)| *name == self.dtype);
        let (_, dtype) = *known.ok_or_else(|| unknown_dtype(argument, &self.dtype))?;
        let rank = self.shape.len();
        if rank > MAX_RANK {
            return Err(too_many_axes(argument, rank));
        }
        let mut parts = Parts { address: APART * number, dtype, device, rank, shape: [1; MAX_RANK], strides: [1; MAX_RANK] };
        parts.shape[..rank].copy_from_slice(&self.shape);
        let mut stride = 1isize;
        for axis in (0..rank).rev() {
            parts.strides[axis] = stride;
            stride = stride.saturating_mul(parts.shape[axis].max(1) as isize);
        }
        Ok(parts)
    }
}
