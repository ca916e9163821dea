//! Norms on the CPU. A job is some neighbouring rows; each group of a row is converted to the compute type, filled up to whole vectors with
//! zeros, and computed at once. Sums over rows, those of the gradients by weight and bias, are added job by job.

mod backward;
mod forward;

use super::{GradientTargets, Problem, Sources, Targets};
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{self, Address, MAX_LANES, Plane, PlaneMut, PlaneOf, Tile, TileMut};
use crate::cpu::{Array, ArrayMut, Room};
use crate::tensor::{RawViewMut, View};
pub(super) use backward::backward;
use core::ops::Range;
pub(super) use forward::forward;

/// Channels that a job has at least, where there are so many.
const JOB: usize = 1 << 14;

/// The rows of jobs: of `most` jobs at most.
struct Plan {
    rows: usize,
    rows_per_job: usize,
}

impl Plan {
    fn new(problem: &Problem<'_>, most: usize) -> Self {
        let rows = if problem.dim() == 0 { 0 } else { problem.count() };
        let enough = JOB.div_ceil(problem.dim().max(1));
        Plan { rows, rows_per_job: enough.max(rows.div_ceil(most)).max(1) }
    }

    fn jobs(&self) -> usize {
        self.rows.div_ceil(self.rows_per_job)
    }

    fn rows_of(&self, job: usize) -> Range<usize> {
        let first = job * self.rows_per_job;
        first..self.rows.min(first + self.rows_per_job)
    }
}

/// Channels of a group, filled up to whole vectors of every level.
fn padded(problem: &Problem<'_>) -> usize {
    problem.group.next_multiple_of(MAX_LANES)
}

/// The part of a row that is normed at once.
#[derive(Clone, Copy)]
struct Group<'p, 'a> {
    problem: &'p Problem<'a>,
    row: [usize; 3],
    number: usize,
}

impl<'p, 'a> Group<'p, 'a> {
    /// Every group of some rows.
    #[inline(always)]
    fn of_rows(problem: &'p Problem<'a>, rows: Range<usize>) -> impl Iterator<Item = Self> {
        let of_row = move |row| (0..problem.groups).map(move |number| Group { problem, row: problem.index(row), number });
        rows.flat_map(of_row)
    }

    #[inline(always)]
    fn place<A: Address>(self, plane: PlaneOf<A>, strides: &[isize]) -> PlaneOf<A> {
        let [i, j, k] = self.row;
        plane.at(self.number * self.problem.group, k).along(i, strides[0]).along(j, strides[1])
    }

    /// The group's numbers in a tensor of rows.
    #[inline(always)]
    fn load<T: Real, S: Isa>(self, simd: S, view: &View<'_>, to: ArrayMut<'_, T>) {
        let (plane, padded) = (self.place(Plane::of(view, 3, 2), &view.strides()), padded(self.problem));
        tile::load(simd, plane.area(self.problem.group, 1), padded, TileMut::new(to, padded));
    }

    #[inline(always)]
    fn store<T: Real, S: Isa>(self, simd: S, from: Array<'_, T>, view: &RawViewMut) {
        let plane = self.place(PlaneMut::of(view, 3, 2), &view.strides());
        tile::store(simd, Tile::new(from, padded(self.problem)), plane.area(self.problem.group, 1));
    }

    /// x + residual, scaled.
    #[inline(always)]
    fn load_sum<T: Real, S: Isa>(self, simd: S, mut to: ArrayMut<'_, T>, mut other: ArrayMut<'_, T>) {
        self.load(simd, &self.problem.x, to.reborrow());
        if let Some(residual) = &self.problem.residual {
            self.load(simd, residual, other.reborrow());
            if self.problem.residual_scale.is_some() {
                self.scale(simd, other.reborrow());
            }
            for at in vectors::<T, S>(self.problem) {
                to.store(at, to.load(simd, at) + other.load(simd, at));
            }
        }
    }

