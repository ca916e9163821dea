//! Gradients.
//!
//! The waves are walked from the last to the first. In each, blocks of time give `V = U B` and `G = P C^H`; then rows and vectors of states
//! walk their tiles backwards, turning V into states and G into the gradient of V; then blocks of time give `dU = dV B^H`, while others sum
//! the gradients of the maps, `U^T dV` and `X^T P`, over the whole wave.

use super::maps::{Map, product};
use super::plan::{self, PANEL};
use super::rows::{Dots, Load, LoadVector, Skip, Store, StoreVector};
use super::rule::{self, Derivatives};
use super::scan::{
    Lanes, chunks, clear_padding, load_a, load_deltas, load_state, saved, split, step_target, store_state, vectors,
};
use super::{Context, GradientTargets, Sources, Targets, forward, pass_on};
use crate::cpu::recurrence;
use crate::cpu::simd::{Cx, Field, Isa, Real};
use crate::cpu::tile::{self, Plane};
use crate::cpu::{Kernel, Matrix, Shared};
use crate::exec::Exec;
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
    /// The packed maps.
    input: Vec<T>,
    output: Vec<T>,
    d: Option<Vec<T>>,
}

pub(super) fn run<T: Real>(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    pass_on(problem, &sources.last_state, &targets.initial_state, false);
    let context = Context::<T>::new(exec, problem, |u, state, y| u + 2 * state + y);
    let columns = context.state_len();
    let dim = problem.dim;
    let zeros = |len: usize| vec![T::default(); len];
    let mut sums = Sums {
        input: zeros(context.input.len()),
        output: zeros(context.output.len()),
        states: zeros(2 * columns),
        d: zeros(dim),
    };
    if context.plan.tiles > 0 {
        let own;
        let sources = match sources.checkpoints {
            Some(_) => sources,
            None => {
                // the states are needed as a forward pass would save them
                own = save_states::<T>(exec, problem);
                &Sources { checkpoints: Some(View::new(&own, &[own.len()]).expect("a dense vector")), ..*sources }
            }
        };
        let pass = Pass {
            context: &context,
            sources,
            targets,
            input: context.input.pack(exec, &problem.b),
            output: context.output.pack(exec, &problem.c),
            d: problem.d.map(|view| {
                let mut d = zeros(dim);
                context.level.dispatch(LoadVector { view: &view, to: &mut d });
                d
            }),
        };
        let steps = context.plan.wave_steps();
        let mut space = Wave {
            u: zeros(steps * context.input.from.len()),
            x: zeros(steps * columns),
            p: zeros(steps * context.output.to.len()),
            g: zeros(steps * columns),
        };
        let mut carries = [zeros(columns), zeros(columns)];
        for number in (0..context.plan.waves()).rev() {
            let wave = context.plan.wave(number);
            pass.products(exec, &wave, &mut space);
            let [enter, leave] = &mut carries;
            pass.scan(exec, &wave, &mut space, enter, leave, &mut sums.states);
            carries.swap(0, 1);
            pass.gradients(exec, &wave, &space, &mut sums);
        }
    }
    let Sums { input, output, states, d } = &sums;
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

impl<T: Real> Pass<'_, '_, '_, T> {
    /// U, V, P and G of a wave.
    fn products(&self, exec: &Exec, wave: &Range<usize>, space: &mut Wave<T>) {
        let (context, plan) = (self.context, &self.context.plan);
        let (inputs, columns, outputs) = (context.input.from.len(), context.state_len(), context.output.to.len());
        let (u, x) = (Shared::new(space.u.as_mut_ptr()), Shared::new(space.x.as_mut_ptr()));
        let (p, g) = (Shared::new(space.p.as_mut_ptr()), Shared::new(space.g.as_mut_ptr()));
        exec.for_each(
            plan.blocks(wave),
            || (),
            |(), index| {
                let tiles = plan.block(wave, index);
                let (steps, first) = (plan.steps(&tiles), plan.position(tiles.start) - plan.position(wave.start));
                // SAFETY: the block's rows of each matrix are this job's.
                unsafe {
                    let (u, x) = (u.get().add(first * inputs), x.get().add(first * columns));
                    let (p, g) = (p.get().add(first * outputs), g.get().add(first * columns));
                    let parts = context.input.from.parts;
                    context.level.dispatch(Load { plan, tiles: tiles.clone(), view: &context.problem.u, parts, rows: u });
                    let packed = Matrix::new(self.input.as_ptr().cast_mut(), columns);
                    product([steps, columns, inputs], Matrix::new(x, columns), false, Matrix::new(u, inputs), packed);
                    match &self.sources.y {
                        None => {
                            core::slice::from_raw_parts_mut(p, steps * outputs).fill(T::default());
                            core::slice::from_raw_parts_mut(g, steps * columns).fill(T::default());
                        }
                        Some(view) => {
                            let parts = context.output.to.parts;
                            context.level.dispatch(Load { plan, tiles, view, parts, rows: p });
                            let packed = Matrix::new(self.output.as_ptr().cast_mut(), outputs).t();
                            product([steps, columns, outputs], Matrix::new(g, columns), false, Matrix::new(p, outputs), packed);
                        }
                    }
                }
            },
        );
    }

    /// States, the gradient of V, and what hangs on the step sizes and A.
    fn scan(&self, exec: &Exec, wave: &Range<usize>, space: &mut Wave<T>, enter: &[T], leave: &mut [T], sums: &mut [T]) {
        let (context, plan) = (self.context, &self.context.plan);
        let (rows, chunks) = (plan.rows(wave), chunks(context.problem.dstate));
        let width = context.width;
        let mut partials = vec![T::default(); rows.len() * sums.len()];
        let partial = Shared::new(partials.as_mut_ptr());
        let (x, g) = (Shared::new(space.x.as_mut_ptr()), Shared::new(space.g.as_mut_ptr()));
        let leave = Shared::new(leave.as_mut_ptr());
        let scratch = || vec![T::default(); 16 * context.tile_len() + 2 * width];
        exec.for_each(rows.len() * chunks, scratch, |scratch, index| {
            let (row, chunk) = split(index, &rows, chunks);
            // SAFETY: each row has its own partial sums.
            let sums = Shared::new(unsafe { partial.get().add((row - rows.start) * sums.len()) });
            context.level.dispatch(Job { pass: self, wave, row, chunk, x, g, enter, leave, sums, scratch });
        });
        for partial in partials.chunks_exact(sums.len().max(1)) {
            sums.iter_mut().zip(partial).for_each(|(sum, part)| *sum = *sum + *part);
        }
    }

    /// The gradients of the input, of the maps and of the skip.
    fn gradients(&self, exec: &Exec, wave: &Range<usize>, space: &Wave<T>, sums: &mut Sums<T>) {
        let (context, plan, targets) = (self.context, &self.context.plan, self.targets);
        let blocks = plan.blocks(wave);
        let panels = |map: &Map, target: &Option<_>| target.map_or(0, |_: RawViewMut| map.from.len().div_ceil(PANEL));
        let (by_b, by_c) = (panels(&context.input, &targets.b), panels(&context.output, &targets.c));
        let dim = context.problem.dim;
        let mut partials = vec![T::default(); if targets.d.is_some() { blocks * dim } else { 0 }];
        let partial = Shared::new(partials.as_mut_ptr());
        let (input, output) = (Shared::new(sums.input.as_mut_ptr()), Shared::new(sums.output.as_mut_ptr()));
        exec.for_each(blocks + by_b + by_c, Vec::new, |scratch, index| {
            if let Some(panel) = index.checked_sub(blocks + by_b) {
                self.panel(wave, &context.output, panel, &space.x, &space.p, output);
            } else if let Some(panel) = index.checked_sub(blocks) {
                self.panel(wave, &context.input, panel, &space.u, &space.g, input);
            } else {
                // SAFETY: each block has its own partial sums, where there are any.
                let partial = targets.d.map(|_| Shared::new(unsafe { partial.get().add(index * dim) }));
                self.block(wave, index, space, scratch, partial);
            }
        });
        for partial in partials.chunks_exact(dim.max(1)) {
            sums.d.iter_mut().zip(partial).for_each(|(sum, part)| *sum = *sum + *part);
        }
    }

    /// Adds a panel of `left^T right` to the gradient of a map.
    fn panel(&self, wave: &Range<usize>, map: &Map, panel: usize, left: &[T], right: &[T], sums: Shared<T>) {
        let (from, to, start) = (map.from.len(), map.to.len(), panel * PANEL);
        let (rows, steps) = (PANEL.min(from - start), self.context.plan.steps(wave));
        // SAFETY: the panel's rows of the gradient are this job's; both matrices have the wave's steps as rows.
        unsafe {
            let left = Matrix::new(left.as_ptr().add(start).cast_mut(), from).t();
            let (sums, right) = (Matrix::new(sums.get().add(start * to), to), Matrix::new(right.as_ptr().cast_mut(), to));
            product([rows, to, steps], sums, true, left, right);
        }
    }

    /// The gradients of the input and of the skip, for a block.
    fn block(&self, wave: &Range<usize>, index: usize, space: &Wave<T>, scratch: &mut Vec<T>, partial: Option<Shared<T>>) {
        let (context, plan) = (self.context, &self.context.plan);
        let (inputs, columns, outputs) = (context.input.from.len(), context.state_len(), context.output.to.len());
        let dim = context.problem.dim;
        let tiles = plan.block(wave, index);
        let (steps, first) = (plan.steps(&tiles), plan.position(tiles.start) - plan.position(wave.start));
        let (u, p) = (space.u[first * inputs..].as_ptr(), space.p[first * outputs..].as_ptr());
        if let Some(partial) = partial {
            // SAFETY: the block's partial sums are this job's.
            let sums = unsafe { core::slice::from_raw_parts_mut(partial.get(), dim) };
            context.level.dispatch(Dots { steps, left: u, left_step: inputs, right: p, right_step: outputs, sums });
        }
        let Some(view) = &self.targets.u else { return };
        scratch.resize(plan.block_steps() * inputs, T::default());
        let rows = scratch.as_mut_ptr();
        // SAFETY: the block's rows lie inside the wave's, and the scratch has room for them.
        unsafe {
            let left = Matrix::new(space.g[first * columns..].as_ptr().cast_mut(), columns);
            let packed = Matrix::new(self.input.as_ptr().cast_mut(), columns).t();
            product([steps, inputs, columns], Matrix::new(rows, inputs), false, left, packed);
        }
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
    x: Shared<T>,
    g: Shared<T>,
    enter: &'j [T],
    leave: Shared<T>,
    sums: Shared<T>,
    scratch: &'j mut [T],
}

/// Where one tile keeps its numbers.
struct Tiles<T> {
    d: *mut T,
    da: *mut T,
    by_d: *mut T,
    by_da: *mut T,
    /// V, while the states take its place.
    driven: *mut T,
    factors: Derivatives<*mut T>,
    vector: *mut T,
}

impl<T: Real> Kernel for Job<'_, '_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let width = T::lanes::<S>();
        let context = self.pass.context;
        let mut next = self.scratch.as_mut_ptr();
        let mut take = |vectors: usize| {
            let at = next;
            // SAFETY: the scratch has room for 16 tiles of real vectors and one complex vector.
            next = unsafe { next.add(vectors * context.tile_len()) };
            at
        };
        let tiles = Tiles {
            d: take(1),
            da: take(1),
            by_d: take(1),
            by_da: take(1),
            driven: take(2),
            factors: Derivatives {
                decay: take(2),
                decay_by_z: take(2),
                input: take(2),
                input_by_d: take(2),
                input_by_a: take(2),
            },
            vector: next,
        };
        for lanes in vectors(context.problem.dstate, self.chunk, width) {
            // SAFETY: the vector's column of the row's steps, of the carry and of the sums is this job's.
            unsafe { self.vector(simd, lanes, &tiles) };
        }
    }
}

