//! The innermost loops of the backward pass: a few states of one vector of channels through one tile, forwards and back.
//!
//! With `g` the gradient by the state, per state and step and for real states under `mamba`: `G = C p + g'`, `g = Abar G`, and
//! `dz = g h[t-1]` is all that A, dt and the decay need, because `Abar' = Abar`; no quantity is ever divided by the decay.
//!
//! For f32 and AVX-512 the loops over two states side by side have 61 instructions forwards (22 of arithmetic in 24 slots, 7 copies of
//! registers, 13 loads and stores of vectors) and 58 back (16 of arithmetic, 4 copies, 12 loads and stores, the rest addresses), and each sum
//! over lanes takes 2.8 slots: 65 for each state and 16 channels, where the forward pass has 18. `benches/instructions.rs` keeps the count
//! of the pass.

use super::inputs::{Map, tile_len};
use super::lanes::Lanes;
use super::wavefront::Walker;
use super::{Loops, Projection, Types, Variant};
use crate::cpu::simd::{Field, Isa, Real, V};
use crate::cpu::tile::{MAX_LANES, Prefetch, STEPS, prefetch_own};
use crate::cpu::{Array, ArrayMut, Arrays, CellArrays, Cells, Kernel, Room};
use crate::ops::rules::{FieldKind, Rule};

/// Areas that are prefetched while a block is loaded and swept, at most: saved states, five inputs, the gradients of four of them, B and C
/// and theirs.
pub(super) const AHEAD: usize = 14;
/// States walked together, whose values at every step of a tile are kept: the state before the step and the decay.
pub(super) const STORED: usize = 2;
/// Steps of each direction after which some of that is prefetched: all at once would be waited for.
const STEPS_PER_PREFETCH: usize = 4;

/// The tiles that the loops over states read and write at every step: (step, lane), each step repeated over its channel's lanes.
#[derive(Clone, Copy)]
pub(super) struct Walked<'m, T> {
    pub dt: Cells<'m, T>,
    /// The decay's step: `dt` itself unless it has its own.
    pub dt_a: Cells<'m, T>,
    pub u: Cells<'m, T>,
    /// The output before the gate, and the gradient by it.
    pub y: Cells<'m, T>,
    pub p: Cells<'m, T>,
    /// Gradients by `u`, and by the steps as they enter the gain and the decay.
    pub du: Cells<'m, T>,
    pub ddt: Cells<'m, T>,
    pub ddt_a: Cells<'m, T>,
}

/// [`Walked`] in memory.
///
/// The loops over states need the addresses of all these tiles at every step. They lie at distances that are known when the loops are
/// compiled, so that one pointer is enough.
#[derive(Clone, Copy)]
pub(super) struct WalkedOf<A> {
    tiles: A,
    /// Whether the decay's step is `dt`.
    shared: bool,
}

/// The tiles of one thread.
pub(super) type WalkedTiles<'m, T> = WalkedOf<Arrays<'m, T>>;
/// The tiles of one thread as cells, each by several names.
pub(super) type WalkedCells<'m, T> = WalkedOf<CellArrays<'m, T>>;

/// [`Walked`] tile by tile, and what they are stored from; the decay's own where it has its own step.
pub(super) struct WalkedMut<'m, T> {
    pub dt: ArrayMut<'m, T>,
    pub dt_a: Option<ArrayMut<'m, T>>,
    pub u: ArrayMut<'m, T>,
    pub y: ArrayMut<'m, T>,
    pub du: ArrayMut<'m, T>,
    pub ddt: ArrayMut<'m, T>,
    pub ddt_a: Option<ArrayMut<'m, T>>,
}

impl<'m, T: Real> WalkedTiles<'m, T> {
    /// Each of so many elements.
    pub(super) fn lay_out(room: &mut Room<'m, T>, shared: bool, len: usize) -> Self {
        WalkedOf { tiles: room.arrays(if shared { 6 } else { 8 }, len), shared }
    }

    #[inline(always)]
    pub(super) fn memory(&mut self) -> WalkedMut<'_, T> {
        if self.shared {
            let [dt, u, y, _, du, ddt] = self.tiles.each();
            return WalkedMut { dt, dt_a: None, u, y, du, ddt, ddt_a: None };
        }
        let [dt, u, y, _, du, ddt, dt_a, ddt_a] = self.tiles.each();
        WalkedMut { dt, dt_a: Some(dt_a), u, y, du, ddt, ddt_a: Some(ddt_a) }
    }

    #[inline(always)]
    pub(super) fn cells(&mut self) -> WalkedCells<'_, T> {
        WalkedOf { tiles: self.tiles.cells(), shared: self.shared }
    }
}

