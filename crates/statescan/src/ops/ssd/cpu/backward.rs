//! The backward pass: a block of heads of one segment, chunk by chunk from the last one.
//!
//! For each head and step it takes 5 N P multiply-adds with the states and about 2 1/4 Q P within the chunk (Q = 64), against 2 N P and
//! 3/4 Q P forwards.

use super::super::problem::Problem;
use super::super::targets::{GradientTargets, Sources};
use super::blocks::{self, Ahead, Tile, Way, target};
use super::chunk::{Chunk, SIDE, STRIP, sides};
use super::decay::MixBackward;
use super::forward::load_initial;
use super::plan::{CHUNK, Checkpoints, Plan, chunks};
use super::product::{Into, product};
use super::reduce::Partials;
use super::rows::{ColumnDot, Gate, Gating};
use crate::cpu::simd::Real;
use crate::cpu::{Aligned, Matrix, Shared};
use crate::exec::Exec;
use crate::ops::sequences::Segment;
use crate::tensor::View;
use core::ops::Range;

/// A chunk, and what only this pass needs.
struct Scratch<T> {
    chunk: Chunk<T>,
    dy: Aligned<T>,
    z: Aligned<T>,
    /// `C S`, and then the weighted input.
    read: Aligned<T>,
    /// The output before the gate, and then `B R`.
    by_state: Aligned<T>,
    dx: Aligned<T>,
    /// `diag(exp(cs)) dy`
    faded: Aligned<T>,
    /// The gradient by the state after the chunk.
    dstate: Aligned<T>,
    by_mix: Aligned<T>,
    by_cb: Aligned<T>,
    /// db and dc, (step, dstate).
    maps: [Aligned<T>; 2],
    /// (head, step) each.
    by_dt: Aligned<T>,
    by_exponent: Aligned<T>,
    read_dot: Aligned<T>,
    written_dot: Aligned<T>,
    /// (head, dstate)
    state_dot: Aligned<T>,
    /// (step, head) each.
    ddt: Aligned<T>,
    ddt_a: Aligned<T>,
}

impl<T: Real> Scratch<T> {
    fn new(exec: &Exec, problem: &Problem<'_>, plan: &Plan) -> Self {
        let chunk = Chunk::new(exec.level(), problem, plan);
        let zeros = Aligned::zeros;
        let (tile, by_head, dstate) = (CHUNK * chunk.pitch, CHUNK * plan.heads, problem.dstate);
        Scratch {
            dy: zeros(tile),
            z: zeros(tile),
            read: zeros(tile),
            by_state: zeros(tile),
            dx: zeros(tile),
            faded: zeros(tile),
            dstate: zeros(dstate * chunk.pitch),
            by_mix: zeros(CHUNK * CHUNK),
            by_cb: zeros(CHUNK * CHUNK),
            maps: [zeros(CHUNK * dstate), zeros(CHUNK * dstate)],
            by_dt: zeros(by_head),
            by_exponent: zeros(by_head),
            read_dot: zeros(by_head),
            written_dot: zeros(by_head),
            state_dot: zeros(plan.heads * dstate),
            ddt: zeros(CHUNK * chunk.head_pitch),
            ddt_a: zeros(if problem.dt_a.is_some() { CHUNK * chunk.head_pitch } else { 0 }),
            chunk,
        }
    }
}

/// What the jobs of one call share.
struct Job<'j, 'a, T> {
    problem: &'j Problem<'a>,
    targets: &'j GradientTargets,
    partials: &'j Partials<T>,
    /// The cotangent of y.
    dy: Option<View<'j>>,
    segment: &'j Segment,
    number: usize,
}

pub(super) fn backward<T: Real>(
    exec: &Exec,
    problem: &Problem<'_>,
    sources: &Sources<'_>,
    targets: &GradientTargets,
    saved: Shared<T>,
) {
    let (plan, checkpoints) = (Plan::new(problem), Checkpoints::new(problem));
    let partials = Partials::new(problem, &plan, targets);
    exec.for_each(
        plan.jobs(),
        || Scratch::new(exec, problem, &plan),
        |scratch, index| {
            let number = plan.job(index).0;
            let segment = &problem.segments.list[number];
            let job = Job { problem, targets, partials: &partials, dy: sources.y, segment, number };
            // SAFETY: the plan's jobs lie inside the problem, whose views were checked, and write disjoint heads, segments or partial sums;
            // checkpoints are dense and as long as their query says.
            unsafe { job.run(scratch, &plan, &checkpoints, index, sources, saved) }
        },
    );
    partials.finish(exec, problem, targets);
}

