//! Outputs, last states and saved states.

use super::maps::product;
use super::plan;
use super::rows::{Load, LoadVector, Skip, Store};
use super::scan::{chunks, clear_padding, load_a, load_deltas, load_state, saved, split, store_state, vectors};
use super::{Context, Targets, pass_on, rule};
use crate::cpu::recurrence;
use crate::cpu::simd::{Cx, Field, Isa, Real};
use crate::cpu::{Kernel, Matrix, Shared};
use crate::exec::Exec;
use crate::ops::simplified_scan::Problem;
use core::ops::Range;

pub(super) fn run<T: Real>(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    pass_on(problem, &problem.initial_state, &targets.last_state, true);
    let context = Context::<T>::new(exec, problem, |_, state, _| state);
    if context.plan.tiles == 0 {
        return;
    }
    let packed = context.input.pack::<T>(exec, &problem.b);
    let output = targets.y.as_ref().map(|_| context.output.pack::<T>(exec, &problem.c));
    let d = problem.d.map(|view| {
        let mut d = vec![T::default(); problem.dim];
        context.level.dispatch(LoadVector { view: &view, to: &mut d });
        d
    });
    let columns = context.state_len();
    let mut states = vec![T::default(); context.plan.wave_steps() * columns];
    let mut carries = vec![T::default(); 2 * columns];
    let saved = targets.checkpoints.map(|v| Shared::new(v.as_mut_ptr().cast::<T>()));
    for number in 0..context.plan.waves() {
        let wave = context.plan.wave(number);
        drive(exec, &context, &wave, &packed, Shared::new(states.as_mut_ptr()));
        let pass = Scan { context: &context, targets, saved, wave: wave.clone(), states: Shared::new(states.as_mut_ptr()) };
        let (enter, leave) = carries.split_at_mut(columns);
        let (enter, leave) = if number % 2 == 0 { (enter, leave) } else { (leave, enter) };
        pass.run(exec, enter, leave);
        let Some(packed) = &output else { continue };
        emit(exec, &context, targets, &wave, packed, d.as_deref(), &states);
    }
}

/// `V = U B` for the steps of a wave.
pub(super) fn drive<T: Real>(exec: &Exec, context: &Context<'_, '_, T>, wave: &Range<usize>, packed: &[T], states: Shared<T>) {
    let (plan, map) = (&context.plan, &context.input);
    let (inputs, columns) = (map.from.len(), map.to.len());
    let scratch = || vec![T::default(); plan.block_steps() * inputs];
    exec.for_each(plan.blocks(wave), scratch, |rows, index| {
        let tiles = plan.block(wave, index);
        let steps = plan.steps(&tiles);
        let load = Load { plan, tiles: tiles.clone(), view: &context.problem.u, parts: map.from.parts, rows: rows.as_mut_ptr() };
        context.level.dispatch(load);
        let first = plan.position(tiles.start) - plan.position(wave.start);
        // SAFETY: the block's rows of the wave are this job's.
        unsafe {
            let to = Matrix::new(states.get().add(first * columns), columns);
            let left = Matrix::new(rows.as_mut_ptr(), inputs);
            product([steps, columns, inputs], to, false, left, Matrix::new(packed.as_ptr().cast_mut(), columns));
        }
    });
}

/// `Y = X C`, the skip, and the way out.
fn emit<T: Real>(
    exec: &Exec,
    context: &Context<'_, '_, T>,
    targets: &Targets,
    wave: &Range<usize>,
    packed: &[T],
    d: Option<&[T]>,
    states: &[T],
) {
    let Some(y) = &targets.y else { return };
    let (plan, map) = (&context.plan, &context.output);
    let (columns, outputs) = (map.from.len(), map.to.len());
    let dim = context.problem.dim;
    let inputs = if d.is_some() { dim } else { 0 };
    let scratch = || vec![T::default(); plan.block_steps() * (outputs + inputs)];
    exec.for_each(plan.blocks(wave), scratch, |scratch, index| {
        let tiles = plan.block(wave, index);
        let steps = plan.steps(&tiles);
        let first = plan.position(tiles.start) - plan.position(wave.start);
        let (rows, u) = scratch.split_at_mut(plan.block_steps() * outputs);
        let left = Matrix::new(states[first * columns..].as_ptr().cast_mut(), columns);
        let to = Matrix::new(rows.as_mut_ptr(), outputs);
        // SAFETY: the block's states are inside the wave's, and the scratch has room for its rows.
        unsafe {
            product([steps, outputs, columns], to, false, left, Matrix::new(packed.as_ptr().cast_mut(), outputs));
        }
        if let Some(d) = d {
            let load = Load { plan, tiles: tiles.clone(), view: &context.problem.u, parts: 1, rows: u.as_mut_ptr() };
            context.level.dispatch(load);
            let (from, to) = (u.as_ptr(), rows.as_mut_ptr());
            context.level.dispatch(Skip { d, steps, from, from_step: dim, to, to_step: outputs });
        }
        context.level.dispatch(Store { plan, tiles, view: y, parts: map.to.parts, rows: rows.as_ptr() });
    });
}

