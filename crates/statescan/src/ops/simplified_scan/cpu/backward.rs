//! Gradients.
//!
//! The waves are walked from the last to the first. In each, blocks of time give `V = U B` and `G = P C^H`; then rows and vectors of states
//! walk their tiles backwards, turning V into states and G into the gradient of V; then blocks of time give `dU = dV B^H`, while others sum
//! the gradients of the maps, `U^T dV` and `X^T P`, over the whole wave.

use super::maps::{Map, product};
use super::plan::{self, PANEL};
use super::rows::{Dots, Load, LoadVector, Skip, Store, StoreVector};
use super::rule::{self, Deltas, Derivatives};
use super::scan::{
    Lanes, chunks, clear_padding, load_a, load_deltas, load_state, read_saved, split, step_target, store_state, vectors,
};
use super::{Context, GradientTargets, Sources, Targets, forward, pass_on};
use crate::cpu::recurrence::{self, Steps};
use crate::cpu::simd::{Cx, Field, Isa, Real, V};
use crate::cpu::tile::{self, PlaneMut};
use crate::cpu::{Arena, Array, Kernel, Matrix, MatrixMut, Room};
use crate::exec::Exec;
use crate::ops::sequences::Segment;
use crate::ops::simplified_scan::{Problem, Step};
use crate::tensor::{RawViewMut, View, ViewMut};
use core::ops::Range;

/// The workspace of a wave; the rows of each matrix are the wave's steps.
struct Wave<T> {
    /// Inputs.
    u: Vec<T>,
    /// V, then states.
    x: Vec<T>,
    /// Cotangents of the output.
    p: Vec<T>,
    /// G, then the gradient of V.
    g: Vec<T>,
}

/// Sums over all waves.
struct Sums<T> {
    input: Vec<T>,
    output: Vec<T>,
    /// For each vector of states: by A (complex), by a constant delta, by a constant deltaA.
    states: Vec<T>,
    d: Vec<T>,
}

/// What the passes over one wave share.
struct Pass<'p, 'c, 'a, T> {
    context: &'p Context<'c, 'a, T>,
    sources: &'p Sources<'p>,
    targets: &'p GradientTargets,
    /// The states before every tile of a row but the first.
    saved: &'p [T],
    /// The packed maps.
    input: Vec<T>,
    output: Vec<T>,
    d: Option<Vec<T>>,
}

pub(super) fn run<T: Real>(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    pass_on(problem, &sources.last_state, &targets.initial_state, false);
    let context = Context::<T>::new(exec, problem, |u, state, y| u + 2 * state + y);
    let zeros = |len: usize| vec![T::default(); len];
    let mut sums = Sums {
        input: zeros(context.input.len()),
        output: zeros(context.output.len()),
        states: zeros(2 * context.state_len()),
        d: zeros(problem.dim),
    };
    if context.plan.tiles > 0 {
        let own;
        let saved = match &sources.checkpoints {
            // SAFETY: checked saved states are dense and have the type and the length that their query says.
            Some(view) => unsafe { saved_states(view, plan::checkpoints_len(problem)) },
            None => {
                own = save_states::<T>(exec, problem);
                &own
            }
        };
        Pass::new(exec, &context, sources, targets, saved).run(exec, &mut sums);
    }
    let Sums { input, output, states, d } = &mut sums;
    if let Some(target) = &targets.b {
        context.input.unpack(exec, input, target);
    }
    if let Some(target) = &targets.c {
        context.output.unpack(exec, output, target);
    }
    if let Some(view) = &targets.d {
        context.level.dispatch(StoreVector { view, from: d });
    }
    context.level.dispatch(StoreStates { context: &context, targets, states });
}

/// The saved states of the caller.
///
/// # Safety
/// The view is dense and has so many numbers of this type.
unsafe fn saved_states<'v, T>(view: &View<'v>, len: usize) -> &'v [T] {
    // SAFETY: the caller's contract.
    if len == 0 { &[] } else { unsafe { core::slice::from_raw_parts(view.as_ptr().cast(), len) } }
}

