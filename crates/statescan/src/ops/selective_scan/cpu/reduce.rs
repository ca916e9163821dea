//! Partial sums of gradients and their addition in a fixed order.

use super::plan::Block;
use super::{Context, GradientTargets, Projection};
use crate::cpu::simd::Real;
use crate::cpu::tile::{self, MAX_LANES, PlaneMut, STEPS};
use crate::cpu::{Array, Divided, Lent, add_up};
use crate::exec::Exec;
use crate::tensor::RawViewMut;
use core::ops::Range;

/// The partial gradients that the jobs of one backward pass leave.
pub(super) struct Partials<'e, T> {
    /// By B and C where they vary: (range of channels, batch, state, part, step of a window), those
    /// by B first.
    maps: Lent<'e, T>,
    /// The parts of that; empty where a map is constant or its gradient not asked for.
    b: Range<usize>,
    c: Range<usize>,
    /// By per-channel parameters: (range of segments, row, channel); rows are A, constant B, constant C (state, part), D, bias.
    channels: Vec<T>,
    sizes: Sizes,
}

#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    /// Steps in a window.
    window: usize,
    /// dstate x parts
    state: usize,
    padded_dim: usize,
}

impl Sizes {
    fn rows(&self) -> usize {
        3 * self.state + 2
    }

    fn map_position(&self, range: usize, batch: usize, row: usize, step: usize) -> usize {
        ((range * self.batch + batch) * self.state + row) * self.window + step % self.window
    }
}

/// The partial gradients as jobs share them: each writes its own elements.
#[derive(Clone, Copy)]
pub(super) struct SharedPartials<'p, T> {
    pub b: Option<Divided<'p, T>>,
    pub c: Option<Divided<'p, T>>,
    channels: Divided<'p, T>,
    sizes: Sizes,
}

