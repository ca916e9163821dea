//! Forward: `y` and the final states.

use super::super::Problem;
use super::super::plan::{Piece, Plan};
use super::*;
use crate::cpu::Kernel;
use crate::exec::Exec;

/// Tiles of a job: the window of inputs, the sums.
const TILES: usize = 2;

pub(crate) fn forward(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    if targets.y.is_none() && targets.final_states.is_none() {
        return;
    }
    match problem.double {
        true => run::<f64>(exec, problem, targets),
        false => run::<f32>(exec, problem, targets),
    }
}

fn run<T: Real>(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    let plan = Plan::new(problem, TILES);
    let tiling = Tiling::of(&plan);
    let scratch = || Scratch::<T>::new(tiling, plan.tile_channels, TILES);
    exec.for_each(plan.groups.len() * plan.blocks, scratch, |scratch, job| {
        let (group, block) = (job / plan.blocks, job % plan.blocks);
        exec.level().dispatch(Job { problem, targets, plan: &plan, tiling, scratch, group, block });
    });
}

struct Job<'j, 'a, T> {
    problem: &'j Problem<'a>,
    targets: &'j Targets,
    plan: &'j Plan,
    tiling: Tiling,
    scratch: &'j mut Scratch<T>,
    group: usize,
    block: usize,
}

impl<T: Real> Kernel for Job<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Job { problem, targets, plan, tiling, scratch, group, block } = self;
        let (window, sums) = scratch.tiles.split_at_mut(tiling.len);
        let (window, sums) = (window.as_mut_ptr(), sums.as_mut_ptr());
        let mut filters = Filters { weight: &mut scratch.weight, bias: &mut scratch.bias, width: problem.width };
        for (first, channels) in tiles(plan, problem.dim, block) {
            filters.load(simd, tiling, &problem.weight, problem.bias.as_ref(), first, channels);
            for piece in plan.group(group) {
                let steps = piece.end - piece.start;
                // SAFETY: pieces and channels are within the checked views; the tiles hold a piece with its surroundings.
                unsafe {
                    let Some(index) = piece.segment else {
                        if let Some(y) = &targets.y {
                            tiling.zero(sums, channels, 0, steps);
                            tiling.store(simd, sums, plane_mut(y, piece.batch).at(first, piece.start), channels, steps);
                        }
                        continue;
                    };
                    let place = (first, channels);
                    let segment = &problem.segments.list[index];
                    // what is computed by way of tiles: everything, or the first steps, which look back at the initial states
                    let mut staged = steps;
                    if let Some(y) = &targets.y {
                        if let Some((from, x, y)) = direct::<T, S>(tiling, problem, y, piece, place, segment.start) {
                            let size = (channels, steps - from);
                            convolve(simd, tiling.axis, &filters, size, x, y, (problem.silu, false, true));
                            staged = from;
                        }
                        load_window(simd, tiling, problem, index, (piece.start, staged), place, window);
                        let (from, to) = (tiling.span(window, 0), tiling.span(sums, 0));
                        convolve(simd, tiling.axis, &filters, (channels, staged), from, to, (problem.silu, false, false));
                        tiling.store(simd, sums, plane_mut(y, piece.batch).at(first, piece.start), channels, staged);
                    }
                    if let (Some(target), Some(at), true) = (&targets.final_states, segment.last, piece.end == segment.end) {
                        // the last inputs: those of the segment alone, or of a short segment and what lies before it
                        let (before, length) = (problem.width - 1, segment.end - segment.start);
                        let last = if length >= 2 * before { before } else { length };
                        load_window(simd, tiling, problem, index, (segment.end - last, last), place, window);
                        let target = state_plane_mut(target, at).at(first, 0);
                        tiling.store(simd, window.add(tiling.at(last)), target, channels, before);
                    }
                }
            }
        }
    }
}

/// Where a piece can be computed from `x` to `y` without tiles: the first step of that, what its taps look at, and its place in `y`.
#[inline(always)]
fn direct<T: Real, S: Isa>(
    tiling: Tiling,
    problem: &Problem<'_>,
    y: &RawViewMut,
    piece: &Piece,
    (first, channels): (usize, usize),
    segment_start: usize,
) -> Option<(usize, Span<T>, Span<T>)> {
    let (x, y) = (tiling.direct::<T>(&problem.x, piece.batch)?, tiling.direct::<T>(&y.as_read(), piece.batch)?);
    let (lanes, before, steps) = (T::lanes::<S>(), problem.width - 1, piece.end - piece.start);
    let from = match (piece.start == segment_start, tiling.axis) {
        (false, _) => 0,
        (true, Axis::Time) => before.next_multiple_of(lanes),
        (true, Axis::Channels) => before,
    };
    // whole vectors only
    let fits = match tiling.axis {
        Axis::Time => steps >= from + lanes,
        Axis::Channels => steps > from && channels % lanes == 0,
    };
    let span = |span: Span<T>, step: usize| Span { ptr: span.at(tiling.axis, first, step), ..span };
    fits.then(|| (from, span(x, piece.start + from - before), span(y, piece.start + from)))
}
