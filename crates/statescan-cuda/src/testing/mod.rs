//! Helpers of tests of kernels: compilation for every architecture, which needs NVRTC and no GPU, tensors that nobody reads, and
//! memory for tests that have a GPU.

mod device;
#[cfg(test)]
mod hopper;
mod suite;
#[cfg(test)]
mod tensor_cores;

pub use device::{download, gpu, upload, view};
pub use suite::{ARCHITECTURES, Suite};

use crate::{Layout, Scalar, nvrtc};
use core::ops::Deref;

/// A tensor by its numbers: what plans see of one, and nobody reads.
#[derive(Debug, Clone)]
pub struct Described {
    /// Its address.
    pub address: u64,
    /// The type of its elements.
    pub scalar: Scalar,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its strides in elements.
    pub strides: Vec<isize>,
    /// Whether the memory is a device's.
    pub on_cuda: bool,
}

impl Described {
    /// A dense tensor of an aligned address.
    pub fn dense(scalar: Scalar, shape: &[usize]) -> Self {
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis] as isize;
        }
        Self::strided(scalar, 0, shape, &strides)
    }

    /// A tensor that begins so many elements behind an aligned address.
    pub fn strided(scalar: Scalar, offset: usize, shape: &[usize], strides: &[isize]) -> Self {
        let address = (1 << 20) + (offset * scalar.size()) as u64;
        Described { address, scalar, shape: shape.to_vec(), strides: strides.to_vec(), on_cuda: true }
    }

    /// The tensor with its axes in another order.
    #[must_use]
    pub fn permute(&self, order: &[usize]) -> Self {
        let (shape, strides) = order.iter().map(|&axis| (self.shape[axis], self.strides[axis])).unzip();
        Described { shape, strides, ..self.clone() }
    }

    /// The tensor with an axis backwards.
    #[must_use]
    pub fn flip(&self, axis: usize) -> Self {
        let mut flipped = self.clone();
        let elements = (self.shape[axis].max(1) - 1) as i64 * self.strides[axis] as i64;
        flipped.address = self.address.wrapping_add_signed(elements * self.scalar.size() as i64);
        flipped.strides[axis] = -self.strides[axis];
        flipped
    }
}

impl Layout for Described {
    fn address(&self) -> u64 {
        self.address
    }
    fn scalar(&self) -> Scalar {
        self.scalar
    }
    fn shape(&self) -> impl Deref<Target = [usize]> {
        &*self.shape
    }
    fn strides(&self) -> impl Deref<Target = [isize]> {
        &*self.strides
    }
    fn is_on_cuda(&self) -> bool {
        self.on_cuda
    }
}

/// Whether NVRTC is there; without it the test says so, unless `STATESCAN_REQUIRE_NVRTC` is set.
///
/// # Panics
/// If it is not there and the variable is set.
pub fn ready() -> bool {
    match nvrtc::version() {
        Ok(_) => true,
        Err(error) if std::env::var_os("STATESCAN_REQUIRE_NVRTC").is_none() => {
            println!("skipped: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}
