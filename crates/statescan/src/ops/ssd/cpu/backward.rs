//! The backward pass: a block of heads of one segment, chunk by chunk from the last one.
//!
//! For each head and step it takes 5 N P multiply-adds with the states and about 2 1/4 Q P within the chunk (Q = 64), against 2 N P and
//! 3/4 Q P forwards.

use super::super::problem::Problem;
use super::super::{GradientTargets, Sources};
use super::blocks::{self, Ahead, Way};
use super::chunk::{Chunk, SIDE, STRIP, sides};
use super::decay::MixBackward;
use super::forward::load_initial;
use super::plan::{CHUNK, Checkpoints, HeadBlock, Plan, chunks};
use super::reduce::{Partials, SharedPartials};
use super::rows::{ColumnDot, Gate, Gating};
use crate::cpu::product::{Into, Product};
use crate::cpu::simd::Real;
use crate::cpu::tile::{Tile, TileMut};
use crate::cpu::{Arena, ArrayMut, Matrix, MatrixMut, Room};
use crate::exec::Exec;
use crate::ops::sequences::Segment;
use core::ops::Range;

/// A chunk, and what only this pass needs.
struct Scratch<'m, T> {
    chunk: Chunk<'m, T>,
    /// Inputs that are prefetched while products are computed.
    ahead: Ahead,
    tiles: Tiles<'m, T>,
    by_mix: ArrayMut<'m, T>,
    by_cb: ArrayMut<'m, T>,
    /// (step, dstate)
    db: ArrayMut<'m, T>,
    dc: ArrayMut<'m, T>,
    /// (head, step) each.
    by_dt: ArrayMut<'m, T>,
    by_exponent: ArrayMut<'m, T>,
    read_dot: ArrayMut<'m, T>,
    written_dot: ArrayMut<'m, T>,
    /// (head, dstate)
    state_dot: ArrayMut<'m, T>,
    /// (step, head) each.
    ddt: ArrayMut<'m, T>,
    ddt_a: ArrayMut<'m, T>,
}

/// Tiles of steps x columns, and the gradient by the state after the chunk.
struct Tiles<'m, T> {
    dy: TileMut<'m, T>,
    z: TileMut<'m, T>,
    /// `C S`, and then the weighted input.
    read: TileMut<'m, T>,
    /// The output before the gate, and then `B R`.
    by_state: TileMut<'m, T>,
    dx: TileMut<'m, T>,
    /// `diag(exp(cs)) dy`
    faded: TileMut<'m, T>,
    dstate: TileMut<'m, T>,
}

impl<'m, T: Real> Scratch<'m, T> {
    /// Lays out the scratch memory, and room for the state before the chunk at work.
    fn lay_out(room: &mut Room<'m, T>, exec: &Exec, problem: &Problem<'_>, plan: &Plan) -> (Self, TileMut<'m, T>) {
        let chunk = Chunk::lay_out(room, exec.level(), problem, plan);
        let state = chunk.tile(room.array(problem.dstate * chunk.pitch));
        let (by_head, map, steps) = (CHUNK * plan.heads, CHUNK * problem.dstate, CHUNK * chunk.head_pitch);
        let mut tile = |rows: usize| chunk.tile(room.array(rows * chunk.pitch));
        let tiles = Tiles {
            dy: tile(CHUNK),
            z: tile(if problem.z.is_some() { CHUNK } else { 0 }),
            read: tile(CHUNK),
            by_state: tile(CHUNK),
            dx: tile(CHUNK),
            faded: tile(CHUNK),
            dstate: tile(problem.dstate),
        };
        let scratch = Scratch {
            ahead: Ahead::new(),
            tiles,
            by_mix: room.array(CHUNK * CHUNK),
            by_cb: room.array(CHUNK * CHUNK),
            db: room.array(map),
            dc: room.array(map),
            by_dt: room.array(by_head),
            by_exponent: room.array(by_head),
            read_dot: room.array(by_head),
            written_dot: room.array(by_head),
            state_dot: room.array(plan.heads * problem.dstate),
            ddt: room.array(steps),
            ddt_a: room.array(if problem.dt_a.is_some() { steps } else { 0 }),
            chunk,
        };
        (scratch, state)
    }
}

