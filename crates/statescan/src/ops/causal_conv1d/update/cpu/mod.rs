//! A few steps in place: tiles of neighbouring channels whatever the layout, since there are few steps to lie along a vector.

use super::Problem;
use crate::cpu::simd::{Isa, Real};
use crate::cpu::tile::{Plane, PlaneMut, STEPS};
use crate::cpu::{Arena, Kernel};
use crate::exec::Exec;
use crate::ops::causal_conv1d::cpu::plan::Axis;
use crate::ops::causal_conv1d::cpu::{Convolution, Scratch, Tiling, plane, plane_mut};

/// Channels in a tile.
const CHANNELS: usize = 256;
/// Channels in a job.
const BLOCK: usize = 8 * CHANNELS;

pub(crate) fn update(exec: &Exec, problem: &Problem<'_>) {
    match problem.double {
        true => run::<f64>(exec, problem),
        false => run::<f32>(exec, problem),
    }
}

fn run<T: Real>(exec: &Exec, problem: &Problem<'_>) {
    let blocks = problem.dim.div_ceil(BLOCK);
    // the steps that are worked on at once: a tile is no larger than the call needs
    let slice = problem.steps.max(problem.state_len).clamp(1, STEPS);
    let tiling = Tiling::new(Axis::Channels, CHANNELS, slice);
    exec.for_each(problem.rows.len() * blocks, Arena::<T>::default, |arena, job| {
        let (b, block) = (job / blocks, job % blocks);
        arena.lend(
            |room| Scratch::lay_out(room, tiling, CHANNELS, problem.width),
            |scratch| exec.level().dispatch(Job { problem, slice, tiling, scratch, b, block }),
        );
    });
}

struct Job<'j, 'a, T> {
    problem: &'j Problem<'a>,
    slice: usize,
    tiling: Tiling,
    /// A window of inputs, and sums.
    scratch: Scratch<'j, T, 2>,
    b: usize,
    block: usize,
}

impl<T: Real> Kernel for Job<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Job { problem, slice, tiling, mut scratch, b, block } = self;
        let (x, y) = (plane(&problem.x, b), plane_mut(&problem.y, b));
        let end = problem.dim.min((block + 1) * BLOCK);
        for first in (block * BLOCK..end).step_by(CHANNELS) {
            let channels = CHANNELS.min(end - first);
            let (x, y) = (x.at(first, 0), y.at(first, 0));
            let Some((row, place)) = problem.rows[b] else {
                let sums = &mut scratch.tiles[1];
                tiling.zero(sums, channels, 0, slice.min(problem.steps));
                for t in (0..problem.steps).step_by(slice) {
                    tiling.store(simd, sums.read(), y.at(0, t).area(channels, slice.min(problem.steps - t)));
                }
                continue;
            };
            scratch.filters.load(simd, tiling, &problem.weight, problem.bias.as_ref(), (first, channels));
            let state = plane_mut(&problem.state, row).at(first, 0);
            let mut steps = Steps { simd, problem, slice, tiling, scratch: &mut scratch, channels, x, state, place };
            steps.outputs(y);
            steps.remember();
        }
    }
}

/// All steps of some channels of a row, which no other thread has.
struct Steps<'s, 'm, 'a, T, S> {
    simd: S,
    problem: &'s Problem<'a>,
    slice: usize,
    tiling: Tiling,
    scratch: &'s mut Scratch<'m, T, 2>,
    channels: usize,
    x: Plane<'a>,
    state: PlaneMut,
    /// The place of the next input in a circular state.
    place: usize,
}

impl<T: Real, S: Isa> Steps<'_, '_, '_, T, S> {
    /// The outputs of all steps, a slice at a time.
    #[inline(always)]
    fn outputs(&mut self, y: PlaneMut) {
        let &mut Steps { simd, problem, slice, tiling, channels, x, state, place, .. } = self;
        let Scratch { tiles: [window, sums], filters, .. } = &mut *self.scratch;
        let filters = filters.read();
        let (before, len) = (problem.width - 1, problem.state_len);
        // the last inputs, which a circular buffer may have cut in two
        let oldest = if problem.cache_seqlens.is_some() { (place + len - before) % len } else { len - before };
        let run = before.min(len - oldest);
        tiling.load(simd, state.at(0, oldest).read().area(channels, run), window.reborrow());
        tiling.load(simd, state.read().area(channels, before - run), window.from(tiling.at(run)));
        for t in (0..problem.steps).step_by(slice) {
            let count = slice.min(problem.steps - t);
            tiling.load(simd, x.at(0, t).area(channels, count), window.from(tiling.at(before)));
            let convolution = Convolution { axis: tiling.axis, filters, channels, count, silu: problem.silu, adjoint: false };
            convolution.run(simd, tiling.span(window.read(), 0), tiling.span(sums.reborrow(), 0));
            tiling.store(simd, sums.read(), y.at(0, t).area(channels, count));
            let kept = tiling.at(before);
            let from = tiling.at(count);
            window.slice(0, from + kept).copy_within(from.., 0);
        }
    }

    /// Puts the last inputs into the state.
    #[inline(always)]
    fn remember(&mut self) {
        let &mut Steps { problem, x, state, place, .. } = self;
        let len = problem.state_len;
        if problem.cache_seqlens.is_some() {
            // only the last M inputs stay
            let mut t = problem.steps.saturating_sub(len);
            while t < problem.steps {
                let to = ((place as u128 + t as u128) % len as u128) as usize;
                let count = (len - to).min(problem.steps - t);
                self.copy(x.at(0, t), state.at(0, to), count);
                t += count;
            }
        } else {
            let kept = len.saturating_sub(problem.steps);
            self.copy(state.at(0, len - kept).read(), state, kept);
            self.copy(x.at(0, problem.steps - (len - kept)), state.at(0, kept), len - kept);
        }
    }

    /// Copies steps through a tile.
    #[inline(always)]
    fn copy(&mut self, source: Plane<'_>, target: PlaneMut, count: usize) {
        let &mut Steps { simd, slice, tiling, channels, .. } = self;
        let tile = &mut self.scratch.tiles[1];
        for t in (0..count).step_by(slice) {
            let steps = slice.min(count - t);
            tiling.load(simd, source.at(0, t).area(channels, steps), tile.reborrow());
            tiling.store(simd, tile.read(), target.at(0, t).area(channels, steps));
        }
    }
}
