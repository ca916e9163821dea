//! The linear scan on the CPU: neighbouring channels in the lanes of a vector, time walked in tiles of 64 steps.
//!
//! A job is a block of channels over all of time. Tiles are converted and transposed on their way in and out, so that storage types and
//! strides cost nothing in the recurrence. The operation reads two numbers and writes one a step; it runs at the speed of memory.

use super::plan::Plan;
use super::{Problem, recurrence};
use crate::cpu::simd::{Cx, Field, Isa, Real, V};
use crate::cpu::tile::{self, MAX_LANES, Plane, STEPS};
use crate::cpu::{Kernel, Level};
use crate::exec::Exec;
use crate::tensor::{RawViewMut, View};

/// Where a forward pass writes, in normal form.
pub(crate) struct Targets {
    pub h: Option<RawViewMut>,
    pub final_state: Option<RawViewMut>,
    pub decay: Option<RawViewMut>,
}

/// What a backward pass reads besides the arguments, in normal form.
pub(crate) struct Sources<'a> {
    pub h: Option<View<'a>>,
    pub by_h: Option<View<'a>>,
    pub by_final_state: Option<View<'a>>,
}

/// Where a backward pass writes, in normal form.
pub(crate) struct GradientTargets {
    pub a: Option<RawViewMut>,
    pub b: Option<RawViewMut>,
    pub initial_state: Option<RawViewMut>,
}

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
        let mut strides = vec![problem.a.strides().to_vec(), problem.b.strides().to_vec()];
        let read = [problem.initial_state, sources.h, sources.by_h, sources.by_final_state];
        strides.extend(read.iter().flatten().map(|v| v.strides().to_vec()));
        let written = [forward.h, forward.final_state, forward.decay, backward.a, backward.b, backward.initial_state];
        strides.extend(written.iter().flatten().map(|v| v.strides().to_vec()));
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
    let none = GradientTargets { a: None, b: None, initial_state: None };
    Context::new(problem, sources, targets, none).run(exec, false);
}

pub(crate) fn backward(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    let sources = Sources { ..*sources };
    let none = Targets { h: None, final_state: None, decay: None };
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

/// A vector of channels of one job: where it starts in every tensor.
struct Channels<'j> {
    plan: &'j Plan,
    outer: Vec<(usize, usize)>,
    first: usize,
    count: usize,
}

impl Channels<'_> {
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
        // two tiles, and the states at the starts of all tiles where they are computed twice
        let tile = STEPS * width * F::PARTS;
        let states = if backward { context.problem.seqlen.div_ceil(STEPS) + 1 } else { 1 };
        scratch.resize(3 * tile + states * width * F::PARTS, T::default());
        debug_assert!(width <= MAX_LANES);
        for first in lanes.clone().step_by(width) {
            let channels = Channels { plan, outer: outer.clone(), first, count: width.min(lanes.end - first) };
            // SAFETY: the vector's channels lie inside the job's, and the scratch has the room that both passes name.
            unsafe {
                match backward {
                    false => forward_vector::<T, S, F>(simd, context, &channels, scratch.as_mut_ptr()),
                    true => backward_vector::<T, S, F>(simd, context, &channels, scratch.as_mut_ptr()),
                }
            }
        }
    }
}

/// # Safety
/// The channels are this thread's; `scratch` has room for two tiles and a vector.
#[inline(always)]
unsafe fn forward_vector<T: Real, S: Isa, F: Field<T, S>>(
    simd: S,
    context: &Context<'_, '_>,
    channels: &Channels<'_>,
    scratch: *mut T,
) {
    let (problem, targets) = (context.problem, &context.forward);
    let (width, count) = (T::lanes::<S>(), channels.count);
    let step = width * F::PARTS;
    let (pa, pb) = (channels.of(&problem.a), channels.of(&problem.b));
    let ph = targets.h.as_ref().map(|v| channels.of_mut(v));
    // SAFETY: planes reach over the problem's channels and steps; tiles have the named room.
    unsafe {
        let (a, b, vector) = (scratch, scratch.add(STEPS * step), scratch.add(2 * STEPS * step));
        let mut state = load_state::<T, S, F>(simd, channels, &problem.initial_state, vector);
        let mut decay = F::from_real(V::constant(simd, 1.0));
        for start in (0..problem.seqlen).step_by(STEPS) {
            let steps = STEPS.min(problem.seqlen - start);
            tile::load_parts(simd, pa.at(0, start), F::PARTS, count, width, steps, a);
            tile::load_parts(simd, pb.at(0, start), F::PARTS, count, width, steps, b);
            state = recurrence::scan(simd, a, step, b, step, steps, state);
            if targets.decay.is_some() {
                decay = recurrence::total_decay(simd, a, step, steps, decay);
            }
            if let Some(ph) = ph {
                tile::store_parts(simd, b, F::PARTS, width, ph.at(0, start), count, steps);
            }
        }
        store_state(channels, &targets.final_state, state, vector);
        store_state(channels, &targets.decay, decay, vector);
    }
}

