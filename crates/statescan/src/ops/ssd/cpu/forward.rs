//! The forward pass: a block of heads of one segment, chunk by chunk.
//!
//! For each head and step, with N states and P columns, `C S` and `B^T (w x)` take 2 N P multiply-adds, `M x` 3/4 of Q P (Q = 64), and
//! `<C, B>` 3/4 of Q N for all heads of a block together.

use super::super::problem::Problem;
use super::super::targets::Targets;
use super::blocks::{self, Ahead, Tile, Way, target};
use super::chunk::Chunk;
use super::plan::{CHUNK, Checkpoints, Plan, chunks};
use super::rows::{Gate, Gating, Save};
use crate::cpu::simd::Real;
use crate::cpu::{Aligned, Shared};
use crate::exec::Exec;
use crate::tensor::View;

/// Saved states of so many bytes leave the caches before the backward pass reads them.
const LEAVES_CACHES: usize = 4 << 20;

/// A chunk, and what only this pass needs.
struct Scratch<T> {
    chunk: Chunk<T>,
    y: Aligned<T>,
    /// z, and then the weighted input.
    other: Aligned<T>,
}

pub(super) fn forward<T: Real>(exec: &Exec, problem: &Problem<'_>, targets: &Targets, saved: Option<Shared<T>>) {
    let (plan, checkpoints) = (Plan::new(problem), Checkpoints::new(problem));
    let scratch = || {
        let chunk = Chunk::new(exec.level(), problem, &plan);
        let len = plan.steps * chunk.pitch;
        Scratch { chunk, y: Aligned::zeros(len), other: Aligned::zeros(len) }
    };
    // a job that is one piece has its state in scratch memory
    let (state_len, kept) = (problem.dstate * plan.pitch(problem.headdim), if plan.pieces > 1 { plan.jobs() } else { 0 });
    let mut memory = exec.workspace().take::<T>(kept * state_len);
    let states = Shared::new(memory.as_mut_slice().as_mut_ptr());
    exec.for_each_piece(plan.jobs(), plan.pieces, scratch, |scratch, index, piece| {
        let state = (kept > 0).then(|| states.get().wrapping_add(index * state_len));
        // SAFETY: the plan's jobs lie inside the problem, whose views were checked, and write disjoint heads or segments; each has a state
        // of its own.
        unsafe { job(scratch, problem, &plan, &checkpoints, (index, piece), targets, saved, state) }
    });
}

unsafe fn job<T: Real>(
    scratch: &mut Scratch<T>,
    problem: &Problem<'_>,
    plan: &Plan,
    checkpoints: &Checkpoints,
    (index, piece): (usize, usize),
    targets: &Targets,
    saved: Option<Shared<T>>,
    state: Option<*mut T>,
) {
    let Scratch { chunk, y, other } = scratch;
    let (number, block) = plan.job(index);
    let segment = &problem.segments.list[number];
    let level = chunk.level;
    let (y, other, own) = (chunk.tile(y), chunk.tile(other), chunk.state());
    let state = Tile { ptr: state.unwrap_or(own.ptr), ..own };
    let (output, last) = (target(&targets.y), target(&targets.final_state));
    let count = segment.len().div_ceil(CHUNK);
    // SAFETY: tiles are as large as a chunk or a state of the plan; the rest is the caller's contract.
    unsafe {
        chunk.start(problem, segment.batch, block);
        // a piece goes on from the state that the one before it has left
        let mut empty = piece == 0 && !load_initial(chunk, problem, segment.initial, state);
        let here = plan.piece(piece, count);
        for (i, steps) in chunks(segment.start..segment.end).enumerate().skip(here.start).take(here.len()) {
            if let (Some(saved), 1..) = (saved, i) {
                let to = saved.get().add(checkpoints.at(number, i, &block));
                let (rows, columns, streamed) =
                    (chunk.dstate, chunk.columns(), checkpoints.len * size_of::<T>() >= LEAVES_CACHES);
                level.dispatch(Save { from: state, to, rows, columns, streamed });
            }
            let onwards = i + 1 < count || last.is_some();
            if output.is_none() && !onwards {
                break;
            }
            chunk.load(problem, steps.clone());
            let len = chunk.len();
            ask(chunk, problem, output.as_ref(), segment.end);
            if let Some(output) = &output {
                let (x, from_start) = (chunk.x(), chunk.head_steps(0).from_start);
                chunk.read_state(state, empty, y);
                chunk.scale(y, y, from_start, Some(x));
                chunk.couple(problem);
                chunk.add_mixed(y);
                if let Some(z) = &problem.z {
                    blocks::timed(level, Way::Load, z, segment.batch, &block, &steps, other);
                    level.dispatch(Gate { shape: chunk.rows(len), y: y.ptr, z: other.ptr, gating: Gating::Apply });
                }
                blocks::timed(level, Way::Store, output, segment.batch, &block, &steps, y);
            }
            if onwards {
                let (x, weight, b) = (chunk.x(), chunk.head_steps(0).weight, chunk.b());
                chunk.scale(other, x, weight, None);
                chunk.carry(state, empty, b, other);
                empty = false;
            }
        }
        if let (Some(last), Some(row), true) = (&last, segment.last, piece + 1 == plan.pieces) {
            blocks::state(level, Way::Store, last, row, &block, state);
        }
    }
}

/// Has what the chunk at work needs after its first products asked for while they are computed, and then what the next one loads.
fn ask<T: Real>(chunk: &mut Chunk<T>, problem: &Problem<'_>, output: Option<&View<'_>>, end: usize) {
    let (steps, len, states) = (chunk.steps.clone(), chunk.len(), chunk.dstate * chunk.columns());
    chunk.ahead = Ahead::new();
    if let Some(output) = output {
        problem.z.iter().chain([output]).for_each(|view| chunk.ask(view, &steps));
    }
    if steps.end < end {
        chunk.ask_inputs(problem, &(steps.end..end.min(steps.end + CHUNK)));
    }
    chunk.ahead.spread(len * (2 * states + len / 2 * (chunk.dstate + chunk.columns())));
}

/// Loads the state before a segment; whether there is one. Without one the state is 0.
///
/// # Safety
/// The chunk has taken up the block; the tile has room for a state.
pub(super) unsafe fn load_initial<T: Real>(
    chunk: &Chunk<T>,
    problem: &Problem<'_>,
    row: Option<(usize, usize)>,
    state: Tile<T>,
) -> bool {
    match (&problem.initial_state, row) {
        (Some(view), Some(row)) => {
            // SAFETY: the caller's contract.
            unsafe { blocks::state(chunk.level, Way::Load, view, row, &chunk.block, state) };
            true
        }
        _ => {
            // SAFETY: the caller's contract.
            unsafe { core::slice::from_raw_parts_mut(state.ptr, chunk.dstate * chunk.pitch) }.fill(T::default());
            false
        }
    }
}
