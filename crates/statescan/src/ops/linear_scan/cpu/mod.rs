//! The linear scan on the CPU: neighbouring channels in the lanes of a vector, time walked in tiles of 64 steps.
//!
//! A job is a block of channels over all of time: several vectors where channels lie side by side, else one. Tiles are converted and transposed on their way in and out, so that storage types and
//! strides cost nothing in the recurrence. The operation reads two numbers and writes one a step; it runs at the speed of memory.

mod plan;

use super::{GradientTargets, Problem, Sources, Targets};
use crate::cpu::recurrence;
use crate::cpu::simd::{Cx, Field, Isa, Real, V};
use crate::cpu::tile::{self, Area, MAX_LANES, Plane, STEPS};
use crate::cpu::{Kernel, Level};
use crate::exec::Exec;
use crate::tensor::{RawViewMut, View};
use plan::Plan;

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
        let read = [&problem.initial_state, &sources.h, &sources.by_h, &sources.by_final_state];
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
        exec.for_each(self.plan.jobs(), Vec::new, |scratch: &mut Vec<T>, index| {
            level.dispatch(Job { context: self, scratch, index, backward });
        });
    }
}

pub(crate) fn forward(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    let targets = Targets { ..*targets };
    let sources = Sources { h: None, by_h: None, by_final_state: None };
    let none = GradientTargets { a: None, b: None, initial_state: None, workspace: None };
    Context::new(problem, sources, targets, none).run(exec, false);
}

pub(crate) fn backward(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    let sources = Sources { ..*sources };
    let none = Targets { h: None, final_state: None, decay: None, workspace: None };
    Context::new(problem, sources, none, GradientTargets { ..*targets }).run(exec, true);
}

/// One block of channels.
struct Job<'j, 'c, 'a, T> {
    context: &'j Context<'c, 'a>,
    scratch: &'j mut Vec<T>,
    index: usize,
    backward: bool,
}

impl<T: Real> Kernel for Job<'_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        // SAFETY: the plan's jobs cover the problem once.
        unsafe {
            match self.context.problem.complex {
                false => self.run_in::<S, V<T, S>>(simd),
                true => self.run_in::<S, Cx<T, S>>(simd),
            }
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
    /// Where the vectors of a row begin.
    #[inline(always)]
    fn vectors<T: Real, S: Isa>(&self) -> impl Iterator<Item = usize> + use<T, S> {
        (0..self.padded).step_by(T::lanes::<S>())
    }

    /// The plane channels x time of a tensor that is read; time is left out for states.
    fn of(&self, view: &View<'_>) -> Plane {
        self.place(Plane::of(view, self.plan.lane_axis, view.rank() - 1), &view.strides())
    }

    fn of_mut(&self, view: &RawViewMut) -> Plane {
        self.place(Plane::of_mut(view, self.plan.lane_axis, view.shape().len() - 1), &view.strides())
    }

    fn place(&self, plane: Plane, strides: &[isize]) -> Plane {
        self.outer.iter().fold(plane.at(self.first, 0), |plane, &(axis, i)| plane.along(i, strides[axis]))
    }
}

impl<T: Real> Job<'_, '_, '_, T> {
    /// # Safety
    /// The job is one of the plan's, and the only one with its index.
    #[inline(always)]
    unsafe fn run_in<S: Isa, F: Field<T, S>>(self, simd: S) {
        let Job { context, scratch, index, backward } = self;
        let plan = &context.plan;
        let (outer, lanes) = plan.job(index);
        let width = T::lanes::<S>();
        // tiles, and the states at the starts of all tiles where they are computed twice
        let states = if backward { context.problem.seqlen.div_ceil(STEPS) } else { 0 };
        // the parts of a complex vector lie side by side, so there is one in a row
        let most = if F::PARTS == 1 { plan.block } else { width };
        for first in lanes.clone().step_by(most) {
            let count = most.min(lanes.end - first);
            let padded = count.next_multiple_of(width);
            let block = Block { plan, outer: &outer, first, count, padded, pitch: F::PARTS * padded };
            scratch.resize((3 * STEPS + 2 + states) * block.pitch, T::default());
            // SAFETY: the block's channels are the job's, and the scratch has the room that both passes name.
            unsafe {
                match backward {
                    false => forward_block::<T, S, F>(simd, context, &block, scratch.as_mut_ptr()),
                    true => backward_block::<T, S, F>(simd, context, &block, scratch.as_mut_ptr()),
                }
            }
        }
    }
}