/// The saved states of a forward pass.
fn save_states<T: Real>(exec: &Exec, problem: &Problem<'_>) -> Vec<T> {
    let mut own = vec![T::default(); plan::checkpoints_len(problem)];
    if !own.is_empty() {
        let len = own.len();
        let mut view = ViewMut::new(&mut own, &[len]).expect("a dense vector");
        forward::run::<T>(exec, problem, &Targets { y: None, last_state: None, checkpoints: Some(view.raw()) });
    }
    own
}

impl<'p, 'c, 'a, T: Real> Pass<'p, 'c, 'a, T> {
    fn new(
        exec: &Exec,
        context: &'p Context<'c, 'a, T>,
        sources: &'p Sources<'p>,
        targets: &'p GradientTargets,
        saved: &'p [T],
    ) -> Self {
        let problem = context.problem;
        let (input, output) = (context.input.pack(exec, &problem.b), context.output.pack(exec, &problem.c));
        let d = problem.d.map(|view| {
            let mut d = vec![T::default(); problem.dim];
            context.level.dispatch(LoadVector { view: &view, to: &mut d });
            d
        });
        Pass { context, sources, targets, saved, input, output, d }
    }

    /// Walks the waves from the last one.
    fn run(&self, exec: &Exec, sums: &mut Sums<T>) {
        let (context, columns) = (self.context, self.context.state_len());
        let (steps, zeros) = (context.plan.wave_steps(), |len: usize| vec![T::default(); len]);
        let mut space = Wave {
            u: zeros(steps * context.input.from.len()),
            x: zeros(steps * columns),
            p: zeros(steps * context.output.to.len()),
            g: zeros(steps * columns),
        };
        let mut carries = [zeros(columns), zeros(columns)];
        for number in (0..context.plan.waves()).rev() {
            let wave = context.plan.wave(number);
            self.products(exec, &wave, &mut space);
            let [enter, leave] = &mut carries;
            self.scan(exec, &wave, &mut space, (enter, leave), &mut sums.states);
            carries.swap(0, 1);
            self.gradients(exec, &wave, &mut space, sums);
        }
    }

    /// U, V, P and G of a wave.
    fn products(&self, exec: &Exec, wave: &Range<usize>, space: &mut Wave<T>) {
        let (context, plan) = (self.context, &self.context.plan);
        let (inputs, columns, outputs) = (context.input.from.len(), context.state_len(), context.output.to.len());
        let [u, x, p, g] = [&mut space.u, &mut space.x, &mut space.p, &mut space.g].map(|matrix| Array::of(matrix));
        exec.for_each(
            plan.blocks(wave),
            || (),
            |(), index| {
                let tiles = plan.block(wave, index);
                let (steps, first) = (plan.steps(&tiles), plan.position(tiles.start) - plan.position(wave.start));
                let rows = |of: Array<T>, columns: usize| MatrixMut::new(of.at(first * columns, steps * columns), columns);
                let (rows_u, rows_x, rows_p, rows_g) = (rows(u, inputs), rows(x, columns), rows(p, outputs), rows(g, columns));
                let load = |view, parts, rows| context.level.dispatch(Load { plan, tiles: tiles.clone(), view, parts, rows });
                // SAFETY: the block's rows of each matrix are this job's.
                unsafe {
                    load(&context.problem.u, context.input.from.parts, u.from(first * inputs));
                    let packed = Matrix::new(self.input.as_ptr(), columns);
                    product([steps, columns, inputs], rows_x, false, rows_u.read(), packed);
                    match &self.sources.y {
                        None => {
                            p.slice(first * outputs, steps * outputs).fill(T::default());
                            g.slice(first * columns, steps * columns).fill(T::default());
                        }
                        Some(view) => {
                            load(view, context.output.to.parts, p.from(first * outputs));
                            let packed = Matrix::new(self.output.as_ptr(), outputs).t();
                            product([steps, columns, outputs], rows_g, false, rows_p.read(), packed);
                        }
                    }
                }
            },
        );
    }

