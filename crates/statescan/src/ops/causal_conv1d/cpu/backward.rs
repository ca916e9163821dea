//! Backward: gradients by the inputs slice by slice, gradients by the filters summed over groups of slices and then over the groups.

use super::super::Problem;
use super::plan::{Plan, Slice};
use super::tiling::Walk;
use super::*;
use crate::cpu::tile::AreaMut;
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
    exec.for_each(jobs, Arena::<T>::default, |arena, job| {
        let (group, block) = (job / plan.blocks, job % plan.blocks);
        let mut part = parts.get(job).map(|part| part.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        let sums = part.as_mut().map(|part| &mut part[..]);
        arena.lend(
            |room| Scratch::lay_out(room, tiling, plan.tile_channels, problem.width),
            |scratch| {
                exec.level().dispatch(Job { problem, sources, targets, plan: &plan, tiling, scratch, sums, group, block });
            },
        );
    });
    drop(parts);
    // the sums of all blocks, for each group
    let mut totals = vec![0.0; plan.blocks * chunk];
    add_up(&mut totals, partial.chunks((plan.blocks * chunk).max(1)));
    for (d, sums) in totals.chunks(SUMS).enumerate().take(problem.dim) {
        if let Some(weight) = &targets.weight {
            let strides = weight.strides();
            for k in 0..problem.width {
                weight.write(d as isize * strides[0] + k as isize * strides[1], sums[k].into());
            }
        }
        if let Some(bias) = &targets.bias {
            bias.write(d as isize * bias.strides()[0], sums[TAPS].into());
        }
    }
}

struct Job<'j, 'a, T> {
    problem: &'j Problem<'a>,
    sources: &'j Sources<'a>,
    targets: &'j GradientTargets,
    plan: &'j Plan,
    tiling: Tiling,
    scratch: Scratch<'j, T, TILES>,
    /// (channel of the block, tap): the sums of this job.
    sums: Option<&'j mut [f64]>,
    group: usize,
    block: usize,
}

impl<T: Real> Kernel for Job<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let Job { problem, plan, tiling, group, block, .. } = self;
        for (first, channels) in tiles(plan, problem.dim, block) {
            let (weight, bias) = (&problem.weight, problem.bias.as_ref());
            self.scratch.filters.load(simd, tiling, weight, bias, (first, channels));
            for slice in plan.group(group) {
                let steps = slice.end - slice.start;
                let dx = self.targets.x.as_ref().map(|v| plane_mut(v, slice.batch).at(first, slice.start));
                let dx = dx.map(|plane| plane.area(channels, steps));
                let Some(index) = slice.segment else {
                    if let Some(dx) = dx {
                        let by_input = &mut self.scratch.tiles[3];
                        tiling.zero(by_input, channels, 0, steps);
                        tiling.store(simd, by_input.read(), dx);
                    }
                    continue;
                };
                let segment = &problem.segments.list[index];
                let at = Window { tiling, problem, segment, first, channels };
                self.sums(simd, slice, at);
                self.inputs(simd, slice, at, dx);
            }
        }
    }
}

/// The stages of a slice, whose channels no other thread has; the filters are those of the channels.
impl<T: Real> Job<'_, '_, T> {
    /// The gradient by the sums before silu, from position W-1 on, with zeros around it; adds to the gradients by the filters.
    #[inline(always)]
    fn sums<S: Isa>(&mut self, simd: S, slice: &Slice, at: Window<'_, '_>) {
        let Window { tiling, problem, segment, first, channels } = at;
        let Scratch { tiles: [window, by_y, by_sum, _], filters, .. } = &mut self.scratch;
        let (before, steps) = (problem.width - 1, slice.end - slice.start);
        // steps after the slice whose sums reach back into it
        let after = before.min(segment.end - slice.end);
        let (from, count) = (tiling.at(before), steps + after);
        if problem.silu || self.sums.is_some() {
            at.load(simd, slice.start, count, window.reborrow());
        }
        tiling.zero(by_sum, channels, 0, before);
        match &self.sources.y {
            None => tiling.zero(by_sum, channels, before, count),
            Some(dy) => {
                let dy = plane(dy, slice.batch).at(first, slice.start).area(channels, count);
                let loaded = if problem.silu { &mut *by_y } else { &mut *by_sum };
                tiling.load(simd, dy, loaded.from(from));
                if problem.silu {
                    let filters = filters.read();
                    let convolution = Convolution { axis: tiling.axis, filters, channels, count, silu: false, adjoint: false };
                    convolution.run(simd, tiling.span(window.read(), 0), tiling.span(by_sum.reborrow(), before));
                    through_silu::<T, S>(simd, tiling, (channels, count), by_y.read().from(from), by_sum.from(from));
                }
            }
        }
        tiling.zero(by_sum, channels, before + count, before - after);
        if let Some(sums) = &mut self.sums {
            let sums = &mut sums[(first % self.plan.block_channels) * SUMS..];
            let (by_sum, window) = (by_sum.read().from(from), window.read());
            let of = FilterSums { tiling, width: problem.width, channels, count: steps, by_sum, window };
            of.add(simd, sums);
        }
    }

