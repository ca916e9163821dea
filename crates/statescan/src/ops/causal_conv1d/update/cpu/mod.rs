//! A few steps in place: tiles of neighbouring channels whatever the layout, since there are few steps to lie along a vector.

use super::Problem;
use crate::cpu::Kernel;
use crate::cpu::simd::{Isa, Real};
use crate::cpu::tile::{Plane, STEPS};
use crate::exec::Exec;
use crate::ops::causal_conv1d::cpu::plan::Axis;
use crate::ops::causal_conv1d::cpu::{Filters, Scratch, Tiling, convolve, plane, plane_mut};

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
    let piece = problem.steps.max(problem.state_len).clamp(1, STEPS);
    let tiling = Tiling::new(Axis::Channels, CHANNELS, piece);
    let scratch = || Scratch::<T>::new(tiling, CHANNELS, 2);
    exec.for_each(problem.rows.len() * blocks, scratch, |scratch, job| {
        let (b, block) = (job / blocks, job % blocks);
        exec.level().dispatch(Job { problem, piece, tiling, scratch, b, block });
    });
}

struct Job<'j, 'a, T> {
    problem: &'j Problem<'a>,
    piece: usize,
    tiling: Tiling,
    scratch: &'j mut Scratch<T>,
    b: usize,
    block: usize,
}

impl<T: Real> Kernel for Job<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Job { problem, piece, tiling, scratch, b, block } = self;
        let (window, sums) = scratch.tiles.split_at_mut(tiling.len);
        let (window, sums) = (window.as_mut_ptr(), sums.as_mut_ptr());
        let mut filters = Filters { weight: &mut scratch.weight, bias: &mut scratch.bias, width: problem.width };
        let (x, y) = (plane(&problem.x, b), plane_mut(&problem.y, b));
        let before = problem.width - 1;
        let end = problem.dim.min((block + 1) * BLOCK);
        for first in (block * BLOCK..end).step_by(CHANNELS) {
            let channels = CHANNELS.min(end - first);
            let (x, y) = (x.at(first, 0), y.at(first, 0));
            // SAFETY: channels and steps are within the checked views; tiles hold a piece and W-1 steps more.
            unsafe {
                let Some((row, place)) = problem.rows[b] else {
                    tiling.zero(sums, channels, 0, piece.min(problem.steps));
                    for t in (0..problem.steps).step_by(piece) {
                        tiling.store(simd, sums, y.at(0, t), channels, piece.min(problem.steps - t));
                    }
                    continue;
                };
                filters.load(simd, tiling, &problem.weight, problem.bias.as_ref(), first, channels);
                let state = plane_mut(&problem.state, row).at(first, 0);
                let copy = Copy { simd, piece, tiling, channels };
                // the last inputs, which a circular buffer may have cut in two
                let len = problem.state_len;
                let circular = problem.cache_seqlens.is_some();
                let oldest = if circular { (place + len - before) % len } else { len - before };
                let run = before.min(len - oldest);
                tiling.load(simd, state.at(0, oldest), channels, run, window);
                tiling.load(simd, state, channels, before - run, window.add(tiling.at(run)));
                for t in (0..problem.steps).step_by(piece) {
                    let steps = piece.min(problem.steps - t);
                    tiling.load(simd, x.at(0, t), channels, steps, window.add(tiling.at(before)));
                    let (from, to) = (tiling.span(window, 0), tiling.span(sums, 0));
                    let flags = (problem.silu, false);
                    convolve(simd, tiling.axis, &filters, (channels, steps), from, to, flags);
                    tiling.store(simd, sums, y.at(0, t), channels, steps);
                    core::ptr::copy(window.add(tiling.at(steps)), window, tiling.at(before));
                }
                if circular {
                    // only the last M inputs stay
                    let mut t = problem.steps.saturating_sub(len);
                    while t < problem.steps {
                        let to = ((place as u128 + t as u128) % len as u128) as usize;
                        let count = (len - to).min(problem.steps - t);
                        copy.run(x.at(0, t), state.at(0, to), count, sums);
                        t += count;
                    }
                } else {
                    let kept = len.saturating_sub(problem.steps);
                    copy.run(state.at(0, len - kept), state, kept, sums);
                    copy.run(x.at(0, problem.steps - (len - kept)), state.at(0, kept), len - kept, sums);
                }
            }
        }
    }
}

/// Copies steps through a tile.
#[derive(Clone, Copy)]
struct Copy<S> {
    simd: S,
    piece: usize,
    tiling: Tiling,
    channels: usize,
}

impl<S: Isa> Copy<S> {
    /// # Safety
    /// Both planes hold the channels and `count` steps; where they overlap, the target comes first.
    #[inline(always)]
    unsafe fn run<T: Real>(self, source: Plane, target: Plane, count: usize, tile: *mut T) {
        for t in (0..count).step_by(self.piece) {
            let steps = self.piece.min(count - t);
            // SAFETY: the caller's contract; a piece is read before any of it is written.
            unsafe {
                self.tiling.load(self.simd, source.at(0, t), self.channels, steps, tile);
                self.tiling.store(self.simd, tile, target.at(0, t), self.channels, steps);
            }
        }
    }
}
