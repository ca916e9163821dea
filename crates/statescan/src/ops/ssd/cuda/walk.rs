//! The walk over time: the forward pass, and states and their gradients for the backward pass.

use super::hopper::walk as hopper;
use super::portable::plan::Slots;
use super::portable::walk as portable;
use super::{Call, Hardware, refuse_double};
use crate::cuda::{Launch, Queue, Stream};
use crate::error::Result;
use crate::ops::on_cuda::Pass;
use crate::ops::ssd::Targets;
use crate::ops::ssd::problem::Problem;
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
}

/// Addresses of what a walk needs besides its tensors: for the ends of segments, and its slots.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Addresses {
    pub workspace: Option<u64>,
    pub slots: u64,
}

/// Which kernel takes a walk, and how it cuts time: a function of types, sizes, layouts and a device's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // it lives for one call
pub(super) enum Route {
    Hopper(hopper::Route),
    Portable(portable::Route),
}

impl Route {
    /// Of a walk on its own; without a workspace time is not cut.
    pub fn new(walk: &Walk<'_, '_>, hardware: Hardware, has_workspace: bool) -> Result<Route> {
        if let Some(route) = hopper::Route::new(walk, hardware.numbers, has_workspace) {
            return Ok(Route::Hopper(route));
        }
        let route = portable::Route::alone(walk, hardware)?;
        Ok(Route::Portable(if has_workspace { route } else { route.whole() }))
    }

    /// Of a walk whose slots other kernels read, which have a route for it as well.
    pub fn beside(walk: &Walk<'_, '_>, portable: portable::Route, hardware: Hardware) -> Route {
        hopper::Route::new(walk, hardware.numbers, true).map_or(Route::Portable(portable), Route::Hopper)
    }

    /// Elements of the workspace.
    pub fn workspace_len(&self, p: &Problem<'_>) -> usize {
        match self {
            Route::Hopper(route) => route.plan.workspace_len(p),
            Route::Portable(route) => route.workspace_len(p),
        }
    }

    /// The name of the kernel, and its launches.
    pub fn launches(&self, walk: &Walk<'_, '_>) -> Result<(&'static str, Vec<(Pass, Launch)>)> {
        match self {
            Route::Hopper(route) => Ok((hopper::KERNEL.kernel, route.launches(walk)?)),
            Route::Portable(route) => Ok((portable::WALK.kernel, route.launches(walk)?)),
        }
    }

    /// Puts a walk into the stream.
    ///
    /// # Safety
    /// The views are valid, and so are the addresses for what the route says.
    pub unsafe fn launch(&self, stream: &Queue<'_>, walk: &Walk<'_, '_>, addresses: Addresses) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                Route::Hopper(route) => route.launch(stream, walk, addresses),
                Route::Portable(route) => route.launch(stream, walk, addresses),
            }
        }
    }
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
        }
    }
}

pub(crate) fn forward(stream: &Queue<'_>, problem: &Problem<'_>, targets: &Targets) -> Result<()> {
    refuse_double(problem)?;
    let walk = Walk::forward(problem, targets.y.as_ref(), targets.final_state);
    let workspace = targets.workspace.as_ref().map(|v| v.as_mut_ptr() as u64);
    let route = Route::new(&walk, Hardware::of(stream), workspace.is_some())?;
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; a workspace has the
    // size that routes of the same problem give.
    unsafe { route.launch(stream, &walk, Addresses { workspace, slots: 0 }) }
}

/// Elements of the workspace that a forward pass wants, whichever results are asked for and however they lie.
pub(crate) fn workspace_len(stream: &Stream, problem: &Problem<'_>) -> Result<usize> {
    most_workspace(problem, Hardware::of(stream))
}

pub(super) fn most_workspace(problem: &Problem<'_>, hardware: Hardware) -> Result<usize> {
    let walk = Walk::forward(problem, None, None);
    let hopper = hopper::Route::new(&walk, hardware.numbers, true).map(|route| route.plan.workspace_len(problem));
    // y may lie so that the copy engine cannot write it
    match (portable::Route::alone(&walk, hardware), hopper) {
        (Ok(route), hopper) => Ok(route.workspace_len(problem).max(hopper.unwrap_or(0))),
        (Err(error), hopper) => hopper.ok_or(error),
    }
}
