//! Neighbouring states of a channel along a vector. States and `a` are used where they lie if they are dense in the compute type, else through
//! tiles. Each channel leaves a vector of partial sums of `y`; those of sixteen channels are added up together, which takes three
//! instructions a channel.
//!
//! A vector of real states takes twelve arithmetic instructions and a store on AVX-512 in f32 (counted in the loop over four channels): nine of
//! the exponential with its product, the input, the state and the output.

use super::super::Operand;
use super::{Here, Scratch, Target, advance, start};
use crate::cpu::simd::{Field, Isa, Real, V};
use crate::cpu::tile::{self, Area, AreaOf};
use crate::cpu::{Array, ArrayMut, ArrayOf, Divided};
use crate::ops::rules::{FieldKind, Rule};
use crate::tensor::DType;

/// Channels whose sums are added up together.
pub(super) const GROUP: usize = 16;

/// Channels whose exponentials are computed together.
const TOGETHER: usize = 4;

/// Whether a vector's decay is one real exponential: then channels are computed together, and the factor log2(e) comes with their steps. Longer
/// steps leave enough to do at once in one channel.
#[inline(always)]
pub(super) fn short_steps<K: FieldKind, R: Rule>() -> bool {
    K::PARTS == 1 && !R::GAIN
}

impl<'a> Operand<'a> {
    /// Vectors of the states of a channel where they lie, if they are there.
    fn direct<T: Real>(&self, states: usize, lanes: usize, place: (usize, usize, usize)) -> Option<Rows<Array<'a, T>>> {
        let there = || Array::of_view(&self.view).moved(start(&self.strides, place));
        is_direct::<T>(&self.strides, self.view.dtype(), states, lanes).then(|| Rows::direct(there(), &self.strides, lanes))
    }
}

impl Target {
    /// As [`Operand::direct`].
    ///
    /// # Safety
    /// As for [`Divided::part`].
    unsafe fn direct<T: Real>(&self, states: usize, lanes: usize, place: (usize, usize, usize)) -> Option<Rows<ArrayMut<'_, T>>> {
        // SAFETY: the contract above.
        let there = || unsafe { Divided::of_view(&self.view).moved(start(&self.strides, place)).part(0) };
        is_direct::<T>(&self.strides, self.view.dtype(), states, lanes).then(|| Rows::direct(there(), &self.strides, lanes))
    }
}

/// Whether states are whole vectors of the compute type.
fn is_direct<T: Real>(strides: &[isize; 4], dtype: DType, states: usize, lanes: usize) -> bool {
    strides[3] == 1 && states.is_multiple_of(lanes) && dtype == T::DTYPE
}

/// Vectors of states of a group of channels.
#[derive(Clone, Copy)]
struct Rows<A> {
    array: A,
    channel_step: isize,
    vector_step: usize,
}

impl<A> Rows<A> {
    /// Returns the rows in place.
    fn direct(array: A, strides: &[isize; 4], lanes: usize) -> Self {
        Rows { array, channel_step: strides[2], vector_step: lanes }
    }

    /// In a tile that was loaded by [`load_states`].
    fn staged(array: A, channels: usize, step: usize) -> Self {
        Rows { array, channel_step: step as isize, vector_step: channels * step }
    }
}

impl<'m, T, A> Rows<ArrayOf<'m, T, A>> {
    /// Returns the rows from a channel on.
    #[inline(always)]
    fn from(self, channel: usize) -> Self {
        let (channel_step, vector_step) = (self.channel_step, self.vector_step);
        Rows { array: self.at(channel, 0), channel_step, vector_step }
    }

    #[inline(always)]
    fn at(self, channel: usize, vector: usize) -> ArrayOf<'m, T, A> {
        let by = channel as isize * self.channel_step + (vector * self.vector_step) as isize;
        self.array.moved(by)
    }
}

