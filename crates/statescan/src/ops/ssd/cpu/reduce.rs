//! Sums over segments (a, d, dt_bias) and over the blocks of heads of a group (b, c): every job leaves its own part, and parts are added
//! in the order of the plan.

use super::super::GradientTargets;
use super::super::problem::Problem;
use super::blocks::{self, Place, Way};
use super::plan::{CHUNK, HeadBlock, Plan};
use crate::cpu::simd::Real;
use crate::cpu::tile::Tile;
use crate::cpu::{Array, add_up};
use crate::exec::Exec;
use crate::tensor::RawViewMut;

pub(super) struct Partials<T> {
    nheads: usize,
    headdim: usize,
    /// Steps of all rows, groups, states.
    map_shape: [usize; 4],
    /// Blocks in a group; with one, gradients by b and c are stored at once.
    blocks: usize,
    targets: [Option<RawViewMut>; 2],
    /// The memory that the arrays below lead to.
    _memory: (Vec<f64>, Vec<f64>, [Vec<T>; 2]),
    /// (segment, head, 2): by a and by dt_bias.
    heads: Array<f64>,
    /// (segment, head, headdim)
    columns: Array<f64>,
    /// (block of the group, batch, step, group, dstate) for b and c.
    maps: [Array<T>; 2],
}

impl<T: Real> Partials<T> {
    pub(super) fn new(problem: &Problem<'_>, plan: &Plan, targets: &GradientTargets) -> Self {
        let map_shape = [problem.batch, problem.seqlen, problem.ngroups, problem.dstate];
        let mut heads = vec![0.0; plan.segments * problem.nheads * 2];
        let columns = if targets.d.is_some() { plan.segments * problem.nheads * problem.headdim } else { 0 };
        let mut columns = vec![0.0; columns];
        let targets = [targets.b, targets.c];
        let mut maps = targets.map(|target| {
            let wanted = target.is_some() && plan.blocks_per_group > 1;
            vec![T::default(); if wanted { plan.blocks_per_group * map_shape.iter().product::<usize>() } else { 0 }]
        });
        Partials {
            nheads: problem.nheads,
            headdim: problem.headdim,
            map_shape,
            blocks: plan.blocks_per_group,
            targets,
            heads: Array::of(&mut heads),
            columns: Array::of(&mut columns),
            maps: maps.each_mut().map(|map| Array::of(map)),
            _memory: (heads, columns, maps),
        }
    }

    /// Where a job adds its part of the gradient by d, one number for each column.
    pub(super) fn d(&self, segment: usize, block: &HeadBlock) -> Array<f64> {
        self.columns.from((segment * self.nheads + block.first) * self.headdim)
    }

    /// Adds to a job's part of the gradients by a and by dt_bias.
    pub(super) fn add_head(&self, segment: usize, head: usize, a: f64, bias: f64) {
        debug_assert!(head < self.nheads, "a head of the problem");
        let sums = self.heads.slice((segment * self.nheads + head) * 2, 2);
        sums[0] += a;
        sums[1] += bias;
    }

    /// Takes a block's gradient by b (0) or c (1) for some steps.
    pub(super) fn map(&self, which: usize, place: &Place, tile: Tile<T>) {
        let Some(target) = &self.targets[which] else { return };
        if self.blocks == 1 {
            return blocks::timed(&blocks::of_group(place), Way::Store(target), tile);
        }
        for (row, step) in place.steps.clone().enumerate() {
            let dstate = self.map_shape[3];
            let to = self.row(which, place.block.index, (place.batch, step, place.block.group));
            to.slice(0, dstate).copy_from_slice(tile.array.shared(row * tile.pitch, dstate));
        }
    }

    /// A block's part of the gradient at a (batch, step, group): a row of states.
    fn row(&self, which: usize, block: usize, (batch, step, group): (usize, usize, usize)) -> Array<T> {
        let [batches, seqlen, groups, dstate] = self.map_shape;
        self.maps[which].from((((block * batches + batch) * seqlen + step) * groups + group) * dstate)
    }

    /// Adds up the parts.
    pub(super) fn finish(&self, exec: &Exec, problem: &Problem<'_>, targets: &GradientTargets) {
        let segments = problem.segments.list.len();
        let sums = |parts: &Array<f64>, len: usize| {
            let mut sums = vec![0.0; len];
            add_up(&mut sums, (0..segments).map(|segment| parts.shared(segment * len, len)));
            sums
        };
        let heads = sums(&self.heads, self.nheads * 2);
        for (target, i) in [(&targets.a, 0), (&targets.dt_bias, 1)] {
            let Some(target) = target else { continue };
            for h in 0..self.nheads {
                target.write(h as isize * target.strides()[0], heads[h * 2 + i].into());
            }
        }
        if let Some(target) = &targets.d {
            let strides = target.strides();
            let columns = sums(&self.columns, self.nheads * self.headdim);
            for h in 0..self.nheads {
                let (of_head, at) = (&columns[h * self.headdim..][..self.headdim], h as isize * strides[0]);
                match strides.len() {
                    1 => target.write(at, of_head.iter().sum::<f64>().into()),
                    _ => (0..).zip(of_head).for_each(|(p, sum)| target.write(at + p * strides[1], (*sum).into())),
                }
            }
        }
        if self.blocks != 1 {
            for which in 0..2 {
                self.finish_map(exec, which);
            }
        }
    }

    fn finish_map(&self, exec: &Exec, which: usize) {
        let Some(target) = &self.targets[which] else { return };
        let [batches, seqlen, groups, dstate] = self.map_shape;
        let spans = seqlen.div_ceil(CHUNK);
        exec.for_each(
            batches * groups * spans,
            || vec![T::default(); CHUNK * dstate],
            |sum, job| {
                let (batch, group, start) = (job / (groups * spans), job / spans % groups, job % spans * CHUNK);
                let steps = start..seqlen.min(start + CHUNK);
                for (row, step) in steps.clone().enumerate() {
                    let part = |block| self.row(which, block, (batch, step, group)).shared(0, dstate);
                    add_up(&mut sum[row * dstate..][..dstate], (0..self.blocks).map(part));
                }
                let (tile, level) = (Tile::new(Array::of(sum), dstate), exec.level());
                let block = HeadBlock { group, index: 0, first: group, count: 1 };
                blocks::timed(&Place { level, batch, block, steps }, Way::Store(target), tile);
            },
        );
    }
}
