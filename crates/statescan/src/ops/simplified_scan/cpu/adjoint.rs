//! The scan backwards: V becomes states and G the gradient of V, and what hangs on the step sizes and A is gathered.

use super::plan;
use super::rule::{self, Deltas, Derivatives};
use super::scan::{Lanes, chunks, clear_padding, load_a, load_deltas, load_state, read_saved, step_target, store_state, vectors};
use super::{Context, GradientTargets, Sources};
use crate::cpu::recurrence::{self, Steps, StepsMut};
use crate::cpu::simd::{Cx, Field, Isa, Real, V};
use crate::cpu::tile::{self, PlaneMut};
use crate::cpu::{Array, ArrayMut, Divided, Kernel, Room};
use crate::ops::sequences::Segment;
use crate::ops::simplified_scan::Step;
use crate::tensor::RawViewMut;
use core::ops::Range;

/// The inputs and targets of a backward pass besides its own workspace.
pub(super) struct Call<'p, 'c, 'a, T> {
    pub context: &'p Context<'c, 'a, T>,
    pub sources: &'p Sources<'p>,
    pub targets: &'p GradientTargets,
    /// The states before every tile of a row but the first.
    pub saved: &'p [T],
}

/// One row and one chunk of states, backwards through a wave.
pub(super) struct Job<'j, 'p, 'c, 'a, T> {
    pub call: &'j Call<'p, 'c, 'a, T>,
    pub wave: &'j Range<usize>,
    pub row: usize,
    pub chunk: usize,
    /// The wave's rows of V, which become states, and of G, which become the gradient of V.
    pub x: Divided<'j, T>,
    pub g: Divided<'j, T>,
    /// The gradients that are carried into the wave, and out of it.
    pub enter: &'j [T],
    pub leave: Divided<'j, T>,
    /// For each vector of states: by A (complex), by a constant delta, by a constant deltaA.
    pub sums: Divided<'j, T>,
    pub tiles: Tiles<'j, T>,
}

/// The arrays of one tile.
pub(super) struct Tiles<'m, T> {
    d: ArrayMut<'m, T>,
    da: ArrayMut<'m, T>,
    by_d: ArrayMut<'m, T>,
    by_da: ArrayMut<'m, T>,
    /// V, while the states take its place.
    driven: ArrayMut<'m, T>,
    factors: Derivatives<ArrayMut<'m, T>>,
    /// A vector on its way.
    vector: ArrayMut<'m, T>,
}

impl<'m, T: Real> Tiles<'m, T> {
    /// For tiles of so many elements of a real quantity.
    pub(super) fn lay_out(room: &mut Room<'m, T>, tile: usize, width: usize) -> Self {
        let [d, da, by_d, by_da] = [tile; 4].map(|len| room.array(len));
        let [driven, decay, decay_by_z, input, input_by_d, input_by_a] = [2 * tile; 6].map(|len| room.array(len));
        let factors = Derivatives { decay, decay_by_z, input, input_by_d, input_by_a };
        Tiles { d, da, by_d, by_da, driven, factors, vector: room.array(2 * width) }
    }
}

/// The gradients by A, by dt and by dt_a of one vector of states, summed over steps.
#[derive(Clone, Copy)]
struct Gradient<T: Real, S: Isa> {
    a: Cx<T, S>,
    d: V<T, S>,
    da: V<T, S>,
}

impl<T: Real, S: Isa> Gradient<T, S> {
    fn zero(simd: S) -> Self {
        let a = Cx::zero(simd);
        Gradient { a, d: a.re, da: a.re }
    }
}

/// One tile of one vector of states.
struct Here<'h, T: Real, S: Isa> {
    simd: S,
    call: &'h Call<'h, 'h, 'h, T>,
    tile: &'h plan::Tile,
    index: usize,
    lanes: Lanes,
    a: Cx<T, S>,
    deltas: Deltas<'h, T>,
    /// The vector's column of the states and of their gradients, V and the factors, step by step.
    x: StepsMut<'h, T>,
    g: StepsMut<'h, T>,
    driven: StepsMut<'h, T>,
    factors: Derivatives<Steps<'h, T>>,
    by_d: ArrayMut<'h, T>,
    by_da: ArrayMut<'h, T>,
    vector: ArrayMut<'h, T>,
}

impl<T: Real> Kernel for Job<'_, '_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        for lanes in vectors(self.call.context.problem.dstate, self.chunk, T::lanes::<S>()) {
            self.vector(simd, lanes);
        }
    }
}

