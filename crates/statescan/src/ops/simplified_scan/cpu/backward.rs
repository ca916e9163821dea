//! Gradients.
//!
//! The waves are walked from the last to the first. In each, blocks of time give `V = U B` and `G = P C^H`; then rows and vectors of states
//! walk their tiles backwards, turning V into states and G into the gradient of V; then blocks of time give `dU = dV B^H`, while others sum
//! the gradients of the maps, `U^T dV` and `X^T P`, over the whole wave.

use super::adjoint::{Call, Job, StoreStates, Tiles};
use super::maps::{Map, product};
use super::plan::{self, PANEL};
use super::rows::{Dots, Load, Skip, Store, load_vector, store_vector};
use super::scan::{chunks, split};
use super::{Context, GradientTargets, Sources, Targets, forward, pass_on, without_steps};
use crate::cpu::simd::Real;
use crate::cpu::{Arena, Array, ArrayMut, Divided, Matrix, MatrixMut};
use crate::exec::Exec;
use crate::ops::simplified_scan::Problem;
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

/// The values that the passes over one wave share.
struct Pass<'p, 'c, 'a, T> {
    call: Call<'p, 'c, 'a, T>,
    /// The packed maps.
    input: Vec<T>,
    output: Vec<T>,
    d: Option<Vec<T>>,
}

pub(super) fn run<T: Real>(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    let [segments, _] = without_steps(problem);
    pass_on(problem, &segments, &sources.last_state, &targets.initial_state, false);
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
            Some(view) => saved_states(view, plan::checkpoints_len(problem)),
            None => {
                own = save_states::<T>(exec, problem);
                &own
            }
        };
        Pass::new(exec, Call { context: &context, sources, targets, saved }).run(exec, &mut sums);
    }
    let Sums { input, output, states, d } = &mut sums;
    if let Some(target) = &targets.b {
        context.input.unpack(exec, input, target);
    }
    if let Some(target) = &targets.c {
        context.output.unpack(exec, output, target);
    }
    if let Some(view) = &targets.d {
        store_vector(context.level, d, view);
    }
    context.level.dispatch(StoreStates { context: &context, targets, states });
}

/// The saved states of the caller.
fn saved_states<'v, T: Real>(view: &View<'v>, len: usize) -> &'v [T] {
    if len == 0 { &[] } else { Array::of_view(view).shared(0, len) }
}

/// The saved states of a forward pass.
fn save_states<T: Real>(exec: &Exec, problem: &Problem<'_>) -> Vec<T> {
    let mut own = vec![T::default(); plan::checkpoints_len(problem)];
    if !own.is_empty() {
        let len = own.len();
        let mut view = ViewMut::new(&mut own, &[len]).expect("a dense vector");
        forward::run::<T>(exec, problem, &Targets { checkpoints: Some(view.raw()), ..Targets::default() });
    }
    own
}

impl<'p, 'c, 'a, T: Real> Pass<'p, 'c, 'a, T> {
    fn new(exec: &Exec, call: Call<'p, 'c, 'a, T>) -> Self {
        let (context, problem) = (call.context, call.context.problem);
        let (input, output) = (context.input.pack(exec, &problem.b), context.output.pack(exec, &problem.c));
        let d = problem.d.map(|view| load_vector(context.level, &view));
        Pass { call, input, output, d }
    }

    /// Walks the waves from the last one.
    fn run(&self, exec: &Exec, sums: &mut Sums<T>) {
        let (context, columns) = (self.call.context, self.call.context.state_len());
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
        let (context, plan) = (self.call.context, &self.call.context.plan);
        let (inputs, columns, outputs) = (context.input.from.len(), context.state_len(), context.output.to.len());
        let [u, x, p, g] = [&mut space.u, &mut space.x, &mut space.p, &mut space.g].map(|matrix| Divided::of(matrix));
        exec.for_each(
            plan.blocks(wave),
            || (),
            |(), index| {
                let tiles = plan.block(wave, index);
                let (steps, first) = (plan.steps(&tiles), plan.position(tiles.start) - plan.position(wave.start));
                let rows = [(u, inputs), (x, columns), (p, outputs), (g, columns)];
                // SAFETY: no other job has the steps of this block.
                let rows = rows.map(|(of, columns)| MatrixMut::new(unsafe { of.part(first * columns) }, columns));
                let [mut u, x, mut p, mut g] = rows;
                let load = |view: &View<'_>, parts, rows: ArrayMut<'_, T>| {
                    context.level.dispatch(Load { plan, tiles: tiles.clone(), view, parts, rows });
                };
                load(&context.problem.u, context.input.from.parts, u.array.reborrow());
                product([steps, columns, inputs], x, false, u.read(), Matrix::of(&self.input, columns));
                match &self.call.sources.y {
                    None => {
                        p.array.clear(steps * outputs);
                        g.array.clear(steps * columns);
                    }
                    Some(view) => {
                        load(view, context.output.to.parts, p.array.reborrow());
                        product([steps, columns, outputs], g, false, p.read(), Matrix::of(&self.output, outputs).t());
                    }
                }
            },
        );
    }

