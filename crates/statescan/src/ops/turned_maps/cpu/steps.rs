//! Sums over time: angles, and backwards sums of the gradients by them. A job is a head of a row, 64 steps at once.

use super::{Problem, padded, rows, rows_mut};
use crate::cpu::math::{phi1, sincos};
use crate::cpu::parts::{load_part, store_part};
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{self, MAX_LANES, STEPS, Tile, TileMut};
use crate::cpu::{Arena, Array, ArrayMut, Kernel, Room};
use crate::exec::Exec;
use crate::ops::turned_maps::GradientTargets;
use core::f64::consts::{PI, TAU};
use std::sync::{Mutex, PoisonError};

/// Cosines and sines, (batch, head, step, angle).
pub(super) fn angles<T: Real>(exec: &Exec, p: &Problem<'_>) -> [Vec<T>; 2] {
    let (heads, of_head) = (p.batch * p.nheads, p.seqlen * p.angles);
    let [mut cos, mut sin] = [(); 2].map(|()| vec![T::default(); heads * of_head]);
    let both = cos.chunks_mut(of_head.max(1)).zip(sin.chunks_mut(of_head.max(1)));
    let parts: Vec<_> = both.map(|(cos, sin)| Mutex::new([cos, sin])).collect();
    exec.for_each(parts.len(), Arena::<T>::default, |arena, head| {
        let mut part = parts[head].lock().unwrap_or_else(PoisonError::into_inner);
        let [cos, sin] = &mut *part;
        arena.lend(|room| Steps::lay_out(room, p), |steps| exec.level().dispatch(Angles { p, head, steps, cos, sin }));
    });
    drop(parts);
    [cos, sin]
}

/// Those of a head at a step.
#[inline(always)]
pub(super) fn of_step<'t, T>(p: &Problem<'_>, angles: &'t [Vec<T>; 2], [b, t, h]: [usize; 3]) -> [&'t [T]; 2] {
    let first = ((b * p.nheads + h) * p.seqlen + t) * p.angles;
    [0, 1].map(|part| &angles[part][first..first + p.angles])
}

/// The gradients by rates and steps, from those by the angles of each step, (batch, step, head, angle).
pub(super) fn by_rates<T: Real>(exec: &Exec, p: &Problem<'_>, by_angles: &[T], targets: &GradientTargets) {
    if targets.rate.is_none() && targets.dt.is_none() {
        return;
    }
    exec.for_each(p.batch * p.nheads, Arena::<T>::default, |arena, head| {
        arena.lend(|room| Steps::lay_out(room, p), |steps| exec.level().dispatch(ByRates { p, head, steps, by_angles, targets }));
    });
}

/// `tanh(rate)` and `dt` of some steps.
struct Steps<'m, T> {
    rate: ArrayMut<'m, T>,
    dt: ArrayMut<'m, T>,
}

impl<'m, T: Real> Steps<'m, T> {
    fn lay_out(room: &mut Room<'m, T>, p: &Problem<'_>) -> Self {
        Steps { rate: room.array(STEPS * padded(p.angles)), dt: room.array(STEPS * MAX_LANES) }
    }

    #[inline(always)]
    fn load<S: Isa>(&mut self, simd: S, p: &Problem<'_>, [b, h]: [usize; 2], [first, count]: [usize; 2]) {
        let [rate, dt] = [&p.rate, &p.dt].map(|view| rows(view, &[b, first, h], view.strides()[1]));
        let lanes = padded(p.angles);
        tile::load(simd, rate.area(p.angles, count), lanes, TileMut::new(self.rate.reborrow(), lanes));
        tile::load(simd, dt.area(1, count), MAX_LANES, TileMut::new(self.dt.reborrow(), MAX_LANES));
        for at in (0..count * lanes).step_by(T::lanes::<S>()) {
            self.rate.store(at, tanh(self.rate.load(simd, at)));
        }
    }
}

