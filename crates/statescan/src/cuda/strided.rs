//! Tensors as kernels take them.

use super::{Address, params};
use crate::tensor::{RawViewMut, View};
use core::ffi::c_void;

params! {
    /// A strided tensor of up to four axes; strides count elements. Absent ones are null.
    #[derive(Default)]
    pub(crate) struct Strided {
        data: Address<c_void>,
        stride: [i64; 4],
    }
}

impl Strided {
    /// Numbers at an address, dense, of which these are the sizes of the last three axes.
    pub(crate) fn dense(address: u64, sizes: [usize; 3]) -> Self {
        let [second, third, fourth] = sizes.map(|size| size as i64);
        Strided { data: Address::new(address), stride: [second * third * fourth, third * fourth, fourth, 1] }
    }

    pub(crate) fn of(view: &View<'_>) -> Self {
        let mut stride = [0; 4];
        for (to, &from) in stride.iter_mut().zip(view.strides().iter()) {
            *to = from as i64;
        }
        Strided { data: Address::new(view.as_ptr() as u64), stride }
    }
    /// A view seen with other strides.
    pub(crate) fn with(view: &View<'_>, strides: [isize; 4]) -> Self {
        Strided { data: Address::new(view.as_ptr() as u64), stride: strides.map(|s| s as i64) }
    }
    /// As a tensor of four axes whose first ones are missing.
    pub(crate) fn of_last_axes(view: &View<'_>) -> Self {
        let mut strided = Self::of(view);
        strided.stride.rotate_right(4 - view.rank());
        strided
    }
    pub(crate) fn of_option(view: &Option<View<'_>>) -> Self {
        view.as_ref().map(Self::of).unwrap_or_default()
    }
    pub(crate) fn of_target(view: &Option<RawViewMut>) -> Self {
        view.as_ref().map(|v| Self::of(&v.as_read())).unwrap_or_default()
    }
}