    /// States, the gradient of V, and what hangs on the step sizes and A; what is carried into the wave and out of it is in `carries`.
    fn scan(&self, exec: &Exec, wave: &Range<usize>, space: &mut Wave<T>, (enter, leave): (&[T], &mut [T]), sums: &mut [T]) {
        let (context, plan) = (self.context, &self.context.plan);
        let (rows, chunks) = (plan.rows(wave), chunks(context.problem.dstate));
        let mut partials = vec![T::default(); rows.len() * sums.len()];
        let partial = Array::of(&mut partials);
        let (x, g, leave) = (Array::of(&mut space.x), Array::of(&mut space.g), Array::of(leave));
        exec.for_each(rows.len() * chunks, Arena::<T>::default, |arena, index| {
            let (row, chunk) = split(index, &rows, chunks);
            // each row has its own partial sums
            let sums = partial.from((row - rows.start) * sums.len());
            arena.lend(
                |room| Tiles::lay_out(room, context.tile_len(), context.width),
                |tiles| context.level.dispatch(Job { pass: self, wave, row, chunk, x, g, enter, leave, sums, tiles }),
            );
        });
        for partial in partials.chunks_exact(sums.len().max(1)) {
            sums.iter_mut().zip(partial).for_each(|(sum, part)| *sum = *sum + *part);
        }
    }

    /// The gradients of the input, of the maps and of the skip.
    fn gradients(&self, exec: &Exec, wave: &Range<usize>, space: &mut Wave<T>, sums: &mut Sums<T>) {
        let (context, plan, targets) = (self.context, &self.context.plan, self.targets);
        let blocks = plan.blocks(wave);
        let panels = |map: &Map, target: &Option<_>| target.map_or(0, |_: RawViewMut| map.from.len().div_ceil(PANEL));
        let (by_b, by_c) = (panels(&context.input, &targets.b), panels(&context.output, &targets.c));
        let dim = context.problem.dim;
        let mut partials = vec![T::default(); if targets.d.is_some() { blocks * dim } else { 0 }];
        let partial = Array::of(&mut partials);
        let (input, output) = (Array::of(&mut sums.input), Array::of(&mut sums.output));
        let (u, p) = (Array::of(&mut space.u), Array::of(&mut space.p));
        let space = &*space;
        exec.for_each(blocks + by_b + by_c, Vec::new, |scratch, index| {
            if let Some(panel) = index.checked_sub(blocks + by_b) {
                self.panel(wave, &context.output, panel, &space.x, &space.p, output);
            } else if let Some(panel) = index.checked_sub(blocks) {
                self.panel(wave, &context.input, panel, &space.u, &space.g, input);
            } else {
                let tiles = plan.block(wave, index);
                let first = plan.position(tiles.start) - plan.position(wave.start);
                let inputs = [u.from(first * context.input.from.len()), p.from(first * context.output.to.len())];
                // each block has its own partial sums, where there are any
                let partial = targets.d.map(|_| partial.from(index * dim));
                self.block(tiles, &space.g[first * context.state_len()..], inputs, scratch, partial);
            }
        });
        for partial in partials.chunks_exact(dim.max(1)) {
            sums.d.iter_mut().zip(partial).for_each(|(sum, part)| *sum = *sum + *part);
        }
    }

    /// Adds a panel of `left^T right` to the gradient of a map.
    fn panel(&self, wave: &Range<usize>, map: &Map, panel: usize, left: &[T], right: &[T], sums: Array<T>) {
        let (from, to, start) = (map.from.len(), map.to.len(), panel * PANEL);
        let (rows, steps) = (PANEL.min(from - start), self.context.plan.steps(wave));
        // SAFETY: the panel's rows of the gradient are this job's; both matrices have the wave's steps as rows.
        unsafe {
            let left = Matrix::new(left[start..].as_ptr(), from).t();
            let (sums, right) = (MatrixMut::new(sums.at(start * to, rows * to), to), Matrix::new(right.as_ptr(), to));
            product([rows, to, steps], sums, true, left, right);
        }
    }

