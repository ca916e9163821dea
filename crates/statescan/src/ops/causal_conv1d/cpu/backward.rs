//! Backward: gradients by the inputs piece by piece, gradients by the filters summed over groups of pieces and then over the groups.

use super::super::Problem;
use super::plan::{Piece, Plan};
use super::*;
use crate::cpu::Kernel;
use crate::exec::Exec;
use std::sync::Mutex;

/// Sums that one job keeps for a channel: the taps, then the bias.
const SUMS: usize = TAPS + 1;

/// Tiles of a job: the window of inputs, and by the output, by the sum, by the input.
const TILES: usize = 4;

pub(crate) fn backward(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    if targets.x.is_none() && targets.weight.is_none() && targets.bias.is_none() && targets.initial_states.is_none() {
        return;
    }
    match problem.double {
        true => run::<f64>(exec, problem, sources, targets),
        false => run::<f32>(exec, problem, sources, targets),
    }
}

fn run<T: Real>(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    let plan = Plan::new(problem, TILES);
    let tiling = Tiling::of(&plan);
    let (jobs, chunk) = (plan.groups.len() * plan.blocks, plan.block_channels * SUMS);
    let summed = targets.weight.is_some() || targets.bias.is_some();
    let mut partial = vec![0.0f64; if summed { jobs * chunk } else { 0 }];
    // each job has its own part, so that no lock is ever waited for
    let parts: Vec<_> = partial.chunks_mut(chunk).map(Mutex::new).collect();
    let scratch = || Scratch::<T>::new(tiling, plan.tile_channels, TILES);
    exec.for_each(jobs, scratch, |scratch, job| {
        let (group, block) = (job / plan.blocks, job % plan.blocks);
        let mut part = parts.get(job).map(|part| part.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        let sums = part.as_mut().map(|part| &mut part[..]);
        exec.level().dispatch(Job { problem, sources, targets, plan: &plan, tiling, scratch, sums, group, block });
    });
    drop(parts);
    for d in 0..problem.dim {
        let (block, channel) = (d / plan.block_channels, d % plan.block_channels);
        let total = |k: usize| {
            let of_group = |g: usize| partial[(g * plan.blocks + block) * chunk + channel * SUMS + k];
            (0..plan.groups.len()).map(of_group).sum::<f64>()
        };
        // SAFETY: the offsets are those of elements (d, k) and (d,), written by this thread alone.
        unsafe {
            if let Some(weight) = &targets.weight {
                let strides = weight.strides();
                for k in 0..problem.width {
                    weight.write(d as isize * strides[0] + k as isize * strides[1], total(k).into());
                }
            }
            if let Some(bias) = &targets.bias {
                bias.write(d as isize * bias.strides()[0], total(TAPS).into());
            }
        }
    }
}

struct Job<'j, 'a, T> {
    problem: &'j Problem<'a>,
    sources: &'j Sources<'a>,
    targets: &'j GradientTargets,
    plan: &'j Plan,
    tiling: Tiling,
    scratch: &'j mut Scratch<T>,
    /// (channel of the block, tap): the sums of this job.
    sums: Option<&'j mut [f64]>,
    group: usize,
    block: usize,
}

impl<T: Real> Kernel for Job<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Job { problem, sources, targets, plan, tiling, scratch, mut sums, group, block } = self;
        let mut tile = scratch.tiles.chunks_exact_mut(tiling.len).map(|tile| tile.as_mut_ptr());
        let mut next = || tile.next().expect("four tiles");
        let (window, by_y, by_sum, by_input) = (next(), next(), next(), next());
        let mut filters = Filters { weight: &mut scratch.weight, bias: &mut scratch.bias, width: problem.width };
        let before = problem.width - 1;
        for (first, channels) in tiles(plan, problem.dim, block) {
            filters.load(simd, tiling, &problem.weight, problem.bias.as_ref(), first, channels);
            for piece in plan.group(group) {
                let steps = piece.end - piece.start;
                // SAFETY: pieces and channels are within the checked views; the tiles hold a piece with its surroundings.
                unsafe {
                    let dx = targets.x.as_ref().map(|v| plane_mut(v, piece.batch).at(first, piece.start));
                    let Some(index) = piece.segment else {
                        if let Some(dx) = dx {
                            tiling.zero(by_input, channels, 0, steps);
                            tiling.store(simd, by_input, dx, channels, steps);
                        }
                        continue;
                    };
                    let segment = &problem.segments.list[index];
                    // steps after the piece whose sums reach back into it
                    let after = before.min(segment.end - piece.end);
                    if problem.silu || sums.is_some() {
                        let steps = (piece.start, steps + after);
                        load_window(simd, tiling, problem, index, steps, (first, channels), window);
                    }
                    let from = tiling.at(before);
                    tiling.zero(by_sum, channels, 0, before);
                    match &sources.y {
                        None => tiling.zero(by_sum, channels, before, steps + after),
                        Some(dy) => {
                            let dy = plane(dy, piece.batch).at(first, piece.start);
                            let (size, loaded) = ((channels, steps + after), if problem.silu { by_y } else { by_sum });
                            tiling.load(simd, dy, channels, steps + after, loaded.add(from));
                            if problem.silu {
                                let (x, to) = (tiling.span(window, 0), tiling.span(by_sum, before));
                                convolve(simd, tiling.axis, &filters, size, x, to, (false, false));
                                through_silu::<T, S>(simd, tiling, size, by_y.add(from), by_sum.add(from));
                            }
                        }
                    }
                    tiling.zero(by_sum, channels, before + steps + after, before - after);
                    if let Some(sums) = &mut sums {
                        let sums = &mut sums[(first % plan.block_channels) * SUMS..];
                        filter_sums::<T, S>(simd, tiling, problem.width, (channels, steps), by_sum.add(from), window, sums);
                    }
                    // the first piece also reaches the inputs before its segment
                    let initial = targets.initial_states.as_ref().zip(segment.initial).filter(|_| piece.start == segment.start);
                    if dx.is_none() && initial.is_none() {
                        continue;
                    }
                    let skip = if initial.is_some() { 0 } else { before };
                    let size = (channels, before + steps - skip);
                    let (from_sum, to) = (tiling.span(by_sum, skip), tiling.span(by_input, skip));
                    convolve(simd, tiling.axis, &filters, size, from_sum, to, (false, true));
                    if let (Some(dlast), Some(at)) = (&sources.final_states, segment.last) {
                        let dlast = state_plane(dlast, at).at(first, 0);
                        let states = &mut scratch.states[..];
                        tiling.taps().load(simd, dlast, channels, before, states.as_mut_ptr());
                        add_final(tiling, (piece, segment.end), channels, (before, skip), states, by_input);
                    }
                    if let Some(dx) = dx {
                        tiling.store(simd, by_input.add(from), dx, channels, steps);
                    }
                    if let Some((target, at)) = initial {
                        tiling.store(simd, by_input, state_plane_mut(target, at).at(first, 0), channels, before);
                    }
                }
            }
        }
    }
}

