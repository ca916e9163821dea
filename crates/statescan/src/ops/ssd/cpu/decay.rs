//! Step sizes and decays of a chunk, and the lower-triangular matrices that they make.

use super::plan::CHUNK;
use crate::cpu::math::exp;
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::{Array, ArrayMut, Kernel};
use crate::step_size::StepSize;

/// Decays by less than this are 0 in any type; keeping sums above it keeps them finite.
const LOWEST_EXPONENT: f64 = -1e4;

/// Exponents below which a decay counts as 0, for f32 and f64: e^-69 is 1e-30. Less of a decay within a chunk leads to denormal numbers in the
/// matrix products, which take a hundred times as long, and is lost in any sum that has other terms.
const NEGLIGIBLE: [f64; 2] = [-69.0, -560.0];

/// `e^x`, 0 where that is negligible.
#[inline(always)]
fn fade<T: Real, S: Isa>(x: V<T, S>) -> V<T, S> {
    let simd = x.simd();
    V::select_less(x, V::constant(simd, NEGLIGIBLE[usize::from(T::DOUBLE)]), V::constant(simd, 0.0), exp(x))
}

/// Bias, softplus and clamp of dt, and the running sums of dt A (or dt_a A) as `high + low`, all as (step, head).
pub(super) struct StepSizes<'s, T> {
    pub steps: usize,
    /// Heads, padded to whole vectors of any width.
    pub pitch: usize,
    pub dt: ArrayMut<'s, T>,
    pub slope: ArrayMut<'s, T>,
    /// Steps of the decay, where they are not dt.
    pub dt_a: Option<Array<'s, T>>,
    pub high: ArrayMut<'s, T>,
    pub low: ArrayMut<'s, T>,
    /// One number for each head.
    pub a: Array<'s, T>,
    pub bias: Array<'s, T>,
    pub step: StepSize,
}

impl<T: Real> Kernel for StepSizes<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        debug_assert!(self.pitch.is_multiple_of(T::lanes::<S>()), "whole vectors of heads");
        debug_assert!(self.dt_a.is_none_or(|dt_a| dt_a.has(0, self.steps * self.pitch)), "the decay's steps are there");
        let (zero, lowest) = (V::constant(simd, 0.0), V::constant(simd, LOWEST_EXPONENT));
        for h in (0..self.pitch).step_by(T::lanes::<S>()) {
            let (bias, a) = (self.bias.load(simd, h), self.a.load(simd, h));
            let (mut high, mut low) = (zero, zero);
            for t in 0..self.steps {
                let at = t * self.pitch + h;
                let [[dt], [slope]] = self.step.of::<T, S, 1, true>([self.dt.load(simd, at) + bias]);
                self.dt.store(at, dt);
                self.slope.store(at, slope);
                // the rounding error of the sum, exactly (Knuth)
                let decay_step = match self.dt_a {
                    Some(dt_a) => dt_a.load(simd, at),
                    None => dt,
                };
                let term = (decay_step * a).max(lowest);
                let sum = high + term;
                let part = sum - high;
                low = low + ((high - (sum - part)) + (term - part));
                high = sum;
                self.high.store(at, high);
                self.low.store(at, low);
            }
        }
    }
}

/// Per head and step, as (head, step) with [`CHUNK`] steps to a row: the sums, and what follows from them.
#[derive(Clone, Copy)]
pub(super) struct HeadStepsOf<A> {
    pub dt: A,
    pub high: A,
    pub low: A,
    /// exp(cs): what is left of the chunk's first state.
    pub from_start: A,
    /// exp(cs_last - cs): what is left at the chunk's end.
    pub to_end: A,
    /// `to_end` times dt.
    pub weight: A,
}

/// Head steps that are read.
pub(super) type HeadSteps<'s, T> = HeadStepsOf<Array<'s, T>>;
/// Head steps that are written.
pub(super) type HeadStepsMut<'s, T> = HeadStepsOf<ArrayMut<'s, T>>;

impl<'m, T> HeadStepsMut<'m, T> {
    /// The rows from a head on, to be read.
    pub(super) fn from<'s>(&'s self, head: usize) -> HeadSteps<'s, T> {
        let from = |rows: &'s ArrayMut<'m, T>| rows.read().from(head * CHUNK);
        HeadStepsOf {
            dt: from(&self.dt),
            high: from(&self.high),
            low: from(&self.low),
            from_start: from(&self.from_start),
            to_end: from(&self.to_end),
            weight: from(&self.weight),
        }
    }
}

/// Fills the rest of [`HeadSteps`] from dt, high and low, whose rows are filled up to whole vectors; `total` is exp(cs_last) of each head.
pub(super) struct Decays<'s, 'm, T> {
    pub steps: usize,
    pub heads: usize,
    pub of: &'s mut HeadStepsMut<'m, T>,
    pub total: ArrayMut<'s, T>,
}