/// The values that the jobs of one call share, and the segment and heads of one.
struct Job<'j, 'a, T> {
    problem: &'j Problem<'a>,
    targets: &'j GradientTargets,
    sources: &'j Sources<'j>,
    partials: &'j SharedPartials<'j, T>,
    checkpoints: &'j Checkpoints,
    /// The states before every chunk of a segment but the first.
    saved: &'j [T],
    segment: &'j Segment,
    number: usize,
    block: HeadBlock,
}

/// The state before a chunk, (dstate, column), and whether it and the gradient by the state after the chunk are 0.
#[derive(Clone, Copy)]
struct Ends<'e, T> {
    state: Matrix<'e, T>,
    empty: bool,
    closed: bool,
}

pub(super) fn backward<T: Real>(
    exec: &Exec,
    problem: &Problem<'_>,
    sources: &Sources<'_>,
    targets: &GradientTargets,
    saved: &[T],
) {
    let (plan, checkpoints) = (&Plan::new(problem), &Checkpoints::new(problem));
    let mut partials = Partials::new(problem, plan, targets);
    let shared = &partials.share();
    exec.for_each(plan.jobs(), Arena::<T>::default, |arena, index| {
        let (number, block) = plan.job(index);
        let segment = &problem.segments.list[number];
        let job = Job { problem, targets, sources, partials: shared, checkpoints, saved, segment, number, block };
        arena.lend(|room| Scratch::lay_out(room, exec, problem, plan), |(mut scratch, own)| job.run(&mut scratch, own));
    });
    partials.finish(exec, problem, targets);
}

impl<T: Real> Job<'_, '_, T> {
    /// Every chunk of the job, from the last one.
    fn run(&self, scratch: &mut Scratch<'_, T>, mut own: TileMut<'_, T>) {
        let Job { problem, segment, block, .. } = *self;
        scratch.chunk.start(problem, segment.batch, block);
        let (place, dstate) = (&scratch.chunk.place, &mut scratch.tiles.dstate);
        let mut closed = match (&self.sources.final_state, segment.last) {
            (Some(view), Some(row)) => {
                blocks::state(place, Way::Load(view, dstate.reborrow()), row);
                false
            }
            _ => {
                dstate.array.clear(scratch.chunk.dstate * dstate.pitch);
                true
            }
        };
        for (i, steps) in chunks(segment.start..segment.end).enumerate().rev() {
            self.prefetch(&scratch.chunk, &mut scratch.ahead, &steps, i);
            let (state, empty) = self.state_before(&scratch.chunk, &mut own, i);
            self.chunk(scratch, steps, Ends { state, empty, closed });
            closed = false;
        }
        if let (Some(view), Some(row)) = (&self.targets.initial_state, segment.initial) {
            blocks::state(&scratch.chunk.place, Way::Store(view, scratch.tiles.dstate.read()), row);
        }
    }

    /// The saved state before chunk `i`, which is not the first one.
    fn saved(&self, chunk: &Chunk<'_, T>, i: usize) -> &[T] {
        &self.saved[self.checkpoints.at(self.number, i, &self.block)..][..chunk.dstate * chunk.columns()]
    }