impl<T: Real> Job<'_, '_, '_, '_, T> {
    /// # Safety
    /// Tiles have their room, and nobody else works on these lanes of the row.
    #[inline(always)]
    unsafe fn vector<S: Isa>(&self, simd: S, lanes: Lanes, tiles: &Tiles<T>) {
        let Pass { context, sources, targets, .. } = self.pass;
        let (problem, plan, columns) = (context.problem, &context.plan, context.state_len());
        let (width, zero) = (T::lanes::<S>(), Cx::<T, S>::zero(simd));
        let step = 2 * width;
        let factors = &tiles.factors;
        let range = plan.row(self.wave, self.row);
        let checkpoints = sources.checkpoints.map(|v| v.as_ptr().cast_mut().cast::<T>());
        // SAFETY: the caller's contract; saved states are read only.
        unsafe {
            let a = load_a(simd, context, lanes, tiles.vector);
            let mut carry = Cx::load(simd, self.enter[lanes.column..lanes.column + step].as_ptr());
            let (mut sum_a, mut sum_d, mut sum_da) = (zero, zero.re, zero.re);
            for index in range.clone().rev() {
                let tile = plan.tile(index);
                let first = plan.position(index) - plan.position(self.wave.start);
                let (x, g) = (self.x.get().add(first * columns + lanes.column), self.g.get().add(first * columns + lanes.column));
                let deltas = load_deltas(simd, context, &tile, lanes, tiles.d, tiles.da);
                let constant = deltas.d_step == 0 && deltas.da_step == 0;
                let (count, pitch) = if constant { (1, 0) } else { (tile.len(), step) };
                rule::derivatives(simd, problem.discretization, a, deltas, count, factors);
                for t in 0..tile.len() {
                    let row = x.add(t * columns);
                    let driven = Cx::load(simd, row);
                    driven.store(tiles.driven.add(t * step));
                    Cx::load(simd, factors.input.add(t * pitch)).mul_add(driven, zero).store(row);
                }
                let segments = context.segments_in(&tile);
                let before = |start: usize, segment: &crate::ops::sequences::Segment| match checkpoints {
                    Some(checkpoints) if start > segment.start => {
                        saved(simd, checkpoints.add(plan::checkpoint(plan, problem, index)), problem.dstate, lanes, None)
                    }
                    _ => load_state(simd, &problem.initial_state, segment.initial, lanes, tiles.vector),
                };
                for segment in segments {
                    let (start, end) = (segment.start.max(tile.start), segment.end.min(tile.end));
                    let offset = start - tile.start;
                    let decay = factors.decay.add(offset * pitch);
                    recurrence::scan(simd, decay, pitch, x.add(offset * columns), columns, end - start, before(start, segment));
                }
                // sums over a tile first, then over tiles
                let (mut tile_a, mut tile_d, mut tile_da) = (zero, zero.re, zero.re);
                for segment in segments.iter().rev() {
                    let (start, end) = (segment.start.max(tile.start), segment.end.min(tile.end));
                    let (offset, steps) = (start - tile.start, end - start);
                    if end == segment.end {
                        carry = load_state(simd, &sources.last_state, segment.last, lanes, tiles.vector);
                    }
                    let decay = factors.decay.add(offset * pitch);
                    carry = recurrence::adjoint(simd, decay, pitch, g.add(offset * columns), columns, steps, carry);
                    if start == segment.start {
                        store_state(simd, &targets.initial_state, segment.initial, lanes, carry, tiles.vector);
                    }
                    let mut previous = before(start, segment);
                    for t in offset..offset + steps {
                        let (_, da) = deltas.at(simd, t);
                        let row = g.add(t * columns);
                        let by_x = Cx::load(simd, row);
                        let at = |from: *mut T| Cx::load(simd, from.add(t * pitch));
                        let (by_z, input) = (at(factors.decay_by_z), at(factors.input));
                        let by_decay = previous.conj_mul_add(by_x, zero);
                        let by_input = Cx::load(simd, tiles.driven.add(t * step)).conj_mul_add(by_x, zero);
                        tile_a = by_z.conj_mul_add(by_decay.scale(da), tile_a);
                        tile_a = at(factors.input_by_a).conj_mul_add(by_input, tile_a);
                        let mut by_d = at(factors.input_by_d).re_dot_add(by_input, zero.re);
                        let by_da = (by_z * a).re_dot_add(by_decay, zero.re);
                        if deltas.shared {
                            by_d = by_d + by_da;
                        }
                        (tile_d, tile_da) = (tile_d + by_d, tile_da + by_da);
                        by_d.store(tiles.by_d.add(t * width));
                        by_da.store(tiles.by_da.add(t * width));
                        input.conj_mul_add(by_x, zero).store(row);
                        previous = Cx::load(simd, x.add(t * columns));
                    }
                }
                (sum_a, sum_d, sum_da) = (sum_a + tile_a, sum_d + tile_d, sum_da + tile_da);
                let delta_a = problem.delta_a.as_ref();
                for (of, target, from) in
                    [(Some(&problem.delta), &targets.delta, tiles.by_d), (delta_a, &targets.delta_a, tiles.by_da)]
                {
                    if let (Some(Step::Varying(_)), Some(view)) = (of, target) {
                        tile::store_parts(simd, from, 1, width, step_target(view, &tile, lanes), lanes.count, tile.len());
                    }
                }
                clear_padding::<T, S>(x, columns, tile.len(), lanes.count);
                clear_padding::<T, S>(g, columns, tile.len(), lanes.count);
            }
            let sums = self.sums.get().add(2 * lanes.column);
            sum_a.store(sums);
            sum_d.store(sums.add(step));
            sum_da.store(sums.add(step + width));
            if range.start == self.wave.start {
                carry.store(self.leave.get().add(lanes.column));
            }
        }
    }
}