/// The scan of one wave: V becomes states.
pub(super) struct Scan<'s, 'c, 'a, T> {
    pub context: &'s Context<'c, 'a, T>,
    pub targets: &'s Targets,
    /// The saved states of the whole pass.
    pub saved: Option<Shared<T>>,
    pub wave: Range<usize>,
    /// The wave's rows of V.
    pub states: Shared<T>,
}

impl<T: Real> Scan<'_, '_, '_, T> {
    /// `enter` is the state before the wave, where that lies within a row; `leave` receives the one after it.
    pub(super) fn run(&self, exec: &Exec, enter: &[T], leave: &mut [T]) {
        let (plan, dstate) = (&self.context.plan, self.context.problem.dstate);
        let rows = plan.rows(&self.wave);
        let leave = Shared::new(leave.as_mut_ptr());
        let scratch = || vec![T::default(); 6 * self.context.tile_len() + 2 * self.context.width];
        exec.for_each(rows.len() * chunks(dstate), scratch, |scratch, index| {
            let (row, chunk) = split(index, &rows, chunks(dstate));
            self.context.level.dispatch(Job { scan: self, row, chunk, enter, leave, scratch });
        });
    }
}

struct Job<'j, 's, 'c, 'a, T> {
    scan: &'j Scan<'s, 'c, 'a, T>,
    row: usize,
    chunk: usize,
    enter: &'j [T],
    leave: Shared<T>,
    scratch: &'j mut [T],
}

impl<T: Real> Kernel for Job<'_, '_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Job { scan, row, chunk, enter, leave, scratch } = self;
        let Scan { context, targets, saved: checkpoints, wave, states } = scan;
        let (problem, plan, width) = (context.problem, &context.plan, T::lanes::<S>());
        let columns = context.state_len();
        let tiles = plan.row(wave, row);
        let tile = context.tile_len();
        let (d, rest) = scratch.split_at_mut(tile);
        let (da, rest) = rest.split_at_mut(tile);
        let (decay, rest) = rest.split_at_mut(2 * tile);
        let (input, vector) = rest.split_at_mut(2 * tile);
        let (decay, input, vector) = (decay.as_mut_ptr(), input.as_mut_ptr(), vector.as_mut_ptr());
        let step = 2 * width;
        for lanes in vectors(problem.dstate, chunk, width) {
            // SAFETY: the vector's column of the row's steps, of the carry and of the saved states is this job's; tiles have their room.
            unsafe {
                let a = load_a(simd, context, lanes, vector);
                let mut state = Cx::load(simd, enter[lanes.column..lanes.column + step].as_ptr());
                for index in tiles.clone() {
                    let tile = plan.tile(index);
                    if let Some(checkpoints) = checkpoints
                        && tile.start > 0
                    {
                        let at = checkpoints.get().add(plan::checkpoint(plan, problem, index));
                        saved(simd, at, problem.dstate, lanes, Some(state));
                    }
                    let deltas = load_deltas(simd, context, &tile, lanes, d.as_mut_ptr(), da.as_mut_ptr());
                    let constant = deltas.d_step == 0 && deltas.da_step == 0;
                    let (count, pitch) = if constant { (1, 0) } else { (tile.len(), step) };
                    rule::values(simd, problem.discretization, a, deltas, count, decay, input);
                    let first = plan.position(index) - plan.position(wave.start);
                    let rows = states.get().add(first * columns + lanes.column);
                    let zero = Cx::zero(simd);
                    for t in 0..tile.len() {
                        let row = rows.add(t * columns);
                        Cx::load(simd, input.add(t * pitch)).mul_add(Cx::load(simd, row), zero).store(row);
                    }
                    for segment in context.segments_in(&tile) {
                        let (start, end) = (segment.start.max(tile.start), segment.end.min(tile.end));
                        if start == segment.start {
                            state = load_state(simd, &problem.initial_state, segment.initial, lanes, vector);
                        }
                        let (offset, row) = (start - tile.start, rows.add((start - tile.start) * columns));
                        state = recurrence::scan(simd, decay.add(offset * pitch), pitch, row, columns, end - start, state);
                        if end == segment.end {
                            store_state(simd, &targets.last_state, segment.last, lanes, state, vector);
                        }
                    }
                    clear_padding::<T, S>(rows, columns, tile.len(), lanes.count);
                }
                if tiles.end == wave.end {
                    state.store(leave.get().add(lanes.column));
                }
            }
        }
    }
}
