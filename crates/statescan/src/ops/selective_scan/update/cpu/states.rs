//! Neighbouring states of a channel along a vector. States and `a` are used where they lie if they are dense in the compute type, else through
//! tiles. Each channel leaves a vector of partial sums of `y`; those of sixteen channels are added up together, which takes three
//! instructions a channel.
//!
//! A vector of real states takes twelve arithmetic instructions and a store on AVX-512 in f32 (counted in the loop over four channels): nine of
//! the exponential with its product, the input, the state and the output.

use super::super::{Operand, Problem};
use super::plan::Unit;
use super::{Scratch, advance};
use crate::cpu::simd::{Field, Isa, Real, V};
use crate::cpu::tile::{self, Plane};
use crate::ops::rules::{FieldKind, Rule};

/// Channels whose sums are added up together.
pub(super) const GROUP: usize = 16;

/// Channels whose exponentials are computed together.
const TOGETHER: usize = 4;

/// Whether a vector's decay is one real exponential: then channels are taken together, and the factor log2(e) comes with their steps. Longer
/// steps leave enough to do at once in one channel.
#[inline(always)]
pub(super) fn short_steps<K: FieldKind, R: Rule>() -> bool {
    K::PARTS == 1 && !R::GAIN
}

impl Operand<'_> {
    /// Vectors of the states of a channel where they lie, if they are there.
    fn direct<T: Real>(&self, states: usize, lanes: usize, (batch, head, channel): (usize, usize, usize)) -> Option<Rows<T>> {
        let dense = self.strides[3] == 1 && states.is_multiple_of(lanes) && self.view.dtype() == T::DTYPE;
        dense.then(|| Rows { ptr: self.start(batch, head, channel), channel_step: self.strides[2], vector_step: lanes })
    }
}

/// Vectors of states of a group of channels.
#[derive(Clone, Copy)]
struct Rows<T> {
    ptr: *mut T,
    channel_step: isize,
    vector_step: usize,
}

impl<T: Copy> Rows<T> {
    /// Those from a channel on.
    #[inline(always)]
    fn from(self, channel: usize) -> Self {
        Rows { ptr: self.at(channel, 0), ..self }
    }

    #[inline(always)]
    fn at(self, channel: usize, vector: usize) -> *mut T {
        self.ptr.wrapping_offset(channel as isize * self.channel_step).wrapping_add(vector * self.vector_step)
    }
}

/// Loads states as (vector of states, channel, part, lane); lanes after the last are zero.
///
/// # Safety
/// The plane (lanes along states, steps along channels) is readable there, and `to` has room.
#[inline(always)]
pub(super) unsafe fn load_states<T: Real, K: FieldKind, S: Isa>(
    simd: S,
    plane: Plane,
    channels: usize,
    states: usize,
    to: *mut T,
) {
    let lanes = T::lanes::<S>();
    for (i, n) in (0..states).step_by(lanes).enumerate() {
        // SAFETY: the caller's contract.
        unsafe {
            let to = to.add(i * channels * K::PARTS * lanes);
            tile::load_parts(simd, plane.at(n, 0), K::PARTS, lanes.min(states - n), lanes, channels, to);
        }
    }
}

/// Loads a group of channels into a tile.
///
/// # Safety
/// The channels lie inside the operand; the tile has room for them with all their states.
#[inline(always)]
unsafe fn stage<T: Real, K: FieldKind, S: Isa>(simd: S, plane: Plane, channels: usize, states: usize, tile: *mut T) -> Rows<T> {
    let step = K::PARTS * T::lanes::<S>();
    // SAFETY: the caller's contract.
    unsafe { load_states::<T, K, S>(simd, plane, channels, states, tile) };
    Rows { ptr: tile, channel_step: step as isize, vector_step: channels * step }
}