impl<'m, T: Real> WalkedCells<'m, T> {
    #[inline(always)]
    pub(super) fn get(self) -> Walked<'m, T> {
        let [dt, u, y, p, du, ddt] = core::array::from_fn(|i| self.tiles.of(i));
        let (dt_a, ddt_a) = if self.shared { (dt, ddt) } else { (self.tiles.of(6), self.tiles.of(7)) };
        Walked { dt, dt_a, u, y, p, du, ddt, ddt_a }
    }

    /// Returns whole tiles, for the loops.
    #[inline(always)]
    fn known<S: Isa>(self) -> Walked<'m, T> {
        WalkedOf { tiles: self.tiles.of_len(tile_len(T::lanes::<S>())), ..self }.get()
    }
}

/// The gradient by B or C.
#[derive(Clone, Copy)]
pub(super) struct ByMap<'m, T> {
    /// Whether the map varies with time.
    varying: bool,
    /// The sums: (state, part, step), summed over lanes, where the map varies, and (state, part, lane) where it does not.
    sum: Cells<'m, T>,
}

impl<'m, T> ByMap<'m, T> {
    /// The gradient by a map of a tile, or by its constants.
    pub(super) fn new<V>(map: &Projection<V>, tile: &'m mut ArrayMut<'_, T>, own: ArrayMut<'m, T>) -> Self {
        match map {
            Projection::Varying(_) => ByMap { varying: true, sum: tile.cells() },
            Projection::Constant(_) => ByMap { varying: false, sum: own.into_cells() },
        }
    }
}

/// The memory of the loops over `STORED` states.
#[derive(Clone, Copy)]
pub(super) struct Stored<'m, T> {
    /// The states before each step, and the decay of each step, at a distance that is known likewise.
    steps: CellArrays<'m, T>,
    /// The states after the last step.
    last: Cells<'m, T>,
    /// Gradients by B and by C that are not summed over lanes yet, of as many steps as a vector has lanes.
    pending: CellArrays<'m, T>,
}

impl<'m, T: Real> Stored<'m, T> {
    /// For vectors of so many elements, and numbers of so many parts.
    pub(super) fn lay_out(room: &mut Room<'m, T>, width: usize, parts: usize) -> Self {
        let group = STORED * parts * width;
        let (steps, last) = (room.arrays(2, STEPS * group).into_cells(), room.array(group).into_cells());
        Stored { steps, last, pending: room.arrays(2, group * width).into_cells() }
    }

    /// The states before each step and the decays.
    #[inline(always)]
    fn known<E: Types<T = T>, S: Isa>(self) -> [Cells<'m, T>; 2] {
        let steps = self.steps.of_len(STEPS * STORED * E::K::PARTS * T::lanes::<S>());
        [steps.of(0), steps.of(1)]
    }

    /// Returns the pending gradients by B and by C.
    #[inline(always)]
    fn pending<E: Types<T = T>, S: Isa>(self) -> [Cells<'m, T>; 2] {
        let width = T::lanes::<S>();
        let pending = self.pending.of_len(STORED * E::K::PARTS * width * width);
        [pending.of(0), pending.of(1)]
    }
}

/// One tile of time of one vector of channels.
pub(super) struct Sweep<'w, 't, T> {
    pub walked: WalkedCells<'w, T>,
    /// Whether the decay's step is `dt`.
    pub shared: bool,
    pub a: Array<'w, T>,
    pub b: Map<'w, T>,
    pub c: Map<'w, T>,
    /// States before the tile, (state, part, lane).
    pub h: Array<'w, T>,
    /// Gradient by the states after the tile; afterwards by those before it. It and the gathered gradients by parameters belong to the
    /// thread that walks the tile now.
    pub g: Cells<'w, T>,
    /// Gathered gradients by A, (state, part, lane), and by the maps.
    pub da: Cells<'w, T>,
    pub by_b: ByMap<'w, T>,
    pub by_c: ByMap<'w, T>,
    pub stored: Stored<'w, T>,
    pub steps: usize,
    pub dstate: usize,
    pub lanes: Lanes,
    /// Rows that are prefetched on the way.
    pub prefetch: &'w mut Prefetch<AHEAD>,
    /// Set where other threads walk other tiles of the row at the same time; the vectors of states are counted from `counted` on.
    pub walker: &'w mut Option<Walker<'t>>,
    pub counted: usize,
}