impl<T> Rows<ArrayMut<'_, T>> {
    /// Returns these rows for a shorter time.
    #[inline(always)]
    fn reborrow(&mut self) -> Rows<ArrayMut<'_, T>> {
        Rows { array: self.array.reborrow(), channel_step: self.channel_step, vector_step: self.vector_step }
    }
}

/// Loads states as (vector of states, channel, part, lane) from an area whose lanes are states and whose steps are channels; lanes after the
/// last are zero.
#[inline(always)]
pub(super) fn load_states<T: Real, K: FieldKind, S: Isa>(simd: S, from: Area<'_>, mut to: ArrayMut<'_, T>) {
    let (lanes, AreaOf { plane, lanes: states, steps: channels }) = (T::lanes::<S>(), from);
    debug_assert!(to.has(0, states.next_multiple_of(lanes) * channels * K::PARTS), "room for whole vectors of states");
    for (i, n) in (0..states).step_by(lanes).enumerate() {
        let (area, to) = (plane.at(n, 0).area(lanes.min(states - n), channels), to.from(i * channels * K::PARTS * lanes));
        tile::load_parts(simd, area, K::PARTS, lanes, to);
    }
}

/// The states of a unit.
#[inline(always)]
pub(super) fn along_states<T: Real, K: FieldKind, R: Rule, S: Isa, const UNIFORM: bool>(
    simd: S,
    here: &mut Here<'_, '_, '_, T>,
    row: usize,
) {
    let &mut Here { call, problem, unit, ref mut s } = here;
    let Scratch { dt, dt_a, u, decay, gain, b, c, state: staged_h, a: staged_a, sum, partial, .. } = &mut **s;
    let (lanes, states) = (T::lanes::<S>(), problem.dstate);
    let (vectors, shared, step) = (states.div_ceil(lanes), problem.dt_a.is_none(), K::PARTS * lanes);
    // SAFETY: no other job has the unit's channels.
    let mut state = unsafe { call.state.direct::<T>(states, lanes, (row, unit.head, unit.first)) };
    let all = problem.a.direct::<T>(states, lanes, (0, unit.head, unit.first));
    let [dt, dt_a, u, decay, gain, b, c] = [dt, dt_a, u, decay, gain, b, c].map(|array| array.read());
    let inputs = Inputs { dt, dt_a, u, decay, gain, b, c };
    for first in (0..unit.channels).step_by(GROUP) {
        let channels = GROUP.min(unit.channels - first);
        let staged = call.state.plane(row, unit.head, unit.first + first, 3, 2).area(states, channels);
        let whole = if short_steps::<K, R>() { channels - channels % TOGETHER } else { 0 };
        let h = match &mut state {
            Some(rows) => rows.reborrow().from(first),
            None => {
                load_states::<T, K, S>(simd, staged.read(), staged_h.reborrow());
                Rows::staged(staged_h.reborrow(), channels, step)
            }
        };
        let a = match all {
            // not read where one decay serves all states
            _ if UNIFORM => Rows::staged(staged_a.read(), channels, step),
            Some(rows) => rows.from(first),
            None => {
                let plane = problem.a.plane(0, unit.head, unit.first + first, 3, 2);
                load_states::<T, K, S>(simd, plane.area(states, channels), staged_a.reborrow());
                Rows::staged(staged_a.read(), channels, step)
            }
        };
        let mut walk = Walk { h, a, inputs, first, shared, partial: partial.reborrow() };
        for i in (0..whole).step_by(TOGETHER) {
            match vectors {
                // a loop that is known to end after one vector keeps its addresses in registers: 6 % of the time of a step
                1 => walk.channels::<K, R, S, UNIFORM, TOGETHER>(simd, i, 1),
                _ => walk.channels::<K, R, S, UNIFORM, TOGETHER>(simd, i, vectors),
            }
        }
        for i in whole..channels {
            walk.channels::<K, R, S, UNIFORM, 1>(simd, i, vectors);
        }
        for at in (0..GROUP).step_by(lanes) {
            sum.store(first + at, partial.sum_rows(simd, at * lanes, lanes));
        }
        if state.is_none() {
            for (i, n) in (0..states).step_by(lanes).enumerate() {
                let to = staged.plane.at(n, 0).area(lanes.min(states - n), channels);
                tile::store_parts(simd, staged_h.read().from(i * channels * step), K::PARTS, lanes, to);
            }
        }
    }
}

