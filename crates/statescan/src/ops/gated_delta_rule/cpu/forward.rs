//! The forward pass: some columns of the heads that share a key, in one segment, tile by tile.

use super::super::Targets;
use super::super::problem::{Problem, TIME};
use super::block::{Block, Readers, at_once, blocks};
use super::keys::{self, Keys, Place, ROWS, Rows};
use super::plan::{CHUNK, COLUMNS, Checkpoints, Plan, Unit, chunks};
use super::rates::{self, HeadRates, Rates, rate};
use super::saved::Save;
use crate::cpu::simd::{Isa, Real};
use crate::cpu::tile::{self, Area, Plane, PlaneMut, Tile, TileMut};
use crate::cpu::{Arena, ArrayMut, Divided, Kernel, Room};
use crate::exec::Exec;
use crate::ops::sequences::{Segment, StateRow};
use crate::tensor::View;
use core::ops::Range;

/// The scratch memory of one thread's jobs.
struct Scratch<'m, T> {
    keys: Keys<'m, T>,
    rates: Rates<'m, T>,
    own: Own<'m, T>,
    /// Keys and queries times the decays of their channels.
    read_k: Rows<'m, T>,
    read_q: Rows<'m, T>,
    /// One for each unit.
    states: ArrayMut<'m, T>,
    v: Rows<'m, T>,
    y: Rows<'m, T>,
    u: Rows<'m, T>,
}

/// The parameters of one head's raw gates.
pub(super) struct Own<'m, T> {
    bias: ArrayMut<'m, T>,
    rate: ArrayMut<'m, T>,
}

impl<'m, T: Real> Own<'m, T> {
    pub(super) fn lay_out(room: &mut Room<'m, T>, problem: &Problem<'_>) -> Self {
        let raw = problem.gates.raw;
        let [bias, rate] = [problem.keys.max(ROWS), ROWS].map(|len| room.array(if raw { len.next_multiple_of(ROWS) } else { 0 }));
        Own { bias, rate }
    }

    /// Fills in the parameters of a head, for every row or every channel.
    pub(super) fn fill(&mut self, problem: &Problem<'_>, head: usize) {
        let Some(a_log) = &problem.a_log else { return };
        self.rate.slice(0, ROWS).fill(rate(a_log, head));
        let len = problem.keys.max(ROWS).next_multiple_of(ROWS);
        let bias = self.bias.slice(0, len);
        bias.fill(T::default());
        let Some(view) = &problem.dt_bias else { return };
        match view.rank() {
            1 => bias.fill(T::from_f64(view.at(&[head]).re)),
            _ => (0..problem.keys).for_each(|n| bias[n] = T::from_f64(view.at(&[head, n]).re)),
        }
    }

    pub(super) fn read(&self) -> HeadRates<'_, T> {
        HeadRates { bias: self.bias.read(), rate: self.rate.read() }
    }
}

impl<'m, T: Real> Scratch<'m, T> {
    fn lay_out(room: &mut Room<'m, T>, problem: &Problem<'_>, plan: &Plan, lanes: usize) -> Self {
        let (width, by_channel) = (problem.keys, problem.gates.by_channel);
        let (keys, rates) = (Keys::lay_out(room, width, lanes), Rates::lay_out(room, &problem.gates, width));
        let own = Own::lay_out(room, problem);
        let [read_k, read_q] = [(); 2].map(|()| Rows::lay_out(room, if by_channel { ROWS } else { 0 }, width));
        let states = room.array(plan.most_units() * width * COLUMNS);
        let [v, y, u] = [(); 3].map(|()| Rows::lay_out(room, ROWS, COLUMNS));
        Scratch { keys, rates, own, read_k, read_q, states, v, y, u }
    }
}

pub(super) fn forward<T: Real>(exec: &Exec, problem: &Problem<'_>, targets: &Targets, saved: Option<Divided<'_, T>>) {
    let (plan, checkpoints) = (&Plan::new(problem), &Checkpoints::new(problem));
    let lanes = exec.level().lanes(problem.double);
    exec.for_each(plan.jobs, Arena::<T>::default, |arena, index| {
        let (number, head, units) = plan.job(index);
        let segment = &problem.segments.list[number];
        let job = Job { problem, targets, checkpoints, saved, segment, number, head, units };
        arena.lend(
            |room| Scratch::lay_out(room, problem, plan, lanes),
            |mut scratch| exec.level().dispatch(Run { job, scratch: &mut scratch }),
        );
    });
}

/// See the [module](self).
#[derive(Clone, Copy)]
struct Job<'j, 'a, T> {
    problem: &'j Problem<'a>,
    targets: &'j Targets,
    checkpoints: &'j Checkpoints,
    saved: Option<Divided<'j, T>>,
    segment: &'j Segment,
    number: usize,
    /// The head of keys.
    head: usize,
    units: &'j [Unit],
}

