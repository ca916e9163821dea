//! A walk over time: the forward pass, and states and their gradients for the backward pass.

use super::Call;
use super::portable::plan::Slots;
use crate::ops::on_cuda::Pass;
use crate::ops::ssd::problem::Problem;
use crate::ops::states::Pool;
use crate::tensor::{RawViewMut, View};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

/// The output of a walk besides the states after sequences.
#[derive(Clone, Copy)]
pub(super) enum Output<'t> {
    Nothing,
    Y(&'t RawViewMut),
    /// The gradient by z.
    Gate(&'t RawViewMut),
}

/// The bounds of all pieces of sequences, and the pool that has their slots: a walk leaves what states at their cuts are computed from.
#[derive(Clone, Copy)]
pub(super) struct Cuts<'a> {
    pub bounds: View<'a>,
    pub pool: Pool<'a>,
}

/// One walk.
#[derive(Clone, Copy)]
pub(super) struct Walk<'p, 'a> {
    pub call: Call<'p, 'a>,
    pub direction: Direction,
    pub output: Output<'p>,
    pub before: Option<View<'a>>,
    pub after: Option<RawViewMut>,
    /// The slots that it fills.
    pub slots: Option<Slots>,
    /// All of it, or one of its two phases, between which what it begins with may arrive.
    pub part: Pass,
    /// Whether it may run beside the walk that is launched before it, which leaves nothing that it reads.
    pub beside: bool,
    pub cuts: Option<Cuts<'a>>,
}

/// Addresses of what a walk needs besides its tensors: for the ends of segments, and its slots.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Addresses {
    pub workspace: Option<u64>,
    pub slots: u64,
}

impl<'p, 'a> Walk<'p, 'a> {
    /// Chunks that share a slot.
    pub fn slot_chunks(&self) -> usize {
        self.slots.map_or(1, |slots| slots.chunks)
    }

    /// The forward pass.
    pub fn forward(problem: &'p Problem<'a>, y: Option<&'p RawViewMut>, after: Option<RawViewMut>) -> Self {
        Walk {
            call: Call::new(problem, None),
            direction: Direction::Forward,
            output: y.map_or(Output::Nothing, Output::Y),
            before: problem.initial_state,
            after,
            slots: None,
            part: Pass::Whole,
            beside: false,
            cuts: None,
        }
    }
}
