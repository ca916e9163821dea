//! Gradients of more states than a block on Hopper holds: one half of the states after the other. Every gradient but those by B, C and the initial state is
//! a sum over states, and what the first half has of it is kept in f32 for the second one.

use super::fused::{Half, Parts};
use super::packed::SPAN;
use super::walk::MOST_STATES;
use crate::cuda::Stream;
use crate::error::Result;
use crate::ops::ssd::cuda::backward::{self, Pass};
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

/// The problems of both halves, where there are more states than fit and not more than twice as many.
pub(in crate::ops::ssd::cuda) fn of_states<'a>(p: &Problem<'a>) -> Option<[Problem<'a>; 2]> {
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
fn lens(p: &Problem<'_>) -> [usize; 4] {
    let steps = [p.seqlen, p.nheads].into_iter().fold(p.batch, usize::saturating_mul);
    let columns = steps.saturating_mul(p.headdim);
    let (gate, own_decays) = (usize::from(p.z.is_some()), usize::from(p.dt_a.is_some()));
    // whole units of 16 bytes
    [columns, columns * gate, steps, steps * own_decays].map(|len| len.next_multiple_of(4))
}

/// Elements of the workspace, if halves may be asked for.
pub(in crate::ops::ssd::cuda) fn workspace_len(stream: &Stream, problem: &Problem<'_>) -> Result<usize> {
    let Some(halves) = of_states(problem) else { return Ok(0) };
    let mut most = 0;
    for half in &halves {
        let Some(len) = backward::fused_workspace_len(stream, half)? else { return Ok(0) };
        most = most.max(len);
    }
    Ok(lens(problem).into_iter().fold(most, usize::saturating_add))
}

/// The backward pass in halves, if kernels for both can take it: whether they did.
pub(in crate::ops::ssd::cuda) fn backward(
    stream: &Stream,
    problem: &Problem<'_>,
    sources: &Sources<'_>,
    targets: &GradientTargets,
    base: u64,
) -> Result<bool> {
    let Some(halves) = of_states(problem) else { return Ok(false) };
    let mut at = base;
    let [x, z, dt, dt_a] = lens(problem).map(|len| {
        let start = at;
        at += 4 * len as u64;
        start
    });
    let parts = Parts { x, z, dt, dt_a };
    let [first_range, second_range] = ranges(problem.dstate);
    let of = |range: Range<usize>| {
        let sources =
            Sources { final_state: sources.final_state.map(|view| view.slice(STATE_STATES, range.clone())), ..*sources };
        let map = |target: Option<RawViewMut>| target.map(|to| to.slice(MAP_STATES, range.clone()));
        let initial_state = targets.initial_state.map(|to| to.slice(STATE_STATES, range.clone()));
        (sources, GradientTargets { b: map(targets.b), c: map(targets.c), initial_state, ..*targets })
    };
    let [(first_sources, first_targets), (second_sources, second_targets)] = [of(first_range), of(second_range)];
    // the skip is not a sum over states
    let first_targets = GradientTargets { d: None, ..first_targets };
    let first = Pass::new(stream, &halves[0], &first_sources, &first_targets, at)?;
    let second = Pass::new(stream, &halves[1], &second_sources, &second_targets, at)?;
    let fused = (first.fused(Some((Half::First, parts)))?, second.fused(Some((Half::Second, parts)))?);
    let (Some(first_fused), Some(second_fused)) = fused else { return Ok(false) };
    let shared = |pass: &Pass<'_, '_>| [pass.places().a, pass.places().bias];
    debug_assert_eq!(shared(&first), shared(&second), "the second half adds to terms of the first");
    first.run_fused(&first_fused)?;
    first.sum_fused(&first_fused, false)?;
    second.run_fused(&second_fused)?;
    second.sum_fused(&second_fused, true)?;
    Ok(true)
}