    /// The gradients by the inputs of a slice, and before its segment if that begins with it, from those by the sums.
    #[inline(always)]
    fn inputs<S: Isa>(&mut self, simd: S, slice: &Slice, at: Window<'_, '_>, dx: Option<AreaMut>) {
        let Window { tiling, problem, segment, first, channels } = at;
        let Scratch { tiles: [_, _, by_sum, by_input], filters, states } = &mut self.scratch;
        let (before, steps) = (problem.width - 1, slice.end - slice.start);
        // the first slice also reaches the inputs before its segment
        let initial = self.targets.initial_states.as_ref().zip(segment.initial).filter(|_| slice.start == segment.start);
        if dx.is_none() && initial.is_none() {
            return;
        }
        let skip = if initial.is_some() { 0 } else { before };
        let (count, filters) = (before + steps - skip, filters.read());
        let convolution = Convolution { axis: tiling.axis, filters, channels, count, silu: false, adjoint: true };
        convolution.run(simd, tiling.span(by_sum.read(), skip), tiling.span(by_input.reborrow(), skip));
        if let (Some(dlast), Some(place)) = (&self.sources.final_states, segment.last) {
            tiling.taps().load(simd, state_plane(dlast, place).at(first, 0).area(channels, before), states.reborrow());
            add_final(at, slice, skip, states.read(), by_input);
        }
        if let Some(dx) = dx {
            tiling.store(simd, by_input.read().from(tiling.at(before)), dx);
        }
        if let Some((target, place)) = initial {
            tiling.store(simd, by_input.read(), state_plane_mut(target, place).at(first, 0).area(channels, before));
        }
    }
}

/// `sum <- dy silu'(sum)`.
#[inline(always)]
fn through_silu<T: Real, S: Isa>(
    simd: S,
    tiling: Tiling,
    (channels, count): (usize, usize),
    by_y: Array<'_, T>,
    mut sum: ArrayMut<'_, T>,
) {
    let walk = tiling.walk(channels, count, T::lanes::<S>());
    for line in 0..walk.lines {
        let (by_y, mut sum) = (by_y.from(line * walk.line_step), sum.from(line * walk.line_step));
        let mut position = 0;
        while position + 4 <= walk.positions {
            times_slope::<T, S, 4>(simd, (by_y, &mut sum), (position * walk.step, walk.step));
            position += 4;
        }
        while position < walk.positions {
            times_slope::<T, S, 1>(simd, (by_y, &mut sum), (position * walk.step, walk.step));
            position += 1;
        }
    }
}

/// `R` vectors of [`through_silu`], from the first one on so many elements apart.
#[inline(always)]
fn times_slope<T: Real, S: Isa, const R: usize>(
    simd: S,
    (by_y, sum): (Array<'_, T>, &mut ArrayMut<'_, T>),
    (first, step): (usize, usize),
) {
    let mut slope = [V::splat(simd, T::default()); R];
    for r in 0..R {
        slope[r] = sum.load(simd, first + r * step);
    }
    slope = silu_derivative_each(slope);
    for r in 0..R {
        let at = first + r * step;
        sum.store(at, by_y.load(simd, at) * slope[r]);
    }
}

