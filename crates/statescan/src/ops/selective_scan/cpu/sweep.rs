//! The innermost loops of the backward pass: a few states of one vector of channels through one tile, forwards and back.
//!
//! With `g` the gradient by the state, per state and step and for real states under `mamba`: `G = C p + g'`, `g = Abar G`, and
//! `dz = g h[t-1]` is all that A, dt and the decay need, because `Abar' = Abar`; no quantity is ever divided by the decay.
//!
//! For f32 and AVX-512 the loops over two states side by side have 61 instructions forwards (22 of arithmetic in 24 slots, 7 copies of
//! registers, 13 loads and stores of vectors) and 58 back (16 of arithmetic, 4 copies, 12 loads and stores, the rest addresses), and each sum
//! over lanes takes 2.8 slots: 65 for each state and 16 channels, where the forward pass has 18. `benches/instructions.rs` keeps the count
//! of the pass.

use super::inputs::{Map, Tiles};
use super::lanes::Lanes;
use super::wavefront::Turn;
use super::{Loops, Variant};
use crate::cpu::simd::{Field, Isa, Real, V};
use crate::cpu::tile::{MAX_LANES, Prefetch, STEPS, prefetch_own};
use crate::cpu::{Kernel, outline};
use crate::ops::rules::{FieldKind, Rule};

/// Areas that are prefetched while a block is loaded and swept, at most: saved states, five inputs, the gradients of four of them, B and C
/// and theirs.
pub(super) const AHEAD: usize = 14;
/// States walked together, whose values at every step of a tile are kept: the state before the step and the decay.
pub(super) const STORED: usize = 2;
/// Steps of each direction after which some of that is prefetched: all at once would be waited for.
const STEPS_PER_PREFETCH: usize = 4;

/// One tile of time of one vector of channels.
pub(super) struct Sweep<'w, T> {
    pub tiles: Tiles<T>,
    pub shared: bool,
    pub a: *const T,
    pub b: Map<T>,
    pub c: Map<T>,
    /// States before the tile, (state, part, lane).
    pub h: *const T,
    /// Gradient by the states after the tile; afterwards by those before it. It and the gathered gradients by parameters belong to the
    /// thread whose turn it is.
    pub g: *mut T,
    /// Gradient by the output before the gate.
    pub p: *const T,
    /// Gradients by `u`, and by the steps as they enter the gain and the decay.
    pub du: *mut T,
    pub ddt: *mut T,
    pub ddt_a: *mut T,
    /// Gathered gradients by A, (state, part, lane), and by B and C: (state, part, step), summed over lanes, where they vary, and
    /// (state, part, lane) where they do not.
    pub da: *mut T,
    pub db: *mut T,
    pub dc: *mut T,
    /// Room for the states before each step and the decays of `STORED` states.
    pub stored: *mut T,
    /// Room for the gradients by B and C of `STORED` states and as many steps as a vector has lanes.
    pub pending: *mut T,
    pub steps: usize,
    pub dstate: usize,
    pub lanes: Lanes<T>,
    /// What is asked for on the way.
    pub prefetch: *mut Prefetch<AHEAD>,
    /// Set where other threads walk other tiles of the row at the same time; the vectors of states are counted from `counted` on.
    pub turn: *mut Option<Turn<'w>>,
    pub counted: usize,
}

impl<T: Real> Loops<T> for Sweep<'_, T> {
    #[inline(always)]
    unsafe fn walk<E: Variant<T = T>, S: Isa>(&self, simd: S) {
        let mut n = 0;
        let vectors = self.dstate / self.lanes.per_channel;
        // SAFETY: the caller's contract.
        unsafe {
            while E::TOGETHER > 1 && n + STORED <= vectors {
                self.states::<E, S, STORED>(simd, n);
                n += STORED;
            }
            while n < vectors {
                self.states::<E, S, 1>(simd, n);
                n += 1;
            }
        }
    }
}

