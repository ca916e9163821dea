//! How complex tensors lie in files.

use statescan::DType;
use statescan::tensor::Tensor;

/// How a complex tensor lies in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// As it is: real, or of a complex type.
    Plain,
    /// A trailing axis of 2.
    Pair,
    /// Real and imaginary parts alternate along the last axis.
    Interleaved,
}

/// Pairs of real numbers as complex ones, if the type and the last axis allow it.
pub fn pairs(buffer: &Tensor, packing: Packing) -> Option<Tensor> {
    let dtype = match buffer.dtype() {
        DType::F32 => DType::Complex64,
        DType::F64 => DType::Complex128,
        _ => return None,
    };
    let mut shape = buffer.shape().to_vec();
    let last = shape.pop()?;
    match packing {
        Packing::Pair if last == 2 => {}
        Packing::Interleaved if last.is_multiple_of(2) => shape.push(last / 2),
        _ => return None,
    }
    let mut paired = Tensor::host(dtype, &shape).ok()?;
    let len = paired.bytes().len().min(buffer.bytes().len());
    paired.bytes_mut()[..len].copy_from_slice(&buffer.bytes()[..len]);
    Some(paired)
}
