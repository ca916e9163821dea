//! Forward: `y` and the final states.

use super::super::Problem;
use super::plan::{Piece, Plan};
use super::rows::{Rows, streams};
use super::*;
use crate::cpu::Kernel;
use crate::exec::Exec;
use crate::ops::sequences::Segment;

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
        let streamed = targets.y.as_ref().is_some_and(streams);
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
                    if let Some(y) = &targets.y {
                        let whole = Work { simd, problem, tiling, filters: &filters, piece, segment, place };
                        let states = scratch.states.as_mut_ptr();
                        let staged = match tiling.axis {
                            Axis::Time if whole.along_rows(y, streamed, states, (window, sums)) => 0,
                            Axis::Time => steps,
                            Axis::Channels => whole.along_channels(y),
                        };
                        load_window(simd, tiling, problem, index, (piece.start, staged), place, window);
                        let (from, to) = (tiling.span(window, 0), tiling.span(sums, 0));
                        convolve(simd, tiling.axis, &filters, (channels, staged), from, to, (problem.silu, false));
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

/// A piece for some channels, on its way from `x` to `y` without tiles.
struct Work<'w, 'a, T, S> {
    simd: S,
    problem: &'w Problem<'a>,
    tiling: Tiling,
    filters: &'w Filters<'w, T>,
    piece: &'w Piece,
    segment: &'w Segment,
    place: (usize, usize),
}

impl<T: Real, S: Isa> Work<'_, '_, T, S> {
    /// Rows of time, if they lie in a way that allows it; whether they do.
    ///
    /// # Safety
    /// Channels and piece lie within the problem, and the filters are those of the channels; there is room for the states before the
    /// segment, a window and its sums.
    #[inline(always)]
    unsafe fn along_rows(&self, y: &RawViewMut, streamed: bool, states: *mut T, room: (*mut T, *mut T)) -> bool {
        let Work { simd, problem, tiling, filters, piece, segment, place } = *self;
        let Some(rows) = Rows::new(problem, y, piece, piece.start == segment.start, place) else { return false };
        if piece.end - piece.start < T::lanes::<S>() {
            return false;
        }
        // SAFETY: the caller's contract.
        unsafe {
            load_before(simd, tiling.taps(), problem, segment, place, states);
            rows.convolve(simd, filters, (problem.silu, streamed), (states, TAPS), room);
        }
        true
    }

    /// Channels side by side, if they are whole vectors of the compute type; how many steps at the start are left, for they look back at what
    /// lies before the segment.
    ///
    /// # Safety
    /// Channels and piece lie within the problem, and the filters are those of the channels.
    #[inline(always)]
    unsafe fn along_channels(&self, y: &RawViewMut) -> usize {
        let Work { simd, problem, tiling, filters, piece, segment, place: (first, channels) } = *self;
        let (before, steps) = (problem.width - 1, piece.end - piece.start);
        let from = if piece.start == segment.start { before } else { 0 };
        let spans = Span::<T>::of(&problem.x, piece.batch).zip(Span::<T>::of(&y.as_read(), piece.batch));
        let fits = steps > from && channels.is_multiple_of(T::lanes::<S>());
        let Some((x, y)) = spans.filter(|_| fits) else { return steps };
        let start = piece.start + from;
        let (x, y) = (x.from(tiling.axis, first, start - before), y.from(tiling.axis, first, start));
        // SAFETY: the caller's contract; taps look at most W-1 steps back, which lie in the same segment.
        unsafe { convolve(simd, tiling.axis, filters, (channels, steps - from), x, y, (problem.silu, false)) };
        from
    }
}