impl<T: Real> Job<'_, '_, '_, '_, T> {
    /// All tiles of a vector of states.
    #[inline(always)]
    fn vector<S: Isa>(&mut self, simd: S, lanes: Lanes) {
        let context = self.call.context;
        let (width, range) = (T::lanes::<S>(), context.plan.row(self.wave, self.row));
        let a = load_a(simd, context, lanes, self.tiles.vector.reborrow());
        let mut carry = Array::of(&self.enter[lanes.column..lanes.column + 2 * width]).load_field(simd, 0);
        let mut sum = Gradient::zero(simd);
        for index in range.clone().rev() {
            // sums over a tile first, then over tiles
            let by_tile = self.tile(simd, index, lanes, a, &mut carry);
            sum = Gradient { a: sum.a + by_tile.a, d: sum.d + by_tile.d, da: sum.da + by_tile.da };
        }
        // SAFETY: each row has its own partial sums, and no other job has these states.
        let mut sums = unsafe { self.sums.part(2 * lanes.column) };
        sums.store_field(0, sum.a);
        sums.store(2 * width, sum.d);
        sums.store(3 * width, sum.da);
        if range.start == self.wave.start {
            // SAFETY: the first tile of these states has one job.
            unsafe { self.leave.part(lanes.column) }.store_field(0, carry);
        }
    }

    /// One tile: states forwards, then gradients back; the gradient by the state after the tile becomes that by the state before it.
    #[inline(always)]
    fn tile<S: Isa>(&mut self, simd: S, index: usize, lanes: Lanes, a: Cx<T, S>, carry: &mut Cx<T, S>) -> Gradient<T, S> {
        let Call { context, targets, .. } = self.call;
        let (problem, plan, columns) = (context.problem, &context.plan, context.state_len());
        let tile = &plan.tile(index);
        let at = (plan.position(index) - plan.position(self.wave.start)) * columns + lanes.column;
        let Tiles { d, da, by_d, by_da, driven, factors, vector } = &mut self.tiles;
        let deltas = load_deltas(simd, context, tile, lanes, [d, da]);
        let (count, width) = (tile.len(), T::lanes::<S>());
        let (derived, pitch) = if deltas.constant { (1, 0) } else { (count, 2 * width) };
        rule::derivatives(simd, problem.discretization, a, deltas, derived, factors);
        let factors = factors.map(|array| Steps::new(array.read(), pitch));
        // SAFETY: no other job has these states of this row.
        let [mut x, mut g] = [self.x, self.g].map(|rows| unsafe { rows.part(at) });
        let mut here = Here {
            simd,
            call: self.call,
            tile,
            index,
            lanes,
            a,
            deltas,
            x: StepsMut::new(x.reborrow(), columns),
            g: StepsMut::new(g.reborrow(), columns),
            driven: StepsMut::new(driven.reborrow(), 2 * width),
            factors,
            by_d: by_d.reborrow(),
            by_da: by_da.reborrow(),
            vector: vector.reborrow(),
        };
        here.states();
        let mut sum = Gradient::zero(simd);
        for segment in context.segments_in(tile).iter().rev() {
            here.segment(segment, carry, &mut sum);
        }
        let delta_a = problem.delta_a.as_ref();
        for (of, target, from) in [(Some(&problem.delta), &targets.delta, by_d), (delta_a, &targets.delta_a, by_da)] {
            if let (Some(Step::Varying(_)), Some(view)) = (of, target) {
                tile::store_parts(simd, from.read(), 1, width, step_target(view, tile, lanes));
            }
        }
        for rows in [x, g] {
            clear_padding::<T, S>(rows, columns, count, lanes.count);
        }
        sum
    }
}