    /// The gradients of the input and of the skip, for a block, given its rows of dV, of U and of P.
    fn block(&self, tiles: Range<usize>, g: &[T], [u, p]: [Array<T>; 2], scratch: &mut Vec<T>, partial: Option<Array<T>>) {
        let (context, plan) = (self.context, &self.context.plan);
        let (inputs, columns, outputs) = (context.input.from.len(), context.state_len(), context.output.to.len());
        let steps = plan.steps(&tiles);
        if let Some(partial) = partial {
            // SAFETY: the block's partial sums are this job's.
            let sums = unsafe { partial.slice(0, context.problem.dim) };
            context.level.dispatch(Dots { steps, left: u, left_step: inputs, right: p, right_step: outputs, sums });
        }
        let Some(view) = &self.targets.u else { return };
        scratch.resize(plan.block_steps() * inputs, T::default());
        // SAFETY: the block's rows lie inside the wave's, and the scratch has room for them.
        unsafe {
            let (left, to) = (Matrix::new(g.as_ptr(), columns), MatrixMut::new(scratch.as_mut_ptr(), inputs));
            let packed = Matrix::new(self.input.as_ptr(), columns).t();
            product([steps, inputs, columns], to, false, left, packed);
        }
        let rows = Array::of(scratch);
        if let (Some(d), Some(_)) = (&self.d, &self.sources.y) {
            context.level.dispatch(Skip { d, steps, from: p, from_step: outputs, to: rows, to_step: inputs });
        }
        context.level.dispatch(Store { plan, tiles, view, parts: context.input.from.parts, rows });
    }
}

/// One row and one chunk of states, backwards through a wave.
struct Job<'j, 'p, 'c, 'a, T> {
    pass: &'j Pass<'p, 'c, 'a, T>,
    wave: &'j Range<usize>,
    row: usize,
    chunk: usize,
    x: Array<T>,
    g: Array<T>,
    enter: &'j [T],
    leave: Array<T>,
    sums: Array<T>,
    tiles: Tiles<T>,
}

/// Where one tile keeps its numbers.
struct Tiles<T> {
    d: Array<T>,
    da: Array<T>,
    by_d: Array<T>,
    by_da: Array<T>,
    /// V, while the states take its place.
    driven: Array<T>,
    factors: Derivatives<Array<T>>,
    /// A vector on its way.
    vector: Array<T>,
}

impl<T: Real> Tiles<T> {
    /// For tiles of so many elements of a real quantity.
    fn lay_out(room: &mut Room<T>, tile: usize, width: usize) -> Self {
        let [d, da, by_d, by_da] = [tile; 4].map(|len| room.array(len));
        let [driven, decay, decay_by_z, input, input_by_d, input_by_a] = [2 * tile; 6].map(|len| room.array(len));
        let factors = Derivatives { decay, decay_by_z, input, input_by_d, input_by_a };
        Tiles { d, da, by_d, by_da, driven, factors, vector: room.array(2 * width) }
    }
}

/// The gradients by A, by the step and by the decay's own step of one vector of states, summed over steps.
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
    tile: &'h plan::Tile,
    index: usize,
    lanes: Lanes,
    a: Cx<T, S>,
    deltas: Deltas<T>,
    /// The vector's column of the states and of their gradients, and the factors, step by step.
    x: Steps<T>,
    g: Steps<T>,
    factors: Derivatives<Steps<T>>,
}

impl<T: Real> Kernel for Job<'_, '_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        for lanes in vectors(self.pass.context.problem.dstate, self.chunk, T::lanes::<S>()) {
            // SAFETY: the vector's column of the row's steps, of the carry and of the sums is this job's.
            unsafe { self.vector(simd, lanes) };
        }
    }
}

