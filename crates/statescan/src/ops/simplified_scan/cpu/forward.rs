//! Outputs, last states and saved states.

use super::maps::product;
use super::plan;
use super::rows::{Load, Skip, Store, load_vector};
use super::rule::Values;
use super::scan::{Lanes, chunks, clear_padding, load_a, load_deltas, load_state, split, store_state, vectors, write_saved};
use super::{Context, Targets, pass_on, rule, without_steps};
use crate::cpu::recurrence::{self, Steps, StepsMut};
use crate::cpu::simd::{Cx, Field, Isa, Real};
use crate::cpu::{Arena, Array, ArrayMut, Divided, Kernel, Matrix, MatrixMut, Room};
use crate::exec::Exec;
use crate::ops::simplified_scan::Problem;
use core::ops::Range;

pub(super) fn run<T: Real>(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    let [first, later] = without_steps(problem);
    pass_on(problem, &first, &problem.initial_state, &targets.last_state, true);
    let context = Context::<T>::new(exec, problem, |_, state, _| state);
    if context.plan.tiles == 0 {
        return;
    }
    let packed = context.input.pack::<T>(exec, &problem.b);
    let output = targets.y.as_ref().map(|_| context.output.pack::<T>(exec, &problem.c));
    let d = problem.d.map(|view| load_vector(context.level, &view));
    let columns = context.state_len();
    let mut states = vec![T::default(); context.plan.wave_steps() * columns];
    let mut carries = [vec![T::default(); columns], vec![T::default(); columns]];
    let saved = targets.checkpoints.map(|view| Divided::of_view(&view));
    for number in 0..context.plan.waves() {
        let wave = context.plan.wave(number);
        drive(exec, &context, &wave, &packed, &mut states);
        let pass = Scan { context: &context, targets, saved, wave: wave.clone(), states: Divided::of(&mut states) };
        let [enter, leave] = &mut carries;
        pass.run(exec, enter, leave);
        carries.swap(0, 1);
        if let Some(packed) = &output {
            Emit { context: &context, targets, wave, packed, d: d.as_deref(), states: &states }.run(exec);
        }
    }
    pass_on(problem, &later, &problem.initial_state, &targets.last_state, true);
}

/// `V = U B` for the steps of a wave.
fn drive<T: Real>(exec: &Exec, context: &Context<'_, '_, T>, wave: &Range<usize>, packed: &[T], states: &mut [T]) {
    let (states, plan, map) = (Divided::of(states), &context.plan, &context.input);
    let (inputs, columns) = (map.from.len(), map.to.len());
    let scratch = || vec![T::default(); plan.block_steps() * inputs];
    exec.for_each(plan.blocks(wave), scratch, |rows, index| {
        let tiles = plan.block(wave, index);
        let steps = plan.steps(&tiles);
        let (view, parts) = (&context.problem.u, map.from.parts);
        context.level.dispatch(Load { plan, tiles: tiles.clone(), view, parts, rows: ArrayMut::of(rows) });
        let first = plan.position(tiles.start) - plan.position(wave.start);
        // SAFETY: no other job has the steps of this block.
        let to = MatrixMut::new(unsafe { states.part(first * columns) }, columns);
        let left = Matrix::of(rows, inputs);
        product([steps, columns, inputs], to, false, left, Matrix::of(packed, columns));
    });
}

/// `Y = X C`, the skip, and the way out, for the steps of a wave.
struct Emit<'e, 'c, 'a, T> {
    context: &'e Context<'c, 'a, T>,
    targets: &'e Targets,
    wave: Range<usize>,
    packed: &'e [T],
    d: Option<&'e [T]>,
    /// The wave's states.
    states: &'e [T],
}

impl<T: Real> Emit<'_, '_, '_, T> {
    fn run(&self, exec: &Exec) {
        let Some(y) = &self.targets.y else { return };
        let (context, plan, map) = (self.context, &self.context.plan, &self.context.output);
        let (columns, outputs, dim) = (map.from.len(), map.to.len(), context.problem.dim);
        let inputs = if self.d.is_some() { dim } else { 0 };
        let scratch = || [outputs, inputs].map(|columns| vec![T::default(); plan.block_steps() * columns]);
        exec.for_each(plan.blocks(&self.wave), scratch, |[rows, u], index| {
            let tiles = plan.block(&self.wave, index);
            let steps = plan.steps(&tiles);
            let first = plan.position(tiles.start) - plan.position(self.wave.start);
            let left = Matrix::of(&self.states[first * columns..], columns);
            let mut rows = ArrayMut::of(rows);
            let to = MatrixMut::new(rows.reborrow(), outputs);
            product([steps, outputs, columns], to, false, left, Matrix::of(self.packed, outputs));
            if let Some(d) = self.d {
                let mut from = ArrayMut::of(u);
                let load = Load { plan, tiles: tiles.clone(), view: &context.problem.u, parts: 1, rows: from.reborrow() };
                context.level.dispatch(load);
                let (from, to) = (from.read(), rows.reborrow());
                context.level.dispatch(Skip { d, steps, from, from_step: dim, to, to_step: outputs });
            }
            context.level.dispatch(Store { plan, tiles, view: y, parts: map.to.parts, rows: rows.read() });
        });
    }
}