impl<T: Real, S: Isa> Here<'_, T, S> {
    /// The state before step `start` of a segment.
    #[inline(always)]
    fn before(&mut self, segment: &Segment, start: usize) -> Cx<T, S> {
        let (context, lanes) = (self.call.context, self.lanes);
        let problem = context.problem;
        if start > segment.start {
            let state = plan::checkpoint(&context.plan, problem, self.index);
            return read_saved(self.simd, self.call.saved, state, problem.dstate, lanes);
        }
        load_state(self.simd, &problem.initial_state, segment.initial, lanes, self.vector.reborrow())
    }

    /// V, which is kept, becomes the states of a tile.
    #[inline(always)]
    fn states(&mut self) {
        let &mut Here { simd, call, tile, factors, .. } = self;
        for t in 0..tile.len() {
            let driven: Cx<T, S> = self.x.load(simd, t);
            self.driven.store(t, driven);
            self.x.store(t, factors.input.load::<S, Cx<T, S>>(simd, t).mul_add(driven, Cx::zero(simd)));
        }
        for segment in call.context.segments_in(tile) {
            let (start, end) = (segment.start.max(tile.start), segment.end.min(tile.end));
            let offset = start - tile.start;
            let before = self.before(segment, start);
            recurrence::scan(simd, factors.decay.from(offset), self.x.from(offset), end - start, before);
        }
    }

    /// The gradients of the steps that a segment has in a tile, added to `sum`.
    #[inline(always)]
    fn segment(&mut self, segment: &Segment, carry: &mut Cx<T, S>, sum: &mut Gradient<T, S>) {
        let &mut Here { simd, call, tile, lanes, factors, .. } = self;
        let Call { sources, targets, .. } = call;
        let (start, end) = (segment.start.max(tile.start), segment.end.min(tile.end));
        let (offset, steps) = (start - tile.start, end - start);
        if end == segment.end {
            *carry = load_state(simd, &sources.last_state, segment.last, lanes, self.vector.reborrow());
        }
        *carry = recurrence::adjoint(simd, factors.decay.from(offset), self.g.from(offset), steps, *carry);
        if start == segment.start {
            store_state(simd, &targets.initial_state, segment.initial, lanes, *carry, &mut self.vector);
        }
        let mut previous = self.before(segment, start);
        for t in offset..offset + steps {
            self.step(t, previous, sum);
            previous = self.x.load(simd, t);
        }
    }

    /// The gradients of step `t`, whose state before it is `previous`.
    #[inline(always)]
    fn step(&mut self, t: usize, previous: Cx<T, S>, sum: &mut Gradient<T, S>) {
        let &mut Here { simd, a, deltas, factors, .. } = self;
        let (zero, width) = (Cx::<T, S>::zero(simd), T::lanes::<S>());
        let (_, da) = deltas.at(simd, t);
        let by_x: Cx<T, S> = self.g.load(simd, t);
        let (by_z, input): (Cx<T, S>, Cx<T, S>) = (factors.decay_by_z.load(simd, t), factors.input.load(simd, t));
        let by_decay = previous.conj_mul_add(by_x, zero);
        let by_input = self.driven.load::<S, Cx<T, S>>(simd, t).conj_mul_add(by_x, zero);
        sum.a = by_z.conj_mul_add(by_decay.scale(da), sum.a);
        sum.a = factors.input_by_a.load::<S, Cx<T, S>>(simd, t).conj_mul_add(by_input, sum.a);
        let mut by_d = factors.input_by_d.load::<S, Cx<T, S>>(simd, t).re_dot_add(by_input, zero.re);
        let by_da = (by_z * a).re_dot_add(by_decay, zero.re);
        if deltas.shared {
            by_d = by_d + by_da;
        }
        (sum.d, sum.da) = (sum.d + by_d, sum.da + by_da);
        self.by_d.store(t * width, by_d);
        self.by_da.store(t * width, by_da);
        self.g.store(t, input.conj_mul_add(by_x, zero));
    }
}

/// Writes the gradients that are sums over all steps.
pub(super) struct StoreStates<'j, 'c, 'a, T> {
    pub context: &'j Context<'c, 'a, T>,
    pub targets: &'j GradientTargets,
    pub states: &'j [T],
}

impl<T: Real> Kernel for StoreStates<'_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let (problem, width) = (self.context.problem, T::lanes::<S>());
        let constant = |step: Option<&Step<'_>>, view: Option<RawViewMut>| view.filter(|_| step.is_some_and(Step::is_constant));
        let delta = constant(Some(&problem.delta), self.targets.delta);
        let delta_a = constant(problem.delta_a.as_ref(), self.targets.delta_a);
        let states = Array::of(self.states);
        for chunk in 0..chunks(problem.dstate) {
            for lanes in vectors(problem.dstate, chunk, width) {
                for (view, at, parts) in [(&self.targets.a, 0, 2), (&delta, 2, 1), (&delta_a, 3, 1)] {
                    let Some(view) = view else { continue };
                    let to = PlaneMut::of(view, 0, 0).at(lanes.first, 0).area(lanes.count, 1);
                    let from = states.from(2 * lanes.column + at * width);
                    tile::store_parts(simd, from, parts, width, to);
                }
            }
        }
    }
}
