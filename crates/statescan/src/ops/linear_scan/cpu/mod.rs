//! The linear scan on the CPU: neighbouring channels in the lanes of a vector, time walked in tiles of 64 steps.
//!
//! A job is a block of channels over all of time: several vectors where channels lie side by side, else one. Tiles are converted and transposed on their way in and out, so that storage types and
//! strides cost nothing in the recurrence. The operation reads two numbers and writes one a step; it runs at the speed of memory.

mod plan;

use super::{GradientTargets, Problem, Sources, Targets};
use crate::cpu::recurrence::{self, Steps, StepsMut};
use crate::cpu::simd::{Cx, Field, Isa, Real, V};
use crate::cpu::tile::{self, Address, MAX_LANES, Plane, PlaneMut, PlaneOf, STEPS};
use crate::cpu::{Arena, Array, ArrayMut, Arrays, Kernel, Level, Room};
use crate::exec::Exec;
use crate::tensor::{RawViewMut, View};
use plan::Plan;
use std::borrow::Cow;

/// The tensors of one call, forward or backward, and their division.
struct Context<'c, 'a> {
    problem: &'c Problem<'a>,
    sources: Sources<'a>,
    forward: Targets,
    backward: GradientTargets,
    plan: Plan,
}

impl<'c, 'a> Context<'c, 'a> {
    fn new(problem: &'c Problem<'a>, sources: Sources<'a>, forward: Targets, backward: GradientTargets) -> Self {
        let mut strides = Vec::with_capacity(12);
        strides.extend([problem.a.strides(), problem.b.strides()]);
        let read = [&problem.initial_state, &sources.states, &sources.h, &sources.final_state];
        strides.extend(read.into_iter().flatten().map(|v| v.strides()));
        let written = [forward.h, forward.final_state, forward.decay, backward.a, backward.b, backward.initial_state];
        strides.extend(written.iter().flatten().map(|v| v.strides()));
        let plan = Plan::new(problem, &strides);
        Context { problem, sources, forward, backward, plan }
    }

    fn run(&self, exec: &Exec, backward: bool) {
        if self.problem.double {
            self.run_as::<f64>(exec, backward);
        } else {
            self.run_as::<f32>(exec, backward);
        }
    }

    fn run_as<T: Real>(&self, exec: &Exec, backward: bool) {
        let level: Level = exec.level();
        exec.for_each(self.plan.jobs(), Arena::<T>::default, |arena, index| {
            level.dispatch(Job { context: self, arena, index, backward });
        });
    }
}

pub(crate) fn forward(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    Context::new(problem, Sources::default(), *targets, GradientTargets::default()).run(exec, false);
}

pub(crate) fn backward(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    Context::new(problem, *sources, Targets::default(), *targets).run(exec, true);
}

/// One block of channels.
struct Job<'j, 'c, 'a, T> {
    context: &'j Context<'c, 'a>,
    arena: &'j mut Arena<T>,
    index: usize,
    backward: bool,
}

impl<T: Real> Kernel for Job<'_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        match self.context.problem.complex {
            false => self.run_in::<S, V<T, S>>(simd),
            true => self.run_in::<S, Cx<T, S>>(simd),
        }
    }
}

/// Channels of one job: where they start in every tensor, and how they lie in tiles.
struct Block<'j> {
    plan: &'j Plan,
    outer: &'j [(usize, usize)],
    first: usize,
    count: usize,
    /// Channels, filled up to whole vectors.
    padded: usize,
    /// Elements of a row of a tile.
    pitch: usize,
}

impl Block<'_> {
    /// Returns the starts of a row's vectors.
    #[inline(always)]
    fn vectors<T: Real, S: Isa>(&self) -> impl Iterator<Item = usize> + use<T, S> {
        (0..self.padded).step_by(T::lanes::<S>())
    }

    /// The plane channels x time of a tensor that is read; time is left out for states.
    fn of<'v>(&self, view: &View<'v>) -> Plane<'v> {
        self.place(Plane::of(view, self.plan.lane_axis, view.rank() - 1), &view.strides())
    }

    fn of_mut(&self, view: &RawViewMut) -> PlaneMut {
        self.place(PlaneMut::of(view, self.plan.lane_axis, view.shape().len() - 1), &view.strides())
    }

    /// The places along outer axes of the states that are read, or with `READ` false written, where rows lie in slots of a pool; none for no slot.
    fn of_states<const READ: bool>(&self, slots: &Option<[Vec<Option<usize>>; 2]>) -> Option<Cow<'_, [(usize, usize)]>> {
        let Some(slots) = slots else { return Some(Cow::Borrowed(self.outer)) };
        let slot = |&(axis, row): &(usize, usize)| match axis {
            0 => Some((0, slots[usize::from(!READ)][row]?)),
            _ => Some((axis, row)),
        };
        self.outer.iter().map(slot).collect::<Option<Vec<_>>>().map(Cow::Owned)
    }

    fn place<A: Address>(&self, plane: PlaneOf<A>, strides: &[isize]) -> PlaneOf<A> {
        // axes that lie one behind the other are one axis of lanes to the plan
        let plane = plane.with_lanes(self.first + self.count).at(self.first, 0);
        self.outer.iter().fold(plane, |plane, &(axis, i)| plane.along(i, strides[axis]))
    }
}