impl<T: Real> Job<'_, '_, '_, '_, T> {
    /// All tiles of a vector of states.
    ///
    /// # Safety
    /// Nobody else works on these lanes of the row.
    #[inline(always)]
    unsafe fn vector<S: Isa>(&self, simd: S, lanes: Lanes) {
        let context = self.pass.context;
        let (width, range) = (T::lanes::<S>(), context.plan.row(self.wave, self.row));
        // SAFETY: the caller's contract.
        unsafe {
            let a = load_a(simd, context, lanes, self.tiles.vector);
            let mut carry = Cx::load(simd, self.enter[lanes.column..lanes.column + 2 * width].as_ptr());
            let mut sum = Gradient::zero(simd);
            for index in range.clone().rev() {
                // sums over a tile first, then over tiles
                let by_tile = self.tile(simd, index, lanes, a, &mut carry);
                sum = Gradient { a: sum.a + by_tile.a, d: sum.d + by_tile.d, da: sum.da + by_tile.da };
            }
            let sums = self.sums.from(2 * lanes.column);
            sums.store_field(0, sum.a);
            sums.store(2 * width, sum.d);
            sums.store(3 * width, sum.da);
            if range.start == self.wave.start {
                self.leave.store_field(lanes.column, carry);
            }
        }
    }

    /// One tile: states forwards, then gradients back; the gradient by the state after the tile becomes that by the state before it.
    ///
    /// # Safety
    /// As [`Job::vector`].
    #[inline(always)]
    unsafe fn tile<S: Isa>(&self, simd: S, index: usize, lanes: Lanes, a: Cx<T, S>, carry: &mut Cx<T, S>) -> Gradient<T, S> {
        let Pass { context, targets, .. } = self.pass;
        let (problem, plan, columns) = (context.problem, &context.plan, context.state_len());
        let tile = &plan.tile(index);
        let at = (plan.position(index) - plan.position(self.wave.start)) * columns + lanes.column;
        // SAFETY: the caller's contract; tiles have their room.
        unsafe {
            let deltas = load_deltas(simd, context, tile, lanes, [self.tiles.d, self.tiles.da]);
            let (count, pitch) = if deltas.constant { (1, 0) } else { (tile.len(), 2 * T::lanes::<S>()) };
            rule::derivatives(simd, problem.discretization, a, deltas, count, &self.tiles.factors);
            let factors = self.tiles.factors.map(|array| Steps::new(array, pitch));
            let [x, g] = [self.x, self.g].map(|array| Steps::new(array.from(at), columns));
            let here = Here { simd, tile, index, lanes, a, deltas, x, g, factors };
            self.states(&here);
            let mut sum = Gradient::zero(simd);
            for segment in context.segments_in(tile).iter().rev() {
                self.segment(&here, segment, carry, &mut sum);
            }
            let delta_a = problem.delta_a.as_ref();
            let results =
                [(Some(&problem.delta), &targets.delta, self.tiles.by_d), (delta_a, &targets.delta_a, self.tiles.by_da)];
            for (of, target, from) in results {
                if let (Some(Step::Varying(_)), Some(view)) = (of, target) {
                    tile::store_parts(simd, from, 1, T::lanes::<S>(), step_target(view, tile, lanes));
                }
            }
            for rows in [self.x, self.g] {
                clear_padding::<T, S>(rows.from(at), columns, tile.len(), lanes.count);
            }
            sum
        }
    }

    /// The state before step `start` of a segment.
    ///
    /// # Safety
    /// As [`Job::vector`].
    #[inline(always)]
    unsafe fn before<S: Isa>(&self, here: &Here<'_, T, S>, segment: &Segment, start: usize) -> Cx<T, S> {
        let (context, lanes) = (self.pass.context, here.lanes);
        let problem = context.problem;
        if start > segment.start {
            let state = plan::checkpoint(&context.plan, problem, here.index);
            return read_saved(here.simd, self.pass.saved, state, problem.dstate, lanes);
        }
        // SAFETY: the caller's contract.
        unsafe { load_state(here.simd, &problem.initial_state, segment.initial, lanes, self.tiles.vector) }
    }