impl<T: Real> Sweep<'_, T> {
    /// What a sweep of so many vectors of states does: each is walked in both directions.
    pub(super) fn work(vectors: usize, steps: usize) -> usize {
        2 * vectors * steps
    }

    /// Whether the loops over steps prefetch, or what comes before each of them: with sixteen registers a third of the instructions would go
    /// into what the prefetch pushes out of them.
    #[inline(always)]
    fn prefetches_on_the_way<S: Isa>() -> bool {
        f32::lanes::<S>() == MAX_LANES
    }

    /// Prefetches what is due before `COUNT` vectors of states are walked in one direction.
    ///
    /// # Safety
    /// As [`Loops::walk`].
    #[inline(always)]
    unsafe fn prefetch<S: Isa, const COUNT: usize>(&self) {
        if !Self::prefetches_on_the_way::<S>() {
            // SAFETY: the caller's contract; nobody else has the prefetch.
            unsafe { (*self.prefetch).step(COUNT * self.steps) };
        }
    }

    /// # Safety
    /// As [`Loops::walk`], for states `first..first + COUNT`.
    #[inline(always)]
    unsafe fn states<E: Variant<T = T>, S: Isa, const COUNT: usize>(&self, simd: S, first: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            let end = self.counted + first + COUNT;
            if let Some(turn) = &mut *self.turn
                && turn.is_done(end)
            {
                // there is the way forwards for these to come from the other thread's cache
                let field = E::K::PARTS * T::lanes::<S>();
                for array in [self.g, self.da] {
                    prefetch_own(array.wrapping_add(first * field).cast(), COUNT * field * size_of::<T>());
                }
            }
            self.prefetch::<S, COUNT>();
            self.forwards::<E, S, COUNT>(simd, first);
            if let Some(turn) = &mut *self.turn {
                turn.wait(end);
            }
            self.prefetch::<S, COUNT>();
            self.backwards::<E, S, COUNT>(simd, first);
            if let Some(turn) = &*self.turn {
                turn.done(end);
            }
        }
    }

    /// Where the state before step `t` and the decay of step `t` are kept for state `i` of the group.
    #[inline(always)]
    fn kept<E: Variant<T = T>, S: Isa, const COUNT: usize>(&self, t: usize, i: usize) -> (*mut T, *mut T) {
        let field = E::K::PARTS * T::lanes::<S>();
        let at = self.stored.wrapping_add((t * COUNT + i) * field);
        (at, at.wrapping_add(STEPS * STORED * field))
    }

    /// # Safety
    /// As [`Loops::walk`], for states `first..first + COUNT`.
    #[inline(always)]
    unsafe fn forwards<E: Variant<T = T>, S: Isa, const COUNT: usize>(&self, simd: S, first: usize) {
        let (width, field) = (T::lanes::<S>(), E::K::PARTS * T::lanes::<S>());
        // SAFETY: the caller's contract.
        unsafe {
            let mut h = [<E::K as FieldKind>::Of::<T, S>::zero(simd); COUNT];
            let mut a = h;
            for i in 0..COUNT {
                h[i] = Field::load(simd, self.h.add((first + i) * field));
                a[i] = E::R::prepare(Field::load(simd, self.a.add((first + i) * field)));
            }
            for t in 0..self.steps {
                if Self::prefetches_on_the_way::<S>() && t % STEPS_PER_PREFETCH == 0 {
                    (*self.prefetch).step(COUNT * STEPS_PER_PREFETCH);
                }
                let at = t * width;
                let dt = V::load(simd, self.tiles.dt.add(at));
                let dt_a = V::load(simd, self.tiles.dt_a.add(at));
                let u = V::load(simd, self.tiles.u.add(at));
                let mut y = V::load(simd, self.tiles.y.add(at));
                for i in 0..COUNT {
                    let (decay, gain) = E::R::step(a[i], dt, dt_a, self.shared);
                    let b = self.b.at::<E, S>(simd, t, first + i, self.dstate);
                    let input = if E::R::GAIN { gain.scale(u) * b } else { b.scale(u) };
                    let (state, kept) = self.kept::<E, S, COUNT>(t, i);
                    h[i].store(state);
                    decay.store(kept);
                    h[i] = decay.mul_add(h[i], input);
                    y = self.c.at::<E, S>(simd, t, first + i, self.dstate).re_mul_add(h[i], y);
                }
                y.store(self.tiles.y.add(at));
            }
            for i in 0..COUNT {
                // the state after the last step goes where the sweep back starts
                h[i].store(self.last::<E, S>(i));
            }
        }
    }

    /// Where the state after the tile is kept.
    #[inline(always)]
    fn last<E: Variant<T = T>, S: Isa>(&self, i: usize) -> *mut T {
        let field = E::K::PARTS * T::lanes::<S>();
        self.stored.wrapping_add((2 * STEPS * STORED + i) * field)
    }

    /// # Safety
    /// As [`Loops::walk`], for states `first..first + COUNT`.
    #[inline(always)]
    unsafe fn backwards<E: Variant<T = T>, S: Isa, const COUNT: usize>(&self, simd: S, first: usize) {
        let (width, field) = (T::lanes::<S>(), E::K::PARTS * T::lanes::<S>());
        let zero = <E::K as FieldKind>::Of::<T, S>::zero(simd);
        // SAFETY: the caller's contract.
        unsafe {
            let (mut g, mut h, mut a, mut da) = ([zero; COUNT], [zero; COUNT], [zero; COUNT], [zero; COUNT]);
            for i in 0..COUNT {
                g[i] = Field::load(simd, self.g.add((first + i) * field));
                h[i] = Field::load(simd, self.last::<E, S>(i));
                a[i] = Field::load(simd, self.a.add((first + i) * field));
            }
            let mut end = self.steps;
            while end > 0 {
                let begin = (end - 1) / width * width;
                for t in (begin..end).rev() {
                    if Self::prefetches_on_the_way::<S>() && t % STEPS_PER_PREFETCH == 0 {
                        (*self.prefetch).step(COUNT * STEPS_PER_PREFETCH);
                    }
                    let at = t * width;
                    let (dt, dt_a) = (V::load(simd, self.tiles.dt.add(at)), V::load(simd, self.tiles.dt_a.add(at)));
                    let (u, p) = (V::load(simd, self.tiles.u.add(at)), V::load(simd, self.p.add(at)));
                    let (mut du, mut ddt_a) = (V::load(simd, self.du.add(at)), V::load(simd, self.ddt_a.add(at)));
                    for i in 0..COUNT {
                        let n = first + i;
                        let (state, kept) = self.kept::<E, S, COUNT>(t, i);
                        let previous = <E::K as FieldKind>::Of::<T, S>::load(simd, state);
                        let decay = <E::K as FieldKind>::Of::<T, S>::load(simd, kept);
                        let b = self.b.at::<E, S>(simd, t, n, self.dstate);
                        let c = self.c.at::<E, S>(simd, t, n, self.dstate);
                        let by_state = c.conj().scale_add(p, g[i]);
                        let by_c = h[i].conj().scale(p);
                        g[i] = decay.conj() * by_state;
                        let by_b;
                        let by_decay;
                        if E::R::GAIN {
                            let rule = E::R::derivatives(a[i], dt, dt_a, decay);
                            let by_input = by_state.scale(u);
                            by_b = rule.gain.conj() * by_input;
                            du = (rule.gain * b).re_dot_add(by_state, du);
                            let by_gain = rule.gain_derivative.conj() * (b.conj() * by_input);
                            da[i] = by_gain.scale_add(dt, da[i]);
                            // the tile of dt is read afresh for every state: with a shared step it is the one of dt_a
                            if self.shared {
                                ddt_a = a[i].re_dot_add(by_gain, ddt_a);
                            } else {
                                let ddt = self.ddt.add(at);
                                a[i].re_dot_add(by_gain, V::load(simd, ddt)).store(ddt);
                            }
                            by_decay = rule.decay.conj() * (previous.conj() * by_state);
                        } else {
                            by_b = by_state.scale(u);
                            du = b.re_dot_add(by_state, du);
                            by_decay = previous.conj() * g[i];
                        }
                        da[i] = by_decay.scale_add(dt_a, da[i]);
                        ddt_a = a[i].re_dot_add(by_decay, ddt_a);
                        self.gather::<E, S>(simd, self.db, E::VARYING || self.b.varying, t - begin, i, n, by_b);
                        self.gather::<E, S>(simd, self.dc, E::VARYING || self.c.varying, t - begin, STORED + i, n, by_c);
                        h[i] = previous;
                    }
                    du.store(self.du.add(at));
                    ddt_a.store(self.ddt_a.add(at));
                }
                if E::VARYING || self.b.varying {
                    self.reduce::<E, S, COUNT>(simd, self.db, begin, 0, first);
                }
                if E::VARYING || self.c.varying {
                    self.reduce::<E, S, COUNT>(simd, self.dc, begin, STORED, first);
                }
                end = begin;
            }
            for i in 0..COUNT {
                g[i].store(self.g.add((first + i) * field));
                let to = self.da.add((first + i) * field);
                (<E::K as FieldKind>::Of::<T, S>::load(simd, to) + da[i]).store(to);
            }
        }
    }

    /// Adds to the gathered gradient of a constant map; leaves that of a varying one for [`Sweep::reduce`], at a slot of its own.
    ///
    /// # Safety
    /// As [`Loops::walk`]; row, slot and state lie inside.
    #[inline(always)]
    unsafe fn gather<E: Variant<T = T>, S: Isa>(
        &self,
        simd: S,
        sum: *mut T,
        varying: bool,
        row: usize,
        slot: usize,
        n: usize,
        value: <E::K as FieldKind>::Of<T, S>,
    ) {
        let (width, field) = (T::lanes::<S>(), E::K::PARTS * T::lanes::<S>());
        // SAFETY: the caller's contract.
        unsafe {
            if varying {
                value.store(self.pending.add((slot * width + row) * field));
            } else {
                let to = sum.add(n * field);
                (<E::K as FieldKind>::Of::<T, S>::load(simd, to) + value).store(to);
            }
        }
    }

    /// Sums what is pending over lanes, a vector of steps at a time: sixteen sums together take a third of the instructions of sixteen
    /// sums one by one, and the result is so small that it stays in the first cache. Steps past the tile give lanes that nobody reads.
    ///
    /// # Safety
    /// As [`Loops::walk`], for states `first..first + COUNT` whose slots start at `slot`.
    #[inline(always)]
    unsafe fn reduce<E: Variant<T = T>, S: Isa, const COUNT: usize>(
        &self,
        simd: S,
        sum: *mut T,
        begin: usize,
        slot: usize,
        first: usize,
    ) {
        let (width, parts) = (T::lanes::<S>(), E::K::PARTS);
        let per_channel = if E::LANES > 0 { E::LANES } else { self.lanes.per_channel };
        let pending = self.pending.wrapping_add(slot * width * parts * width);
        let to = sum.wrapping_add(first * per_channel * parts * STEPS + begin);
        let sums = Sums { pending, to, count: COUNT, parts, per_channel };
        match E::LANES {
            0 => outline(simd, sums),
            _ => sums.run(simd),
        }
    }
}

/// What is pending for a map, to be summed over lanes: vectors of steps of `count` vectors of states, as many as a vector has lanes.
struct Sums<T> {
    pending: *const T,
    to: *mut T,
    count: usize,
    parts: usize,
    per_channel: usize,
}

impl<T: Real> Kernel for Sums<T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Sums { pending, to, count, parts, per_channel } = self;
        let width = T::lanes::<S>();
        // SAFETY: the contract of `Sweep::reduce`, the only maker of this.
        unsafe {
            for i in 0..count {
                for part in 0..parts {
                    let rows = pending.add((i * width * parts + part) * width);
                    let sums = Lanes::sum_rows(simd, per_channel, rows, parts * width);
                    for lane in 0..per_channel {
                        let to = to.add(((i * per_channel + lane) * parts + part) * STEPS);
                        (V::load(simd, to) + sums[lane]).store(to);
                    }
                }
            }
        }
    }
}