/// # Safety
/// The channels are this thread's; `scratch` has room for two tiles and two rows.
#[inline(always)]
unsafe fn forward_block<T: Real, S: Isa, F: Field<T, S>>(simd: S, context: &Context<'_, '_>, block: &Block<'_>, scratch: *mut T) {
    let (problem, targets) = (context.problem, &context.forward);
    let (count, padded, pitch) = (block.count, block.padded, block.pitch);
    let (pa, pb) = (block.of(&problem.a), block.of(&problem.b));
    let ph = targets.h.as_ref().map(|v| block.of_mut(v));
    // SAFETY: planes reach over the problem's channels and steps; tiles and rows have the named room.
    unsafe {
        let (a, b) = (scratch, scratch.add(STEPS * pitch));
        let (states, decays) = (scratch.add(2 * STEPS * pitch), scratch.add((2 * STEPS + 1) * pitch));
        load_state(simd, block, &problem.initial_state, states);
        for at in block.vectors::<T, S>() {
            F::from_real(V::constant(simd, 1.0)).store(decays.add(at));
        }
        for start in (0..problem.seqlen).step_by(STEPS) {
            let steps = STEPS.min(problem.seqlen - start);
            tile::load_parts(simd, pa.at(0, start), F::PARTS, count, padded, steps, a);
            tile::load_parts(simd, pb.at(0, start), F::PARTS, count, padded, steps, b);
            for at in block.vectors::<T, S>() {
                let (a, b, state, decay) = (a.add(at), b.add(at), states.add(at), decays.add(at));
                recurrence::scan(simd, a, pitch, b, pitch, steps, F::load(simd, state)).store(state);
                if targets.decay.is_some() {
                    recurrence::total_decay(simd, a, pitch, steps, F::load(simd, decay)).store(decay);
                }
            }
            if let Some(ph) = ph {
                tile::store_parts(simd, b, F::PARTS, padded, ph.at(0, start), count, steps);
            }
        }
        store_state(simd, block, &targets.final_state, states);
        store_state(simd, block, &targets.decay, decays);
    }
}