impl<T: Real> Job<'_, '_, T> {
    /// Every chunk of a job.
    ///
    /// # Safety
    /// The job is one of the plan's and no other thread runs it; checkpoints are dense and as long as their query says.
    unsafe fn run(
        &self,
        scratch: &mut Scratch<T>,
        plan: &Plan,
        checkpoints: &Checkpoints,
        index: usize,
        sources: &Sources<'_>,
        saved: Shared<T>,
    ) {
        let (problem, segment) = (self.problem, self.segment);
        let block = plan.job(index).1;
        let level = scratch.chunk.level;
        let dstate = scratch.chunk.tile(&mut scratch.dstate);
        // SAFETY: tiles are as large as a chunk or a state of the plan; the rest is the caller's contract.
        unsafe {
            scratch.chunk.start(problem, segment.batch, block);
            let mut closed = match (&sources.final_state, segment.last) {
                (Some(view), Some(row)) => {
                    blocks::state(level, Way::Load, view, row, &block, dstate);
                    false
                }
                _ => {
                    scratch.dstate.fill(T::default());
                    true
                }
            };
            let saved_at = |i| saved.get().wrapping_add(checkpoints.at(self.number, i, &block));
            for (i, steps) in chunks(segment.start..segment.end).enumerate().rev() {
                self.ask(&mut scratch.chunk, &steps, (i > 1).then(|| saved_at(i - 1)));
                let (state, empty) = match i {
                    0 => {
                        let state = scratch.chunk.state();
                        (state, !load_initial(&scratch.chunk, problem, segment.initial, state))
                    }
                    _ => {
                        let state = Tile { ptr: saved_at(i), pitch: scratch.chunk.columns() };
                        (state, !self.targets.need_states())
                    }
                };
                self.chunk(scratch, steps, state, empty, closed);
                closed = false;
            }
            if let (Some(view), Some(row)) = (target(&self.targets.initial_state), segment.initial) {
                blocks::state(level, Way::Store, &view, row, &block, dstate);
            }
        }
    }

    /// Has what a chunk loads late and stores asked for while its products are computed, and what the chunk before it needs, whose state
    /// is `state`.
    fn ask(&self, chunk: &mut Chunk<T>, steps: &Range<usize>, state: Option<*mut T>) {
        let (problem, targets) = (self.problem, self.targets);
        chunk.ahead = Ahead::new();
        let stored = [&targets.z, &targets.x].map(target);
        problem.z.iter().chain(stored.iter().flatten()).for_each(|view| chunk.ask(view, steps));
        if steps.start > self.segment.start {
            let before = steps.start - CHUNK..steps.start;
            chunk.ask_inputs(problem, &before);
            self.dy.iter().for_each(|view| chunk.ask(view, &before));
            let (rows, columns) = (chunk.dstate, chunk.columns());
            state.filter(|_| targets.need_states()).into_iter().for_each(|ptr| chunk.ahead.add_rows(ptr, columns, rows, columns));
        }
        let (len, states) = (steps.len(), chunk.dstate * chunk.columns());
        chunk.ahead.spread(len * (3 * states + len * (chunk.dstate + chunk.columns())));
    }