/// `tanh x = e / (e + 2)` with `e = expm1(2x)`.
#[inline(always)]
fn tanh<T: Real, S: Isa>(x: V<T, S>) -> V<T, S> {
    let simd = x.simd();
    // 1 to all digits from here on; NaN stays
    let limit = V::constant(simd, 20.0);
    let x = V::select_less(x, -limit, -limit, x);
    let x = V::select_less(limit, x, limit, x);
    let e = (x + x) * phi1(x + x);
    e / (e + V::constant(simd, 2.0))
}

struct Angles<'j, 'a, T> {
    p: &'j Problem<'a>,
    head: usize,
    steps: Steps<'j, T>,
    cos: &'j mut [T],
    sin: &'j mut [T],
}

impl<T: Real> Kernel for Angles<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Angles { p, head, mut steps, cos, sin } = self;
        let place = [head / p.nheads, head % p.nheads];
        let mut turns = vec![0.0f64; p.angles];
        for first in (0..p.seqlen).step_by(STEPS) {
            let count = STEPS.min(p.seqlen - first);
            steps.load(simd, p, place, [first, count]);
            for t in 0..count {
                let (half, own) = (0.5 * steps.dt.get(t * MAX_LANES).to_f64(), (first + t) * p.angles);
                let rates = steps.rate.shared(t * padded(p.angles), p.angles);
                for ((turn, rate), angle) in turns.iter_mut().zip(rates).zip(&mut cos[own..]) {
                    *turn += half * rate.to_f64();
                    *turn -= turn.round_ties_even();
                    *angle = T::from_f64(TAU * *turn);
                }
            }
        }
        let (all, lanes) = (cos.len(), T::lanes::<S>());
        for at in (0..all).step_by(lanes) {
            let count = lanes.min(all - at);
            let both = sincos(load_part(simd, Array::of(&cos[at..]), count));
            store_part(both.0, ArrayMut::of(&mut sin[at..]), count);
            store_part(both.1, ArrayMut::of(&mut cos[at..]), count);
        }
    }
}

struct ByRates<'j, 'a, T> {
    p: &'j Problem<'a>,
    head: usize,
    steps: Steps<'j, T>,
    by_angles: &'j [T],
    targets: &'j GradientTargets,
}

impl<T: Real> Kernel for ByRates<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let ByRates { p, head, mut steps, by_angles, targets } = self;
        let [b, h] = [head / p.nheads, head % p.nheads];
        let (lanes, mut sums) = (padded(p.angles), vec![0.0f64; p.angles]);
        for first in (0..p.seqlen).step_by(STEPS).rev() {
            let count = STEPS.min(p.seqlen - first);
            steps.load(simd, p, [b, h], [first, count]);
            for t in (0..count).rev() {
                let (dt, mut by_dt) = (steps.dt.get(t * MAX_LANES).to_f64(), 0.0);
                let own = &by_angles[((b * p.seqlen + first + t) * p.nheads + h) * p.angles..];
                let rates = steps.rate.slice(t * lanes, p.angles);
                for ((sum, own), rate) in sums.iter_mut().zip(own).zip(rates) {
                    let tanh = rate.to_f64();
                    *sum += own.to_f64();
                    by_dt += PI * tanh * *sum;
                    *rate = T::from_f64(PI * dt * (1.0 - tanh * tanh) * *sum);
                }
                steps.dt.set(t * MAX_LANES, T::from_f64(by_dt));
            }
            let written = [(&targets.rate, &steps.rate, p.angles, lanes), (&targets.dt, &steps.dt, 1, MAX_LANES)];
            for (target, from, count_of, pitch) in written {
                if let Some(target) = target {
                    let plane = rows_mut(target, &[b, first, h], target.strides()[1]);
                    tile::store(simd, Tile::new(from.read(), pitch), plane.area(count_of, count));
                }
            }
        }
    }
}
