//! Passes in two phases on Hopper, whose walk cuts rows into segments: first what each of them does on its own, then everything from what enters the
//! row. A backward pass has its walk through time in both phases, and all else in the second one.

use super::forward::{WalkRoute, forward};
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

/// The route of a walk in segments.
fn cut(walk: &Walk<'_, '_>, hardware: Hardware) -> Option<Hopper> {
    Hopper::new(walk, hardware.numbers, true).filter(|route| route.plan.has_two_phases())
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
    }
}

impl TwoPhase for Problem<'_> {
    fn ends_len(&self, stream: &Stream) -> [usize; 2] {
        let route = cut(&Walk::forward(self, None, None), Hardware::of(stream));
        [route.map_or(0, |route| route.plan.workspace_len(self)); 2]
    }

    fn forward_ends(&self, queue: &Queue<'_>, ends: RawViewMut, out: Summary<'_>) -> Result<()> {
        let state = out.state.map(|mut view| self.state(view.raw()));
        let decay = out.decay.map(|mut view| view.raw());
        let walk = Walk { part: Pass::Ends, ..Walk::forward(self, None, state) };
        let (route, addresses) = (cut(&walk, Hardware::of(queue)).ok_or(whole(OP))?, addresses(ends.as_mut_ptr() as u64));
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
        match cut(&walk, Hardware::of(queue)) {
            // SAFETY: as in `forward_ends`; the ends are read only.
            Some(route) => unsafe { route.launch(queue, &walk, addresses(ends.as_ptr() as u64)) },
            // y lies so that another kernel writes it
            None => forward(queue, self, &Targets { workspace: None, ..targets }),
        }
    }

    fn backward_ends(&self, queue: &Queue<'_>, given: &Given<'_>, ends: RawViewMut, entering: RawViewMut) -> Result<()> {
        refuse_double(self)?;
        let (walk, hardware) = (walk_back(self, &Sources::new(self, given), Some(self.state(entering))), Hardware::of(queue));
        // SAFETY: as in `forward_ends`.
        unsafe {
            match cut(&walk, hardware) {
                Some(route) => {
                    let addresses = addresses(ends.as_mut_ptr() as u64);
                    route.launch(queue, &walk, addresses)?;
                    route.put_together(queue, &walk, addresses, &None)
                }
                // the gradient by y lies so that another kernel reads it, and the second phase is a whole pass
                None => WalkRoute::new(&walk, hardware, false)?.launch(queue, &walk, Addresses::default()),
            }
        }
    }

    fn backward_rest(&self, queue: &Queue<'_>, ends: &View<'_>, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()> {
        let (sources, targets) = (Sources::new(self, given), GradientTargets::new(self, grads));
        // a pass of other kernels computes them again
        let ends = cut(&walk_back(self, &sources, None), Hardware::of(queue)).map(|_| ends.as_ptr() as u64);
        backward::run(queue, self, &sources, &targets, ends)
    }
}