/// The sums `sum_t by_sum[t] window[t + k]` for every tap, and `sum_t by_sum[t]`, over the steps of a slice.
struct FilterSums<'m, T> {
    tiling: Tiling,
    width: usize,
    channels: usize,
    count: usize,
    by_sum: Array<'m, T>,
    window: Array<'m, T>,
}

impl<T: Real> FilterSums<'_, T> {
    /// Adds them to those of the channels, [`SUMS`] each.
    #[inline(always)]
    fn add<S: Isa>(&self, simd: S, sums: &mut [f64]) {
        let &FilterSums { tiling, width, channels, count, .. } = self;
        let lanes = T::lanes::<S>();
        let walk = tiling.walk(channels, count, lanes);
        for line in 0..walk.lines {
            for k in 0..=width {
                let sum = self.whole_vectors(simd, walk, line, k);
                let slot = if k < width { k } else { TAPS };
                match tiling.axis {
                    Axis::Time => {
                        let rest = self.rest(walk, line, k, count / lanes * lanes);
                        sums[line * SUMS + slot] += rest.fold(sum.reduce_sum().to_f64(), |sum, term| sum + term);
                    }
                    Axis::Channels => {
                        let row = sum.to_array();
                        for lane in 0..lanes.min(channels - line * lanes) {
                            sums[(line * lanes + lane) * SUMS + slot] += row[lane].to_f64();
                        }
                    }
                }
            }
        }
    }

    /// The sum for a tap of a line, or for the bias, lane by lane.
    #[inline(always)]
    fn whole_vectors<S: Isa>(&self, simd: S, walk: Walk, line: usize, k: usize) -> V<T, S> {
        let mut sum = [V::splat(simd, T::default()); 4];
        // along time the last vector reaches over the slice: what lies there must not be summed, not even as zero times NaN
        let whole = if self.tiling.axis == Axis::Time { self.count / T::lanes::<S>() } else { walk.positions };
        let tap = k < self.width;
        let by_sum = self.by_sum.from(line * walk.line_step);
        let window = self.window.from(line * walk.line_step + if tap { k * walk.tap } else { 0 });
        let mut position = 0;
        while position + 4 <= whole {
            for r in 0..4 {
                sum[r] = term(by_sum, window, (position + r) * walk.step, tap, sum[r]);
            }
            position += 4;
        }
        while position < whole {
            sum[0] = term(by_sum, window, position * walk.step, tap, sum[0]);
            position += 1;
        }
        (sum[0] + sum[1]) + (sum[2] + sum[3])
    }

    /// The terms of the steps from `first` on, along time.
    #[inline(always)]
    fn rest(&self, walk: Walk, line: usize, k: usize, first: usize) -> impl Iterator<Item = f64> {
        let (count, tap, at) = (self.count - first, k < self.width, line * walk.line_step + first);
        let by_sum = self.by_sum.shared(at, count);
        let window = if tap { self.window.shared(at + k, count) } else { &[] };
        (0..count).map(move |t| by_sum[t].to_f64() * if tap { window[t].to_f64() } else { 1.0 })
    }
}

/// One vector of a sum: with a tap, or of the bias.
#[inline(always)]
fn term<T: Real, S: Isa>(by_sum: Array<'_, T>, window: Array<'_, T>, at: usize, tap: bool, sum: V<T, S>) -> V<T, S> {
    let p = by_sum.load(sum.simd(), at);
    if tap { p.mul_add(window.load(sum.simd(), at), sum) } else { p + sum }
}

/// Adds the cotangent of the final states to the inputs they are copies of, where those lie in this slice (or, from position 0 on, before
/// its segment).
#[inline(always)]
fn add_final<T: Real>(at: Window<'_, '_>, slice: &Slice, skip: usize, states: Array<'_, T>, by_input: &mut ArrayMut<'_, T>) {
    let Window { tiling, problem, segment, channels, .. } = at;
    let before = problem.width - 1;
    for j in 0..before {
        // position of step `segment.end - before + j`, where position `before` is the start of the slice
        let position = segment.end + j - slice.start;
        if position < skip || position >= before + slice.end - slice.start {
            continue;
        }
        for c in 0..channels {
            let to = tiling.element(c, position);
            by_input.set(to, by_input.get(to) + states.get(tiling.taps().element(c, j)));
        }
    }
}
