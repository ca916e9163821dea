//! Products of matrices by cuBLASLt.

use crate::{Result, Scalar, Stream};

/// Sizes and types of a product `y = x W^T`: what an algorithm is chosen by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Product {
    /// Rows of `x` and `y`.
    pub rows: usize,
    /// Columns of `x` and of the weights.
    pub inputs: usize,
    /// Rows of the weights, columns of `y`.
    pub outputs: usize,
    /// Type of weights and rows: f32, bf16 or f16.
    pub input: Scalar,
    /// Type of the results and of what is added: that of the rows, or f32.
    pub output: Scalar,
    /// Whether a bias is added.
    pub bias: bool,
    /// Whether weights and rows lie as their transposes.
    pub transposed: [bool; 2],
    /// From row to row of weights, rows and results, as they lie.
    pub pitches: [usize; 3],
    /// The alignment of their addresses, in bytes.
    pub aligned: [u32; 3],
    /// The alignment of the addend's address, in bytes.
    pub added_aligned: u32,
}

/// cuBLASLt on one stream. It is opened at run time, keeps 32 MiB of scratch memory, and the algorithm of each product that it has met.
#[cfg_attr(not(feature = "driver"), derive(Debug))]
pub struct Blaslt {
    #[cfg(feature = "driver")]
    library: crate::blaslt::Library,
    #[cfg(not(feature = "driver"))]
    absent: crate::absent::Absent,
}

#[cfg_attr(not(feature = "driver"), allow(unused_variables))]
impl Blaslt {
    /// Opens the library.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) without the library, [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn new(stream: &Stream) -> Result<Self> {
        driven! { stream => Ok(Blaslt { library: crate::blaslt::Library::new(stream)? }) }
    }

    /// Puts `y = factor x W^T (+ bias) (+ onto)` into the stream, with weights, rows, bias (or 0) and results at these addresses, and what they are added to,
    /// which lies as the results do, at another or the same one. Sums are f32.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) if the library has no algorithm for it; [`Error::Cuda`](crate::Error::Cuda).
    ///
    /// # Safety
    /// The addresses are valid for what the product says.
    pub unsafe fn multiply(&self, product: &Product, addresses: [u64; 4], factor: f32, onto: Option<u64>) -> Result<()> {
        // SAFETY: the caller's contract.
        driven! { self => unsafe { self.library.multiply(product, addresses, factor, onto) } }
    }
}

#[cfg(feature = "driver")]
impl core::fmt::Debug for Blaslt {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Blaslt")
    }
}
