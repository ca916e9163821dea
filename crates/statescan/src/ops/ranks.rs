//! One sequence over several ranks, each of which has a slice of its time.
//!
//! A scan is affine in its state, so a slice is to the others what its [`Summary`] says: it turns the state `h` that enters it into
//! `state + decay h`. Ranks exchange these, [`combine`] those of the ranks before them in the direction of the scan, and scan their slices from
//! the state that comes out. How they exchange is the caller's business.
//!
//! **Backward.** Gradients flow the other way, by the conjugate decays. `backward` without a cotangent of the final state gives, as the gradient of
//! the initial state, what a slice sends to the ranks before it; combined in reverse order these are the cotangent of each slice's final state, with
//! which `backward` gives every gradient of the slice. So nothing differentiates a summary: `docs/maths/sequence_parallel.md` has why.
//!
//! **Packed sequences.** States have one row for each sequence with [`crate::Sequences::CuSeqlens`], a sequence without steps in a slice hands its
//! state on, and its decay is one. Where states have none ([`crate::Sequences::SeqIdx`] and one state for each row), the decay is zero if a
//! sequence starts inside of the slice; whether one starts between two slices only the caller can see.

use super::builder::builder;
use super::linear_scan::{self, Args, Outputs};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::tensor::{DType, Device, MAX_RANK, View, ViewMut};
use core::marker::PhantomData;

builder! {
    /// What a slice of a sequence does to the state that enters it; what is `None` is not computed.
    #[derive(Debug, Default)]
    pub struct Summary<'a> {
        /// The state after the last step, from zero: shaped as the operation's final state.
        pub state: Option<ViewMut<'a>>,
        /// What the state before the first step is multiplied by. The axes of the state, without those along which it is the same (SSD: (B, H)).
        pub decay: Option<ViewMut<'a>>,
        /// Scratch memory: dense, f32, of as many elements as the operation's `summary_workspace_len` says. Needed on CUDA.
        pub workspace: Option<ViewMut<'a>>,
    }
}

const OP: &str = "combine";

/// The state that slices, one after the other, leave behind: `h[r] = decays[r] h[r-1] + states[r]`, a linear scan over ranks.
///
/// `states` and `decays` are (ranks, ..) with the summaries of the ranks in the order of the scan; a decay of fewer axes is expanded along the
/// last ones. `initial_state` is the state before the first slice, zero if there is none. For gradients the ranks are those after the slice, the
/// last one first, and decays are conjugate.
///
/// # Errors
/// Arguments of wrong shapes, types or devices, an output that overlaps them.
pub fn combine(
    exec: &Exec,
    states: View<'_>,
    decays: View<'_>,
    initial_state: Option<View<'_>>,
    mut out: ViewMut<'_>,
) -> Result<()> {
    let (rank, shape) = (states.rank(), states.shape());
    let fewer = decays.rank() <= rank && decays.shape()[..] == shape[..decays.rank()];
    if rank == 0 || decays.rank() == 0 || !fewer {
        let expected = "the first axes of `states`, ranks among them".into();
        return Err(Error::Rank { op: OP, argument: "decays", expected, got: decays.shape() });
    }
    for (argument, got) in [("initial_state", initial_state.map(|view| view.shape())), ("out", Some(out.shape()))] {
        if let Some(got) = got.filter(|got| got[..] != shape[1..]) {
            return Err(Error::Shape { op: OP, argument, expected: crate::tensor::Shape::of(&shape[1..]), got });
        }
    }
    let decays = (decays.rank()..rank).fold(decays, |view, axis| view.expand(axis, shape[axis]));
    // a linear scan has four axes besides time
    if rank == MAX_RANK {
        return (0..shape[1]).try_for_each(|row| {
            let initial = initial_state.map(|view| view.index(0, row));
            combine(exec, states.index(1, row), decays.index(1, row), initial, out.reborrow().index(0, row))
        });
    }
    // ranks are time
    let order: Vec<usize> = (1..rank).chain([0]).collect();
    let args = Args { initial_state, ..Args::new(decays.permute(&order), states.permute(&order)) };
    linear_scan::forward(exec, &args, &mut Outputs::default().final_state(out))
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