/// # Safety
/// As [`forward_vector`], with three tiles and a vector for each tile of time and one more.
#[inline(always)]
unsafe fn backward_vector<T: Real, S: Isa, F: Field<T, S>>(
    simd: S,
    context: &Context<'_, '_>,
    channels: &Channels<'_>,
    scratch: *mut T,
) {
    let (problem, sources, targets) = (context.problem, &context.sources, &context.backward);
    let (width, count, seqlen) = (T::lanes::<S>(), channels.count, problem.seqlen);
    let step = width * F::PARTS;
    let (pa, pb) = (channels.of(&problem.a), channels.of(&problem.b));
    let plane = |view: &Option<View<'_>>| view.as_ref().map(|v| channels.of(v));
    let target = |view: &Option<RawViewMut>| view.as_ref().map(|v| channels.of_mut(v));
    let (ph, pp) = (plane(&sources.h), plane(&sources.by_h));
    let (by_a, by_b) = (target(&targets.a), target(&targets.b));
    // SAFETY: planes reach over the problem's channels and steps; tiles have the named room.
    unsafe {
        let (a, h, g) = (scratch, scratch.add(STEPS * step), scratch.add(2 * STEPS * step));
        let vector = scratch.add(3 * STEPS * step);
        let states = vector.add(step);
        if by_a.is_some() {
            let mut state = load_state::<T, S, F>(simd, channels, &problem.initial_state, vector);
            for (i, start) in (0..seqlen).step_by(STEPS).enumerate() {
                state.store(states.add(i * step));
                // given states spare the first pass all but the initial one
                let steps = STEPS.min(seqlen - start);
                if ph.is_none() && start + steps < seqlen {
                    tile::load_parts(simd, pa.at(0, start), F::PARTS, count, width, steps, a);
                    tile::load_parts(simd, pb.at(0, start), F::PARTS, count, width, steps, h);
                    state = recurrence::scan(simd, a, step, h, step, steps, state);
                }
            }
        }
        let mut carry = load_state::<T, S, F>(simd, channels, &sources.by_final_state, vector);
        for (i, start) in (0..seqlen).step_by(STEPS).enumerate().rev() {
            let steps = STEPS.min(seqlen - start);
            tile::load_parts(simd, pa.at(0, start), F::PARTS, count, width, steps, a);
            match pp {
                Some(pp) => tile::load_parts(simd, pp.at(0, start), F::PARTS, count, width, steps, g),
                None => core::slice::from_raw_parts_mut(g, steps * step).fill(T::default()),
            }
            carry = recurrence::adjoint(simd, a, step, g, step, steps, carry);
            if let Some(by_b) = by_b {
                tile::store_parts(simd, g, F::PARTS, width, by_b.at(0, start), count, steps);
            }
            let Some(by_a) = by_a else { continue };
            // the states before each step: the last of the tile before this one, then this tile's own
            let mut previous = F::load(simd, states.add(i * step));
            match ph {
                Some(ph) => {
                    if start > 0 {
                        tile::load_parts(simd, ph.at(0, start - 1), F::PARTS, count, width, 1, vector);
                        previous = F::load(simd, vector);
                    }
                    tile::load_parts(simd, ph.at(0, start), F::PARTS, count, width, steps, h);
                }
                None => {
                    tile::load_parts(simd, pb.at(0, start), F::PARTS, count, width, steps, h);
                    recurrence::scan(simd, a, step, h, step, steps, previous);
                }
            }
            let zero = F::zero(simd);
            for t in 0..steps {
                let at = t * step;
                previous.conj_mul_add(F::load(simd, g.add(at)), zero).store(a.add(at));
                previous = F::load(simd, h.add(at));
            }
            tile::store_parts(simd, a, F::PARTS, width, by_a.at(0, start), count, steps);
        }
        store_state(channels, &targets.initial_state, carry, vector);
    }
}

/// # Safety
/// The channels lie inside the view; `vector` has room for one field vector.
#[inline(always)]
unsafe fn load_state<T: Real, S: Isa, F: Field<T, S>>(
    simd: S,
    channels: &Channels<'_>,
    view: &Option<View<'_>>,
    vector: *mut T,
) -> F {
    let Some(view) = view else { return F::zero(simd) };
    // SAFETY: the caller's contract; a plane of one step.
    unsafe {
        tile::load_parts(simd, channels.of(view), F::PARTS, channels.count, T::lanes::<S>(), 1, vector);
        F::load(simd, vector)
    }
}

/// # Safety
/// As [`load_state`], and the elements are this thread's.
#[inline(always)]
unsafe fn store_state<T: Real, S: Isa, F: Field<T, S>>(
    channels: &Channels<'_>,
    view: &Option<RawViewMut>,
    state: F,
    vector: *mut T,
) {
    let Some(view) = view else { return };
    let simd = state.re().simd();
    // SAFETY: the caller's contract; a plane of one step.
    unsafe {
        state.store(vector);
        tile::store_parts(simd, vector, F::PARTS, T::lanes::<S>(), channels.of_mut(view), channels.count, 1);
    }
}
