//! The step on the CPU: two passes over the columns of a state, the second one out of the first-level cache.

use super::problem::Problem;
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{self, Area, MAX_LANES, Plane, PlaneMut, Tile, TileMut};
use crate::cpu::{Arena, Array, ArrayMut, Divided, Kernel, Room};
use crate::exec::Exec;
use crate::ops::CHECKPOINT;
use crate::ops::gated_delta_rule::cpu::{HeadRates, Keys, Place, Rates, Rows, keys, rate, rates};
use crate::tensor::{RawViewMut, View};
use core::ops::Range;

/// So many jobs keep threads busy, and so many heads of keys a job has at most.
const JOBS: usize = 8;
const MOST_HEADS: usize = 16;

/// The heads of keys of a row that a job has, and their number in a job.
struct Plan {
    heads: usize,
    per_row: usize,
}

impl Plan {
    fn new(problem: &Problem<'_>) -> Self {
        let heads = (problem.rows.len() * problem.heads / JOBS).clamp(1, MOST_HEADS);
        // rows of gates have room for so many heads of values
        let heads = heads.min(CHECKPOINT / problem.group.clamp(1, CHECKPOINT)).max(1);
        Plan { heads, per_row: problem.heads.div_ceil(heads) }
    }

    /// Row and heads of a job.
    fn job(&self, problem: &Problem<'_>, index: usize) -> (usize, Range<usize>) {
        let first = index % self.per_row * self.heads;
        (index / self.per_row, first..problem.heads.min(first + self.heads))
    }
}

/// `state` and `y` are those of the problem, to be written.
pub(super) fn update(exec: &Exec, problem: &Problem<'_>, state: RawViewMut, y: RawViewMut) {
    match problem.double {
        false => run::<f32>(exec, problem, state, y),
        true => run::<f64>(exec, problem, state, y),
    }
}

fn run<T: Real>(exec: &Exec, problem: &Problem<'_>, state: RawViewMut, y: RawViewMut) {
    if problem.values == 0 {
        // neither states nor results have an element
        return;
    }
    let (plan, lanes) = (&Plan::new(problem), exec.level().lanes(problem.double));
    let work = problem.rows.len() * problem.heads * problem.group * problem.keys * problem.values;
    exec.for_work(4 * work).for_each(problem.rows.len() * plan.per_row, Arena::<T>::default, |arena, index| {
        let (batch, heads) = plan.job(problem, index);
        let job = Job { problem, state: &state, y: &y, batch, heads };
        arena.lend(|room| Scratch::lay_out(room, problem, lanes), |mut s| exec.level().dispatch(Run { job, s: &mut s }));
    });
}

/// The scratch memory of one thread's jobs.
struct Scratch<'m, T> {
    keys: Keys<'m, T>,
    rates: Rates<'m, T>,
    /// The parameters of raw gates: for every head, or the channels of one.
    bias: ArrayMut<'m, T>,
    rate: ArrayMut<'m, T>,
    read_k: ArrayMut<'m, T>,
    read_q: ArrayMut<'m, T>,
    v: Rows<'m, T>,
    y: Rows<'m, T>,
    state: ArrayMut<'m, T>,
}

impl<'m, T: Real> Scratch<'m, T> {
    fn lay_out(room: &mut Room<'m, T>, problem: &Problem<'_>, lanes: usize) -> Self {
        let padded = |len: usize| len.next_multiple_of(MAX_LANES);
        let keys = Keys::lay_out(room, problem.keys, lanes);
        let rates = Rates::lay_out(room, &problem.gates, problem.keys);
        let [bias, rate] = [problem.keys.max(CHECKPOINT), CHECKPOINT].map(|len| room.array(padded(len)));
        let [read_k, read_q] = [padded(problem.keys); 2].map(|len| room.array(len));
        let [v, y] = [(); 2].map(|()| Rows::lay_out(room, 1, problem.values));
        let state = room.array(problem.keys * padded(problem.values));
        Scratch { keys, rates, bias, rate, read_k, read_q, v, y, state }
    }
}

/// Some heads of a row.
struct Job<'j, 'a> {
    problem: &'j Problem<'a>,
    state: &'j RawViewMut,
    y: &'j RawViewMut,
    batch: usize,
    heads: Range<usize>,
}

struct Run<'r, 'm, 'j, 'a, T> {
    job: Job<'j, 'a>,
    s: &'r mut Scratch<'m, T>,
}

impl<T: Real> Kernel for Run<'_, '_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Run { job, s } = self;
        let problem = job.problem;
        let Some(row) = problem.rows[job.batch] else {
            for head in job.heads.start * problem.group..job.heads.end * problem.group {
                s.y.array.clear(s.y.pitch);
                job.store(simd, s, head);
            }
            return;
        };
        let [q, k] = [&problem.q, &problem.k].map(|view| rows_of(view, job.batch, &job.heads));
        let place = Place { q, k };
        simd.call(keys::Load { keys: &mut s.keys, place, gates: &problem.gates });
        let all = job.heads.start * problem.group..job.heads.end * problem.group;
        // gates of all heads together, but for groups of more heads than there are rows, and for channels with biases of their own
        let together = if problem.gates.by_channel && problem.gates.raw { 1 } else { CHECKPOINT };
        for first in all.clone().step_by(together) {
            let heads = first..all.end.min(first + together);
            job.rates(simd, s, &heads);
            for (own, head) in heads.clone().enumerate() {
                job.head(simd, s, row, (own, head));
            }
        }
    }
}