    /// V, which is kept, becomes the states of a tile.
    ///
    /// # Safety
    /// As [`Job::vector`].
    #[inline(always)]
    unsafe fn states<S: Isa>(&self, here: &Here<'_, T, S>) {
        let &Here { simd, tile, x, factors, .. } = here;
        let kept = Steps::new(self.tiles.driven, 2 * T::lanes::<S>());
        // SAFETY: the caller's contract.
        unsafe {
            for t in 0..tile.len() {
                let driven: Cx<T, S> = x.load(simd, t);
                kept.store(t, driven);
                x.store(t, factors.input.load::<S, Cx<T, S>>(simd, t).mul_add(driven, Cx::zero(simd)));
            }
            for segment in self.pass.context.segments_in(tile) {
                let (start, end) = (segment.start.max(tile.start), segment.end.min(tile.end));
                let offset = start - tile.start;
                let before = self.before(here, segment, start);
                recurrence::scan(simd, factors.decay.from(offset), x.from(offset), end - start, before);
            }
        }
    }

    /// The gradients of the steps that a segment has in a tile, added to `sum`.
    ///
    /// # Safety
    /// As [`Job::vector`]; the states of the tile are there.
    #[inline(always)]
    unsafe fn segment<S: Isa>(&self, here: &Here<'_, T, S>, segment: &Segment, carry: &mut Cx<T, S>, sum: &mut Gradient<T, S>) {
        let Pass { sources, targets, .. } = self.pass;
        let &Here { simd, tile, lanes, x, g, factors, .. } = here;
        let (start, end) = (segment.start.max(tile.start), segment.end.min(tile.end));
        let (offset, steps) = (start - tile.start, end - start);
        // SAFETY: the caller's contract.
        unsafe {
            if end == segment.end {
                *carry = load_state(simd, &sources.last_state, segment.last, lanes, self.tiles.vector);
            }
            *carry = recurrence::adjoint(simd, factors.decay.from(offset), g.from(offset), steps, *carry);
            if start == segment.start {
                store_state(simd, &targets.initial_state, segment.initial, lanes, *carry, self.tiles.vector);
            }
            let mut previous = self.before(here, segment, start);
            for t in offset..offset + steps {
                self.step(here, t, previous, sum);
                previous = x.load(simd, t);
            }
        }
    }

    /// The gradients of step `t`, whose state before it is `previous`.
    ///
    /// # Safety
    /// As [`Job::segment`].
    #[inline(always)]
    unsafe fn step<S: Isa>(&self, here: &Here<'_, T, S>, t: usize, previous: Cx<T, S>, sum: &mut Gradient<T, S>) {
        let &Here { simd, a, deltas, g, factors, .. } = here;
        let (zero, width) = (Cx::<T, S>::zero(simd), T::lanes::<S>());
        let driven = Steps::new(self.tiles.driven, 2 * width);
        // SAFETY: the caller's contract.
        unsafe {
            let (_, da) = deltas.at(simd, t);
            let by_x: Cx<T, S> = g.load(simd, t);
            let (by_z, input): (Cx<T, S>, Cx<T, S>) = (factors.decay_by_z.load(simd, t), factors.input.load(simd, t));
            let by_decay = previous.conj_mul_add(by_x, zero);
            let by_input = driven.load::<S, Cx<T, S>>(simd, t).conj_mul_add(by_x, zero);
            sum.a = by_z.conj_mul_add(by_decay.scale(da), sum.a);
            sum.a = factors.input_by_a.load::<S, Cx<T, S>>(simd, t).conj_mul_add(by_input, sum.a);
            let mut by_d = factors.input_by_d.load::<S, Cx<T, S>>(simd, t).re_dot_add(by_input, zero.re);
            let by_da = (by_z * a).re_dot_add(by_decay, zero.re);
            if deltas.shared {
                by_d = by_d + by_da;
            }
            (sum.d, sum.da) = (sum.d + by_d, sum.da + by_da);
            self.tiles.by_d.store(t * width, by_d);
            self.tiles.by_da.store(t * width, by_da);
            g.store(t, input.conj_mul_add(by_x, zero));
        }
    }
}

/// Writes the gradients that are sums over all steps.
struct StoreStates<'j, 'c, 'a, T> {
    context: &'j Context<'c, 'a, T>,
    targets: &'j GradientTargets,
    states: &'j mut [T],
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
                    // SAFETY: the lanes are states of the problem; the sums have two real vectors for A and one for each step.
                    unsafe { tile::store_parts(simd, from, parts, width, to) };
                }
            }
        }
    }
}
