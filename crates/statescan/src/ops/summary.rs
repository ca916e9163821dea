//! The summary of a slice of a sequence, its effect on the state that enters it, and memory for computing it with an operation's
//! own kernels.

use super::builder::builder;
use crate::error::Result;
use crate::exec::Exec;
use crate::tensor::{DType, Device, View, ViewMut};
use core::marker::PhantomData;

builder! {
    /// The effect of a slice of a sequence on the state that enters it; a field of `None` is not computed.
    #[derive(Debug, Default)]
    pub struct Summary<'a> {
        /// The state after the last step, from zero: shaped as the operation's final state.
        pub state: Option<ViewMut<'a>>,
        /// The factor of the state before the first step. The axes of the state, without those along which it is the same (SSD:
        /// (B, H)).
        pub decay: Option<ViewMut<'a>>,
        /// Scratch memory: dense, f32, of as many elements as the operation's `summary_workspace_len` says. Needed on CUDA.
        pub workspace: Option<ViewMut<'a>>,
    }
}

/// Memory on an executor's device that begins with the constants 0, 1, 0: what a summary puts in the place of arguments. It is of the host, or
/// of the caller's workspace.
pub(crate) struct Scratch<'w> {
    base: *mut u8,
    dtype: DType,
    device: Device,
    own: Vec<f64>,
    workspace: PhantomData<&'w ()>,
}

/// Numbers before the room, which is aligned for any access.
const CONSTANTS: usize = 4;

impl<'w> Scratch<'w> {
    /// Elements of `f32` in a workspace on CUDA with so many behind the constants.
    pub(crate) fn workspace_len(exec: &Exec, room: usize) -> usize {
        if exec.stream().is_some() { CONSTANTS + room } else { 0 }
    }

    /// Constants, and room for so many numbers.
    pub(crate) fn new(exec: &Exec, double: bool, room: usize, workspace: Option<&'w mut ViewMut<'_>>) -> Result<Self> {
        let dtype = if double { DType::F64 } else { DType::F32 };
        let mut scratch =
            Scratch { base: core::ptr::null_mut(), dtype, device: exec.device(), own: Vec::new(), workspace: PhantomData };
        match (exec.stream(), workspace) {
            (Some(stream), Some(workspace)) => {
                scratch.base = workspace.as_mut_ptr();
                // SAFETY: the workspace was checked to have the constants and the room.
                unsafe {
                    stream.fill(scratch.base as u64, 0, CONSTANTS * size_of::<f32>())?;
                    stream.fill_words(scratch.base as u64 + size_of::<f32>() as u64, 1f32.to_bits(), 1)?;
                }
            }
            _ => {
                scratch.own = vec![0.0; CONSTANTS + room];
                scratch.base = scratch.own.as_mut_ptr().cast();
                match double {
                    true => scratch.own[1] = 1.0,
                    false => bytemuck::cast_slice_mut::<f64, f32>(&mut scratch.own)[1] = 1.0,
                }
            }
        }
        Ok(scratch)
    }

    /// Numbers from the one at `offset` on, in any strides.
    ///
    /// # Safety
    /// They lie within the constants and the room.
    unsafe fn view(&self, offset: usize, shape: &[usize], strides: &[isize]) -> Result<View<'_>> {
        let ptr = self.base.wrapping_add(offset * self.dtype.size());
        // SAFETY: the caller's contract; memory of the host and of a workspace is initialised as far as anybody reads it.
        unsafe { View::from_raw_parts(ptr, self.dtype, self.device, shape, strides) }
    }

    /// A zero or a one in a shape.
    fn filled(&self, offset: usize, shape: &[usize]) -> Result<View<'_>> {
        // SAFETY: a constant, with strides of zero.
        unsafe { self.view(offset, shape, &vec![0; shape.len()]) }
    }

    pub(crate) fn zeros(&self, shape: &[usize]) -> Result<View<'_>> {
        self.filled(0, shape)
    }

    pub(crate) fn ones(&self, shape: &[usize]) -> Result<View<'_>> {
        self.filled(1, shape)
    }

    /// (0, 1), or (1, 0), along the last axis of a shape.
    pub(crate) fn pair(&self, one_first: bool, shape: &[usize]) -> Result<View<'_>> {
        debug_assert_eq!(shape.last(), Some(&2));
        let mut strides = vec![0; shape.len()];
        strides[shape.len() - 1] = 1;
        // SAFETY: constants 0 and 1, or 1 and 2.
        unsafe { self.view(usize::from(one_first), shape, &strides) }
    }

    /// Numbers of the room from the one at `offset` on.
    ///
    /// # Safety
    /// They lie within the room.
    pub(crate) unsafe fn room(&self, offset: usize, shape: &[usize], strides: &[isize]) -> Result<View<'_>> {
        // SAFETY: the caller's contract.
        unsafe { self.view(CONSTANTS + offset, shape, strides) }
    }

    /// The room, dense, in a shape, to be written.
    ///
    /// # Safety
    /// It is as large as the shape, and nobody else uses it.
    pub(crate) unsafe fn room_mut(&self, shape: &[usize]) -> Result<ViewMut<'_>> {
        let ptr = self.base.wrapping_add(CONSTANTS * self.dtype.size());
        let strides = crate::tensor::Shape::new(shape)?.row_major();
        // SAFETY: the caller's contract.
        unsafe { ViewMut::from_raw_parts(ptr, self.dtype, self.device, shape, &strides) }
    }
}
