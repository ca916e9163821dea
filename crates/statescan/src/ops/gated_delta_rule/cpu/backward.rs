//! The backward pass: the heads of values that share a key, in one segment, chunk by chunk from the last one.
//!
//! For each head and step it takes 6 N P multiply-adds with states, and about 2 Q (N + P) within the chunk (Q = 64), against 3 N P forwards.

use super::super::problem::{Problem, TIME};
use super::super::{GradientTargets, Sources};
use super::chunk::{ByValues, Ends, Fade, FadeState, Join, Normalize, Scratch, load_across, transpose};
use super::forward::{gates_of, place_of, state_plane, steps_of};
use super::keys::{self, ROWS, Rows};
use super::norms::Denormalize;
use super::partials::{ByGates, Partials, Shared};
use super::plan::{CHUNK, Checkpoints, chunks};
use super::triangle::{self, multiply};
use super::{pairs, rates};
use crate::cpu::product::Into;
use crate::cpu::simd::Real;
use crate::cpu::tile::{self, MAX_LANES, Plane, PlaneMut, Tile, TileMut};
use crate::cpu::{Arena, Array, ArrayMut, Level, Matrix, MatrixMut};
use crate::exec::Exec;
use crate::ops::sequences::Segment;
use crate::tensor::{RawViewMut, View};
use core::ops::Range;

pub(super) fn backward<T: Real>(
    exec: &Exec,
    problem: &Problem<'_>,
    sources: &Sources<'_>,
    targets: &GradientTargets,
    saved: &[T],
) {
    let checkpoints = &Checkpoints::new(problem);
    let mut partials = Partials::new(problem);
    let (shared, level) = (partials.share(), exec.level());
    let lanes = level.lanes(problem.double);
    exec.for_each(problem.segments.list.len() * problem.heads, Arena::<T>::default, |arena, index| {
        let (number, head) = (index / problem.heads, index % problem.heads);
        let segment = &problem.segments.list[number];
        let job = Job { level, problem, sources, targets, checkpoints, saved, shared, segment, number, head };
        arena.lend(|room| Scratch::lay_out(room, problem, lanes), |mut scratch| job.run(&mut scratch));
    });
    partials.finish(problem, targets);
}

/// See the [module](self).
struct Job<'j, 'a, T> {
    level: Level,
    problem: &'j Problem<'a>,
    sources: &'j Sources<'j>,
    targets: &'j GradientTargets,
    checkpoints: &'j Checkpoints,
    saved: &'j [T],
    shared: Shared<'j>,
    segment: &'j Segment,
    number: usize,
    /// The head of keys.
    head: usize,
}

/// A chunk of a segment, and a head of values.
#[derive(Clone, Copy)]
struct Here<'h> {
    number: usize,
    steps: &'h Range<usize>,
    /// Among those that share a key, and among all.
    member: usize,
    head: usize,
}

impl Here<'_> {
    fn rows(&self) -> usize {
        self.steps.len()
    }
}

impl<T: Real> Job<'_, '_, T> {
    fn run(&self, s: &mut Scratch<'_, T>) {
        let Job { level, problem, segment, targets, .. } = *self;
        let heads = || (0..problem.group).map(|member| (member, self.head * problem.group + member));
        for (member, head) in heads() {
            self.enter(s, member, head);
        }
        for (number, steps) in chunks(segment).enumerate().rev() {
            let rows = steps.len();
            let place = place_of(problem, segment.batch, self.head, &steps);
            level.dispatch(keys::Load { keys: &mut s.keys, place, gates: &problem.gates });
            level.dispatch(Normalize { keys: &mut s.keys, rows });
            if !problem.gates.by_channel {
                let Scratch { keys, k_across, .. } = s;
                transpose(level, &keys.k, rows, problem.keys, k_across.tile());
            }
            for of in [&mut s.dq, &mut s.dk] {
                of.array.clear(rows * of.pitch);
            }
            for (member, head) in heads() {
                self.chunk(s, &Here { number, steps: &steps, member, head });
            }
            if targets.q.is_some() || targets.k.is_some() {
                let Scratch { keys, dq, dk, .. } = &mut *s;
                level.dispatch(Denormalize { keys, dq, dk, gates: &problem.gates, rows });
                for (target, of) in [(&targets.q, dq), (&targets.k, dk)] {
                    self.store(target, of, self.head, (&steps, problem.keys));
                }
            }
        }
        for (member, head) in heads() {
            self.leave(s, member, head);
        }
    }

    /// One chunk of one head of values.
    fn chunk(&self, s: &mut Scratch<'_, T>, here: &Here<'_>) {
        let Job { level, problem, .. } = *self;
        let (rows, by_channel) = (here.rows(), problem.gates.by_channel);
        self.load(s, here);
        level.dispatch(Fade { s, rows, by_channel });
        self.load_states(s, here);
        match by_channel {
            true => level.dispatch(pairs::Forward { s, rows }),
            false => triangle::forward(level, s, rows, problem.keys),
        }
        self.by_written(s, here);
        triangle::solve(level, s, rows);
        level.dispatch(ByValues { s, rows });
        self.store(&self.targets.v, &s.dv, here.head, (here.steps, problem.values));
        let Scratch { d, d_across, .. } = s;
        transpose(level, d, rows, problem.values, d_across.tile());
        triangle::gradients(level, s, rows, problem.values, by_channel);
        self.by_states(s, here);
        level.dispatch(Ends { s, rows, columns: problem.values });
        self.carry(s, here);
        match by_channel {
            true => level.dispatch(pairs::Backward { s, rows }),
            false => triangle::backward(level, s, rows),
        }
        level.dispatch(Join { s, rows, by_channel });
        self.gates(s, here);
    }

