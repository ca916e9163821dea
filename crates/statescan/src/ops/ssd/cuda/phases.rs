//! Passes in two phases on Hopper, whose walk cuts rows into segments: first what each of them does on its own, then everything from what enters the
//! row. A backward pass has its walk through time in both phases, and all else in the second one.

use super::hopper::walk::Route as Hopper;
use super::walk::{Addresses, Direction, Output, Walk, forward};
use super::{Call, Hardware, backward, refuse_double};
use crate::cuda::{Queue, Stream};
use crate::error::Result;
use crate::ops::checked::needed;
use crate::ops::on_cuda::Pass;
use crate::ops::op::{SummaryTargets, whole};
use crate::ops::ssd::problem::Problem;
use crate::ops::ssd::{GradientTargets, OP, Sources, Targets};
use crate::tensor::{RawViewMut, View};

/// The route of a walk in segments.
fn cut(walk: &Walk<'_, '_>, hardware: Hardware) -> Option<Hopper> {
    Hopper::new(walk, hardware.numbers, true).filter(|route| route.plan.has_two_phases())
}

/// Numbers that the first phases of a forward and of a backward pass keep.
pub(crate) fn ends_len(stream: &Stream, problem: &Problem<'_>) -> [usize; 2] {
    let route = cut(&Walk::forward(problem, None, None), Hardware::of(stream));
    [route.map_or(0, |route| route.plan.workspace_len(problem)); 2]
}

fn addresses(ends: u64) -> Addresses {
    Addresses { workspace: Some(ends), slots: 0 }
}

pub(crate) fn forward_ends(queue: &Queue<'_>, problem: &Problem<'_>, ends: RawViewMut, out: &SummaryTargets) -> Result<()> {
    let walk = Walk { part: Pass::Ends, ..Walk::forward(problem, None, out.state) };
    let (route, addresses) = (cut(&walk, Hardware::of(queue)).ok_or(whole(OP))?, addresses(ends.as_mut_ptr() as u64));
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; there is room for the ends, which the
    // second launch finds.
    unsafe {
        route.launch(queue, &walk, addresses)?;
        route.put_together(queue, &walk, addresses, &out.decay)
    }
}

pub(crate) fn forward_rest(queue: &Queue<'_>, problem: &Problem<'_>, ends: &View<'_>, targets: &Targets) -> Result<()> {
    let walk = Walk { part: Pass::Rest, ..Walk::forward(problem, targets.y.as_ref(), targets.final_state) };
    match cut(&walk, Hardware::of(queue)) {
        // SAFETY: as in `forward_ends`; the ends are read only.
        Some(route) => unsafe { route.launch(queue, &walk, addresses(ends.as_ptr() as u64)) },
        // y lies so that another kernel writes it
        None => forward(queue, problem, &Targets { workspace: None, ..*targets }),
    }
}

/// The walk backwards without slots.
fn walk_back<'p, 'a>(problem: &'p Problem<'a>, sources: &Sources<'a>, after: Option<RawViewMut>) -> Walk<'p, 'a> {
    Walk {
        call: Call::new(problem, sources.y),
        direction: Direction::Backward,
        output: Output::Nothing,
        before: sources.final_state,
        after,
        slots: None,
        part: Pass::Ends,
    }
}

pub(crate) fn backward_ends(
    queue: &Queue<'_>,
    problem: &Problem<'_>,
    sources: &Sources<'_>,
    ends: RawViewMut,
    entering: RawViewMut,
) -> Result<()> {
    refuse_double(problem)?;
    let (walk, hardware) = (walk_back(problem, sources, Some(entering)), Hardware::of(queue));
    // SAFETY: as in `forward_ends`.
    unsafe {
        match cut(&walk, hardware) {
            Some(route) => {
                let addresses = addresses(ends.as_mut_ptr() as u64);
                route.launch(queue, &walk, addresses)?;
                route.put_together(queue, &walk, addresses, &None)
            }
            // the gradient by y lies so that another kernel reads it, and the second phase is a whole pass
            None => super::walk::Route::new(&walk, hardware, false)?.launch(queue, &walk, Addresses::default()),
        }
    }
}

pub(crate) fn backward_rest(
    queue: &Queue<'_>,
    problem: &Problem<'_>,
    ends: &View<'_>,
    sources: &Sources<'_>,
    targets: &GradientTargets,
) -> Result<()> {
    let workspace = needed(OP, &targets.workspace)?;
    // a pass of other kernels computes them again
    let ends = cut(&walk_back(problem, sources, None), Hardware::of(queue)).map(|_| ends.as_ptr() as u64);
    backward::run(queue, problem, sources, targets, workspace, ends)
}
