//! Views as kernels see them.

use crate::tensor::{DType, Device, RawViewMut, View};
use core::ops::Deref;
use statescan_cuda::{Layout, Scalar};

impl From<DType> for Scalar {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F32 => Scalar::F32,
            DType::F64 => Scalar::F64,
            DType::BF16 => Scalar::BF16,
            DType::F16 => Scalar::F16,
            DType::Complex64 => Scalar::Complex64,
            DType::Complex128 => Scalar::Complex128,
            DType::I32 => Scalar::I32,
            DType::I64 => Scalar::I64,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_names_and_sizes_of_device_code() {
        use DType::*;
        for dtype in [F32, F64, BF16, F16, Complex64, Complex128, I32, I64] {
            let scalar = Scalar::from(dtype);
            assert_eq!((scalar.to_string(), scalar.size()), (dtype.to_string(), dtype.size()));
        }
    }
}
