//! Sums over segments (a, d, dt_bias) and over the blocks of heads of a group (b, c): every job leaves its own part, and parts are added
//! in the order of the plan.

use super::super::GradientTargets;
use super::super::problem::Problem;
use super::blocks::{self, Place, Way};
use super::plan::{CHUNK, HeadBlock, Plan};
use crate::cpu::simd::Real;
use crate::cpu::tile::Tile;
use crate::cpu::{Array, ArrayMut, Divided, add_up};
use crate::exec::Exec;
use crate::tensor::RawViewMut;

/// The partial gradients that jobs leave.
pub(super) struct Partials<T> {
    sizes: Sizes,
    /// (segment, head, 2): by a and by dt_bias.
    heads: Vec<f64>,
    /// (segment, head, headdim)
    columns: Vec<f64>,
    /// (block of the group, batch, step, group, dstate) for b and c.
    maps: [Vec<T>; 2],
}

#[derive(Clone, Copy)]
struct Sizes {
    nheads: usize,
    headdim: usize,
    /// Steps of all rows, groups, states.
    map_shape: [usize; 4],
    /// Blocks in a group; with one, gradients by b and c are stored at once.
    blocks: usize,
    targets: [Option<RawViewMut>; 2],
}

impl Sizes {
    /// Returns the start of a block's part of the gradient at a (batch, step, group): a row of states.
    fn row(&self, block: usize, (batch, step, group): (usize, usize, usize)) -> usize {
        let [batches, seqlen, groups, dstate] = self.map_shape;
        (((block * batches + batch) * seqlen + step) * groups + group) * dstate
    }
}

/// The partial gradients as jobs share them: each job has its own segment and heads.
pub(super) struct SharedPartials<'p, T> {
    sizes: Sizes,
    heads: Divided<'p, f64>,
    columns: Divided<'p, f64>,
    maps: [Divided<'p, T>; 2],
}

impl<T: Real> SharedPartials<'_, T> {
    /// Returns the sums to which a job adds its part of the gradient by d, one number for each column.
    pub(super) fn d(&self, segment: usize, block: &HeadBlock) -> ArrayMut<'_, f64> {
        let at = (segment * self.sizes.nheads + block.first) * self.sizes.headdim;
        // SAFETY: no other job has the segment and the heads of the block.
        unsafe { self.columns.part(at) }
    }

    /// Adds to a job's part of the gradients by a and by dt_bias.
    pub(super) fn add_head(&self, segment: usize, head: usize, a: f64, bias: f64) {
        debug_assert!(head < self.sizes.nheads, "a head of the problem");
        // SAFETY: as in `d`.
        let mut sums = unsafe { self.heads.part((segment * self.sizes.nheads + head) * 2) };
        sums.set(0, sums.get(0) + a);
        sums.set(1, sums.get(1) + bias);
    }

    /// Takes a block's gradient by b (0) or c (1) for some steps.
    pub(super) fn map(&self, which: usize, place: &Place, tile: Tile<'_, T>) {
        let Some(target) = &self.sizes.targets[which] else { return };
        if self.sizes.blocks == 1 {
            return blocks::timed(&blocks::of_group(place), Way::Store(target, tile));
        }
        for (row, step) in place.steps.clone().enumerate() {
            let dstate = self.sizes.map_shape[3];
            let at = self.sizes.row(place.block.index, (place.batch, step, place.block.group));
            // SAFETY: no other job has the steps for the block.
            let mut to = unsafe { self.maps[which].part(at) };
            to.slice(0, dstate).copy_from_slice(tile.array.shared(row * tile.pitch, dstate));
        }
    }
}

impl<T: Real> Partials<T> {
    pub(super) fn new(problem: &Problem<'_>, plan: &Plan, targets: &GradientTargets) -> Self {
        let map_shape = [problem.batch, problem.seqlen, problem.ngroups, problem.dstate];
        let columns = if targets.d.is_some() { plan.segments * problem.nheads * problem.headdim } else { 0 };
        let targets = [targets.b, targets.c];
        let maps = targets.map(|target| {
            let wanted = target.is_some() && plan.blocks_per_group > 1;
            vec![T::default(); if wanted { plan.blocks_per_group * map_shape.iter().product::<usize>() } else { 0 }]
        });
        let (nheads, headdim, blocks) = (problem.nheads, problem.headdim, plan.blocks_per_group);
        let sizes = Sizes { nheads, headdim, map_shape, blocks, targets };
        Partials { sizes, heads: vec![0.0; plan.segments * nheads * 2], columns: vec![0.0; columns], maps }
    }

    pub(super) fn share(&mut self) -> SharedPartials<'_, T> {
        let maps = self.maps.each_mut().map(|map| Divided::of(map));
        SharedPartials { sizes: self.sizes, heads: Divided::of(&mut self.heads), columns: Divided::of(&mut self.columns), maps }
    }

    /// Adds up the parts.
    pub(super) fn finish(&self, exec: &Exec, problem: &Problem<'_>, targets: &GradientTargets) {
        let segments = problem.segments.list.len();
        let Sizes { nheads, headdim, blocks, .. } = self.sizes;
        let sums = |parts: &[f64], len: usize| {
            let mut sums = vec![0.0; len];
            add_up(&mut sums, (0..segments).map(|segment| &parts[segment * len..][..len]));
            sums
        };
        let heads = sums(&self.heads, nheads * 2);
        for (target, i) in [(&targets.a, 0), (&targets.dt_bias, 1)] {
            let Some(target) = target else { continue };
            for h in 0..nheads {
                target.write(h as isize * target.strides()[0], heads[h * 2 + i].into());
            }
        }
        if let Some(target) = &targets.d {
            let strides = target.strides();
            let columns = sums(&self.columns, nheads * headdim);
            for h in 0..nheads {
                let (of_head, at) = (&columns[h * headdim..][..headdim], h as isize * strides[0]);
                match strides.len() {
                    1 => target.write(at, of_head.iter().sum::<f64>().into()),
                    _ => (0..).zip(of_head).for_each(|(p, sum)| target.write(at + p * strides[1], (*sum).into())),
                }
            }
        }
        if blocks != 1 {
            for which in 0..2 {
                self.finish_map(exec, which);
            }
        }
    }

    fn finish_map(&self, exec: &Exec, which: usize) {
        let Some(target) = &self.sizes.targets[which] else { return };
        let [batches, seqlen, groups, dstate] = self.sizes.map_shape;
        let spans = seqlen.div_ceil(CHUNK);
        exec.for_each(
            batches * groups * spans,
            || vec![T::default(); CHUNK * dstate],
            |sum, job| {
                let (batch, group, start) = (job / (groups * spans), job / spans % groups, job % spans * CHUNK);
                let steps = start..seqlen.min(start + CHUNK);
                for (row, step) in steps.clone().enumerate() {
                    let part = |block| &self.maps[which][self.sizes.row(block, (batch, step, group))..][..dstate];
                    add_up(&mut sum[row * dstate..][..dstate], (0..self.sizes.blocks).map(part));
                }
                let (tile, level) = (Tile::new(Array::of(sum), dstate), exec.level());
                let block = HeadBlock { group, index: 0, first: group, count: 1 };
                blocks::timed(&Place { level, batch, block, steps }, Way::Store(target, tile));
            },
        );
    }
}