/// A forward pass: tiles of a and b, of which the second becomes h.
struct Forward<'m, T> {
    a: ArrayMut<'m, T>,
    h: ArrayMut<'m, T>,
    /// A row each: the states so far, and the total decays.
    states: ArrayMut<'m, T>,
    decays: ArrayMut<'m, T>,
}

impl<'m, T: Real> Forward<'m, T> {
    fn lay_out(room: &mut Room<'m, T>, pitch: usize) -> Self {
        let [a, h] = [STEPS * pitch; 2].map(|len| room.array(len));
        Forward { a, h, states: room.array(pitch), decays: room.array(pitch) }
    }
}

/// A backward pass: tiles of a, h and the gradient by h.
struct Backward<'m, T> {
    a: ArrayMut<'m, T>,
    h: ArrayMut<'m, T>,
    g: ArrayMut<'m, T>,
    /// A row each: states on their way, and the gradient that is carried from tile to tile.
    row: ArrayMut<'m, T>,
    carries: ArrayMut<'m, T>,
    /// The states before each tile.
    before: Arrays<'m, T>,
}

impl<'m, T: Real> Backward<'m, T> {
    fn lay_out(room: &mut Room<'m, T>, pitch: usize, tiles: usize) -> Self {
        let [a, h, g] = [STEPS * pitch; 3].map(|len| room.array(len));
        Backward { a, h, g, row: room.array(pitch), carries: room.array(pitch), before: room.arrays(tiles, pitch) }
    }
}

impl<T: Real> Job<'_, '_, '_, T> {
    #[inline(always)]
    fn run_in<S: Isa, F: Field<T, S>>(self, simd: S) {
        let Job { context, arena, index, backward } = self;
        let plan = &context.plan;
        let (outer, lanes) = plan.job(index);
        let width = T::lanes::<S>();
        let tiles = context.problem.seqlen.div_ceil(STEPS);
        // the parts of a complex vector lie side by side, so there is one in a row
        let most = if F::PARTS == 1 { plan.block } else { width };
        for first in lanes.clone().step_by(most) {
            let count = most.min(lanes.end - first);
            let padded = count.next_multiple_of(width);
            let block = Block { plan, outer: &outer, first, count, padded, pitch: F::PARTS * padded };
            match backward {
                false => {
                    let arrays = arena.lay_out(|room| Forward::lay_out(room, block.pitch));
                    forward_block::<T, S, F>(simd, context, &block, arrays);
                }
                true => {
                    let arrays = arena.lay_out(|room| Backward::lay_out(room, block.pitch, tiles));
                    backward_block::<T, S, F>(simd, context, &block, arrays);
                }
            }
            arena.check();
        }
    }
}

#[inline(always)]
fn forward_block<T: Real, S: Isa, F: Field<T, S>>(simd: S, context: &Context<'_, '_>, block: &Block<'_>, arrays: Forward<'_, T>) {
    let (problem, targets) = (context.problem, &context.forward);
    let (count, padded, pitch) = (block.count, block.padded, block.pitch);
    let (pa, pb) = (block.of(&problem.a), block.of(&problem.b));
    let ph = targets.h.as_ref().map(|v| block.of_mut(v));
    debug_assert!(padded.is_multiple_of(T::lanes::<S>()) && count <= padded, "whole vectors of channels");
    debug_assert_eq!(pitch, F::PARTS * padded, "a row has every part");
    let Forward { mut a, mut h, mut states, mut decays } = arrays;
    let [from, to] = [block.of_states::<true>(&problem.slots), block.of_states::<false>(&problem.slots)];
    match &from {
        Some(outer) => load_state(simd, &Block { outer, ..*block }, &problem.initial_state, states.reborrow()),
        None => states.clear(pitch),
    }
    for at in block.vectors::<T, S>() {
        decays.store_field(at, F::from_real(V::constant(simd, 1.0)));
    }
    for start in (0..problem.seqlen).step_by(STEPS) {
        let steps = STEPS.min(problem.seqlen - start);
        tile::load_parts(simd, pa.at(0, start).area(count, steps), F::PARTS, padded, a.reborrow());
        tile::load_parts(simd, pb.at(0, start).area(count, steps), F::PARTS, padded, h.reborrow());
        for at in block.vectors::<T, S>() {
            let (a, h) = (Steps::new(a.read().from(at), pitch), StepsMut::new(h.from(at), pitch));
            states.store_field(at, recurrence::scan::<T, S, F>(simd, a, h, steps, states.load_field(simd, at)));
            if targets.decay.is_some() {
                let decay: F = decays.load_field(simd, at);
                decays.store_field(at, recurrence::total_decay(simd, a, steps, decay));
            }
        }
        if let Some(ph) = ph {
            tile::store_parts(simd, h.read(), F::PARTS, padded, ph.at(0, start).area(count, steps));
        }
    }
    if let Some(outer) = &to {
        store_state(simd, &Block { outer, ..*block }, &targets.final_state, states.read());
    }
    store_state(simd, block, &targets.decay, decays.read());
}

