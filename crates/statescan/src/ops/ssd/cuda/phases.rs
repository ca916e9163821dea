//! Passes in two phases on Hopper, whose walk cuts rows into segments: first what each of them does on its own, then everything from what enters the
//! row. A backward pass has its walk through time in both phases, and all else in the second one.

use super::forward::WalkRoute;
use super::hopper::walk::Route as Hopper;
use super::walk::{Addresses, Direction, Output, Walk};
use super::{Call, Hardware, backward, refuse_double};
use crate::cuda::{Queue, Stream};
use crate::error::Result;
use crate::ops::call::{Given, Written};
use crate::ops::on_cuda::Pass;
use crate::ops::op::{TwoPhase, whole};
use crate::ops::ssd::problem::Problem;
use crate::ops::ssd::{GradientTargets, OP, Sources, Targets};
use crate::ops::summary::Summary;
use crate::tensor::{RawViewMut, View};

/// The kernels of a walk in two phases, which every phase asks for alike.
enum Phases {
    /// In segments.
    Segments(Hopper),
    /// By another kernel, all of it in one of the phases: a tensor of the walk lies so that the copy engine cannot read or write it.
    Whole(WalkRoute),
}

impl Phases {
    fn of(walk: &Walk<'_, '_>, hardware: Hardware) -> Result<Phases> {
        let route = Hopper::new(walk, hardware.numbers, true).filter(|route| route.plan.has_two_phases());
        route.map_or_else(|| WalkRoute::new(walk, hardware, false).map(Phases::Whole), |route| Ok(Phases::Segments(route)))
    }

    /// Elements of what segments leave.
    fn ends_len(&self, problem: &Problem<'_>) -> usize {
        match self {
            Phases::Segments(route) => route.plan.workspace_len(problem),
            Phases::Whole(_) => 0,
        }
    }

    /// Puts the phase of a walk into the stream, or all of the walk.
    ///
    /// # Safety
    /// The views are valid, and there is room for the ends, which an earlier phase has filled if this is the last one.
    unsafe fn launch(&self, queue: &Queue<'_>, walk: &Walk<'_, '_>, ends: u64) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                Phases::Segments(route) => route.launch(queue, walk, addresses(ends)),
                Phases::Whole(route) => route.launch(queue, &Walk { part: Pass::Whole, ..*walk }, Addresses::default()),
            }
        }
    }
}

fn addresses(ends: u64) -> Addresses {
    Addresses { workspace: Some(ends), slots: 0 }
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
        beside: false,
        cuts: None,
    }
}

impl TwoPhase for Problem<'_> {
    fn ends_len(&self, stream: &Stream) -> [usize; 2] {
        let phases = Phases::of(&Walk::forward(self, None, None), Hardware::of(stream));
        [phases.map_or(0, |phases| phases.ends_len(self)); 2]
    }

    fn forward_ends(&self, queue: &Queue<'_>, ends: RawViewMut, out: Summary<'_>) -> Result<()> {
        let state = out.state.map(|mut view| self.state(view.raw()));
        let decay = out.decay.map(|mut view| view.raw());
        let walk = Walk { part: Pass::Ends, ..Walk::forward(self, None, state) };
        // nothing of such a walk lies so that another kernel takes it
        let Phases::Segments(route) = Phases::of(&walk, Hardware::of(queue))? else { return Err(whole(OP)) };
        let addresses = addresses(ends.as_mut_ptr() as u64);
        // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; there is room for the ends, which
        // the second launch finds.
        unsafe {
            route.launch(queue, &walk, addresses)?;
            route.put_together(queue, &walk, addresses, &decay)
        }
    }

    fn forward_rest(&self, queue: &Queue<'_>, ends: &View<'_>, out: &mut Written<'_>) -> Result<()> {
        let targets = Targets::new(self, out);
        let walk = Walk { part: Pass::Rest, ..Walk::forward(self, targets.y.as_ref(), targets.final_state) };
        // SAFETY: as in `forward_ends`; the ends are read only.
        unsafe { Phases::of(&walk, Hardware::of(queue))?.launch(queue, &walk, ends.as_ptr() as u64) }
    }

    fn backward_ends(&self, queue: &Queue<'_>, given: &Given<'_>, ends: RawViewMut, entering: RawViewMut) -> Result<()> {
        refuse_double(self)?;
        let walk = walk_back(self, &Sources::new(self, given), Some(self.state(entering)));
        let (phases, ends) = (Phases::of(&walk, Hardware::of(queue))?, ends.as_mut_ptr() as u64);
        // SAFETY: as in `forward_ends`.
        unsafe {
            phases.launch(queue, &walk, ends)?;
            match phases {
                Phases::Segments(route) => route.put_together(queue, &walk, addresses(ends), &None),
                Phases::Whole(_) => Ok(()),
            }
        }
    }

    fn backward_rest(&self, queue: &Queue<'_>, ends: &View<'_>, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()> {
        let (sources, targets) = (Sources::new(self, given), GradientTargets::new(self, grads));
        // a pass whose walk backwards is not in segments computes them again
        backward::run(queue, self, &sources, &targets, Some(ends.as_ptr() as u64))
    }
}