/// # Safety
/// As [`forward_block`], with three tiles, two rows and a row for each tile of time.
#[inline(always)]
unsafe fn backward_block<T: Real, S: Isa, F: Field<T, S>>(
    simd: S,
    context: &Context<'_, '_>,
    block: &Block<'_>,
    scratch: *mut T,
) {
    let (problem, sources, targets) = (context.problem, &context.sources, &context.backward);
    let (count, padded, pitch, seqlen) = (block.count, block.padded, block.pitch, problem.seqlen);
    let (pa, pb) = (block.of(&problem.a), block.of(&problem.b));
    let plane = |view: &Option<View<'_>>| view.as_ref().map(|v| block.of(v));
    let target = |view: &Option<RawViewMut>| view.as_ref().map(|v| block.of_mut(v));
    let (ph, pp) = (plane(&sources.h), plane(&sources.by_h));
    let (by_a, by_b) = (target(&targets.a), target(&targets.b));
    // SAFETY: planes reach over the problem's channels and steps; tiles and rows have the named room.
    unsafe {
        let (a, h, g) = (scratch, scratch.add(STEPS * pitch), scratch.add(2 * STEPS * pitch));
        let (row, carries) = (scratch.add(3 * STEPS * pitch), scratch.add((3 * STEPS + 1) * pitch));
        let states = carries.add(pitch);
        if by_a.is_some() {
            load_state(simd, block, &problem.initial_state, row);
            for (i, start) in (0..seqlen).step_by(STEPS).enumerate() {
                row.copy_to_nonoverlapping(states.add(i * pitch), pitch);
                // given states spare the first pass all but the initial one
                let steps = STEPS.min(seqlen - start);
                if ph.is_none() && start + steps < seqlen {
                    tile::load_parts(simd, pa.at(0, start), F::PARTS, count, padded, steps, a);
                    tile::load_parts(simd, pb.at(0, start), F::PARTS, count, padded, steps, h);
                    for at in block.vectors::<T, S>() {
                        let state = F::load(simd, row.add(at));
                        recurrence::scan(simd, a.add(at), pitch, h.add(at), pitch, steps, state).store(row.add(at));
                    }
                }
            }
        }
        load_state(simd, block, &sources.by_final_state, carries);
        for (i, start) in (0..seqlen).step_by(STEPS).enumerate().rev() {
            let steps = STEPS.min(seqlen - start);
            // sixteen rows of five tensors are more than the processor follows by itself, and what is written is read before, too
            if start > 0 && context.plan.block == MAX_LANES {
                for plane in [Some(pa), pp, ph.or(by_a.map(|_| pb)), by_a, by_b].into_iter().flatten() {
                    Area { plane: plane.at(0, start - STEPS), lanes: count, steps: STEPS }.prefetch();
                }
            }
            tile::load_parts(simd, pa.at(0, start), F::PARTS, count, padded, steps, a);
            match pp {
                Some(pp) => tile::load_parts(simd, pp.at(0, start), F::PARTS, count, padded, steps, g),
                None => core::slice::from_raw_parts_mut(g, steps * pitch).fill(T::default()),
            }
            // the states before each step: the last of the tile before this one, then this tile's own
            let mut previous = states.add(i * pitch);
            if by_a.is_some() {
                tile::load_parts(simd, ph.unwrap_or(pb).at(0, start), F::PARTS, count, padded, steps, h);
                if let Some(ph) = ph.filter(|_| start > 0) {
                    tile::load_parts(simd, ph.at(0, start - 1), F::PARTS, count, padded, 1, row);
                    previous = row;
                }
            }
            for at in block.vectors::<T, S>() {
                let (a, h, g, carry) = (a.add(at), h.add(at), g.add(at), carries.add(at));
                recurrence::adjoint(simd, a, pitch, g, pitch, steps, F::load(simd, carry)).store(carry);
                if by_a.is_none() {
                    continue;
                }
                let mut previous = F::load(simd, previous.add(at));
                if ph.is_none() {
                    recurrence::scan(simd, a, pitch, h, pitch, steps, previous);
                }
                for t in 0..steps {
                    previous.conj_mul_add(F::load(simd, g.add(t * pitch)), F::zero(simd)).store(a.add(t * pitch));
                    previous = F::load(simd, h.add(t * pitch));
                }
            }
            if let Some(by_b) = by_b {
                tile::store_parts(simd, g, F::PARTS, padded, by_b.at(0, start), count, steps);
            }
            if let Some(by_a) = by_a {
                tile::store_parts(simd, a, F::PARTS, padded, by_a.at(0, start), count, steps);
            }
        }
        store_state(simd, block, &targets.initial_state, carries);
    }
}

/// A row of states; zeros where there are none.
///
/// # Safety
/// The block lies inside the view; `row` has room for it.
#[inline(always)]
unsafe fn load_state<T: Real, S: Isa>(simd: S, block: &Block<'_>, view: &Option<View<'_>>, row: *mut T) {
    // SAFETY: the caller's contract; a plane of one step.
    unsafe {
        match view {
            Some(view) => tile::load_parts(simd, block.of(view), block.pitch / block.padded, block.count, block.padded, 1, row),
            None => core::slice::from_raw_parts_mut(row, block.pitch).fill(T::default()),
        }
    }
}

/// # Safety
/// As [`load_state`], and the elements are this thread's.
#[inline(always)]
unsafe fn store_state<T: Real, S: Isa>(simd: S, block: &Block<'_>, view: &Option<RawViewMut>, row: *const T) {
    let Some(view) = view else { return };
    // SAFETY: the caller's contract; a plane of one step.
    unsafe { tile::store_parts(simd, row, block.pitch / block.padded, block.padded, block.of_mut(view), block.count, 1) }
}
