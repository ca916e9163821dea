//! Views of `ndarray` arrays, of any layout.

use super::view::View;
use super::view_mut::ViewMut;
use crate::device::Device;
use crate::dtype::Element;
use crate::error::Error;
use ndarray::{ArrayView, ArrayViewMut, Dimension};

impl<'a, T: Element, D: Dimension> TryFrom<ArrayView<'a, T, D>> for View<'a> {
    type Error = Error;

    /// Views the array's elements; nothing is copied.
    fn try_from(array: ArrayView<'a, T, D>) -> Result<Self, Error> {
        // SAFETY: an array view lends every element that its shape and strides reach for 'a.
        unsafe { View::from_raw_parts(array.as_ptr().cast(), T::DTYPE, Device::Cpu, array.shape(), array.strides()) }
    }
}

impl<'a, T: Element, D: Dimension> TryFrom<ArrayViewMut<'a, T, D>> for ViewMut<'a> {
    type Error = Error;

    /// Views the array's elements; nothing is copied.
    fn try_from(mut array: ArrayViewMut<'a, T, D>) -> Result<Self, Error> {
        let ptr = array.as_mut_ptr().cast();
        // SAFETY: a mutable array view lends every element that its shape and strides reach, exclusively, for 'a.
        unsafe { ViewMut::from_raw_parts(ptr, T::DTYPE, Device::Cpu, array.shape(), array.strides()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::Array;

    #[test]
    fn layouts_carry_over() {
        let array = Array::from_iter((0..24).map(|i| i as f32)).into_shape_with_order((2, 3, 4)).unwrap();
        let flipped = array.slice(ndarray::s![.., ..;-1, 1..]);
        let view = View::try_from(flipped.permuted_axes([2, 0, 1])).unwrap();
        assert_eq!(view.shape()[..], [3, 2, 3]);
        assert_eq!(view.at(&[2, 1, 0]).re, array[[1, 2, 3]] as f64);
        let mut array = array;
        let mut target = ViewMut::try_from(array.view_mut().reversed_axes()).unwrap();
        assert_eq!(target.as_view().at(&[3, 2, 1]).re, 23.0);
        assert_eq!(target.reborrow().shape()[..], [4, 3, 2]);
    }
}