/// Rows of some heads of a (batch, head, channel).
fn rows_of<'v>(view: &View<'v>, batch: usize, heads: &Range<usize>) -> Area<'v> {
    Plane::of(view, 2, 1).along(batch, view.strides()[0]).at(0, heads.start).area(view.shape()[2], heads.len())
}

/// Numbers of some heads of a (batch, head), as lanes.
fn numbers_of<'v>(view: &View<'v>, batch: usize, heads: &Range<usize>) -> Area<'v> {
    Plane::of(view, 1, 0).at(heads.start, batch).area(heads.len(), 1)
}

impl Job<'_, '_> {
    /// Decays and beta of some heads of values.
    #[inline(always)]
    fn rates<T: Real, S: Isa>(&self, simd: S, s: &mut Scratch<'_, T>, heads: &Range<usize>) {
        let Job { problem, batch, .. } = *self;
        let Scratch { rates, bias, rate: rates_of, .. } = s;
        let by_channel = problem.gates.by_channel;
        if let Some(a_log) = &problem.a_log {
            bias.clear(problem.keys.max(CHECKPOINT));
            rates_of.clear(CHECKPOINT);
            for (at, head) in heads.clone().enumerate() {
                rates_of.set(at, rate(a_log, head));
                let own = |at: &[usize]| problem.dt_bias.map(|view| T::from_f64(view.at(at).re));
                match by_channel {
                    false => own(&[head]).into_iter().for_each(|value| bias.set(at, value)),
                    true => (0..problem.keys).for_each(|n| own(&[head, n]).into_iter().for_each(|value| bias.set(n, value))),
                }
            }
        }
        let beta = problem.beta.as_ref().map(|view| numbers_of(view, batch, heads));
        let g = problem.g.as_ref().map(|view| match by_channel {
            false => numbers_of(view, batch, heads),
            true => rows_of(view, batch, heads),
        });
        let own = HeadRates { bias: bias.read(), rate: rates_of.read() };
        simd.call(rates::Load { rates, g, beta, gates: &problem.gates, own, rows: heads.len() });
    }

    /// One head of values: the row of its gates, and its number.
    #[inline(always)]
    fn head<T: Real, S: Isa>(&self, simd: S, s: &mut Scratch<'_, T>, row: usize, (own, head): (usize, usize)) {
        let Job { problem, batch, .. } = *self;
        let (lanes, group) = (T::lanes::<S>(), head / problem.group - self.heads.start);
        let Scratch { keys, rates, read_k, read_q, v, y, state: scratch, .. } = s;
        let pitch = keys.k.pitch;
        if problem.gates.by_channel {
            for at in (0..pitch).step_by(lanes) {
                let decay = rates.decays.row(own).load(simd, at);
                read_k.store(at, keys.k.row(group).load(simd, at) * decay);
                read_q.store(at, keys.q.row(group).load(simd, at) * decay);
            }
        }
        let plane = Plane::of(&problem.v, 2, 1).along(batch, problem.v.strides()[0]).at(0, head);
        tile::load(simd, plane.area(problem.values, 1), v.pitch, v.tile());
        let strides = self.state.strides();
        // a state without keys has no place to begin at
        let direct = problem.keys > 0
            && self.state.dtype() == T::DTYPE
            && (strides[3] == 1 || problem.values == 1)
            && strides[2] >= problem.values as isize
            && problem.values.is_multiple_of(MAX_LANES);
        let plane = PlaneMut::of(self.state, 3, 2).along(row, strides[0]).along(head, strides[1]);
        let padded = v.pitch;
        let (state, state_pitch) = if direct {
            let offset = row as isize * strides[0] + head as isize * strides[1];
            // SAFETY: a head of a row is one job's, and no two rows have the same state.
            (unsafe { Divided::of_view(self.state).moved(offset).part(0) }, strides[2] as usize)
        } else {
            for n in (0..problem.keys).step_by(CHECKPOINT) {
                let area = plane.at(0, n).area(problem.values, CHECKPOINT.min(problem.keys - n));
                tile::load(simd, area.read(), padded, TileMut::new(scratch.from(n * padded), padded));
            }
            (scratch.reborrow(), padded)
        };
        let rows = StepRows { keys, rates, read: [read_k.read(), read_q.read()], group, own };
        match problem.gates.by_channel {
            true => rows.step::<S, true>(simd, problem.keys, (state, state_pitch), (v.array.read(), y.array.reborrow(), padded)),
            false => {
                rows.step::<S, false>(simd, problem.keys, (state, state_pitch), (v.array.read(), y.array.reborrow(), padded))
            }
        }
        if !direct {
            for n in (0..problem.keys).step_by(CHECKPOINT) {
                let from = Tile::new(scratch.read().from(n * padded), padded);
                tile::store(simd, from, plane.at(0, n).area(problem.values, CHECKPOINT.min(problem.keys - n)));
            }
        }
        self.store(simd, s, head);
    }