/// The states of a unit.
///
/// # Safety
/// The unit lies within the problem.
#[inline(always)]
pub(super) unsafe fn along_states<T: Real, K: FieldKind, R: Rule, S: Isa, const UNIFORM: bool>(
    simd: S,
    problem: &Problem<'_>,
    unit: Unit,
    row: usize,
    s: &mut Scratch<T>,
) {
    let (lanes, states) = (T::lanes::<S>(), problem.dstate);
    let (vectors, shared) = (states.div_ceil(lanes), problem.dt_a.is_none());
    let state = problem.state.direct::<T>(states, lanes, (row, unit.head, unit.first));
    let all = problem.a.direct::<T>(states, lanes, (0, unit.head, unit.first));
    let inputs = Inputs::of(s);
    for first in (0..unit.channels).step_by(GROUP) {
        let channels = GROUP.min(unit.channels - first);
        // SAFETY: the caller's contract; tiles have room for a group of channels with all their states.
        unsafe {
            let plane = |operand: &Operand<'_>, row: usize| operand.plane(row, unit.head, unit.first + first, 3, 2);
            let h = match state {
                Some(rows) => rows.from(first),
                None => stage::<T, K, S>(simd, plane(&problem.state, row), channels, states, s.state),
            };
            let a = match all {
                _ if UNIFORM => h,
                Some(rows) => rows.from(first),
                None => stage::<T, K, S>(simd, plane(&problem.a, 0), channels, states, s.a),
            };
            let partial = s.partial;
            let walk = Walk { h, a, inputs, first, vectors, shared, partial };
            let whole = if short_steps::<K, R>() { channels - channels % TOGETHER } else { 0 };
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
                V::sum_rows(simd, partial.add(at * lanes), lanes).store(s.sum.add(first + at));
            }
            if state.is_none() {
                let plane = plane(&problem.state, row);
                for (i, n) in (0..states).step_by(lanes).enumerate() {
                    let from = s.state.add(i * channels * K::PARTS * lanes);
                    tile::store_parts(simd, from, K::PARTS, lanes, plane.at(n, 0), lanes.min(states - n), channels);
                }
            }
        }
    }
}

/// What the channels read besides states and `a`, as addresses: the compiler must not have to look them up again after each store.
#[derive(Clone, Copy)]
struct Inputs<T> {
    dt: *const T,
    dt_a: *const T,
    u: *const T,
    decay: *const T,
    gain: *const T,
    b: *const T,
    c: *const T,
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
    partial: *mut T,
}

impl<T: Real> Walk<T> {
    /// Moves the states of `COUNT` channels of the group on, from channel `i`; writes a vector of partial sums of `y` for each.
    ///
    /// # Safety
    /// The channels lie inside the group, whose states, inputs and partial sums are there.
    #[inline(always)]
    unsafe fn channels<K: FieldKind, R: Rule, S: Isa, const UNIFORM: bool, const COUNT: usize>(self, simd: S, i: usize) {
        let Walk { h, a, inputs, first, vectors, shared, partial } = self;
        let lanes = T::lanes::<S>();
        let zero = V::splat(simd, T::default());
        let (mut dt, mut dt_a, mut u, mut sum) = ([zero; COUNT], [zero; COUNT], [zero; COUNT], [zero; COUNT]);
        let none = K::Of::<T, S>::zero(simd);
        // decay and gain of a channel, or of one vector of its states
        let mut factors = [(none, none); COUNT];
        // SAFETY: the caller's contract.
        unsafe {
            for r in 0..COUNT {
                let at = first + i + r;
                (dt[r], dt_a[r]) = (V::splat(simd, *inputs.dt.add(at)), V::splat(simd, *inputs.dt_a.add(at)));
                u[r] = V::splat(simd, *inputs.u.add(at));
                let lane = (at / lanes) * K::PARTS * lanes + at % lanes;
                factors[r].0 = K::Of::<T, S>::broadcast(simd, inputs.decay.add(lane), lanes);
                factors[r].1 = K::Of::<T, S>::broadcast(simd, inputs.gain.add(lane), lanes);
            }
            for v in 0..vectors {
                if !UNIFORM {
                    for r in 0..COUNT {
                        let a = K::Of::<T, S>::load(simd, a.at(i + r, v));
                        let prepared = if short_steps::<K, R>() { a } else { R::prepare(a) };
                        factors[r] = R::step(prepared, dt[r], dt_a[r], shared);
                    }
                }
                let map = v * K::PARTS * lanes;
                let b = K::Of::<T, S>::load(simd, inputs.b.add(map));
                let c = K::Of::<T, S>::load(simd, inputs.c.add(map));
                for r in 0..COUNT {
                    sum[r] = advance::<T, S, K::Of<T, S>>(h.at(i + r, v), factors[r], R::GAIN, b.scale(u[r]), c, sum[r]);
                }
            }
            for r in 0..COUNT {
                sum[r].store(partial.add((i + r) * lanes));
            }
        }
    }
}