    /// Multiplies numbers by the factor of the row's residual.
    #[inline(always)]
    fn scale<T: Real, S: Isa>(self, simd: S, mut values: ArrayMut<'_, T>) {
        let scale = V::constant(simd, self.problem.scale(self.row));
        for at in vectors::<T, S>(self.problem) {
            values.store(at, values.load(simd, at) * scale);
        }
    }

    /// Subtracts the mean where the norm does so, and divides by the root of the mean square: the factor.
    #[inline(always)]
    fn norm<T: Real, S: Isa>(self, simd: S, mut values: ArrayMut<'_, T>) -> T {
        let problem = self.problem;
        if !problem.normed {
            return T::from_f64(1.0);
        }
        let count = problem.group as f64;
        if problem.layer {
            let mean = total(simd, problem, |at| values.load(simd, at)).to_f64() / count;
            let mean = V::constant(simd, mean);
            for at in vectors::<T, S>(problem) {
                values.store(at, values.load(simd, at) - mean);
            }
            let (first, all) = (problem.group, padded(problem));
            values.slice(first, all - first).fill(T::default());
        }
        let squares = total(simd, problem, |at| values.load(simd, at) * values.load(simd, at)).to_f64();
        let factor = 1.0 / (squares / count + problem.eps).sqrt();
        let by = V::constant(simd, factor);
        for at in vectors::<T, S>(problem) {
            values.store(at, values.load(simd, at) * by);
        }
        T::from_f64(factor)
    }
}

/// Returns the starts of a group's vectors.
#[inline(always)]
fn vectors<T: Real, S: Isa>(problem: &Problem<'_>) -> impl Iterator<Item = usize> + use<T, S> {
    (0..padded(problem)).step_by(T::lanes::<S>())
}

/// The sum of the terms of a group.
#[inline(always)]
fn total<T: Real, S: Isa>(simd: S, problem: &Problem<'_>, term: impl Fn(usize) -> V<T, S>) -> T {
    let (lanes, padded) = (T::lanes::<S>(), padded(problem));
    let mut sums = [V::splat(simd, T::default()); 4];
    let mut at = 0;
    while at + 4 * lanes <= padded {
        for r in 0..4 {
            sums[r] = sums[r] + term(at + r * lanes);
        }
        at += 4 * lanes;
    }
    while at < padded {
        sums[0] = sums[0] + term(at);
        at += lanes;
    }
    ((sums[0] + sums[1]) + (sums[2] + sums[3])).reduce_sum()
}

/// Weight and bias of every group, 1 and 0 where they are not given.
struct Weights<'m, T> {
    weight: ArrayMut<'m, T>,
    bias: ArrayMut<'m, T>,
}

impl<'m, T: Real> Weights<'m, T> {
    fn lay_out(room: &mut Room<'m, T>, problem: &Problem<'_>) -> Self {
        let len = problem.groups * padded(problem);
        Weights { weight: room.array(len), bias: room.array(len) }
    }

    #[inline(always)]
    fn load<S: Isa>(&mut self, simd: S, problem: &Problem<'_>) {
        let (padded, group) = (padded(problem), problem.group);
        for (view, all, otherwise) in [(&problem.weight, &mut self.weight, 1.0), (&problem.bias, &mut self.bias, 0.0)] {
            for number in 0..problem.groups {
                let mut to = all.from(number * padded);
                match view {
                    Some(view) => {
                        let plane = Plane::strided(view, view.strides()[0], 0).at(number * group, 0);
                        tile::load(simd, plane.area(group, 1), padded, TileMut::new(to, padded));
                    }
                    None => to.slice(0, padded).fill(T::from_f64(otherwise)),
                }
            }
        }
    }

    /// Returns the parameters of a group.
    #[inline(always)]
    fn of(&self, group: Group<'_, '_>) -> [Array<'_, T>; 2] {
        [&self.weight, &self.bias].map(|array| array.read().from(group.number * padded(group.problem)))
    }

    /// Returns the parameters of a group for writing.
    #[inline(always)]
    fn of_mut(&mut self, group: Group<'_, '_>) -> [ArrayMut<'_, T>; 2] {
        [&mut self.weight, &mut self.bias].map(|array| array.from(group.number * padded(group.problem)))
    }
}