    /// Gates, the cotangent of y, and `v - S'^T k`.
    fn load(&self, s: &mut Scratch<'_, T>, here: &Here<'_>) {
        let Job { level, problem, segment, .. } = *self;
        let (batch, rows) = (segment.batch, here.rows());
        s.own.fill(problem, here.head);
        level.dispatch(rates::Load {
            rates: &mut s.rates,
            g: problem.g.as_ref().map(|view| gates_of(view, batch, here.head, here.steps)),
            beta: problem.beta.as_ref().map(|view| steps_of(view, batch, here.head, here.steps)),
            gates: &problem.gates,
            own: s.own.read(),
            rows,
        });
        match &self.sources.y {
            Some(view) => {
                let area = plane_of(view, batch, here.head, here.steps).area(problem.values, rows);
                tile::load_on(level, area, s.dy.pitch, s.dy.tile());
            }
            None => s.dy.array.clear(rows * s.dy.pitch),
        }
        let at = self.checkpoints.u(self.number, here.number, here.head, rows);
        let u = &self.saved[at..at + rows * problem.values];
        for row in 0..rows {
            let to = s.u.array.slice(row * s.u.pitch, s.u.pitch);
            let (own, padding) = to.split_at_mut(problem.values);
            own.copy_from_slice(&u[row * problem.values..][..problem.values]);
            padding.fill(T::default());
        }
    }

    /// The state before the chunk and the gradient of that after it, both with keys as lanes.
    fn load_states(&self, s: &mut Scratch<'_, T>, here: &Here<'_>) {
        let Job { level, problem, segment, .. } = *self;
        let (keys, values) = (problem.keys, problem.values);
        if keys * values == 0 {
            return;
        }
        let to = s.state_across.tile();
        match (here.number, &problem.initial_state, segment.initial) {
            (0, Some(view), Some(row)) => {
                load_across(level, state_plane(view, row, here.head).transposed(), keys, values, to);
            }
            (0, ..) => s.state_across.array.clear(values * s.state_across.pitch),
            _ => {
                let at = self.checkpoints.state(self.number, here.number, here.head);
                let view = View::new(&self.saved[at..at + keys * values], &[keys, values]).expect("a state");
                load_across(level, Plane::of(&view, 0, 1), keys, values, to);
            }
        }
        let pitch = s.dy.pitch;
        let state = Rows { array: s.by_state.from(here.member * keys * pitch), pitch };
        transpose(level, &state, keys, values, s.by_state_across.tile());
    }

    /// The gradient by d: of what is read of it in the chunk, and of what the state takes along.
    fn by_written(&self, s: &mut Scratch<'_, T>, here: &Here<'_>) {
        let (rows, keys, pitch) = (here.rows(), self.problem.keys, s.dy.pitch);
        let state = Matrix::new(s.by_state.read().from(here.member * keys * pitch), pitch);
        multiply(self.level, s.x.matrix_mut(), Into::Replace, [rows, pitch, keys], [s.end_k.matrix(), state]);
        for (first, end) in triangle::strips(rows) {
            let size = [end - first, pitch, rows - first];
            let factors = [s.triangle.a.matrix().at(first, first).t(), s.dy.matrix().at(first, 0)];
            multiply(self.level, s.x.matrix_mut().at(first, 0), Into::Add, size, factors);
        }
    }

    /// Products of rows with the states, for the gradients by q and k.
    fn by_states(&self, s: &mut Scratch<'_, T>, here: &Here<'_>) {
        let size = [here.rows(), s.keys.k.pitch, self.problem.values];
        let (state, by_state) = (s.state_across.matrix(), s.by_state_across.matrix());
        multiply(self.level, s.by.q.matrix_mut(), Into::Replace, size, [s.dy.matrix(), state]);
        multiply(self.level, s.by.k.matrix_mut(), Into::Replace, size, [s.dv.matrix(), state]);
        multiply(self.level, s.by.written.matrix_mut(), Into::Replace, size, [s.d.matrix(), by_state]);
    }

    /// The gradient of the state goes on to the one before the chunk.
    fn carry(&self, s: &mut Scratch<'_, T>, here: &Here<'_>) {
        let (rows, keys, pitch) = (here.rows(), self.problem.keys, s.dy.pitch);
        let by_channel = self.problem.gates.by_channel;
        let mut state = s.by_state.from(here.member * keys * pitch);
        let decay = match by_channel {
            true => s.from_start.array.read().from((rows - 1) * s.keys.k.pitch),
            false => s.from_start.array.read().from(rows - 1),
        };
        self.level.dispatch(FadeState { state: state.reborrow(), pitch, keys, decay, by_channel });
        for factors in [[s.start_q.matrix().t(), s.dy.matrix()], [s.start_k.matrix().t(), s.dv.matrix()]] {
            let dst = MatrixMut::new(state.reborrow(), pitch);
            multiply(self.level, dst, Into::Add, [keys, pitch, rows], factors);
        }
    }