    /// The state before chunk `i`, if it is needed, and whether it is 0. `own` is room for it.
    fn state_before<'s>(&'s self, chunk: &Chunk<'_, T>, own: &'s mut TileMut<'_, T>, i: usize) -> (Matrix<'s, T>, bool) {
        let loaded = i == 0 && load_initial(chunk, self.problem, self.segment.initial, own);
        match i > 0 && self.targets.need_states() {
            true => (Matrix::of(self.saved(chunk, i), chunk.columns()), false),
            false => (own.read().matrix(), !loaded),
        }
    }

    /// Has what chunk `i` loads late and stores prefetched while its products are computed, and what the chunk before it needs.
    fn prefetch(&self, chunk: &Chunk<'_, T>, ahead: &mut Ahead, steps: &Range<usize>, i: usize) {
        let (problem, targets) = (self.problem, self.targets);
        *ahead = Ahead::new();
        problem.z.iter().for_each(|view| chunk.prefetch(ahead, view, steps));
        [&targets.z, &targets.x].into_iter().flatten().for_each(|view| chunk.prefetch(ahead, &view.as_read(), steps));
        if steps.start > self.segment.start {
            let before = steps.start - CHUNK..steps.start;
            chunk.prefetch_inputs(ahead, problem, &before);
            self.sources.y.iter().for_each(|view| chunk.prefetch(ahead, view, &before));
            if i > 1 && targets.need_states() {
                let (state, columns) = (self.saved(chunk, i - 1).as_ptr(), chunk.columns());
                ahead.add_rows(state, columns, chunk.dstate, columns);
            }
        }
        let (len, states) = (steps.len(), chunk.dstate * chunk.columns());
        ahead.spread(len * (3 * states + len * (chunk.dstate + chunk.columns())));
    }

    /// One chunk.
    fn chunk(&self, scratch: &mut Scratch<'_, T>, steps: Range<usize>, ends: Ends<'_, T>) {
        scratch.chunk.load(self.problem, steps);
        scratch.chunk.couple(&mut scratch.ahead, self.problem);
        self.cotangent(scratch, ends);
        self.by_states(scratch, ends);
        self.within(scratch);
        let Scratch { chunk, tiles, .. } = &mut *scratch;
        if let Some(view) = &self.targets.x {
            blocks::timed(&chunk.place, Way::Store(view, tiles.dx.read()));
        }
        // the weighted input takes the place of `C S`
        chunk.scale(&mut tiles.read, Some(chunk.x()), chunk.head_steps(0).weight, None);
        if self.targets.b.is_some() {
            self.by_b(scratch, ends);
        }
        if self.targets.c.is_some() {
            self.by_c(scratch, ends);
        }
        let Scratch { chunk, ahead, tiles, .. } = &mut *scratch;
        chunk.carry(ahead, &mut tiles.dstate, ends.closed, chunk.c(), tiles.faded.read());
        if self.targets.need_exponents() {
            self.step_gradients(scratch);
        }
    }

    /// The cotangent of the output before the gate, the gradient by the gate, and `C S`.
    fn cotangent(&self, scratch: &mut Scratch<'_, T>, ends: Ends<'_, T>) {
        let Scratch { chunk, ahead, tiles, .. } = scratch;
        let (Tiles { dy, z, read, by_state: output, .. }, dz) = (tiles, &self.targets.z);
        match &self.sources.y {
            Some(view) => blocks::timed(&chunk.place, Way::Load(view, dy.reborrow())),
            None => dy.array.clear(chunk.len() * dy.pitch),
        }
        if self.targets.need_exponents() || dz.is_some() {
            chunk.read_state(ahead, ends.state, ends.empty, read);
        }
        let Some(view) = &self.problem.z else { return };
        blocks::timed(&chunk.place, Way::Load(view, z.reborrow()));
        if dz.is_some() {
            chunk.scale(output, Some(read.read()), chunk.head_steps(0).from_start, Some(chunk.x()));
            chunk.add_mixed(ahead, output);
        }
        let gating = Gating::Backward { output: dz.is_some().then(|| output.array.read()) };
        let (shape, y, z_rows) = (chunk.rows(chunk.len()), dy.array.reborrow(), z.array.reborrow());
        chunk.place.level.dispatch(Gate { shape, y, z: z_rows, gating });
        if let Some(dz) = dz {
            blocks::timed(&chunk.place, Way::Store(dz, z.read()));
        }
    }

    /// Computes the terms of the states before and after the chunk: the gradient by D, the faded cotangent, `B R`, part of dx,
    /// and inner products.
    fn by_states(&self, scratch: &mut Scratch<'_, T>, ends: Ends<'_, T>) {
        let Scratch { chunk, ahead, tiles, read_dot, written_dot, state_dot, .. } = scratch;
        let Tiles { dy, read, by_state, dx, faded, dstate, .. } = tiles;
        let (len, columns, heads, x) = (chunk.len(), chunk.columns(), chunk.head_steps(0), chunk.x());
        if self.targets.d.is_some() {
            let (a, sums) = (dy.array.read(), self.partials.d(self.number, &self.block));
            chunk.place.level.dispatch(ColumnDot { shape: chunk.rows(len), a, b: x.array, sums });
        }
        chunk.scale(faded, Some(dy.read()), heads.from_start, None);
        if ends.closed {
            by_state.array.clear(len * by_state.pitch);
        } else {
            let (dst, size) = (by_state.matrix(), [len, columns, chunk.dstate]);
            let (lhs, rhs) = (chunk.b(), dstate.read().matrix());
            Product { dst, into: Into::Replace, size, lhs, rhs }.run(chunk.place.level, ahead);
        }
        if self.targets.need_exponents() {
            chunk.dot(len, faded.read(), read.read().matrix(), read_dot);
            chunk.dot(len, x, by_state.read().matrix(), written_dot);
            match ends.empty || ends.closed {
                true => state_dot.clear(chunk.heads() * chunk.dstate),
                false => chunk.dot(chunk.dstate, dstate.read(), ends.state, state_dot),
            }
        }
        chunk.scale(dx, Some(by_state.read()), heads.weight, Some(dy.read()));
    }

    /// The gradient by B.
    fn by_b(&self, scratch: &mut Scratch<'_, T>, ends: Ends<'_, T>) {
        let Scratch { chunk, ahead, tiles, by_cb, db, .. } = scratch;
        let (level, len, dstate) = (chunk.place.level, chunk.len(), chunk.dstate);
        let (by_cb, mut db) = (Matrix::new(by_cb.read(), CHUNK), TileMut::new(db.reborrow(), dstate));
        for j in sides(len, STRIP) {
            let (dst, size) = (db.matrix().at(j.start, 0), [j.len(), dstate, len - j.start]);
            let (lhs, rhs) = (by_cb.at(j.start, j.start), chunk.c().at(j.start, 0));
            Product { dst, into: Into::Replace, size, lhs, rhs }.run(level, ahead);
        }
        if !ends.closed {
            let (lhs, rhs) = (tiles.read.read().matrix(), tiles.dstate.read().matrix().t());
            let size = [len, dstate, chunk.columns()];
            Product { dst: db.matrix(), into: Into::Add, size, lhs, rhs }.run(level, ahead);
        }
        self.partials.map(0, &chunk.place, db.read());
    }

    /// The gradient by C.
    fn by_c(&self, scratch: &mut Scratch<'_, T>, ends: Ends<'_, T>) {
        let Scratch { chunk, ahead, tiles, by_cb, dc, .. } = scratch;
        let (level, len, dstate) = (chunk.place.level, chunk.len(), chunk.dstate);
        let (by_cb, mut dc) = (Matrix::new(by_cb.read(), CHUNK), TileMut::new(dc.reborrow(), dstate));
        for i in sides(len, STRIP) {
            let (dst, size) = (dc.matrix().at(i.start, 0), [i.len(), dstate, i.end]);
            let (lhs, rhs) = (by_cb.at(0, i.start).t(), chunk.b());
            Product { dst, into: Into::Replace, size, lhs, rhs }.run(level, ahead);
        }
        if !ends.empty {
            let (lhs, rhs) = (tiles.faded.read().matrix(), ends.state.t());
            let size = [len, dstate, chunk.columns()];
            Product { dst: dc.matrix(), into: Into::Add, size, lhs, rhs }.run(level, ahead);
        }
        self.partials.map(1, &chunk.place, dc.read());
    }

    /// Computes the terms of pairs of steps of the chunk: part of dx, by_cb, by_dt, by_exponent.
    fn within(&self, scratch: &mut Scratch<'_, T>) {
        let Scratch { chunk, ahead, tiles, by_mix, by_cb, by_dt, by_exponent, .. } = scratch;
        let (dy, mut dx) = (tiles.dy.read().matrix(), tiles.dx.matrix());
        let (headdim, len, level) = (chunk.headdim, chunk.len(), chunk.place.level);
        let wanted = self.targets.need_pairs();
        by_cb.clear(CHUNK * CHUNK);
        for head in 0..chunk.heads() {
            let (x, column) = (chunk.x().matrix(), head * headdim);
            for j in sides(len, SIDE).filter(|_| wanted) {
                let dst = MatrixMut::new(by_mix.reborrow(), CHUNK).at(j.start, j.start);
                let (lhs, rhs) = (x.at(j.start, column), dy.at(j.start, column).t());
                let size = [j.len(), len - j.start, headdim];
                Product { dst, into: Into::Replace, size, lhs, rhs }.run(level, ahead);
            }
            let [by_dt, by_exponent] = [&mut *by_dt, &mut *by_exponent].map(|rows| rows.from(head * CHUNK));
            let backward = MixBackward { by_mix: by_mix.read(), by_cb: by_cb.reborrow(), by_dt, by_exponent };
            chunk.mix(head, wanted.then_some(backward));
            for j in sides(len, STRIP).filter(|_| self.targets.x.is_some()) {
                let (lhs, rhs) = (chunk.mixed().at(j.start, j.start), dy.at(j.start, column));
                let (dst, size) = (dx.reborrow().at(j.start, column), [j.len(), headdim, len - j.start]);
                Product { dst, into: Into::Add, size, lhs, rhs }.run(level, ahead);
            }
        }
    }

    /// The gradients by dt A, and with them those by A, dt and its bias, and dt_a.
    fn step_gradients(&self, scratch: &mut Scratch<'_, T>) {
        for head in 0..scratch.chunk.heads() {
            self.head_gradients(scratch, head);
        }
        let Scratch { chunk, ddt, ddt_a, .. } = scratch;
        for (target, memory) in [(&self.targets.dt, ddt), (&self.targets.dt_a, ddt_a)] {
            if let Some(view) = target {
                blocks::steps(&chunk.place, Way::Store(view, Tile::new(memory.read(), chunk.head_pitch)));
            }
        }
    }

    /// Computes the gradients of one head, but does not store them.
    fn head_gradients(&self, scratch: &mut Scratch<'_, T>, head: usize) {
        let Scratch { chunk, by_dt, by_exponent, read_dot, written_dot, state_dot, ddt, ddt_a, .. } = scratch;
        let (len, dstate, pitch) = (chunk.len(), chunk.dstate, chunk.head_pitch);
        let own = chunk.head_steps(head);
        let first = state_dot.shared(head * dstate, dstate).iter().fold(T::default(), |sum, &v| sum + v);
        let (by_exponent, by_dt) = (by_exponent.slice(head * CHUNK, len), by_dt.shared(head * CHUNK, len));
        let (read_dot, written_dot) = (read_dot.shared(head * len, len), written_dot.shared(head * len, len));
        let (to_end, weight) = (own.to_end.shared(0, len), own.weight.shared(0, len));
        // the decay acts on every path from the state before the chunk to a later output or to the end
        let mut after = chunk.total(head) * first;
        for t in (0..len).rev() {
            after = after + read_dot[t];
            by_exponent[t] = by_exponent[t] + after;
        }
        let mut before = T::default();
        let (mut da, mut dbias) = (0.0, 0.0);
        for t in 0..len {
            let written = written_dot[t];
            let by_exponent = by_exponent[t] + before;
            before = before + weight[t] * written;
            let mut by_step = by_dt[t] + to_end[t] * written;
            match self.problem.dt_a.is_some() {
                true => ddt_a.set(t * pitch + head, chunk.a(head) * by_exponent),
                false => by_step = by_step + chunk.a(head) * by_exponent,
            }
            let raw = by_step * chunk.slope(t, head);
            ddt.set(t * pitch + head, raw);
            da += (chunk.decay_step(t, head) * by_exponent).to_f64();
            dbias += raw.to_f64();
        }
        self.partials.add_head(self.number, chunk.place.block.first + head, da, dbias);
    }
}

impl GradientTargets {
    /// Whether products of pairs of steps are needed besides the mixing matrix itself.
    fn need_pairs(&self) -> bool {
        self.need_exponents() || self.b.is_some() || self.c.is_some()
    }
}
