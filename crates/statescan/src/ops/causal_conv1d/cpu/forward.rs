//! Forward: `y` and the final states.

use super::super::Problem;
use super::plan::{Plan, Slice};
use super::rows::{Rows, streams};
use super::*;
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
    exec.for_each(plan.groups.len() * plan.blocks, Arena::<T>::default, |arena, job| {
        let (group, block) = (job / plan.blocks, job % plan.blocks);
        arena.lend(
            |room| Scratch::lay_out(room, tiling, plan.tile_channels, problem.width),
            |scratch| exec.level().dispatch(Job { problem, targets, plan: &plan, tiling, scratch, group, block }),
        );
    });
}

struct Job<'j, 'a, T> {
    problem: &'j Problem<'a>,
    targets: &'j Targets,
    plan: &'j Plan,
    tiling: Tiling,
    scratch: Scratch<'j, T, TILES>,
    group: usize,
    block: usize,
}

impl<T: Real> Kernel for Job<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let Job { problem, targets, plan, tiling, group, block, .. } = self;
        for (first, channels) in tiles(plan, problem.dim, block) {
            let (weight, bias) = (&problem.weight, problem.bias.as_ref());
            self.scratch.filters.load(simd, tiling, weight, bias, (first, channels));
            for slice in plan.group(group) {
                let to = |y| plane_mut(y, slice.batch).at(first, slice.start);
                let Some(index) = slice.segment else {
                    if let Some(y) = &targets.y {
                        let (sums, steps) = (&mut self.scratch.tiles[1], slice.end - slice.start);
                        tiling.zero(sums, channels, 0, steps);
                        tiling.store(simd, sums.read(), to(y).area(channels, steps));
                    }
                    continue;
                };
                let segment = &problem.segments.list[index];
                let at = Window { tiling, problem, segment, first, channels };
                self.outputs(simd, slice, at);
                self.last_inputs(simd, slice, at);
            }
        }
    }
}

impl<T: Real> Job<'_, '_, T> {
    /// The outputs of a slice.
    #[inline(always)]
    fn outputs<S: Isa>(&mut self, simd: S, slice: &Slice, at: Window<'_, '_>) {
        let Some(y) = &self.targets.y else { return };
        let Window { tiling, problem, first, channels, .. } = at;
        let Scratch { tiles: [window, sums], filters, states } = &mut self.scratch;
        let filters = filters.read();
        let work = Work { simd, filters, slice, at };
        let staged = match tiling.axis {
            Axis::Time if work.along_rows(y, states, [window, sums]) => 0,
            Axis::Time => slice.end - slice.start,
            Axis::Channels => work.along_channels(y),
        };
        at.load(simd, slice.start, staged, window.reborrow());
        let convolution = Convolution { axis: tiling.axis, filters, channels, count: staged, silu: problem.silu, adjoint: false };
        convolution.run(simd, tiling.span(window.read(), 0), tiling.span(sums.reborrow(), 0));
        tiling.store(simd, sums.read(), plane_mut(y, slice.batch).at(first, slice.start).area(channels, staged));
    }

    /// The final states of a segment that begins with a slice: its last inputs, or those of a short segment and what lies before it. The first slice leaves
    /// them since no other one reads the initial states, which a pool may have in the same place.
    #[inline(always)]
    fn last_inputs<S: Isa>(&mut self, simd: S, slice: &Slice, at: Window<'_, '_>) {
        let Window { tiling, problem, segment, first, channels } = at;
        let (Some(target), Some(place), true) = (&self.targets.final_states, segment.last, slice.start == segment.start) else {
            return;
        };
        let (before, length, window) = (problem.width - 1, segment.len(), &mut self.scratch.tiles[0]);
        let last = if length >= 2 * before { before } else { length };
        let to = state_plane_mut(target, place).at(first, 0).area(channels, before);
        at.load(simd, segment.end - last, last, window.reborrow());
        tiling.store(simd, window.read().from(tiling.at(last)), to);
    }
}

/// A slice for some channels, on its way from `x` to `y` without tiles.
struct Work<'w, 'a, T, S> {
    simd: S,
    filters: Filters<'w, T>,
    slice: &'w Slice,
    at: Window<'w, 'a>,
}

impl<T: Real, S: Isa> Work<'_, '_, T, S> {
    /// Rows of time, if they lie in a way that allows it; whether they do.
    #[inline(always)]
    fn along_rows(&self, y: &RawViewMut, states: &mut ArrayMut<'_, T>, room: [&mut ArrayMut<'_, T>; 2]) -> bool {
        let Work { simd, filters, slice, at } = self;
        let Window { tiling, problem, segment, first, channels } = *at;
        let begins = slice.start == segment.start;
        // SAFETY: no other job has these channels of the slice.
        let Some(rows) = (unsafe { Rows::new(problem, y, slice, begins, (first, channels)) }) else { return false };
        if slice.end - slice.start < T::lanes::<S>() {
            return false;
        }
        at.load_before(*simd, tiling.taps(), states.reborrow());
        rows.convolve(*simd, filters, (problem.silu, streams(y)), states.read(), room);
        true
    }

    /// Channels side by side, if they are whole vectors of the compute type; how many steps at the start are left, for they look back at what
    /// lies before the segment.
    #[inline(always)]
    fn along_channels(&self, y: &RawViewMut) -> usize {
        let &Work { simd, filters, slice, at } = self;
        let Window { tiling, problem, segment, first, channels } = at;
        let (before, steps) = (problem.width - 1, slice.end - slice.start);
        let from = if slice.start == segment.start { before } else { 0 };
        if steps <= from || !channels.is_multiple_of(T::lanes::<S>()) {
            return steps;
        }
        let start = slice.start + from;
        let x = Span::<T>::of(&problem.x, slice.batch, first, start - before);
        // SAFETY: no other job has these channels of the slice.
        let y = unsafe { SpanMut::<T>::of_mut(y, slice.batch, first, start) };
        let Some((x, y)) = x.zip(y) else { return steps };
        let count = steps - from;
        let convolution = Convolution { axis: tiling.axis, filters, channels, count, silu: problem.silu, adjoint: false };
        convolution.run(simd, x, y);
        from
    }
}
