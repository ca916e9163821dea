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
use crate::cpu::tile::{Tile, TileMut};
use crate::cpu::{Arena, ArrayMut, Divided, Room};
use crate::exec::Exec;
use crate::ops::sequences::Segment;
use core::ops::Range;

/// Saved states of so many bytes leave the caches before the backward pass reads them.
const LEAVES_CACHES: usize = 4 << 20;

/// A chunk, and what only this pass needs.
struct Scratch<'m, T> {
    chunk: Chunk<'m, T>,
    /// Inputs that are prefetched while products are computed.
    ahead: Ahead,
    y: TileMut<'m, T>,
    /// z, and then the weighted input.
    other: TileMut<'m, T>,
}

impl<'m, T: Real> Scratch<'m, T> {
    /// Lays out the scratch memory, and room for the state before the chunk at work.
    fn lay_out(room: &mut Room<'m, T>, exec: &Exec, problem: &Problem<'_>, plan: &Plan) -> (Self, ArrayMut<'m, T>) {
        let chunk = Chunk::lay_out(room, exec.level(), problem, plan);
        let state = room.array(problem.dstate * chunk.pitch);
        let [y, other] = [plan.steps * chunk.pitch; 2].map(|len| chunk.tile(room.array(len)));
        (Scratch { chunk, ahead: Ahead::new(), y, other }, state)
    }
}

pub(super) fn forward<T: Real>(exec: &Exec, problem: &Problem<'_>, targets: &Targets, saved: Option<Divided<'_, T>>) {
    let (plan, checkpoints) = (Plan::new(problem), Checkpoints::new(problem));
    // a job that is one slice has its state in scratch memory
    let (state_len, kept) = (problem.dstate * plan.pitch(problem.headdim), if plan.slices > 1 { plan.jobs() } else { 0 });
    let mut memory = exec.workspace().lend::<T>(kept * state_len);
    let states = Divided::of(memory.as_mut_slice());
    exec.for_each_slice(plan.jobs(), plan.slices, Arena::<T>::default, |arena, index, slice| {
        arena.lend(
            |room| Scratch::lay_out(room, exec, problem, &plan),
            |(mut scratch, own)| {
                let (number, block) = plan.job(index);
                let segment = &problem.segments.list[number];
                // SAFETY: the slices of a job come one after the other.
                let kept = (kept > 0).then(|| unsafe { states.part(index * state_len) });
                let job = Job { problem, plan: &plan, checkpoints: &checkpoints, targets, saved, segment, number, block, slice };
                job.run(&mut scratch, kept.unwrap_or(own))
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
    saved: Option<Divided<'j, T>>,
    segment: &'j Segment,
    number: usize,
    block: HeadBlock,
    slice: usize,
}

impl<T: Real> Job<'_, '_, T> {
    /// The chunks of the slice. `state` is what slices hand each other.
    fn run(&self, scratch: &mut Scratch<'_, T>, state: ArrayMut<'_, T>) {
        let Job { problem, plan, targets, segment, block, slice, .. } = *self;
        let mut state = scratch.chunk.tile(state);
        let count = segment.len().div_ceil(CHUNK);
        scratch.chunk.start(problem, segment.batch, block);
        // a slice goes on from the state that the one before it has left
        let mut empty = slice == 0 && !load_initial(&scratch.chunk, problem, segment.initial, &mut state);
        let here = plan.slice(slice, count);
        for (i, steps) in chunks(segment.start..segment.end).enumerate().skip(here.start).take(here.len()) {
            if i > 0 {
                self.save(&scratch.chunk, i, state.read());
            }
            let onwards = i + 1 < count || targets.final_state.is_some();
            if targets.y.is_none() && !onwards {
                break;
            }
            self.chunk(scratch, steps, &mut state, (empty, onwards));
            empty = empty && !onwards;
        }
        if let (Some(last), Some(row), true) = (&targets.final_state, segment.last, slice + 1 == plan.slices) {
            blocks::state(&scratch.chunk.place, Way::Store(last, state.read()), row);
        }
    }

    /// Saves the state before chunk `i`, if states are saved.
    fn save(&self, chunk: &Chunk<'_, T>, i: usize, from: Tile<'_, T>) {
        let Some(saved) = self.saved else { return };
        // SAFETY: a state before a chunk is saved by one job, and read when the pass has ended.
        let to = unsafe { saved.part(self.checkpoints.at(self.number, i, &self.block)) };
        let streamed = self.checkpoints.len * size_of::<T>() >= LEAVES_CACHES;
        chunk.place.level.dispatch(Save { from, to, rows: chunk.dstate, columns: chunk.columns(), streamed });
    }

    /// One chunk: its outputs if they are wanted, and the state after it if it goes `onwards`. The state before it is 0 if `empty`.
    fn chunk(
        &self,
        scratch: &mut Scratch<'_, T>,
        steps: Range<usize>,
        state: &mut TileMut<'_, T>,
        (empty, onwards): (bool, bool),
    ) {
        let Scratch { chunk, ahead, y, other } = scratch;
        chunk.load(self.problem, steps);
        self.prefetch(chunk, ahead);
        if let Some(output) = &self.targets.y {
            chunk.read_state(ahead, state.read().matrix(), empty, y);
            chunk.scale(y, None, chunk.head_steps(0).from_start, Some(chunk.x()));
            chunk.couple(ahead, self.problem);
            chunk.add_mixed(ahead, y);
            if let Some(z) = &self.problem.z {
                blocks::timed(&chunk.place, Way::Load(z, other.reborrow()));
                let (shape, y, z) = (chunk.rows(chunk.len()), y.array.reborrow(), other.array.reborrow());
                chunk.place.level.dispatch(Gate { shape, y, z, gating: Gating::Apply });
            }
            blocks::timed(&chunk.place, Way::Store(output, y.read()));
        }
        if onwards {
            chunk.scale(other, Some(chunk.x()), chunk.head_steps(0).weight, None);
            chunk.carry(ahead, state, empty, chunk.b(), other.read());
        }
    }

    /// Has what the chunk at work needs after its first products prefetched while they are computed, and then what the next one loads.
    fn prefetch(&self, chunk: &Chunk<'_, T>, ahead: &mut Ahead) {
        let (problem, end) = (self.problem, self.segment.end);
        let (steps, len, states) = (chunk.place.steps.clone(), chunk.len(), chunk.dstate * chunk.columns());
        *ahead = Ahead::new();
        if let Some(output) = &self.targets.y {
            problem.z.iter().for_each(|z| chunk.prefetch(ahead, z, &steps));
            chunk.prefetch(ahead, &output.as_read(), &steps);
        }
        if steps.end < end {
            chunk.prefetch_inputs(ahead, problem, &(steps.end..end.min(steps.end + CHUNK)));
        }
        ahead.spread(len * (2 * states + len / 2 * (chunk.dstate + chunk.columns())));
    }
}

/// Loads the state before a segment; whether there is one. Without one the state is 0.
pub(super) fn load_initial<T: Real>(
    chunk: &Chunk<'_, T>,
    problem: &Problem<'_>,
    row: Option<(usize, usize)>,
    state: &mut TileMut<'_, T>,
) -> bool {
    match (&problem.initial_state, row) {
        (Some(view), Some(row)) => {
            blocks::state(&chunk.place, Way::Load(view, state.reborrow()), row);
            true
        }
        _ => {
            state.array.clear(chunk.dstate * chunk.pitch);
            false
        }
    }
}