impl<T: Real> SharedPartials<'_, T> {
    /// Position of a step of a row (state, part) in the partial sums of a map.
    pub(super) fn map_position(&self, range: usize, batch: usize, row: usize, step: usize) -> usize {
        self.sizes.map_position(range, batch, row, step)
    }

    /// Leaves what a job gathered for a block of channels: by A, B and C for each row (state, part), then by D and the bias.
    #[inline(always)]
    pub(super) fn store_channels(
        &self,
        segments: usize,
        block: Block,
        width: usize,
        states: [Array<'_, T>; 3],
        vectors: [Array<'_, T>; 2],
    ) {
        let Sizes { state, padded_dim, .. } = self.sizes;
        let base = segments * self.sizes.rows() * padded_dim + block.first;
        let rows = states.into_iter().flat_map(|from| (0..state).map(move |row| from.from(row * width)));
        for (row, from) in rows.chain(vectors).enumerate() {
            // SAFETY: no other job has the segments and channels.
            let mut to = unsafe { self.channels.part(base + row * padded_dim) };
            to.slice(0, block.count).copy_from_slice(from.shared(0, block.count));
        }
    }
}

impl<'e, T: Real> Partials<'e, T> {
    pub(super) fn new(exec: &'e Exec, context: &Context<'_, '_>, targets: &GradientTargets) -> Self {
        let p = context.problem;
        let sizes = Sizes {
            batch: p.batch,
            window: context.plan.window,
            state: p.dstate * p.parts(),
            padded_dim: context.checkpoints.padded_dim,
        };
        // a whole group's sums have nothing to be added to, and go to their targets at once
        let len = if context.plan.whole_groups { 0 } else { context.plan.channels.len() * p.batch * sizes.window * sizes.state };
        let len = |target: &Option<_>| if let Some(Projection::Varying(_)) = target { len } else { 0 };
        let (b, c) = (0..len(&targets.b), len(&targets.b)..len(&targets.b) + len(&targets.c));
        let maps = exec.workspace().lend(c.end);
        let channels = vec![T::default(); context.plan.segments.len() * sizes.rows() * sizes.padded_dim];
        Partials { maps, b, c, channels, sizes }
    }

    pub(super) fn share(&mut self) -> SharedPartials<'_, T> {
        let maps = self.maps.as_mut_slice().split_at_mut(self.c.start);
        let [b, c] = [maps.0, maps.1].map(|part| (!part.is_empty()).then(|| Divided::of(part)));
        SharedPartials { b, c, channels: Divided::of(&mut self.channels), sizes: self.sizes }
    }

    /// Adds the partial sums of a window and writes the gradients of B and C where they vary.
    pub(super) fn finish_maps(&self, exec: &Exec, context: &Context<'_, '_>, targets: &GradientTargets, window: Range<usize>) {
        for (target, partial) in [(&targets.b, &self.b), (&targets.c, &self.c)] {
            if let Some(Projection::Varying(target)) = target {
                self.finish_map(exec, context, target, &self.maps.as_slice()[partial.clone()], window.clone());
            }
        }
    }

    /// Adds the partial sums and writes the gradients that have no steps.
    pub(super) fn finish_channels(&self, exec: &Exec, context: &Context<'_, '_>, targets: &GradientTargets) {
        let (parts, dstate) = (context.problem.parts(), context.problem.dstate);
        let constant = |target: &Option<Projection<RawViewMut>>| match target {
            Some(Projection::Constant(view)) => Some(*view),
            _ => None,
        };
        let column = |target: &Option<RawViewMut>| target.map(|view| view.expand(1, 1));
        let state = self.sizes.state;
        let rows = [
            (targets.a, 0, dstate, parts),
            (constant(&targets.b), state, dstate, parts),
            (constant(&targets.c), 2 * state, dstate, parts),
            (column(&targets.d), 3 * state, 1, 1),
            (column(&targets.dt_bias), 3 * state + 1, 1, 1),
        ];
        for (target, first, count, parts) in rows {
            let Some(target) = target else { continue };
            let jobs = context.problem.dim.div_ceil(MAX_LANES);
            exec.for_each(jobs, Vec::new, |sum: &mut Vec<T>, job| {
                let channel = job * MAX_LANES;
                sum.resize(count * parts * MAX_LANES, T::default());
                for (row, sum) in sum.chunks_exact_mut(MAX_LANES).enumerate() {
                    add_up(
                        sum,
                        (0..context.plan.segments.len()).map(|range| {
                            let from = (range * self.sizes.rows() + first + row) * self.sizes.padded_dim + channel;
                            &self.channels[from..from + MAX_LANES]
                        }),
                    );
                }
                let lanes = MAX_LANES.min(context.problem.dim - channel);
                let plane = PlaneMut::of(&target, 0, 1).at(channel, 0);
                tile::store_parts_on(context.level, Array::of(sum), parts, MAX_LANES, plane.area(lanes, count));
            });
        }
    }

    fn finish_map(&self, exec: &Exec, context: &Context<'_, '_>, target: &RawViewMut, partial: &[T], window: Range<usize>) {
        let (p, plan) = (context.problem, &context.plan);
        let (groups, tiles) = (target.shape()[1], window.len().div_ceil(STEPS));
        exec.for_each(p.batch * groups * tiles, Vec::new, |sum: &mut Vec<T>, job| {
            let (row, start) = (job / tiles, window.start + job % tiles * STEPS);
            let (batch, group) = (row / groups, row % groups);
            let steps = STEPS.min(window.end - start);
            sum.resize(self.sizes.state * STEPS, T::default());
            for (row, sum) in sum.chunks_exact_mut(STEPS).enumerate() {
                let of_group = |range: &usize| plan.channels[*range].start / (p.dim / groups) == group;
                let part = |range| &partial[self.sizes.map_position(range, batch, row, start)..][..steps];
                add_up(sum, (0..plan.channels.len()).filter(of_group).map(part));
            }
            let strides = target.strides();
            let plane = PlaneMut::of(target, 2, 3).along(batch, strides[0]).along(group, strides[1]).at(0, start);
            // steps and states exchanged
            let to = plane.transposed().area(steps, p.dstate);
            tile::store_parts_on(context.level, Array::of(sum), p.parts(), STEPS, to);
        });
    }
}
