//! Moving blocks of time between tensors and row-major matrices, and the skip.

use super::plan::Plan;
use crate::cpu::simd::{Isa, Real};
use crate::cpu::tile::{self, Plane, PlaneMut};
use crate::cpu::{Array, ArrayMut};
use crate::cpu::{Kernel, Level};
use crate::tensor::{RawViewMut, View};
use core::ops::Range;

/// Loads tiles of a (B, C, L) tensor as rows (step, part, channel).
pub(super) struct Load<'j, 'a, T> {
    pub plan: &'j Plan,
    pub tiles: Range<usize>,
    pub view: &'j View<'a>,
    pub parts: usize,
    pub rows: ArrayMut<'j, T>,
}

impl<T: Real> Kernel for Load<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let (channels, strides) = (self.view.shape()[1], self.view.strides());
        let mut rows = self.rows;
        for tile in self.tiles.map(|index| self.plan.tile(index)) {
            let plane = Plane::of(self.view, 1, 2).along(tile.batch, strides[0]).at(0, tile.start);
            tile::load_parts(simd, plane.area(channels, tile.len()), self.parts, channels, rows.reborrow());
            rows = rows.starting(tile.len() * self.parts * channels);
        }
    }
}

/// The inverse of [`Load`].
pub(super) struct Store<'j, T> {
    pub plan: &'j Plan,
    pub tiles: Range<usize>,
    pub view: &'j RawViewMut,
    pub parts: usize,
    pub rows: Array<'j, T>,
}

impl<T: Real> Kernel for Store<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let (channels, strides) = (self.view.shape()[1], self.view.strides());
        let mut rows = self.rows;
        for tile in self.tiles.map(|index| self.plan.tile(index)) {
            let plane = PlaneMut::of(self.view, 1, 2).along(tile.batch, strides[0]).at(0, tile.start);
            tile::store_parts(simd, rows, self.parts, channels, plane.area(channels, tile.len()));
            rows = rows.from(tile.len() * self.parts * channels);
        }
    }
}

/// Loads a (C,) tensor.
pub(super) fn load_vector<T: Real>(level: Level, view: &View<'_>) -> Vec<T> {
    let count = view.shape()[0];
    let mut vector = vec![T::default(); count];
    tile::load_parts_on(level, Plane::of(view, 0, 0).area(count, 1), 1, count, ArrayMut::of(&mut vector));
    vector
}

/// Stores into a (C,) tensor.
pub(super) fn store_vector<T: Real>(level: Level, vector: &[T], view: &RawViewMut) {
    let count = vector.len();
    tile::store_parts_on(level, Array::of(vector), 1, count, PlaneMut::of(view, 0, 0).area(count, 1));
}

/// `to[t] += d from[t]`, channel by channel.
pub(super) struct Skip<'j, T> {
    pub d: &'j [T],
    pub steps: usize,
    pub from: Array<'j, T>,
    pub from_step: usize,
    pub to: ArrayMut<'j, T>,
    pub to_step: usize,
}

impl<T: Real> Kernel for Skip<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, _simd: S) {
        let count = self.d.len();
        debug_assert!(count <= self.from_step && count <= self.to_step, "rows are as long as d");
        for t in 0..self.steps {
            let (from, to) = (self.from.shared(t * self.from_step, count), self.to.slice(t * self.to_step, count));
            for i in 0..count {
                to[i] = to[i] + self.d[i] * from[i];
            }
        }
    }
}

/// `sum[c] = sum_t left[t, c] right[t, c]`, the gradient of the skip.
pub(super) struct Dots<'j, T> {
    pub steps: usize,
    pub left: Array<'j, T>,
    pub left_step: usize,
    pub right: Array<'j, T>,
    pub right_step: usize,
    pub sums: &'j mut [T],
}

impl<T: Real> Kernel for Dots<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, _simd: S) {
        let count = self.sums.len();
        debug_assert!(count <= self.left_step && count <= self.right_step, "rows are as long as the sums");
        self.sums.fill(T::default());
        for t in 0..self.steps {
            let (left, right) = (self.left.shared(t * self.left_step, count), self.right.shared(t * self.right_step, count));
            for i in 0..count {
                self.sums[i] = self.sums[i] + left[i] * right[i];
            }
        }
    }
}
