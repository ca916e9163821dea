//! Neighbouring states of a channel along a vector. States and `a` are used where they lie if they are dense in the compute type, else through
//! tiles. Each channel leaves a vector of partial sums of `y`; those of sixteen channels are added up together, which takes three
//! instructions a channel.
//!
//! A vector of real states takes twelve arithmetic instructions and a store on AVX-512 in f32 (counted in the loop over four channels): nine of
//! the exponential with its product, the input, the state and the output.

use super::super::Operand;
use super::{Here, Scratch, Target, advance, start};
use crate::cpu::Array;
use crate::cpu::simd::{Field, Isa, Real, V};
use crate::cpu::tile::{self, Area};
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

impl Operand<'_> {
    /// Vectors of the states of a channel where they lie, if they are there.
    fn direct<T: Real>(&self, states: usize, lanes: usize, place: (usize, usize, usize)) -> Option<Rows<T>> {
        let there = || Array::of_view(&self.view).moved(start(&self.strides, place));
        is_direct::<T>(&self.strides, self.view.dtype(), states, lanes).then(|| Rows::direct(there(), &self.strides, lanes))
    }
}

impl Target {
    /// As [`Operand::direct`].
    fn direct<T: Real>(&self, states: usize, lanes: usize, place: (usize, usize, usize)) -> Option<Rows<T>> {
        let there = || Array::of_view_mut(&self.view).moved(start(&self.strides, place));
        is_direct::<T>(&self.strides, self.view.dtype(), states, lanes).then(|| Rows::direct(there(), &self.strides, lanes))
    }
}

/// Whether states are whole vectors of the compute type.
fn is_direct<T: Real>(strides: &[isize; 4], dtype: DType, states: usize, lanes: usize) -> bool {
    strides[3] == 1 && states.is_multiple_of(lanes) && dtype == T::DTYPE
}

/// Vectors of states of a group of channels.
#[derive(Clone, Copy)]
struct Rows<T> {
    array: Array<T>,
    channel_step: isize,
    vector_step: usize,
}

impl<T> Rows<T> {
    /// Where they lie.
    fn direct(array: Array<T>, strides: &[isize; 4], lanes: usize) -> Self {
        Rows { array, channel_step: strides[2], vector_step: lanes }
    }

    /// In a tile that was loaded by [`load_states`].
    fn staged(array: Array<T>, channels: usize, step: usize) -> Self {
        Rows { array, channel_step: step as isize, vector_step: channels * step }
    }

    /// Those from a channel on.
    #[inline(always)]
    fn from(self, channel: usize) -> Self {
        Rows { array: self.at(channel, 0), ..self }
    }

    #[inline(always)]
    fn at(&self, channel: usize, vector: usize) -> Array<T> {
        self.array.moved(channel as isize * self.channel_step + (vector * self.vector_step) as isize)
    }
}

/// Loads states as (vector of states, channel, part, lane) from an area whose lanes are states and whose steps are channels; lanes after the
/// last are zero.
#[inline(always)]
pub(super) fn load_states<T: Real, K: FieldKind, S: Isa>(simd: S, from: Area, to: Array<T>) {
    let (lanes, Area { plane, lanes: states, steps: channels }) = (T::lanes::<S>(), from);
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
    here: &Here<'_, '_, T>,
    row: usize,
) {
    let Here { call, problem, unit, s } = *here;
    let (lanes, states) = (T::lanes::<S>(), problem.dstate);
    let (vectors, shared, step) = (states.div_ceil(lanes), problem.dt_a.is_none(), K::PARTS * lanes);
    let state = call.state.direct::<T>(states, lanes, (row, unit.head, unit.first));
    let all = problem.a.direct::<T>(states, lanes, (0, unit.head, unit.first));
    let inputs = Inputs::of(s);
    for first in (0..unit.channels).step_by(GROUP) {
        let channels = GROUP.min(unit.channels - first);
        let staged = call.state.plane(row, unit.head, unit.first + first, 3, 2).area(states, channels);
        let whole = if short_steps::<K, R>() { channels - channels % TOGETHER } else { 0 };
        let h = match state {
            Some(rows) => rows.from(first),
            None => {
                load_states::<T, K, S>(simd, staged.read(), s.state);
                Rows::staged(s.state, channels, step)
            }
        };
        let a = match all {
            // not read where one decay serves all states
            _ if UNIFORM => Rows::staged(s.a, channels, step),
            Some(rows) => rows.from(first),
            None => {
                let plane = problem.a.plane(0, unit.head, unit.first + first, 3, 2);
                load_states::<T, K, S>(simd, plane.area(states, channels), s.a);
                Rows::staged(s.a, channels, step)
            }
        };
        let walk = Walk { h, a, inputs, first, vectors, shared, partial: s.partial };
        // a loop that is known to end after one vector keeps its addresses in registers: 6 % of the time of a step
        let single = Walk { vectors: 1, ..walk };
        for i in (0..whole).step_by(TOGETHER) {
            match vectors {
                1 => single.channels::<K, R, S, UNIFORM, TOGETHER>(simd, i),
                _ => walk.channels::<K, R, S, UNIFORM, TOGETHER>(simd, i),
            }
        }
        for i in whole..channels {
            walk.channels::<K, R, S, UNIFORM, 1>(simd, i);
        }
        for at in (0..GROUP).step_by(lanes) {
            s.sum.store(first + at, s.partial.sum_rows(simd, at * lanes, lanes));
        }
        if state.is_none() {
            for (i, n) in (0..states).step_by(lanes).enumerate() {
                let to = staged.plane.at(n, 0).area(lanes.min(states - n), channels);
                tile::store_parts(simd, s.state.from(i * channels * step), K::PARTS, lanes, to);
            }
        }
    }
}

/// What the channels read besides states and `a`, as addresses: the compiler must not have to look them up again after each store.
#[derive(Clone, Copy)]
struct Inputs<T> {
    dt: Array<T>,
    dt_a: Array<T>,
    u: Array<T>,
    decay: Array<T>,
    gain: Array<T>,
    b: Array<T>,
    c: Array<T>,
}

impl<T> Inputs<T> {
    fn of(s: &Scratch<T>) -> Self {
        Inputs { dt: s.dt, dt_a: s.dt_a, u: s.u, decay: s.decay, gain: s.gain, b: s.b, c: s.c }
    }
}

/// The states of a group of channels.
#[derive(Clone, Copy)]
struct Walk<T> {
    h: Rows<T>,
    a: Rows<T>,
    inputs: Inputs<T>,
    /// The group's first channel, of the unit's.
    first: usize,
    /// Vectors of states in a channel.
    vectors: usize,
    /// Whether `dt_a` is `dt`.
    shared: bool,
    partial: Array<T>,
}

impl<T: Real> Walk<T> {
    /// Moves the states of `COUNT` channels of the group on, from channel `i`; writes a vector of partial sums of `y` for each.
    #[inline(always)]
    fn channels<K: FieldKind, R: Rule, S: Isa, const UNIFORM: bool, const COUNT: usize>(self, simd: S, i: usize) {
        let Walk { h, a, inputs, first, vectors, shared, partial } = self;
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
                sum[r] = advance::<T, S, K::Of<T, S>>(h.at(i + r, v), factors[r], R::GAIN, b.scale(u[r]), c, sum[r]);
            }
        }
        for r in 0..COUNT {
            partial.store((i + r) * lanes, sum[r]);
        }
    }
}