/// Writes the gradients that are sums over all steps.
struct StoreStates<'j, 'c, 'a, T> {
    context: &'j Context<'c, 'a, T>,
    targets: &'j GradientTargets,
    states: &'j [T],
}

impl<T: Real> Kernel for StoreStates<'_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let (problem, width) = (self.context.problem, T::lanes::<S>());
        let constant = |step: Option<&Step<'_>>, view: Option<RawViewMut>| view.filter(|_| step.is_some_and(Step::is_constant));
        let delta = constant(Some(&problem.delta), self.targets.delta);
        let delta_a = constant(problem.delta_a.as_ref(), self.targets.delta_a);
        for chunk in 0..chunks(problem.dstate) {
            for lanes in vectors(problem.dstate, chunk, width) {
                let from = self.states[2 * lanes.column..2 * lanes.column + 4 * width].as_ptr();
                for (view, at, parts) in [(&self.targets.a, 0, 2), (&delta, 2, 1), (&delta_a, 3, 1)] {
                    let Some(view) = view else { continue };
                    let plane = Plane::of_mut(view, 0, 0).at(lanes.first, 0);
                    // SAFETY: the lanes are states of the problem; the sums have two real vectors for A and one for each step.
                    unsafe { tile::store_parts(simd, from.add(at * width), parts, width, plane, lanes.count, 1) };
                }
            }
        }
    }
}