/// Numbers of a type's field.
type Number<E, T, S> = <<E as Types>::K as FieldKind>::Of<T, S>;

/// The numbers that the loop backwards carries from step to step, for each state of a group.
struct Carried<F, const COUNT: usize> {
    /// The gradient by the state.
    g: [F; COUNT],
    /// The state after the step.
    h: [F; COUNT],
    a: [F; COUNT],
    /// The gradient by `a`.
    da: [F; COUNT],
}

/// The values of its tiles at one step of the way backwards.
struct Step<T: Real, S: Isa> {
    t: usize,
    /// Its row of what is pending for the maps.
    row: usize,
    dt: V<T, S>,
    dt_a: V<T, S>,
    u: V<T, S>,
    p: V<T, S>,
    du: V<T, S>,
    ddt_a: V<T, S>,
}

impl<T: Real> Loops<T> for Sweep<'_, '_, T> {
    #[inline(always)]
    fn walk<E: Variant<T = T>, S: Isa>(&mut self, simd: S) {
        let mut n = 0;
        let vectors = self.dstate / self.lanes.per_channel;
        debug_assert!(self.dstate.is_multiple_of(self.lanes.per_channel), "whole vectors of states");
        debug_assert!(self.steps <= STEPS, "at most a tile");
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

/// Returns the work of a sweep over so many vectors of states, each of which is walked in both directions.
pub(super) fn work(vectors: usize, steps: usize) -> usize {
    2 * vectors * steps
}

/// Whether the loops over steps prefetch, or what comes before each of them: with sixteen registers a third of the instructions would go
/// into what the prefetch pushes out of them.
#[inline(always)]
fn prefetches_on_the_way<S: Isa>() -> bool {
    f32::lanes::<S>() == MAX_LANES
}

impl<T: Real> Sweep<'_, '_, T> {
    /// Prefetches what is due before `COUNT` vectors of states are walked in one direction.
    #[inline(always)]
    fn prefetch<S: Isa, const COUNT: usize>(&mut self) {
        if !prefetches_on_the_way::<S>() {
            self.prefetch.step(COUNT * self.steps);
        }
    }

    /// Prefetches on the way, before step `t`.
    #[inline(always)]
    fn prefetch_at<S: Isa, const COUNT: usize>(&mut self, t: usize) {
        if prefetches_on_the_way::<S>() && t.is_multiple_of(STEPS_PER_PREFETCH) {
            self.prefetch.step(COUNT * STEPS_PER_PREFETCH);
        }
    }

    #[inline(always)]
    fn states<E: Variant<T = T>, S: Isa, const COUNT: usize>(&mut self, simd: S, first: usize) {
        let end = self.counted + first + COUNT;
        debug_assert!((first + COUNT) * self.lanes.per_channel <= self.dstate, "the states are there");
        if let Some(walker) = self.walker
            && walker.is_done(end)
        {
            // there is the way forwards for these to come from the other thread's cache
            let field = E::K::PARTS * T::lanes::<S>();
            for array in [self.g, self.da] {
                prefetch_own(array.at(first * field, COUNT * field).cast(), COUNT * field * size_of::<T>());
            }
        }
        self.prefetch::<S, COUNT>();
        self.forwards::<E, S, COUNT>(simd, first);
        if let Some(walker) = self.walker {
            walker.wait(end);
        }
        self.prefetch::<S, COUNT>();
        self.backwards::<E, S, COUNT>(simd, first);
        if let Some(walker) = self.walker {
            walker.done(end);
        }
    }

    #[inline(always)]
    fn forwards<E: Variant<T = T>, S: Isa, const COUNT: usize>(&mut self, simd: S, first: usize) {
        let (width, field) = (T::lanes::<S>(), E::K::PARTS * T::lanes::<S>());
        let Walked { dt: dts, dt_a: dts_a, u: us, y: ys, .. } = self.walked.known::<S>();
        let [states, decays] = self.stored.known::<E, S>();
        let mut h = [Number::<E, T, S>::zero(simd); COUNT];
        let mut a = h;
        for i in 0..COUNT {
            h[i] = self.h.load_field(simd, (first + i) * field);
            a[i] = E::R::prepare(self.a.load_field(simd, (first + i) * field));
        }
        for t in 0..self.steps {
            self.prefetch_at::<S, COUNT>(t);
            let at = t * width;
            let (dt, dt_a, u): (V<T, S>, _, _) = (dts.load(simd, at), dts_a.load(simd, at), us.load(simd, at));
            let mut y = ys.load(simd, at);
            for i in 0..COUNT {
                let (decay, gain) = E::R::step(a[i], dt, dt_a, self.shared);
                let b = self.b.at::<E, S>(simd, t, first + i, self.dstate);
                let input = if E::R::GAIN { gain.scale(u) * b } else { b.scale(u) };
                states.store_field((t * COUNT + i) * field, h[i]);
                decays.store_field((t * COUNT + i) * field, decay);
                h[i] = decay.mul_add(h[i], input);
                y = self.c.at::<E, S>(simd, t, first + i, self.dstate).re_mul_add(h[i], y);
            }
            ys.store(at, y);
        }
        for i in 0..COUNT {
            // the state after the last step goes where the sweep back starts
            self.stored.last.store_field(i * field, h[i]);
        }
    }

    #[inline(always)]
    fn backwards<E: Variant<T = T>, S: Isa, const COUNT: usize>(&mut self, simd: S, first: usize) {
        let (width, field) = (T::lanes::<S>(), E::K::PARTS * T::lanes::<S>());
        let zero = [Number::<E, T, S>::zero(simd); COUNT];
        let mut carried = Carried { g: zero, h: zero, a: zero, da: zero };
        for i in 0..COUNT {
            carried.g[i] = self.g.load_field(simd, (first + i) * field);
            carried.h[i] = self.stored.last.load_field(simd, i * field);
            carried.a[i] = self.a.load_field(simd, (first + i) * field);
        }
        let mut end = self.steps;
        while end > 0 {
            let begin = (end - 1) / width * width;
            for t in (begin..end).rev() {
                self.prefetch_at::<S, COUNT>(t);
                self.step_back::<E, S, COUNT>(simd, first, (t, t - begin), &mut carried);
            }
            for (by, pending) in [self.by_b, self.by_c].into_iter().zip(self.stored.pending::<E, S>()) {
                if E::VARYING || by.varying {
                    self.reduce::<E, S, COUNT>(simd, (by.sum, pending), begin, first);
                }
            }
            end = begin;
        }
        for i in 0..COUNT {
            self.g.store_field((first + i) * field, carried.g[i]);
            let da: Number<E, T, S> = self.da.load_field(simd, (first + i) * field);
            self.da.store_field((first + i) * field, da + carried.da[i]);
        }
    }

    /// One step back of a group of states: step `t`, which is row `row` of what is pending.
    #[inline(always)]
    fn step_back<E: Variant<T = T>, S: Isa, const COUNT: usize>(
        &self,
        simd: S,
        first: usize,
        (t, row): (usize, usize),
        carried: &mut Carried<Number<E, T, S>, COUNT>,
    ) {
        let (at, walked) = (t * T::lanes::<S>(), self.walked.known::<S>());
        debug_assert!(t < self.steps && row < T::lanes::<S>(), "a step of the tile, and a row of what is pending");
        let mut step = Step {
            t,
            row,
            dt: walked.dt.load(simd, at),
            dt_a: walked.dt_a.load(simd, at),
            u: walked.u.load(simd, at),
            p: walked.p.load(simd, at),
            du: walked.du.load(simd, at),
            ddt_a: walked.ddt_a.load(simd, at),
        };
        for i in 0..COUNT {
            self.state_back::<E, S, COUNT>(simd, (i, first + i), &mut step, carried);
        }
        walked.du.store(at, step.du);
        walked.ddt_a.store(at, step.ddt_a);
    }

    /// One step back of the state that is number `i` of its group and `n` of all.
    #[inline(always)]
    fn state_back<E: Variant<T = T>, S: Isa, const COUNT: usize>(
        &self,
        simd: S,
        (i, n): (usize, usize),
        step: &mut Step<T, S>,
        carried: &mut Carried<Number<E, T, S>, COUNT>,
    ) {
        let &mut Step { t, row, dt, dt_a, u, p, .. } = step;
        let (Carried { g, h, a, da }, kept) = (carried, (t * COUNT + i) * E::K::PARTS * T::lanes::<S>());
        let [states, decays] = self.stored.known::<E, S>();
        let previous: Number<E, T, S> = states.load_field(simd, kept);
        let decay: Number<E, T, S> = decays.load_field(simd, kept);
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
            step.du = (rule.gain * b).re_dot_add(by_state, step.du);
            let by_gain = rule.gain_derivative.conj() * (b.conj() * by_input);
            da[i] = by_gain.scale_add(dt, da[i]);
            // the tile of dt is read afresh for every state: with a shared step it is the one of dt_a
            if self.shared {
                step.ddt_a = a[i].re_dot_add(by_gain, step.ddt_a);
            } else {
                let (at, ddt) = (t * T::lanes::<S>(), self.walked.known::<S>().ddt);
                ddt.store(at, a[i].re_dot_add(by_gain, ddt.load(simd, at)));
            }
            by_decay = rule.decay.conj() * (previous.conj() * by_state);
        } else {
            by_b = by_state.scale(u);
            step.du = b.re_dot_add(by_state, step.du);
            by_decay = previous.conj() * g[i];
        }
        da[i] = by_decay.scale_add(dt_a, da[i]);
        step.ddt_a = a[i].re_dot_add(by_decay, step.ddt_a);
        let pending = self.stored.pending::<E, S>();
        self.gather::<E, S>(simd, (self.by_b, pending[0]), (row, i, n), by_b);
        self.gather::<E, S>(simd, (self.by_c, pending[1]), (row, i, n), by_c);
        h[i] = previous;
    }

    /// Adds to the gathered gradient of a constant map; leaves that of a varying one for [`Sweep::reduce`].
    #[inline(always)]
    fn gather<E: Variant<T = T>, S: Isa>(
        &self,
        simd: S,
        (by, pending): (ByMap<'_, T>, Cells<'_, T>),
        (row, i, n): (usize, usize, usize),
        value: Number<E, T, S>,
    ) {
        let (width, field) = (T::lanes::<S>(), E::K::PARTS * T::lanes::<S>());
        if E::VARYING || by.varying {
            pending.store_field((i * width + row) * field, value);
        } else {
            let sum: Number<E, T, S> = by.sum.load_field(simd, n * field);
            by.sum.store_field(n * field, sum + value);
        }
    }

    /// Sums what is pending over lanes, a vector of steps at a time: sixteen sums together take a third of the instructions of sixteen
    /// sums one by one, and the result is so small that it stays in the first cache. Steps past the tile give lanes that nobody reads.
    #[inline(always)]
    fn reduce<E: Variant<T = T>, S: Isa, const COUNT: usize>(
        &self,
        simd: S,
        (sum, pending): (Cells<'_, T>, Cells<'_, T>),
        begin: usize,
        first: usize,
    ) {
        let parts = E::K::PARTS;
        debug_assert!(begin.is_multiple_of(T::lanes::<S>()) && begin < self.steps, "steps of a vector");
        let per_channel = if E::LANES > 0 { E::LANES } else { self.lanes.per_channel };
        let to = sum.from(first * per_channel * parts * STEPS + begin);
        let sums = Sums { pending, to, count: COUNT, parts, per_channel };
        match E::LANES {
            0 => simd.call(sums),
            _ => sums.run(simd),
        }
    }
}

/// Sums the pending gradients by a map over lanes: vectors of steps of `count` vectors of states, as many as a vector has lanes.
struct Sums<'s, T> {
    pending: Cells<'s, T>,
    to: Cells<'s, T>,
    count: usize,
    parts: usize,
    per_channel: usize,
}

impl<T: Real> Kernel for Sums<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Sums { pending, to, count, parts, per_channel } = self;
        let width = T::lanes::<S>();
        debug_assert!(count <= STORED, "as many states as are stored");
        debug_assert!(pending.has(0, count * parts * width * width), "what is pending is there");
        for i in 0..count {
            for part in 0..parts {
                let rows = pending.from((i * width * parts + part) * width);
                let sums = Lanes::sum_rows(simd, per_channel, rows, parts * width);
                for lane in 0..per_channel {
                    let at = ((i * per_channel + lane) * parts + part) * STEPS;
                    to.store(at, to.load(simd, at) + sums[lane]);
                }
            }
        }
    }
}