/// `sum <- dy silu'(sum)`.
///
/// # Safety
/// As [`convolve`].
#[inline(always)]
unsafe fn through_silu<T: Real, S: Isa>(simd: S, tiling: Tiling, (channels, count): (usize, usize), by_y: *const T, sum: *mut T) {
    let walk = tiling.walk(channels, count, T::lanes::<S>());
    for line in 0..walk.lines {
        for position in 0..walk.positions {
            let at = line * walk.line_step + position * walk.step;
            // SAFETY: the caller's contract.
            unsafe {
                let slope = silu_derivative(V::load(simd, sum.add(at)));
                (V::load(simd, by_y.add(at)) * slope).store(sum.add(at));
            }
        }
    }
}

/// Adds `sum_t by_sum[t] window[t + k]` for every tap, and `sum_t by_sum[t]`, over the steps of the piece.
///
/// # Safety
/// As [`convolve`].
#[inline(always)]
unsafe fn filter_sums<T: Real, S: Isa>(
    simd: S,
    tiling: Tiling,
    width: usize,
    (channels, count): (usize, usize),
    by_sum: *const T,
    window: *const T,
    sums: &mut [f64],
) {
    let lanes = T::lanes::<S>();
    let walk = tiling.walk(channels, count, lanes);
    let zero = V::splat(simd, T::default());
    // along time the last vector reaches over the piece: what lies there must not be summed, not even as zero times NaN
    let whole = if tiling.axis == Axis::Time { count / lanes } else { walk.positions };
    for line in 0..walk.lines {
        for k in 0..=width {
            let mut sum = [zero; 4];
            // SAFETY: the caller's contract.
            unsafe {
                let by_sum = by_sum.add(line * walk.line_step);
                let window = window.add(line * walk.line_step + if k < width { k * walk.tap } else { 0 });
                let mut position = 0;
                while position + 4 <= whole {
                    for r in 0..4 {
                        sum[r] = term(by_sum, window, (position + r) * walk.step, k < width, sum[r]);
                    }
                    position += 4;
                }
                while position < whole {
                    sum[0] = term(by_sum, window, position * walk.step, k < width, sum[0]);
                    position += 1;
                }
            }
            let sum = (sum[0] + sum[1]) + (sum[2] + sum[3]);
            let slot = if k < width { k } else { TAPS };
            match tiling.axis {
                Axis::Time => {
                    let mut rest = sum.reduce_sum().to_f64();
                    for t in whole * lanes..count {
                        // SAFETY: both are steps of the piece and its window.
                        let (p, x) = unsafe {
                            let at = line * walk.line_step + t;
                            (*by_sum.add(at), if k < width { *window.add(at + k) } else { T::from_f64(1.0) })
                        };
                        rest += p.to_f64() * x.to_f64();
                    }
                    sums[line * SUMS + slot] += rest;
                }
                Axis::Channels => {
                    let mut row = [T::default(); MAX_LANES];
                    // SAFETY: a vector has at most MAX_LANES lanes.
                    unsafe { sum.store(row.as_mut_ptr()) };
                    for lane in 0..lanes.min(channels - line * lanes) {
                        sums[(line * lanes + lane) * SUMS + slot] += row[lane].to_f64();
                    }
                }
            }
        }
    }
}