#[inline(always)]
fn backward_block<T: Real, S: Isa, F: Field<T, S>>(
    simd: S,
    context: &Context<'_, '_>,
    block: &Block<'_>,
    arrays: Backward<'_, T>,
) {
    let (sources, targets) = (&context.sources, &context.backward);
    let target = |view: &Option<RawViewMut>| view.as_ref().map(|v| block.of_mut(v));
    let planes = Planes {
        a: block.of(&context.problem.a),
        b: block.of(&context.problem.b),
        h: sources.states.map(|v| block.of(&v)),
        by_h: sources.h.map(|v| block.of(&v)),
        by_a: target(&targets.a),
        by_b: target(&targets.b),
    };
    let mut back = Back { context, block, arrays, planes };
    if targets.a.is_some() {
        back.recompute::<S, F>(simd);
    }
    load_state(simd, block, &sources.final_state, back.arrays.carries.reborrow());
    for tile in (0..context.problem.seqlen.div_ceil(STEPS)).rev() {
        back.tile::<S, F>(simd, tile);
    }
    store_state(simd, block, &targets.initial_state, back.arrays.carries.read());
}

/// The tensors that a backward pass reads and writes, from the block's first channel on.
struct Planes<'v> {
    a: Plane<'v>,
    b: Plane<'v>,
    h: Option<Plane<'v>>,
    by_h: Option<Plane<'v>>,
    by_a: Option<PlaneMut>,
    by_b: Option<PlaneMut>,
}

/// The stages of a backward pass of one block.
struct Back<'b, 'c, 'a, T> {
    context: &'b Context<'c, 'a>,
    block: &'b Block<'b>,
    arrays: Backward<'b, T>,
    planes: Planes<'a>,
}

impl<'a, T: Real> Back<'_, '_, 'a, T> {
    /// The first step of a tile, and how many it has.
    fn steps(&self, tile: usize) -> (usize, usize) {
        (tile * STEPS, STEPS.min(self.context.problem.seqlen - tile * STEPS))
    }

    /// The states before each tile. Given states spare all but the initial one.
    #[inline(always)]
    fn recompute<S: Isa, F: Field<T, S>>(&mut self, simd: S) {
        let problem = self.context.problem;
        let &Block { count, padded, pitch, .. } = self.block;
        let tiles = problem.seqlen.div_ceil(STEPS);
        load_state(simd, self.block, &problem.initial_state, self.arrays.row.reborrow());
        for tile in 0..tiles {
            let (start, steps) = self.steps(tile);
            let Backward { a, h, row, before, .. } = &mut self.arrays;
            before.of(tile).slice(0, pitch).copy_from_slice(row.shared(0, pitch));
            if self.planes.h.is_none() && tile + 1 < tiles {
                tile::load_parts(simd, self.planes.a.at(0, start).area(count, steps), F::PARTS, padded, a.reborrow());
                tile::load_parts(simd, self.planes.b.at(0, start).area(count, steps), F::PARTS, padded, h.reborrow());
                for at in self.block.vectors::<T, S>() {
                    let (a, h) = (Steps::new(a.read().from(at), pitch), StepsMut::new(h.from(at), pitch));
                    row.store_field(at, recurrence::scan::<T, S, F>(simd, a, h, steps, row.load_field(simd, at)));
                }
            }
        }
    }