impl<T: Real> Kernel for Decays<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        debug_assert!((1..=CHUNK).contains(&self.steps), "the steps of a chunk");
        for h in 0..self.heads {
            let row = h * CHUNK;
            let last = row + self.steps - 1;
            let (high, low) = (V::splat(simd, self.of.high.get(last)), V::splat(simd, self.of.low.get(last)));
            for i in (0..self.steps).step_by(T::lanes::<S>()) {
                let at = row + i;
                let (h, l) = (self.of.high.load(simd, at), self.of.low.load(simd, at));
                self.of.from_start.store(at, fade(h + l));
                let to_end = fade((high - h) + (low - l));
                self.of.to_end.store(at, to_end);
                self.of.weight.store(at, to_end * self.of.dt.load(simd, at));
            }
            self.total.set(h, self.of.from_start.get(last));
        }
    }
}

/// The matrix `M^T` of one head: (j, i) is `<C_i, B_j> exp(cs_i - cs_j) dt_j` for i >= j and 0 for the other i of j's diagonal block.
pub(super) struct Mix<'s, T> {
    pub steps: usize,
    /// Side of the diagonal blocks, a multiple of any vector.
    pub side: usize,
    /// 0, 1, 2, ..
    pub index: Array<'s, T>,
    /// The head's rows.
    pub of: HeadSteps<'s, T>,
    /// `<C_i, B_j>` at (j, i), CHUNK to a row, as the other matrices.
    pub cb: Array<'s, T>,
    pub mix: ArrayMut<'s, T>,
    pub backward: Option<MixBackward<'s, T>>,
}

/// The results that the backward pass also wants of each pair of steps.
pub(super) struct MixBackward<'s, T> {
    /// The gradient by M at (j, i).
    pub by_mix: Array<'s, T>,
    /// To which the gradient by `<C_i, B_j>` is added, at (j, i).
    pub by_cb: ArrayMut<'s, T>,
    /// The gradient by dt_j, cs being held.
    pub by_dt: ArrayMut<'s, T>,
    /// Part of the gradient by `dt_t A`: the sum over the pairs j < t <= i.
    pub by_exponent: ArrayMut<'s, T>,
}

/// `value` where `first <= index < end`, else 0.
#[inline(always)]
fn within<T: Real, S: Isa>(first: V<T, S>, index: V<T, S>, end: V<T, S>, value: V<T, S>) -> V<T, S> {
    let zero = V::constant(index.simd(), 0.0);
    V::select_less(index, first, zero, V::select_less(index, end, value, zero))
}

impl<T: Real> Kernel for Mix<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let width = T::lanes::<S>();
        debug_assert!((1..=CHUNK).contains(&self.steps), "the steps of a chunk");
        debug_assert!(self.side.is_multiple_of(width), "a block is whole vectors");
        let (zero, steps) = (V::constant(simd, 0.0), V::constant(simd, self.steps as f64));
        // sums over j < t of the terms of each i
        let mut pairs = [T::default(); CHUNK];
        let mut pairs = ArrayMut::of(&mut pairs);
        if let Some(backward) = &mut self.backward {
            backward.by_exponent.set(0, T::default());
        }
        for j in 0..self.steps {
            let row = j * CHUNK;
            let block = j - j % self.side;
            let first = j - j % width;
            for i in (block..first).step_by(width) {
                self.mix.store(row + i, zero);
            }
            let (high, low) = (V::splat(simd, self.of.high.get(j)), V::splat(simd, self.of.low.get(j)));
            let dt = V::splat(simd, self.of.dt.get(j));
            let own = V::constant(simd, j as f64);
            let (mut by_dt, mut by_exponent) = (zero, zero);
            for i in (first..self.steps).step_by(width) {
                let index = self.index.load(simd, i);
                let (h, l) = (self.of.high.load(simd, i), self.of.low.load(simd, i));
                let decay = fade((h - high) + (l - low));
                let cb = self.cb.load(simd, row + i) * decay;
                // a pair that is not one becomes 0 whatever came out
                self.mix.store(row + i, V::select_less(index, own, zero, cb * dt));
                let Some(backward) = &mut self.backward else { continue };
                let by_mix = backward.by_mix.load(simd, row + i);
                let by_cb: V<T, S> = backward.by_cb.load(simd, row + i);
                let by_pair = within(own, index, steps, by_mix * decay * dt);
                backward.by_cb.store(row + i, by_cb + by_pair);
                let term = within(own, index, steps, by_mix * cb);
                by_dt = by_dt + term;
                let pair = pairs.load(simd, i) + V::select_less(own, index, term * dt, zero);
                pairs.store(i, pair);
                by_exponent = by_exponent + V::select_less(own, index, pair, zero);
            }
            if let Some(backward) = &mut self.backward {
                backward.by_dt.set(j, by_dt.reduce_sum());
                if j + 1 < self.steps {
                    backward.by_exponent.set(j + 1, by_exponent.reduce_sum());
                }
            }
        }
    }
}