/// One vector of a sum: with a tap, or of the bias.
#[inline(always)]
unsafe fn term<T: Real, S: Isa>(by_sum: *const T, window: *const T, at: usize, tap: bool, sum: V<T, S>) -> V<T, S> {
    // SAFETY: the contract of `filter_sums`.
    unsafe {
        let p = V::load(sum.simd(), by_sum.add(at));
        if tap { p.mul_add(V::load(sum.simd(), window.add(at)), sum) } else { p + sum }
    }
}

/// Adds the cotangent of the final states to the inputs they are copies of, where those lie in this piece (or, from position 0 on, before
/// its segment).
///
/// # Safety
/// The tile holds the piece and what lies before it.
#[inline(always)]
unsafe fn add_final<T: Real>(
    tiling: Tiling,
    (piece, segment_end): (&Piece, usize),
    channels: usize,
    (before, skip): (usize, usize),
    states: &[T],
    by_input: *mut T,
) {
    for j in 0..before {
        // position of step `segment_end - before + j`, where position `before` is the start of the piece
        let position = segment_end + j - piece.start;
        if position < skip || position >= before + piece.end - piece.start {
            continue;
        }
        for c in 0..channels {
            // SAFETY: the position is one of the tile.
            unsafe {
                let at = by_input.add(tiling.element(c, position));
                *at = *at + states[tiling.taps().element(c, j)];
            }
        }
    }
}
