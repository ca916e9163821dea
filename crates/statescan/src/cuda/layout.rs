//! Views as kernels see them.

use crate::tensor::{DType, Device, RawViewMut, View};
use core::ops::Deref;
use statescan_cuda::{Layout, Scalar};

impl From<DType> for Scalar {
    fn from(dtype: DType) -> Self {
        dtype.scalar()
    }
}

impl Layout for View<'_> {
    fn address(&self) -> u64 {
        self.as_ptr() as u64
    }
    fn scalar(&self) -> Scalar {
        self.dtype().into()
    }
    fn shape(&self) -> impl Deref<Target = [usize]> {
        View::shape(self)
    }
    fn strides(&self) -> impl Deref<Target = [isize]> {
        View::strides(self)
    }
    fn is_on_cuda(&self) -> bool {
        matches!(self.device(), Device::Cuda(_))
    }
}

impl Layout for RawViewMut {
    fn address(&self) -> u64 {
        self.as_mut_ptr() as u64
    }
    fn scalar(&self) -> Scalar {
        self.dtype().into()
    }
    fn shape(&self) -> impl Deref<Target = [usize]> {
        RawViewMut::shape(self)
    }
    fn strides(&self) -> impl Deref<Target = [isize]> {
        RawViewMut::strides(self)
    }
    fn is_on_cuda(&self) -> bool {
        self.as_read().is_on_cuda()
    }
}
