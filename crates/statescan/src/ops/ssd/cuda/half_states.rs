//! Gradients of more states than a block on Hopper holds: one half of the states after the other. Every gradient but those by B, C and the initial state is
//! a sum over states, and what the first half has of it is kept in f32 for the second one.

use super::hopper::fused::HalfStates;
use super::hopper::packed::SPAN;
use super::hopper::walk::MOST_STATES;
use crate::ops::ssd::problem::Problem;
use crate::ops::ssd::{GradientTargets, Sources};
use crate::tensor::RawViewMut;
use core::ops::Range;

/// Axes of states in B and C, and in states of sequences.
const MAP_STATES: usize = 3;
const STATE_STATES: usize = 4;

/// Chunks of heads from which on two passes of half of the work are faster than one by the kernels on `mma.sync`.
const WORTHWHILE: usize = 512;

/// The states of each half; the copy engine reads units of eight numbers.
fn ranges(dstate: usize) -> [Range<usize>; 2] {
    let first = dstate.div_ceil(2).next_multiple_of(8).min(dstate);
    [0..first, first..dstate]
}

/// The problems of both halves of the states, where there are more states than fit and not more than twice as many.
pub(super) fn of_states<'a>(p: &Problem<'a>) -> Option<[Problem<'a>; 2]> {
    let chunks = [p.nheads, p.seqlen.div_ceil(SPAN)].into_iter().fold(p.batch, usize::saturating_mul);
    if p.dstate <= MOST_STATES || p.dstate > 2 * MOST_STATES || chunks < WORTHWHILE {
        return None;
    }
    Some(ranges(p.dstate).map(|range| Problem {
        dstate: range.len(),
        b: p.b.slice(MAP_STATES, range.clone()),
        c: p.c.slice(MAP_STATES, range.clone()),
        initial_state: p.initial_state.map(|view| view.slice(STATE_STATES, range)),
        ..p.clone()
    }))
}

/// Elements of the parts: like x, like z where its gradient may be wanted, and like dt, twice where decays have steps of their own.
pub(super) fn lens(p: &Problem<'_>) -> [usize; 4] {
    let steps = [p.seqlen, p.nheads].into_iter().fold(p.batch, usize::saturating_mul);
    let columns = steps.saturating_mul(p.headdim);
    let (gate, own_decays) = (usize::from(p.z.is_some()), usize::from(p.dt_a.is_some()));
    // whole units of 16 bytes
    [columns, columns * gate, steps, steps * own_decays].map(|len| len.next_multiple_of(4))
}

/// Elements of the workspace, if states may be halved: `fused` gives those of either half, if a kernel may take it.
pub(super) fn workspace_len(p: &Problem<'_>, fused: impl Fn(&Problem<'_>) -> Option<usize>) -> Option<usize> {
    let [first, second] = of_states(p)?;
    let most = fused(&first)?.max(fused(&second)?);
    Some(lens(p).into_iter().fold(most, usize::saturating_add))
}

/// Returns the sources and targets of either half of the states.
pub(super) fn of_each<'a>(
    p: &Problem<'_>,
    sources: &Sources<'a>,
    targets: &GradientTargets,
) -> [(HalfStates, Sources<'a>, GradientTargets); 2] {
    let [first, second] = ranges(p.dstate);
    [(HalfStates::First, first), (HalfStates::Second, second)].map(|(half, range)| {
        let sources =
            Sources { final_state: sources.final_state.map(|view| view.slice(STATE_STATES, range.clone())), ..*sources };
        let map = |target: Option<RawViewMut>| target.map(|to| to.slice(MAP_STATES, range.clone()));
        let initial_state = targets.initial_state.map(|to| to.slice(STATE_STATES, range.clone()));
        // the skip is not a sum over states
        let d = targets.d.filter(|_| half == HalfStates::Second);
        (half, sources, GradientTargets { b: map(targets.b), c: map(targets.c), d, initial_state, ..*targets })
    })
}