struct Run<'r, 'j, 'm, 'a, T> {
    job: Job<'j, 'a, T>,
    scratch: &'r mut Scratch<'m, T>,
}

impl<T: Real> Kernel for Run<'_, '_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Run { job, scratch } = self;
        for (index, unit) in job.units.iter().enumerate() {
            job.enter(simd, unit, scratch.states.from(index * job.problem.keys * COLUMNS));
        }
        for (number, steps) in chunks(job.segment).enumerate() {
            let place = place_of(job.problem, job.segment.batch, job.head, &steps);
            simd.call(keys::Load { keys: &mut scratch.keys, place, gates: &job.problem.gates });
            let mut member = None;
            for (index, unit) in job.units.iter().enumerate() {
                if member != Some(unit.member) {
                    job.rates(simd, unit, &steps, scratch);
                    member = Some(unit.member);
                }
                job.tile(simd, (index, unit), (number, &steps), scratch);
            }
        }
        for (index, unit) in job.units.iter().enumerate() {
            job.leave(simd, unit, scratch.states.from(index * job.problem.keys * COLUMNS));
        }
    }
}

/// Queries and keys of some steps of a head.
pub(super) fn place_of<'p>(problem: &Problem<'p>, batch: usize, head: usize, steps: &Range<usize>) -> Place<'p> {
    let area = |view: &View<'p>| {
        let strides = view.strides();
        let plane = Plane::of(view, 3, TIME).along(batch, strides[0]).along(head, strides[2]);
        plane.at(0, steps.start).area(problem.keys, steps.len())
    };
    Place { q: area(&problem.q), k: area(&problem.k) }
}

/// One number for each of some steps of a head, as lanes.
pub(super) fn steps_of<'p>(view: &View<'p>, batch: usize, head: usize, steps: &Range<usize>) -> Area<'p> {
    Plane::of(view, TIME, 2).along(batch, view.strides()[0]).at(steps.start, head).area(steps.len(), 1)
}

/// The gates of some steps of a head: numbers as lanes, or channels as lanes and steps as rows.
pub(super) fn gates_of<'p>(view: &View<'p>, batch: usize, head: usize, steps: &Range<usize>) -> Area<'p> {
    if view.rank() == 3 {
        return steps_of(view, batch, head, steps);
    }
    let strides = view.strides();
    let plane = Plane::of(view, 3, TIME).along(batch, strides[0]).along(head, strides[2]);
    plane.at(0, steps.start).area(view.shape()[3], steps.len())
}

impl<T: Real> Job<'_, '_, T> {
    fn value_head(&self, unit: &Unit) -> usize {
        self.head * self.problem.group + unit.member
    }

    /// Decays and beta of a head of values, and what the state is read with.
    #[inline(always)]
    fn rates<S: Isa>(&self, simd: S, unit: &Unit, steps: &Range<usize>, scratch: &mut Scratch<'_, T>) {
        let Job { problem, segment, .. } = *self;
        let Scratch { keys, rates, own, read_k, read_q, .. } = scratch;
        let (head, batch) = (self.value_head(unit), segment.batch);
        own.fill(problem, head);
        simd.call(rates::Load {
            rates,
            g: problem.g.as_ref().map(|view| gates_of(view, batch, head, steps)),
            beta: problem.beta.as_ref().map(|view| steps_of(view, batch, head, steps)),
            gates: &problem.gates,
            own: own.read(),
            rows: steps.len(),
        });
        if problem.gates.by_channel {
            for at in (0..steps.len() * keys.k.pitch).step_by(T::lanes::<S>()) {
                let decay = rates.decays.array.load(simd, at);
                read_k.array.store(at, keys.k.array.load(simd, at) * decay);
                read_q.array.store(at, keys.q.array.load(simd, at) * decay);
            }
        }
    }

    /// The steps of a tile on the columns of a unit.
    #[inline(always)]
    fn tile<S: Isa>(
        &self,
        simd: S,
        (index, unit): (usize, &Unit),
        (number, steps): (usize, &Range<usize>),
        scratch: &mut Scratch<'_, T>,
    ) {
        let Job { problem, segment, .. } = *self;
        let head = self.value_head(unit);
        let Scratch { states, v, .. } = &mut *scratch;
        if number > 0 {
            self.save_state(simd, number, unit, &states.from(index * problem.keys * COLUMNS));
        }
        let strides = problem.v.strides();
        let plane = Plane::of(&problem.v, 3, TIME).along(segment.batch, strides[0]).along(head, strides[2]);
        tile::load(simd, plane.at(unit.first, steps.start).area(unit.columns, steps.len()), unit.padded(), v.tile());
        match problem.gates.by_channel {
            true => self.steps::<S, true>(simd, (index, unit), steps.len(), scratch),
            false => self.steps::<S, false>(simd, (index, unit), steps.len(), scratch),
        }
        let Scratch { y, u, .. } = scratch;
        if let Some(view) = &self.targets.y {
            let strides = view.strides();
            let plane = PlaneMut::of(view, 3, TIME).along(segment.batch, strides[0]).along(head, strides[2]);
            tile::store(simd, y.tile().read(), plane.at(unit.first, steps.start).area(unit.columns, steps.len()));
        }
        if let Some(saved) = self.saved {
            let at = self.checkpoints.u(self.number, number, head, steps.len());
            // SAFETY: the columns of a unit are saved by one job, and read when the pass has ended.
            let to = unsafe { saved.part(at + unit.first) };
            self.save(simd, (u.tile().read(), steps.len(), unit.columns), to);
        }
    }