    /// The gradients of a tile.
    #[inline(always)]
    fn tile<S: Isa, F: Field<T, S>>(&mut self, simd: S, tile: usize) {
        let (start, steps) = self.steps(tile);
        let &Block { count, padded, .. } = self.block;
        // sixteen rows of five tensors are more than the processor follows by itself, and what is written is read before, too
        if start > 0 && self.context.plan.block == MAX_LANES {
            self.prefetch(start - STEPS);
        }
        let before = self.load::<S, F>(simd, tile);
        for at in self.block.vectors::<T, S>() {
            self.vector::<S, F>(simd, at, steps, before);
        }
        for (target, from) in [(self.planes.by_b, &self.arrays.g), (self.planes.by_a, &self.arrays.a)] {
            if let Some(target) = target {
                tile::store_parts(simd, from.read(), F::PARTS, padded, target.at(0, start).area(count, steps));
            }
        }
    }

    /// Prefetches what the tile at `start` reads and writes.
    #[inline(always)]
    fn prefetch(&self, start: usize) {
        let Planes { a, b, h, by_h, by_a, by_b } = self.planes;
        let written = [&by_a, &by_b].map(|plane| plane.as_ref().map(PlaneMut::read));
        for plane in [Some(a), by_h, h.or(by_a.map(|_| b)), written[0], written[1]].into_iter().flatten() {
            plane.at(0, start).area(self.block.count, STEPS).prefetch();
        }
    }

    /// Loads a tile, and returns the place of the states before its first step: that number in `before`, or else the row.
    #[inline(always)]
    fn load<S: Isa, F: Field<T, S>>(&mut self, simd: S, tile: usize) -> Option<usize> {
        let (start, steps) = self.steps(tile);
        let Backward { a, h, g, row, .. } = &mut self.arrays;
        let &Block { count, padded, pitch, .. } = self.block;
        let of = |plane: Plane<'a>, start: usize, steps: usize| plane.at(0, start).area(count, steps);
        tile::load_parts(simd, of(self.planes.a, start, steps), F::PARTS, padded, a.reborrow());
        match self.planes.by_h {
            Some(by_h) => tile::load_parts(simd, of(by_h, start, steps), F::PARTS, padded, g.reborrow()),
            None => g.clear(steps * pitch),
        }
        self.planes.by_a?;
        let states = self.planes.h.unwrap_or(self.planes.b);
        tile::load_parts(simd, of(states, start, steps), F::PARTS, padded, h.reborrow());
        // the last state of the tile before this one
        let Some(given) = self.planes.h.filter(|_| start > 0) else { return Some(tile) };
        tile::load_parts(simd, of(given, start - 1, 1), F::PARTS, padded, row.reborrow());
        None
    }

    /// The gradients of a vector of channels of a tile, see [`Back::load`].
    #[inline(always)]
    fn vector<S: Isa, F: Field<T, S>>(&mut self, simd: S, at: usize, steps: usize, before: Option<usize>) {
        let Backward { a, h, g, row, carries, before: states } = &mut self.arrays;
        let [mut a, mut h, mut g] = [a, h, g].map(|array| StepsMut::new(array.from(at), self.block.pitch));
        carries
            .store_field(at, recurrence::adjoint::<T, S, F>(simd, a.read(), g.reborrow(), steps, carries.load_field(simd, at)));
        if self.planes.by_a.is_none() {
            return;
        }
        let mut previous: F = before.map_or(row.read(), |tile| states.read(tile)).load_field(simd, at);
        if self.planes.h.is_none() {
            recurrence::scan(simd, a.read(), h.reborrow(), steps, previous);
        }
        for t in 0..steps {
            a.store(t, previous.conj_mul_add(g.load(simd, t), F::zero(simd)));
            previous = h.load(simd, t);
        }
    }
}

/// A row of states; zeros where there are none.
#[inline(always)]
fn load_state<T: Real, S: Isa>(simd: S, block: &Block<'_>, view: &Option<View<'_>>, mut row: ArrayMut<'_, T>) {
    debug_assert!(row.has(0, block.pitch), "room for a row of states");
    match view {
        Some(view) => {
            let area = block.of(view).area(block.count, 1);
            tile::load_parts(simd, area, block.pitch / block.padded, block.padded, row);
        }
        None => row.clear(block.pitch),
    }
}

#[inline(always)]
fn store_state<T: Real, S: Isa>(simd: S, block: &Block<'_>, view: &Option<RawViewMut>, row: Array<'_, T>) {
    let Some(view) = view else { return };
    let area = block.of_mut(view).area(block.count, 1);
    debug_assert!(row.has(0, block.pitch), "a row of states");
    tile::store_parts(simd, row, block.pitch / block.padded, block.padded, area)
}