    /// The output of a head.
    #[inline(always)]
    fn store<T: Real, S: Isa>(&self, simd: S, s: &Scratch<'_, T>, head: usize) {
        let plane = PlaneMut::of(self.y, 2, 1).along(self.batch, self.y.strides()[0]).at(0, head);
        tile::store(simd, Tile::new(s.y.array.read(), s.y.pitch), plane.area(self.problem.values, 1));
    }
}

/// The inputs of a step of one head: the rows of its key and of its gates.
struct StepRows<'s, 'm, T> {
    keys: &'s Keys<'m, T>,
    rates: &'s Rates<'m, T>,
    /// The key and the query with decays of channels.
    read: [Array<'s, T>; 2],
    group: usize,
    own: usize,
}

impl<T: Real> StepRows<'_, '_, T> {
    #[inline(always)]
    fn step<S: Isa, const C: bool>(
        &self,
        simd: S,
        width: usize,
        (state, pitch): (ArrayMut<'_, T>, usize),
        (v, y, columns): (Array<'_, T>, ArrayMut<'_, T>, usize),
    ) {
        let StepRows { keys, rates, read, group, own } = *self;
        let numbers = Numbers {
            by_k: keys.by_k.get(group),
            by_q: keys.by_q.get(group),
            dot: keys.dot.get(group),
            beta: rates.beta.get(own),
            decay: rates.decay.get(own),
        };
        let key = keys.k.row(group);
        let readers = if C { read } else { [key, keys.q.row(group)] };
        let decays = if C { rates.decays.row(own) } else { rates.decay.read() };
        simd.call(Step::<T, C> { readers, key, decays, numbers, width, columns, state, pitch, v, y });
    }
}

/// The factors of one head.
#[derive(Clone, Copy)]
struct Numbers<T> {
    by_k: T,
    by_q: T,
    dot: T,
    beta: T,
    decay: T,
}

/// The step of one state. `C` says that channels have their own decays.
struct Step<'s, T, const C: bool> {
    readers: [Array<'s, T>; 2],
    key: Array<'s, T>,
    decays: Array<'s, T>,
    numbers: Numbers<T>,
    width: usize,
    /// A multiple of the widest vector.
    columns: usize,
    /// (key, column)
    state: ArrayMut<'s, T>,
    pitch: usize,
    v: Array<'s, T>,
    y: ArrayMut<'s, T>,
}

impl<T: Real, const C: bool> Kernel for Step<'_, T, C> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let lanes = T::lanes::<S>();
        let mut first = 0;
        while self.columns - first >= 4 * lanes {
            self.some::<S, 4>(simd, first);
            first += 4 * lanes;
        }
        while first < self.columns {
            self.some::<S, 1>(simd, first);
            first += lanes;
        }
    }
}

impl<T: Real, const C: bool> Step<'_, T, C> {
    /// `N` vectors of columns. The sums are those of a pass, in its order.
    #[inline(always)]
    fn some<S: Isa, const N: usize>(&mut self, simd: S, first: usize) {
        let Step { readers: [k, q], key, decays, numbers, width, pitch, .. } = *self;
        let lanes = T::lanes::<S>();
        let zero = V::constant(simd, 0.0);
        let mut sums = [[zero; N]; 2];
        for n in 0..width {
            let (k, q) = (V::splat(simd, k.get(n)), V::splat(simd, q.get(n)));
            for c in 0..N {
                let x = self.state.load(simd, n * pitch + first + c * lanes);
                sums[0][c] = k.mul_add(x, sums[0][c]);
                sums[1][c] = q.mul_add(x, sums[1][c]);
            }
        }
        let [by_k, by_q, dot, beta, decay] =
            [numbers.by_k, numbers.by_q, numbers.dot, numbers.beta, numbers.decay].map(|x| V::splat(simd, x));
        let mut written = [zero; N];
        for c in 0..N {
            let column = first + c * lanes;
            let u = (decay * by_k).neg_mul_add(sums[0][c], self.v.load(simd, column));
            let d = beta * u;
            self.y.store(column, dot.mul_add(d, (decay * by_q) * sums[1][c]));
            written[c] = by_k * d;
        }
        for n in 0..width {
            let decay = if C { V::splat(simd, decays.get(n)) } else { decay };
            let key = V::splat(simd, key.get(n));
            for c in 0..N {
                let at = n * pitch + first + c * lanes;
                let x = key.mul_add(written[c], decay * self.state.load(simd, at));
                self.state.store(at, x);
            }
        }
    }
}