    /// One chunk; `empty` and `closed` say that the state before it and the gradient by the state after it are 0.
    ///
    /// # Safety
    /// As [`Job::run`], and the steps are of the segment.
    unsafe fn chunk(&self, scratch: &mut Scratch<T>, steps: Range<usize>, state: Tile<T>, empty: bool, closed: bool) {
        let (problem, targets) = (self.problem, self.targets);
        let exponents = targets.need_exponents();
        // SAFETY: tiles are as large as a chunk or a state of the plan, matrices within a chunk have CHUNK rows.
        unsafe {
            scratch.chunk.load(problem, steps.clone());
            scratch.chunk.couple(problem);
            self.cotangent(scratch, &steps, state, empty);
            let Scratch { chunk, dy, read, by_state, dx, faded, dstate, read_dot, written_dot, state_dot, .. } = scratch;
            let (level, block, batch) = (chunk.level, chunk.block, chunk.batch);
            let (len, columns, heads) = (chunk.len(), chunk.columns(), chunk.head_steps(0));
            let [dy, read, by_state, dx, faded, dstate] = [dy, read, by_state, dx, faded, dstate].map(|v| chunk.tile(v));
            let (x, b, c) = (chunk.x(), chunk.b(), chunk.c());
            if targets.d.is_some() {
                let sums = self.partials.d(self.number, &block);
                level.dispatch(ColumnDot { shape: chunk.rows(len), a: dy.ptr, b: x.ptr, sums });
            }
            chunk.scale(faded, dy, heads.from_start, None);
            match closed {
                true => core::slice::from_raw_parts_mut(by_state.ptr, len * by_state.pitch).fill(T::default()),
                false => product(
                    level,
                    &mut chunk.ahead,
                    by_state.matrix(),
                    Into::Replace,
                    [len, columns, problem.dstate],
                    b,
                    dstate.matrix(),
                ),
            }
            if exponents {
                chunk.dot(len, faded, read, read_dot);
                chunk.dot(len, x, by_state, written_dot);
                match empty || closed {
                    true => state_dot.fill(T::default()),
                    false => chunk.dot(problem.dstate, dstate, state, state_dot),
                }
            }
            chunk.scale(dx, by_state, heads.weight, Some(dy));
            self.within(scratch);
            let chunk = &mut scratch.chunk;
            if let Some(view) = target(&targets.x) {
                blocks::timed(level, Way::Store, &view, batch, &block, &steps, dx);
            }
            // the weighted input takes the place of `C S`
            chunk.scale(read, x, heads.weight, None);
            let by_cb = Matrix::new(scratch.by_cb.as_mut_ptr(), CHUNK);
            let [db, dc] = [0, 1].map(|i| Tile { ptr: scratch.maps[i].as_mut_ptr(), pitch: problem.dstate });
            if targets.b.is_some() {
                for j in sides(len, STRIP) {
                    let size = [j.len(), problem.dstate, len - j.start];
                    product(
                        level,
                        &mut chunk.ahead,
                        db.matrix().at(j.start, 0),
                        Into::Replace,
                        size,
                        by_cb.at(j.start, j.start),
                        c.at(j.start, 0),
                    );
                }
                if !closed {
                    product(
                        level,
                        &mut chunk.ahead,
                        db.matrix(),
                        Into::Add,
                        [len, problem.dstate, columns],
                        read.matrix(),
                        dstate.matrix().t(),
                    );
                }
                self.partials.map(level, 0, batch, &block, &steps, db);
            }
            if targets.c.is_some() {
                for i in sides(len, STRIP) {
                    let size = [i.len(), problem.dstate, i.end];
                    product(
                        level,
                        &mut chunk.ahead,
                        dc.matrix().at(i.start, 0),
                        Into::Replace,
                        size,
                        by_cb.at(0, i.start).t(),
                        b,
                    );
                }
                if !empty {
                    product(
                        level,
                        &mut chunk.ahead,
                        dc.matrix(),
                        Into::Add,
                        [len, problem.dstate, columns],
                        faded.matrix(),
                        state.matrix().t(),
                    );
                }
                self.partials.map(level, 1, batch, &block, &steps, dc);
            }
            chunk.carry(dstate, closed, c, faded);
            if exponents {
                self.step_gradients(scratch, &steps);
            }
        }
    }

    /// The cotangent of the output before the gate, the gradient by the gate, and `C S`.
    ///
    /// # Safety
    /// As [`Job::chunk`], and the chunk is loaded.
    unsafe fn cotangent(&self, scratch: &mut Scratch<T>, steps: &Range<usize>, state: Tile<T>, empty: bool) {
        let Scratch { chunk, dy, z, read, by_state, .. } = scratch;
        let (level, block, batch, len) = (chunk.level, chunk.block, chunk.batch, chunk.len());
        let [dy, z, read, output] = [dy, z, read, by_state].map(|v| chunk.tile(v));
        // SAFETY: tiles are as large as a chunk of the plan.
        unsafe {
            match &self.dy {
                Some(view) => blocks::timed(level, Way::Load, view, batch, &block, steps, dy),
                None => core::slice::from_raw_parts_mut(dy.ptr, len * dy.pitch).fill(T::default()),
            }
            let dz = target(&self.targets.z);
            if self.targets.need_exponents() || dz.is_some() {
                chunk.read_state(state, empty, read);
            }
            let Some(view) = &self.problem.z else { return };
            blocks::timed(level, Way::Load, view, batch, &block, steps, z);
            if dz.is_some() {
                let (x, from_start) = (chunk.x(), chunk.head_steps(0).from_start);
                chunk.scale(output, read, from_start, Some(x));
                chunk.add_mixed(output);
            }
            let gating = Gating::Backward { output: dz.is_some().then_some(output.ptr.cast_const()) };
            level.dispatch(Gate { shape: chunk.rows(len), y: dy.ptr, z: z.ptr, gating });
            if let Some(dz) = &dz {
                blocks::timed(level, Way::Store, dz, batch, &block, steps, z);
            }
        }
    }

