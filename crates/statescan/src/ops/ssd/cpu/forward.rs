//! The forward pass: a block of heads of one segment, chunk by chunk.
//!
//! For each head and step, with N states and P columns, `C S` and `B^T (w x)` take 2 N P multiply-adds, `M x` 3/4 of Q P (Q = 64), and
//! `<C, B>` 3/4 of Q N for all heads of a block together.

use super::super::Targets;
use super::super::problem::Problem;
use super::blocks::{self, Ahead, Way};
use super::chunk::Chunk;
use super::plan::{CHUNK, Checkpoints, HeadBlock, Plan, chunks};
use super::rows::{Gate, Gating, Save};
use crate::cpu::simd::Real;
use crate::cpu::tile::Tile;
use crate::cpu::{Arena, Array, Room};
use crate::exec::Exec;
use crate::ops::sequences::Segment;
use core::ops::Range;

/// Saved states of so many bytes leave the caches before the backward pass reads them.
const LEAVES_CACHES: usize = 4 << 20;

/// A chunk, and what only this pass needs.
struct Scratch<T> {
    chunk: Chunk<T>,
    y: Array<T>,
    /// z, and then the weighted input.
    other: Array<T>,
}

impl<T: Real> Scratch<T> {
    fn lay_out(room: &mut Room<T>, exec: &Exec, problem: &Problem<'_>, plan: &Plan) -> Self {
        let chunk = Chunk::lay_out(room, exec.level(), problem, plan);
        let [y, other] = [plan.steps * chunk.pitch; 2].map(|len| room.array(len));
        Scratch { chunk, y, other }
    }
}

pub(super) fn forward<T: Real>(exec: &Exec, problem: &Problem<'_>, targets: &Targets, saved: Option<Array<T>>) {
    let (plan, checkpoints) = (Plan::new(problem), Checkpoints::new(problem));
    // a job that is one slice has its state in scratch memory
    let (state_len, kept) = (problem.dstate * plan.pitch(problem.headdim), if plan.slices > 1 { plan.jobs() } else { 0 });
    let mut memory = exec.workspace().lend::<T>(kept * state_len);
    let states = Array::of(memory.as_mut_slice());
    exec.for_each_slice(plan.jobs(), plan.slices, Arena::<T>::default, |arena, index, slice| {
        arena.lend(
            |room| Scratch::lay_out(room, exec, problem, &plan),
            |scratch| {
                let (number, block) = plan.job(index);
                let segment = &problem.segments.list[number];
                let kept = (kept > 0).then(|| states.from(index * state_len));
                let job = Job { problem, plan: &plan, checkpoints: &checkpoints, targets, saved, segment, number, block, slice };
                job.run(scratch, kept)
            },
        );
    });
}

/// A slice of a job.
struct Job<'j, 'a, T> {
    problem: &'j Problem<'a>,
    plan: &'j Plan,
    checkpoints: &'j Checkpoints,
    targets: &'j Targets,
    saved: Option<Array<T>>,
    segment: &'j Segment,
    number: usize,
    block: HeadBlock,
    slice: usize,
}

impl<T: Real> Job<'_, '_, T> {
    /// The chunks of the slice. `kept` is the state that slices hand each other.
    fn run(&self, mut scratch: Scratch<T>, kept: Option<Array<T>>) {
        let Job { problem, plan, targets, segment, block, slice, .. } = *self;
        let own = scratch.chunk.state();
        let state = Tile { array: kept.unwrap_or(own.array), ..own };
        let count = segment.len().div_ceil(CHUNK);
        scratch.chunk.start(problem, segment.batch, block);
        // a slice goes on from the state that the one before it has left
        let mut empty = slice == 0 && !load_initial(&scratch.chunk, problem, segment.initial, state);
        let here = plan.slice(slice, count);
        for (i, steps) in chunks(segment.start..segment.end).enumerate().skip(here.start).take(here.len()) {
            if i > 0 {
                self.save(&scratch.chunk, i, state);
            }
            let onwards = i + 1 < count || targets.final_state.is_some();
            if targets.y.is_none() && !onwards {
                break;
            }
            self.chunk(&mut scratch, steps, state, (empty, onwards));
            empty = empty && !onwards;
        }
        if let (Some(last), Some(row), true) = (&targets.final_state, segment.last, slice + 1 == plan.slices) {
            blocks::state(&scratch.chunk.place, Way::Store(last), row, state);
        }
    }

    /// Saves the state before chunk `i`, if states are saved.
    fn save(&self, chunk: &Chunk<T>, i: usize, from: Tile<T>) {
        let Some(saved) = self.saved else { return };
        let to = saved.from(self.checkpoints.at(self.number, i, &self.block));
        let streamed = self.checkpoints.len * size_of::<T>() >= LEAVES_CACHES;
        chunk.place.level.dispatch(Save { from, to, rows: chunk.dstate, columns: chunk.columns(), streamed });
    }

    /// One chunk: its outputs if they are wanted, and the state after it if it goes `onwards`. The state before it is 0 if `empty`.
    fn chunk(&self, scratch: &mut Scratch<T>, steps: Range<usize>, state: Tile<T>, (empty, onwards): (bool, bool)) {
        let Scratch { chunk, y, other } = scratch;
        let (y, other) = (chunk.tile(*y), chunk.tile(*other));
        chunk.load(self.problem, steps);
        self.prefetch(chunk);
        if let Some(output) = &self.targets.y {
            let (x, from_start) = (chunk.x(), chunk.head_steps(0).from_start);
            chunk.read_state(state.matrix().read(), empty, y);
            chunk.scale(y, y, from_start, Some(x));
            chunk.couple(self.problem);
            chunk.add_mixed(y);
            if let Some(z) = &self.problem.z {
                blocks::timed(&chunk.place, Way::Load(z), other);
                let shape = chunk.rows(chunk.len());
                chunk.place.level.dispatch(Gate { shape, y: y.array, z: other.array, gating: Gating::Apply });
            }
            blocks::timed(&chunk.place, Way::Store(output), y);
        }
        if onwards {
            let (x, weight, b) = (chunk.x(), chunk.head_steps(0).weight, chunk.b());
            chunk.scale(other, x, weight, None);
            chunk.carry(state, empty, b, other);
        }
    }

    /// Has what the chunk at work needs after its first products prefetched while they are computed, and then what the next one loads.
    fn prefetch(&self, chunk: &mut Chunk<T>) {
        let (problem, end) = (self.problem, self.segment.end);
        let (steps, len, states) = (chunk.place.steps.clone(), chunk.len(), chunk.dstate * chunk.columns());
        chunk.ahead = Ahead::new();
        if let Some(output) = &self.targets.y {
            problem.z.iter().for_each(|z| chunk.prefetch(Way::Load(z), &steps));
            chunk.prefetch(Way::Store(output), &steps);
        }
        if steps.end < end {
            chunk.prefetch_inputs(problem, &(steps.end..end.min(steps.end + CHUNK)));
        }
        chunk.ahead.spread(len * (2 * states + len / 2 * (chunk.dstate + chunk.columns())));
    }
}

/// Loads the state before a segment; whether there is one. Without one the state is 0.
pub(super) fn load_initial<T: Real>(
    chunk: &Chunk<T>,
    problem: &Problem<'_>,
    row: Option<(usize, usize)>,
    state: Tile<T>,
) -> bool {
    match (&problem.initial_state, row) {
        (Some(view), Some(row)) => {
            blocks::state(&chunk.place, Way::Load(view), row, state);
            true
        }
        _ => {
            state.array.clear(chunk.dstate * chunk.pitch);
            false
        }
    }
}
