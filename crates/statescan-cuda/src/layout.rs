//! Tensors as kernels see them.

use crate::{Address, Scalar, params};
use core::ffi::c_void;
use core::ops::Deref;

/// A tensor in a device's memory: where it begins, what its elements are and how they lie. Plans and launches ask for no more of a tensor, so any
/// library's tensors can be given to kernels. Nothing is read through it.
pub trait Layout {
    /// The address of element (0, .., 0).
    fn address(&self) -> u64;
    /// The type of its elements.
    fn scalar(&self) -> Scalar;
    /// Its sizes.
    fn shape(&self) -> impl Deref<Target = [usize]>;
    /// Elements from neighbour to neighbour along each axis.
    fn strides(&self) -> impl Deref<Target = [isize]>;
    /// Whether the memory is that of a CUDA device.
    fn is_on_cuda(&self) -> bool;
}

impl<L: Layout> Layout for &L {
    fn address(&self) -> u64 {
        L::address(self)
    }
    fn scalar(&self) -> Scalar {
        L::scalar(self)
    }
    fn shape(&self) -> impl Deref<Target = [usize]> {
        L::shape(self)
    }
    fn strides(&self) -> impl Deref<Target = [isize]> {
        L::strides(self)
    }
    fn is_on_cuda(&self) -> bool {
        L::is_on_cuda(self)
    }
}

params! {
    /// A strided tensor of up to four axes; strides count elements. Absent ones are null.
    #[derive(Default)]
    pub struct Strided {
        data: Address<c_void>,
        stride: [i64; 4],
    }
}

impl Strided {
    /// Numbers at an address, dense, of which these are the sizes of the last three axes.
    pub fn dense(address: u64, sizes: [usize; 3]) -> Self {
        let [second, third, fourth] = sizes.map(|size| size as i64);
        Strided { data: Address::new(address), stride: [second * third * fourth, third * fourth, fourth, 1] }
    }

    /// A tensor of up to four axes.
    pub fn of(tensor: &impl Layout) -> Self {
        let mut stride = [0; 4];
        for (to, &from) in stride.iter_mut().zip(tensor.strides().iter()) {
            *to = from as i64;
        }
        Strided { data: Address::new(tensor.address()), stride }
    }

    /// A tensor seen with other strides.
    pub fn with(tensor: &impl Layout, strides: [isize; 4]) -> Self {
        Strided { data: Address::new(tensor.address()), stride: strides.map(|s| s as i64) }
    }

    /// As a tensor of four axes whose first ones are missing.
    pub fn of_last_axes(tensor: &impl Layout) -> Self {
        let mut strided = Self::of(tensor);
        strided.stride.rotate_right(4 - tensor.shape().len());
        strided
    }

    /// A tensor that may be missing.
    pub fn of_option(tensor: &Option<impl Layout>) -> Self {
        tensor.as_ref().map(Self::of).unwrap_or_default()
    }
}

/// Whether every axis but one leaves multiples of so many bytes where they are: its strides, unless nothing is that far, and where the tensor begins.
pub(crate) fn is_aligned(tensor: &impl Layout, but: usize, bytes: usize) -> bool {
    let (shape, strides, size) = (tensor.shape(), tensor.strides(), tensor.scalar().size());
    let aligned = |axis: usize| strides[axis].unsigned_abs().wrapping_mul(size).is_multiple_of(bytes);
    tensor.address().is_multiple_of(bytes as u64) && (0..strides.len()).all(|a| a == but || shape[a] < 2 || aligned(a))
}

/// How many neighbours along an axis one access of at most 16 bytes can take, a power of two up to `most`: groups that start at multiples
/// of so many lie side by side and are aligned wherever the other axes go.
pub fn neighbours(tensor: &impl Layout, axis: usize, most: usize) -> usize {
    let (strides, size) = (tensor.strides(), tensor.scalar().size());
    let fits =
        |count: &usize| count * size <= 16 && *count <= most && strides[axis] == 1 && is_aligned(tensor, axis, count * size);
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// Whether `count` neighbours along an axis are whole units of 16 bytes in all, which may begin anywhere, and no other axis goes back: `runs.cuh` reads and
/// writes such.
pub fn are_runs(tensor: &impl Layout, axis: usize, count: usize) -> bool {
    let (strides, size) = (tensor.strides(), tensor.scalar().size());
    strides[axis] == 1 && (count * size).is_multiple_of(16) && strides.iter().all(|&stride| stride >= 0)
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::testing::Described;

    #[test]
    fn neighbours_are_aligned_everywhere() {
        let at = |scalar: Scalar, offset: usize, strides: &[isize]| {
            neighbours(&Described::strided(scalar, offset, &[2, 4, 64], strides), 2, 8)
        };
        assert_eq!(at(Scalar::BF16, 0, &[256, 64, 1]), 8);
        assert_eq!(at(Scalar::F32, 0, &[256, 64, 1]), 4);
        assert_eq!(at(Scalar::BF16, 2, &[256, 64, 1]), 2);
        assert_eq!(at(Scalar::BF16, 0, &[264, 66, 1]), 2);
        assert_eq!(at(Scalar::BF16, 0, &[260, 65, 1]), 1);
        assert_eq!(at(Scalar::BF16, 0, &[256, 1, 4]), 1);
        assert_eq!(at(Scalar::F32, 63, &[256, 64, -1]), 1);
    }

    #[test]
    fn runs_begin_anywhere() {
        let at =
            |scalar: Scalar, strides: &[isize], count| are_runs(&Described::strided(scalar, 3, &[2, 4, 64], strides), 2, count);
        assert!(at(Scalar::BF16, &[260, 65, 1], 8) && at(Scalar::F32, &[0, 65, 1], 8) && at(Scalar::Complex64, &[260, 65, 1], 2));
        assert!(!at(Scalar::BF16, &[260, 65, 1], 4) && !at(Scalar::F32, &[260, 1, 4], 4) && !at(Scalar::F32, &[260, -65, 1], 4));
    }
}