/// The inputs of the channels besides states and `a`, as addresses: the compiler must not have to look them up again after each
/// store.
#[derive(Clone, Copy)]
struct Inputs<'w, T> {
    dt: Array<'w, T>,
    dt_a: Array<'w, T>,
    u: Array<'w, T>,
    decay: Array<'w, T>,
    gain: Array<'w, T>,
    b: Array<'w, T>,
    c: Array<'w, T>,
}

/// The states of a group of channels.
struct Walk<'w, T> {
    h: Rows<ArrayMut<'w, T>>,
    a: Rows<Array<'w, T>>,
    inputs: Inputs<'w, T>,
    /// The group's first channel, of the unit's.
    first: usize,
    /// Whether `dt_a` is `dt`.
    shared: bool,
    partial: ArrayMut<'w, T>,
}

impl<T: Real> Walk<'_, T> {
    /// Moves the states of `COUNT` channels of the group on, so many vectors each, from channel `i`; writes a vector of partial sums of `y` for
    /// each.
    #[inline(always)]
    fn channels<K: FieldKind, R: Rule, S: Isa, const UNIFORM: bool, const COUNT: usize>(
        &mut self,
        simd: S,
        i: usize,
        vectors: usize,
    ) {
        let &mut Walk { ref mut h, a, inputs, first, shared, ref mut partial } = self;
        let (mut h, mut partial) = (h.reborrow(), partial.reborrow());
        let lanes = T::lanes::<S>();
        debug_assert!(i + COUNT <= GROUP, "channels of a group");
        debug_assert!(partial.has(i * lanes, COUNT * lanes), "room for the partial sums");
        let zero = V::splat(simd, T::default());
        let (mut dt, mut dt_a, mut u, mut sum) = ([zero; COUNT], [zero; COUNT], [zero; COUNT], [zero; COUNT]);
        let none = K::Of::<T, S>::zero(simd);
        // decay and gain of a channel, or of one vector of its states
        let mut factors = [(none, none); COUNT];
        for r in 0..COUNT {
            let at = first + i + r;
            (dt[r], dt_a[r]) = (V::splat(simd, inputs.dt.get(at)), V::splat(simd, inputs.dt_a.get(at)));
            u[r] = V::splat(simd, inputs.u.get(at));
            let lane = (at / lanes) * K::PARTS * lanes + at % lanes;
            factors[r].0 = inputs.decay.broadcast_field(simd, lane, lanes);
            factors[r].1 = inputs.gain.broadcast_field(simd, lane, lanes);
        }
        for v in 0..vectors {
            if !UNIFORM {
                for r in 0..COUNT {
                    let a: K::Of<T, S> = a.at(i + r, v).load_field(simd, 0);
                    let prepared = if short_steps::<K, R>() { a } else { R::prepare(a) };
                    factors[r] = R::step(prepared, dt[r], dt_a[r], shared);
                }
            }
            let map = v * K::PARTS * lanes;
            let b: K::Of<T, S> = inputs.b.load_field(simd, map);
            let c = inputs.c.load_field(simd, map);
            for r in 0..COUNT {
                sum[r] = advance::<T, S, K::Of<T, S>>(h.reborrow().at(i + r, v), factors[r], R::GAIN, b.scale(u[r]), c, sum[r]);
            }
        }
        for r in 0..COUNT {
            partial.store((i + r) * lanes, sum[r]);
        }
    }
}
