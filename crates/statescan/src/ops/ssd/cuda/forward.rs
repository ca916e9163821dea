//! The kernels that take a walk, and the forward pass, which is one.

use super::hopper::cuts;
use super::hopper::walk as hopper;
use super::portable::walk as portable;
use super::walk::{Addresses, Walk};
use super::{Hardware, refuse_double};
use crate::cuda::{Launch, Queue, Stream};
use crate::error::Result;
use crate::ops::on_cuda::Pass;
use crate::ops::ssd::Targets;
use crate::ops::ssd::problem::Problem;

/// Which kernel takes a walk, and how it cuts time: a function of types, sizes, layouts and a device's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // it lives for one call
pub(super) enum WalkRoute {
    Hopper(hopper::Route),
    Portable(portable::Route),
}

impl WalkRoute {
    /// The route of a walk on its own; without a workspace time is not cut.
    pub fn new(walk: &Walk<'_, '_>, hardware: Hardware, has_workspace: bool) -> Result<WalkRoute> {
        if let Some(route) = hopper::Route::new(walk, hardware.numbers, has_workspace) {
            return Ok(WalkRoute::Hopper(route));
        }
        let route = portable::Route::alone(walk, hardware)?;
        Ok(WalkRoute::Portable(if has_workspace { route } else { route.whole() }))
    }

    /// The route of a walk whose slots other kernels read, which have a route for it as well.
    pub fn beside(walk: &Walk<'_, '_>, portable: portable::Route, hardware: Hardware) -> WalkRoute {
        hopper::Route::new(walk, hardware.numbers, true).map_or(WalkRoute::Portable(portable), WalkRoute::Hopper)
    }

    /// Elements of the workspace.
    pub fn workspace_len(&self, p: &Problem<'_>) -> usize {
        match self {
            WalkRoute::Hopper(route) => route.plan.workspace_len(p),
            WalkRoute::Portable(route) => route.workspace_len(p),
        }
    }

    /// The name of the kernel, and its launches.
    pub fn launches(&self, walk: &Walk<'_, '_>) -> Result<(&'static str, Vec<(Pass, Launch)>)> {
        match self {
            WalkRoute::Hopper(route) => Ok((hopper::KERNEL.kernel, route.launches(walk)?)),
            WalkRoute::Portable(route) => Ok((portable::WALK.kernel, route.launches(walk)?)),
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
                WalkRoute::Hopper(route) => route.launch(stream, walk, addresses),
                WalkRoute::Portable(route) => route.launch(stream, walk, addresses),
            }
        }
    }
}

pub(crate) fn forward(stream: &Queue<'_>, problem: &Problem<'_>, targets: &Targets) -> Result<()> {
    refuse_double(problem)?;
    let walk = Walk::forward(problem, targets.y.as_ref(), targets.final_state);
    let workspace = targets.workspace.as_ref().map(|v| v.as_mut_ptr() as u64);
    let (hardware, addresses) = (Hardware::of(stream), Addresses { workspace, slots: 0 });
    if let Some((whole, cuts)) = cuts::whole(problem) {
        let walk = Walk { cuts: Some(cuts), ..Walk::forward(&whole, targets.y.as_ref(), targets.final_state) };
        if let Some(route) = hopper::Route::new(&walk, hardware.numbers, workspace.is_some()) {
            // SAFETY: as below; bounds and slots of whole sequences are some of those that were checked.
            return unsafe {
                route.launch(stream, &walk, addresses)?;
                cuts::launch(stream, (&route, &walk), addresses)
            };
        }
    }
    let route = WalkRoute::new(&walk, hardware, workspace.is_some())?;
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; a workspace has the
    // size that routes of the same problem give.
    unsafe { route.launch(stream, &walk, addresses) }
}

/// Elements of the workspace that a forward pass wants, whichever results are asked for and however they lie.
pub(crate) fn workspace_len(stream: &Stream, problem: &Problem<'_>) -> Result<usize> {
    most_workspace(problem, Hardware::of(stream))
}

pub(super) fn most_workspace(problem: &Problem<'_>, hardware: Hardware) -> Result<usize> {
    let walk = Walk::forward(problem, None, None);
    let of = |walk: &Walk<'_, '_>| {
        hopper::Route::new(walk, hardware.numbers, true).map(|route| route.plan.workspace_len(walk.call.problem))
    };
    let hopper = match cuts::whole(problem) {
        Some((whole, cuts)) => of(&Walk { cuts: Some(cuts), ..Walk::forward(&whole, None, None) }),
        None => of(&walk),
    };
    // y may lie so that the copy engine cannot write it
    match (portable::Route::alone(&walk, hardware), hopper) {
        (Ok(route), hopper) => Ok(route.workspace_len(problem).max(hopper.unwrap_or(0))),
        (Err(error), hopper) => hopper.ok_or(error),
    }
}