    /// Computes these steps, of which everything is in scratch memory. `C` says that channels have their own decays.
    #[inline(always)]
    fn steps<S: Isa, const C: bool>(&self, simd: S, (index, unit): (usize, &Unit), steps: usize, scratch: &mut Scratch<'_, T>) {
        let Scratch { keys, rates, read_k, read_q, states, v, y, u, .. } = scratch;
        let (k, q) = if C { (&*read_k, &*read_q) } else { (&keys.k, &keys.q) };
        simd.call(Block::<T, C> {
            keys,
            rates,
            readers: Readers { k: k.array.read(), q: q.array.read() },
            width: self.problem.keys,
            steps,
            state: states.from(index * self.problem.keys * COLUMNS),
            v: Tile::new(v.array.read(), v.pitch),
            y: y.tile(),
            u: u.tile(),
            columns: unit.padded(),
        });
    }

    #[inline(always)]
    fn save<S: Isa>(&self, simd: S, (from, rows, columns): (Tile<'_, T>, usize, usize), to: ArrayMut<'_, T>) {
        let to = TileMut::new(to, self.problem.values);
        let bytes = self.checkpoints.len * size_of::<T>();
        simd.call(Save { from, to, rows, columns, bytes });
    }

    /// Saves the state of a unit before a tile.
    #[inline(always)]
    fn save_state<S: Isa>(&self, simd: S, number: usize, unit: &Unit, state: &ArrayMut<'_, T>) {
        let Some(saved) = self.saved else { return };
        let at = self.checkpoints.state(self.number, number, self.value_head(unit));
        for (first, count) in blocks(unit.padded(), T::lanes::<S>(), at_once::<S>()) {
            let columns = count.min(unit.columns.saturating_sub(first));
            if columns > 0 {
                // SAFETY: as for `u`.
                let to = unsafe { saved.part(at + unit.first + first) };
                let from = Tile::new(state.read().from(first * self.problem.keys), count);
                self.save(simd, (from, self.problem.keys, columns), to);
            }
        }
    }

    /// The initial state of a unit.
    #[inline(always)]
    fn enter<S: Isa>(&self, simd: S, unit: &Unit, mut state: ArrayMut<'_, T>) {
        let (keys, head) = (self.problem.keys, self.value_head(unit));
        let (Some(view), Some(row)) = (&self.problem.initial_state, self.segment.initial) else {
            return state.clear(keys * unit.padded());
        };
        for (first, count) in blocks(unit.padded(), T::lanes::<S>(), at_once::<S>()) {
            let plane = state_plane(view, row, head);
            let columns = count.min(unit.columns.saturating_sub(first));
            for n in (0..keys).step_by(CHUNK) {
                let to = TileMut::new(state.from(first * keys + n * count), count);
                let area = plane.at(unit.first + first.min(unit.columns), n).area(columns, CHUNK.min(keys - n));
                tile::load(simd, area, count, to);
            }
        }
    }

    /// The final state.
    #[inline(always)]
    fn leave<S: Isa>(&self, simd: S, unit: &Unit, state: ArrayMut<'_, T>) {
        let (keys, head) = (self.problem.keys, self.value_head(unit));
        let (Some(view), Some((row, sequence))) = (&self.targets.final_state, self.segment.last) else { return };
        let strides = view.strides();
        let plane = PlaneMut::of(view, 4, 3).along(row, strides[0]).along(sequence, strides[1]).along(head, strides[2]);
        for (first, count) in blocks(unit.padded(), T::lanes::<S>(), at_once::<S>()) {
            let columns = count.min(unit.columns.saturating_sub(first));
            for n in (0..if columns > 0 { keys } else { 0 }).step_by(CHUNK) {
                let from = Tile::new(state.read().from(first * keys + n * count), count);
                tile::store(simd, from, plane.at(unit.first + first, n).area(columns, CHUNK.min(keys - n)));
            }
        }
    }
}

/// A head's state in a tensor of them, columns as lanes and keys as steps.
pub(super) fn state_plane<'v>(view: &View<'v>, (row, sequence): StateRow, head: usize) -> Plane<'v> {
    let strides = view.strides();
    Plane::of(view, 4, 3).along(row, strides[0]).along(sequence, strides[1]).along(head, strides[2])
}