/// The scan of one wave: V becomes states.
pub(super) struct Scan<'s, 'c, 'a, T> {
    pub context: &'s Context<'c, 'a, T>,
    pub targets: &'s Targets,
    /// The saved states of the whole pass.
    pub saved: Option<Divided<'s, T>>,
    pub wave: Range<usize>,
    /// The wave's rows of V.
    pub states: Divided<'s, T>,
}

impl<T: Real> Scan<'_, '_, '_, T> {
    /// `enter` is the state before the wave, where that lies within a row; `leave` receives the one after it.
    pub(super) fn run(&self, exec: &Exec, enter: &[T], leave: &mut [T]) {
        let (plan, dstate) = (&self.context.plan, self.context.problem.dstate);
        let rows = plan.rows(&self.wave);
        let leave = Divided::of(leave);
        exec.for_each(rows.len() * chunks(dstate), Arena::<T>::default, |arena, index| {
            let (row, chunk) = split(index, &rows, chunks(dstate));
            arena.lend(
                |room| Scratch::lay_out(room, self.context.tile_len(), self.context.width),
                |scratch| self.context.level.dispatch(Job { scan: self, row, chunk, enter, leave, scratch }),
            );
        });
    }
}

/// The arrays of a thread.
struct Scratch<'m, T> {
    d: ArrayMut<'m, T>,
    da: ArrayMut<'m, T>,
    values: Values<'m, T>,
    /// A vector on its way.
    vector: ArrayMut<'m, T>,
}

impl<'m, T: Real> Scratch<'m, T> {
    /// For tiles of so many elements of a real quantity.
    fn lay_out(room: &mut Room<'m, T>, tile: usize, width: usize) -> Self {
        let [d, da] = [tile; 2].map(|len| room.array(len));
        let [decay, input] = [2 * tile; 2].map(|len| room.array(len));
        Scratch { d, da, values: Values { decay, input }, vector: room.array(2 * width) }
    }
}

struct Job<'j, 's, 'c, 'a, T> {
    scan: &'j Scan<'s, 'c, 'a, T>,
    row: usize,
    chunk: usize,
    enter: &'j [T],
    leave: Divided<'j, T>,
    scratch: Scratch<'j, T>,
}

impl<T: Real> Kernel for Job<'_, '_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        for lanes in vectors(self.scan.context.problem.dstate, self.chunk, T::lanes::<S>()) {
            self.vector(simd, lanes);
        }
    }
}

impl<T: Real> Job<'_, '_, '_, '_, T> {
    /// The tiles of a vector of states.
    #[inline(always)]
    fn vector<S: Isa>(&mut self, simd: S, lanes: Lanes) {
        let Scan { context, wave, .. } = self.scan;
        let tiles = context.plan.row(wave, self.row);
        let a = load_a(simd, context, lanes, self.scratch.vector.reborrow());
        let enter = &self.enter[lanes.column..lanes.column + 2 * T::lanes::<S>()];
        let mut state = Array::of(enter).load_field(simd, 0);
        for index in tiles.clone() {
            state = self.tile(simd, index, lanes, a, state);
        }
        if tiles.end == wave.end {
            // SAFETY: the last tile of these states has one job.
            unsafe { self.leave.part(lanes.column) }.store_field(0, state);
        }
    }

    /// One tile, from a state; gives the state after it.
    #[inline(always)]
    fn tile<S: Isa>(&mut self, simd: S, index: usize, lanes: Lanes, a: Cx<T, S>, mut state: Cx<T, S>) -> Cx<T, S> {
        let Scan { context, targets, saved, wave, states } = self.scan;
        let (problem, plan, columns) = (context.problem, &context.plan, context.state_len());
        let Scratch { d, da, values, vector } = &mut self.scratch;
        let tile = plan.tile(index);
        let first = plan.position(index) - plan.position(wave.start);
        // SAFETY: no other job has these states of this row.
        let mut rows = unsafe { states.part(first * columns + lanes.column) };
        if let Some(saved) = saved.filter(|_| tile.start > 0) {
            write_saved(saved, plan::checkpoint(plan, problem, index), problem.dstate, lanes, state);
        }
        let deltas = load_deltas(simd, context, &tile, lanes, [d, da]);
        let (count, pitch) = if deltas.constant { (1, 0) } else { (tile.len(), 2 * T::lanes::<S>()) };
        rule::values(simd, problem.discretization, a, deltas, count, values);
        let [decay, input] = [&values.decay, &values.input].map(|array| Steps::new(array.read(), pitch));
        let mut x = StepsMut::new(rows.reborrow(), columns);
        for t in 0..tile.len() {
            let driven: Cx<T, S> = input.load(simd, t);
            x.store(t, driven.mul_add(x.load(simd, t), Cx::zero(simd)));
        }
        for segment in context.segments_in(&tile) {
            let (start, end) = (segment.start.max(tile.start), segment.end.min(tile.end));
            if start == segment.start {
                state = load_state(simd, &problem.initial_state, segment.initial, lanes, vector.reborrow());
            }
            let offset = start - tile.start;
            state = recurrence::scan(simd, decay.from(offset), x.from(offset), end - start, state);
            if end == segment.end {
                store_state(simd, &targets.last_state, segment.last, lanes, state, vector);
            }
        }
        clear_padding::<T, S>(rows, columns, tile.len(), lanes.count);
        state
    }
}