    /// States, the gradient of V, and what hangs on the step sizes and A; what is carried into the wave and out of it is in `carries`.
    fn scan(&self, exec: &Exec, wave: &Range<usize>, space: &mut Wave<T>, (enter, leave): (&[T], &mut [T]), sums: &mut [T]) {
        let (context, plan) = (self.call.context, &self.call.context.plan);
        let (rows, chunks) = (plan.rows(wave), chunks(context.problem.dstate));
        let mut partials = vec![T::default(); rows.len() * sums.len()];
        let (partial, len) = (Divided::of(&mut partials), sums.len());
        let (x, g, leave) = (Divided::of(&mut space.x), Divided::of(&mut space.g), Divided::of(leave));
        exec.for_each(rows.len() * chunks, Arena::<T>::default, |arena, index| {
            let (row, chunk) = split(index, &rows, chunks);
            // each row has its own partial sums
            let sums = partial.from((row - rows.start) * len);
            arena.lend(
                |room| Tiles::lay_out(room, context.tile_len(), context.width),
                |tiles| context.level.dispatch(Job { call: &self.call, wave, row, chunk, x, g, enter, leave, sums, tiles }),
            );
        });
        for partial in partials.chunks_exact(sums.len().max(1)) {
            sums.iter_mut().zip(partial).for_each(|(sum, part)| *sum = *sum + *part);
        }
    }

    /// The gradients of the input, of the maps and of the skip.
    fn gradients(&self, exec: &Exec, wave: &Range<usize>, space: &mut Wave<T>, sums: &mut Sums<T>) {
        let (context, plan, targets) = (self.call.context, &self.call.context.plan, self.call.targets);
        let blocks = plan.blocks(wave);
        let panels = |map: &Map, target: &Option<_>| target.map_or(0, |_: RawViewMut| map.from.len().div_ceil(PANEL));
        let (by_b, by_c) = (panels(&context.input, &targets.b), panels(&context.output, &targets.c));
        let dim = context.problem.dim;
        let mut partials = vec![T::default(); if targets.d.is_some() { blocks * dim } else { 0 }];
        let partial = Divided::of(&mut partials);
        let (input, output) = (Divided::of(&mut sums.input), Divided::of(&mut sums.output));
        let space = &*space;
        exec.for_each(blocks + by_b + by_c, Vec::new, |scratch, index| {
            if let Some(panel) = index.checked_sub(blocks + by_b) {
                self.panel(wave, &context.output, panel, &space.x, &space.p, output);
            } else if let Some(panel) = index.checked_sub(blocks) {
                self.panel(wave, &context.input, panel, &space.u, &space.g, input);
            } else {
                let tiles = plan.block(wave, index);
                let first = plan.position(tiles.start) - plan.position(wave.start);
                let inputs = [&space.u[first * context.input.from.len()..], &space.p[first * context.output.to.len()..]];
                // SAFETY: each block has its own partial sums, where there are any.
                let partial = targets.d.map(|_| unsafe { partial.part(index * dim) });
                self.block(tiles, &space.g[first * context.state_len()..], inputs, scratch, partial);
            }
        });
        for partial in partials.chunks_exact(dim.max(1)) {
            sums.d.iter_mut().zip(partial).for_each(|(sum, part)| *sum = *sum + *part);
        }
    }

    /// Adds a panel of `left^T right` to the gradient of a map.
    fn panel(&self, wave: &Range<usize>, map: &Map, panel: usize, left: &[T], right: &[T], sums: Divided<'_, T>) {
        let (from, to, start) = (map.from.len(), map.to.len(), panel * PANEL);
        let (rows, steps) = (PANEL.min(from - start), self.call.context.plan.steps(wave));
        let left = Matrix::of(&left[start..], from).t();
        // SAFETY: no other job has these rows.
        let sums = MatrixMut::new(unsafe { sums.part(start * to) }, to);
        product([rows, to, steps], sums, true, left, Matrix::of(right, to));
    }

    /// The gradients of the input and of the skip, for a block, given its rows of dV, of U and of P.
    fn block(&self, tiles: Range<usize>, g: &[T], [u, p]: [&[T]; 2], scratch: &mut Vec<T>, partial: Option<ArrayMut<'_, T>>) {
        let (context, plan) = (self.call.context, &self.call.context.plan);
        let (inputs, columns, outputs) = (context.input.from.len(), context.state_len(), context.output.to.len());
        let steps = plan.steps(&tiles);
        let (u, p) = (Array::of(u), Array::of(p));
        if let Some(mut partial) = partial {
            let sums = partial.slice(0, context.problem.dim);
            context.level.dispatch(Dots { steps, left: u, left_step: inputs, right: p, right_step: outputs, sums });
        }
        let Some(view) = &self.call.targets.u else { return };
        scratch.resize(plan.block_steps() * inputs, T::default());
        let (mut rows, packed) = (ArrayMut::of(scratch), Matrix::of(&self.input, columns).t());
        product([steps, inputs, columns], MatrixMut::new(rows.reborrow(), inputs), false, Matrix::of(g, columns), packed);
        if let (Some(d), Some(_)) = (&self.d, &self.call.sources.y) {
            context.level.dispatch(Skip { d, steps, from: p, from_step: outputs, to: rows.reborrow(), to_step: inputs });
        }
        context.level.dispatch(Store { plan, tiles, view, parts: context.input.from.parts, rows: rows.read() });
    }
}