    /// What pairs of steps of the chunk give: part of dx, by_cb, by_dt, by_exponent.
    ///
    /// # Safety
    /// As [`Job::cotangent`], which comes before.
    unsafe fn within(&self, scratch: &mut Scratch<T>) {
        let Scratch { chunk, dy, dx, by_mix, by_cb, by_dt, by_exponent, .. } = scratch;
        let [dy, dx] = [dy, dx].map(|v| chunk.tile(v).matrix());
        let (x, headdim, len, level) = (chunk.x().matrix(), chunk.headdim, chunk.len(), chunk.level);
        let (by_mix, wanted) = (Matrix::new(by_mix.as_mut_ptr(), CHUNK), self.targets.need_pairs());
        by_cb.fill(T::default());
        for head in 0..chunk.block.count {
            let column = head * headdim;
            // SAFETY: the blocks lie inside matrices of CHUNK rows and tiles of the block's columns.
            unsafe {
                if wanted {
                    for j in sides(len, SIDE) {
                        let (left, right) = (x.at(j.start, column), dy.at(j.start, column).t());
                        product(
                            level,
                            &mut chunk.ahead,
                            by_mix.at(j.start, j.start),
                            Into::Replace,
                            [j.len(), len - j.start, headdim],
                            left,
                            right,
                        );
                    }
                }
                let backward = MixBackward {
                    by_mix: by_mix.ptr,
                    by_cb: by_cb.as_mut_ptr(),
                    by_dt: by_dt.as_mut_ptr().wrapping_add(head * CHUNK),
                    by_exponent: by_exponent.as_mut_ptr().wrapping_add(head * CHUNK),
                };
                chunk.mix(head, wanted.then_some(backward));
                if self.targets.x.is_some() {
                    for j in sides(len, STRIP) {
                        let (left, right) = (chunk.mixed().at(j.start, j.start), dy.at(j.start, column));
                        product(
                            level,
                            &mut chunk.ahead,
                            dx.at(j.start, column),
                            Into::Add,
                            [j.len(), headdim, len - j.start],
                            left,
                            right,
                        );
                    }
                }
            }
        }
    }

    /// The gradients by dt A, and with them those by A, dt and its bias, and dt_a.
    ///
    /// # Safety
    /// As [`Job::within`], which comes before.
    unsafe fn step_gradients(&self, scratch: &mut Scratch<T>, steps: &Range<usize>) {
        let Scratch { chunk, by_dt, by_exponent, read_dot, written_dot, state_dot, ddt, ddt_a, .. } = scratch;
        let (len, dstate, pitch) = (chunk.len(), chunk.dstate, chunk.head_pitch);
        let own_decay_step = self.problem.dt_a.is_some();
        for head in 0..chunk.block.count {
            let (own, own_dots, a) = (chunk.head_steps(head), head * len, chunk.a(head));
            let first = state_dot[head * dstate..][..dstate].iter().fold(T::default(), |sum, &v| sum + v);
            let by_exponent = &mut by_exponent[head * CHUNK..][..len];
            // from the state before the chunk to every later output and to the end
            let mut after = chunk.total(head) * first;
            for t in (0..len).rev() {
                after = after + read_dot[own_dots + t];
                by_exponent[t] = by_exponent[t] + after;
            }
            let mut before = T::default();
            let (mut da, mut dbias) = (0.0, 0.0);
            for t in 0..len {
                let written = written_dot[own_dots + t];
                // SAFETY: rows of CHUNK steps.
                let (to_end, weight) = unsafe { (*own.to_end.add(t), *own.weight.add(t)) };
                let by_exponent = by_exponent[t] + before;
                before = before + weight * written;
                let mut by_step = by_dt[head * CHUNK + t] + to_end * written;
                match own_decay_step {
                    true => ddt_a[t * pitch + head] = a * by_exponent,
                    false => by_step = by_step + a * by_exponent,
                }
                let raw = by_step * chunk.slope(t, head);
                ddt[t * pitch + head] = raw;
                da += (chunk.decay_step(t, head) * by_exponent).to_f64();
                dbias += raw.to_f64();
            }
            self.partials.add_head(self.number, chunk.block.first + head, da, dbias);
        }
        for (steps_target, memory) in [(&self.targets.dt, ddt), (&self.targets.dt_a, ddt_a)] {
            let Some(view) = target(steps_target) else { continue };
            let tile = Tile { ptr: memory.as_mut_ptr(), pitch };
            // SAFETY: the steps and heads are this job's.
            unsafe { blocks::steps(chunk.level, Way::Store, &view, chunk.batch, &chunk.block, steps, tile) };
        }
    }
}

impl GradientTargets {
    /// Whether products of pairs of steps are needed besides the mixing matrix itself.
    fn need_pairs(&self) -> bool {
        self.need_exponents() || self.b.is_some() || self.c.is_some()
    }
}