    /// The gradients by gates and by beta.
    fn gates(&self, s: &mut Scratch<'_, T>, here: &Here<'_>) {
        let Job { level, problem, segment, targets, .. } = *self;
        let (batch, rows, gates) = (segment.batch, here.rows(), &problem.gates);
        let mut raw_beta = None;
        if let (true, Some(view)) = (gates.beta_sigmoid, &problem.beta) {
            let mut raw = [T::default(); ROWS];
            let area = steps_of(view, batch, here.head, here.steps);
            tile::load_on(level, area, rows, TileMut::new(ArrayMut::of(&mut raw), ROWS));
            raw_beta = Some(raw);
        }
        if let (true, Some(view)) = (gates.raw, &problem.g) {
            let (padded, pitch) = match gates.by_channel {
                true => (s.raw.pitch, s.raw.pitch),
                false => (rows.next_multiple_of(MAX_LANES), ROWS),
            };
            let to = TileMut::new(s.raw.array.reborrow(), pitch);
            tile::load_on(level, gates_of(view, batch, here.head, here.steps), padded, to);
        }
        let mut sums = self.shared.of(self.number, here.head);
        level.dispatch(ByGates { s, gates, rows, sums: sums.slice(0, self.shared.len()), raw_beta });
        if let Some(view) = &targets.beta {
            self.store_steps(view, s.dbeta.read(), here);
        }
        let Some(view) = &targets.g else { return };
        let from = if gates.raw { s.raw.array.read() } else { s.by_log.array.read() };
        match gates.by_channel {
            false => self.store_steps(view, from, here),
            true => {
                let strides = view.strides();
                let plane = PlaneMut::of(view, 3, TIME).along(batch, strides[0]).along(here.head, strides[2]);
                let area = plane.at(0, here.steps.start).area(problem.keys, rows);
                tile::store_on(level, Tile::new(from, s.keys.k.pitch), area);
            }
        }
    }

    /// One number for each step.
    fn store_steps(&self, view: &RawViewMut, from: Array<'_, T>, here: &Here<'_>) {
        let plane = PlaneMut::of(view, TIME, 2).along(self.segment.batch, view.strides()[0]);
        let area = plane.at(here.steps.start, here.head).area(here.rows(), 1);
        tile::store_on(self.level, Tile::new(from, ROWS), area);
    }

    /// Rows of a head.
    fn store(&self, target: &Option<RawViewMut>, rows: &Rows<'_, T>, head: usize, (steps, width): (&Range<usize>, usize)) {
        let Some(view) = target else { return };
        let strides = view.strides();
        let plane = PlaneMut::of(view, 3, TIME).along(self.segment.batch, strides[0]).along(head, strides[2]);
        let from = Tile::new(rows.array.read(), rows.pitch);
        tile::store_on(self.level, from, plane.at(0, steps.start).area(width, steps.len()));
    }

    /// The gradient by the final state.
    fn enter(&self, s: &mut Scratch<'_, T>, member: usize, head: usize) {
        let Job { level, problem, segment, sources, .. } = *self;
        let (keys, pitch) = (problem.keys, s.dy.pitch);
        let mut state = s.by_state.from(member * keys * pitch);
        let (Some(view), Some(row)) = (&sources.final_state, segment.last) else { return state.clear(keys * pitch) };
        let plane = state_plane(view, row, head);
        for n in (0..keys).step_by(CHUNK) {
            let area = plane.at(0, n).area(problem.values, CHUNK.min(keys - n));
            tile::load_on(level, area, pitch, TileMut::new(state.from(n * pitch), pitch));
        }
    }

    /// The gradient by the initial state.
    fn leave(&self, s: &mut Scratch<'_, T>, member: usize, head: usize) {
        let Job { level, problem, segment, targets, .. } = *self;
        let (keys, pitch) = (problem.keys, s.dy.pitch);
        let (Some(view), Some((row, sequence))) = (&targets.initial_state, segment.initial) else { return };
        let strides = view.strides();
        let plane = PlaneMut::of(view, 4, 3).along(row, strides[0]).along(sequence, strides[1]).along(head, strides[2]);
        for n in (0..keys).step_by(CHUNK) {
            let from = Tile::new(s.by_state.read().from((member * keys + n) * pitch), pitch);
            tile::store_on(level, from, plane.at(0, n).area(problem.values, CHUNK.min(keys - n)));
        }
    }
}

/// Rows of a head from some step on.
fn plane_of<'v>(view: &View<'v>, batch: usize, head: usize, steps: &Range<usize>) -> Plane<'v> {
    let strides = view.strides();
    Plane::of(view, 3, TIME).along(batch, strides[0]).along(head, strides[2]).at(0, steps.start)
}
