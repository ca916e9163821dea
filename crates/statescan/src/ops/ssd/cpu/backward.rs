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
use super::product::{Into, Product};
use super::reduce::Partials;
use super::rows::{ColumnDot, Gate, Gating};
use crate::cpu::simd::Real;
use crate::cpu::tile::Tile;
use crate::cpu::{Arena, Array, Matrix, MatrixMut, Room};
use crate::exec::Exec;
use crate::ops::sequences::Segment;
use core::ops::Range;

/// A chunk, and what only this pass needs.
struct Scratch<T> {
    chunk: Chunk<T>,
    tiles: Tiles<T>,
    by_mix: Array<T>,
    by_cb: Array<T>,
    /// (step, dstate)
    db: Array<T>,
    dc: Array<T>,
    /// (head, step) each.
    by_dt: Array<T>,
    by_exponent: Array<T>,
    read_dot: Array<T>,
    written_dot: Array<T>,
    /// (head, dstate)
    state_dot: Array<T>,
    /// (step, head) each.
    ddt: Array<T>,
    ddt_a: Array<T>,
}

/// Tiles of steps x columns, and the gradient by the state after the chunk.
#[derive(Clone, Copy)]
struct Tiles<T> {
    dy: Tile<T>,
    z: Tile<T>,
    /// `C S`, and then the weighted input.
    read: Tile<T>,
    /// The output before the gate, and then `B R`.
    by_state: Tile<T>,
    dx: Tile<T>,
    /// `diag(exp(cs)) dy`
    faded: Tile<T>,
    dstate: Tile<T>,
}

impl<T: Real> Scratch<T> {
    fn lay_out(room: &mut Room<T>, exec: &Exec, problem: &Problem<'_>, plan: &Plan) -> Self {
        let chunk = Chunk::lay_out(room, exec.level(), problem, plan);
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
        Scratch {
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
        }
    }
}

/// What the jobs of one call share, and the segment and heads of one.
struct Job<'j, 'a, T> {
    problem: &'j Problem<'a>,
    targets: &'j GradientTargets,
    sources: &'j Sources<'j>,
    partials: &'j Partials<T>,
    checkpoints: &'j Checkpoints,
    /// The states before every chunk of a segment but the first.
    saved: &'j [T],
    segment: &'j Segment,
    number: usize,
    block: HeadBlock,
}

/// The state before a chunk, (dstate, column), and whether it and the gradient by the state after the chunk are 0.
#[derive(Clone, Copy)]
struct Ends<T> {
    state: Matrix<T>,
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
    let partials = &Partials::new(problem, plan, targets);
    exec.for_each(plan.jobs(), Arena::<T>::default, |arena, index| {
        let (number, block) = plan.job(index);
        let segment = &problem.segments.list[number];
        let job = Job { problem, targets, sources, partials, checkpoints, saved, segment, number, block };
        arena.lend(|room| Scratch::lay_out(room, exec, problem, plan), |mut scratch| job.run(&mut scratch));
    });
    partials.finish(exec, problem, targets);
}

impl<T: Real> Job<'_, '_, T> {
    /// Every chunk of the job, from the last one.
    fn run(&self, scratch: &mut Scratch<T>) {
        let Job { problem, segment, block, .. } = *self;
        let dstate = scratch.tiles.dstate;
        scratch.chunk.start(problem, segment.batch, block);
        let mut closed = match (&self.sources.final_state, segment.last) {
            (Some(view), Some(row)) => {
                blocks::state(&scratch.chunk.place, Way::Load(view), row, dstate);
                false
            }
            _ => {
                dstate.array.clear(scratch.chunk.dstate * dstate.pitch);
                true
            }
        };
        for (i, steps) in chunks(segment.start..segment.end).enumerate().rev() {
            self.prefetch(&mut scratch.chunk, &steps, i);
            let (state, empty) = self.state_before(&scratch.chunk, i);
            self.chunk(scratch, steps, Ends { state, empty, closed });
            closed = false;
        }
        if let (Some(view), Some(row)) = (&self.targets.initial_state, segment.initial) {
            blocks::state(&scratch.chunk.place, Way::Store(view), row, dstate);
        }
    }

    /// The saved state before chunk `i`, which is not the first one.
    fn saved(&self, chunk: &Chunk<T>, i: usize) -> &[T] {
        &self.saved[self.checkpoints.at(self.number, i, &self.block)..][..chunk.dstate * chunk.columns()]
    }

    /// The state before chunk `i`, if it is needed, and whether it is 0.
    fn state_before(&self, chunk: &Chunk<T>, i: usize) -> (Matrix<T>, bool) {
        let own = chunk.state();
        match i {
            0 => (own.matrix().read(), !load_initial(chunk, self.problem, self.segment.initial, own)),
            _ if self.targets.need_states() => (Matrix::of(self.saved(chunk, i), chunk.columns()), false),
            _ => (own.matrix().read(), true),
        }
    }

    /// Has what chunk `i` loads late and stores prefetched while its products are computed, and what the chunk before it needs.
    fn prefetch(&self, chunk: &mut Chunk<T>, steps: &Range<usize>, i: usize) {
        let (problem, targets) = (self.problem, self.targets);
        chunk.ahead = Ahead::new();
        problem.z.iter().for_each(|view| chunk.prefetch(Way::Load(view), steps));
        [&targets.z, &targets.x].into_iter().flatten().for_each(|view| chunk.prefetch(Way::Store(view), steps));
        if steps.start > self.segment.start {
            let before = steps.start - CHUNK..steps.start;
            chunk.prefetch_inputs(problem, &before);
            self.sources.y.iter().for_each(|view| chunk.prefetch(Way::Load(view), &before));
            if i > 1 && targets.need_states() {
                let (state, columns) = (self.saved(chunk, i - 1).as_ptr(), chunk.columns());
                chunk.ahead.add_rows(state, columns, chunk.dstate, columns);
            }
        }
        let (len, states) = (steps.len(), chunk.dstate * chunk.columns());
        chunk.ahead.spread(len * (3 * states + len * (chunk.dstate + chunk.columns())));
    }

    /// One chunk.
    fn chunk(&self, scratch: &mut Scratch<T>, steps: Range<usize>, ends: Ends<T>) {
        let exponents = self.targets.need_exponents();
        scratch.chunk.load(self.problem, steps);
        scratch.chunk.couple(self.problem);
        self.cotangent(scratch, ends);
        self.by_states(scratch, ends);
        self.within(scratch);
        let (chunk, tiles) = (&mut scratch.chunk, scratch.tiles);
        if let Some(view) = &self.targets.x {
            blocks::timed(&chunk.place, Way::Store(view), tiles.dx);
        }
        // the weighted input takes the place of `C S`
        chunk.scale(tiles.read, chunk.x(), chunk.head_steps(0).weight, None);
        if self.targets.b.is_some() {
            self.by_b(scratch, ends);
        }
        if self.targets.c.is_some() {
            self.by_c(scratch, ends);
        }
        let c = scratch.chunk.c();
        scratch.chunk.carry(tiles.dstate, ends.closed, c, tiles.faded);
        if exponents {
            self.step_gradients(scratch);
        }
    }

    /// The cotangent of the output before the gate, the gradient by the gate, and `C S`.
    fn cotangent(&self, scratch: &mut Scratch<T>, ends: Ends<T>) {
        let (chunk, Tiles { dy, z, read, by_state: output, .. }) = (&mut scratch.chunk, scratch.tiles);
        let dz = &self.targets.z;
        match &self.sources.y {
            Some(view) => blocks::timed(&chunk.place, Way::Load(view), dy),
            None => dy.array.clear(chunk.len() * dy.pitch),
        }
        if self.targets.need_exponents() || dz.is_some() {
            chunk.read_state(ends.state, ends.empty, read);
        }
        let Some(view) = &self.problem.z else { return };
        blocks::timed(&chunk.place, Way::Load(view), z);
        if dz.is_some() {
            chunk.scale(output, read, chunk.head_steps(0).from_start, Some(chunk.x()));
            chunk.add_mixed(output);
        }
        let gating = Gating::Backward { output: dz.is_some().then_some(output.array) };
        chunk.place.level.dispatch(Gate { shape: chunk.rows(chunk.len()), y: dy.array, z: z.array, gating });
        if let Some(dz) = dz {
            blocks::timed(&chunk.place, Way::Store(dz), z);
        }
    }

    /// What the states before and after the chunk give: the gradient by D, the faded cotangent, `B R`, part of dx, and inner products.
    fn by_states(&self, scratch: &mut Scratch<T>, ends: Ends<T>) {
        let Scratch { chunk, tiles, read_dot, written_dot, state_dot, .. } = scratch;
        let &mut Tiles { dy, read, by_state, dx, faded, dstate, .. } = tiles;
        let (len, columns, heads, x) = (chunk.len(), chunk.columns(), chunk.head_steps(0), chunk.x());
        if self.targets.d.is_some() {
            let sums = self.partials.d(self.number, &self.block);
            chunk.place.level.dispatch(ColumnDot { shape: chunk.rows(len), a: dy.array, b: x.array, sums });
        }
        chunk.scale(faded, dy, heads.from_start, None);
        if ends.closed {
            by_state.array.clear(len * by_state.pitch);
        } else {
            let (dst, size) = (by_state.matrix(), [len, columns, chunk.dstate]);
            let (lhs, rhs) = (chunk.b(), dstate.matrix().read());
            Product { dst, into: Into::Replace, size, lhs, rhs }.run(chunk.place.level, &mut chunk.ahead);
        }
        if self.targets.need_exponents() {
            chunk.dot(len, faded, read.matrix().read(), *read_dot);
            chunk.dot(len, x, by_state.matrix().read(), *written_dot);
            match ends.empty || ends.closed {
                true => state_dot.clear(chunk.heads() * chunk.dstate),
                false => chunk.dot(chunk.dstate, dstate, ends.state, *state_dot),
            }
        }
        chunk.scale(dx, by_state, heads.weight, Some(dy));
    }

    /// The gradient by B.
    fn by_b(&self, scratch: &mut Scratch<T>, ends: Ends<T>) {
        let (chunk, tiles) = (&mut scratch.chunk, scratch.tiles);
        let (level, len, dstate) = (chunk.place.level, chunk.len(), chunk.dstate);
        let by_cb = MatrixMut::new(scratch.by_cb, CHUNK).read();
        let db = Tile::new(scratch.db, dstate);
        for j in sides(len, STRIP) {
            let (dst, size) = (db.matrix().at(j.start, 0), [j.len(), dstate, len - j.start]);
            let (lhs, rhs) = (by_cb.at(j.start, j.start), chunk.c().at(j.start, 0));
            Product { dst, into: Into::Replace, size, lhs, rhs }.run(level, &mut chunk.ahead);
        }
        if !ends.closed {
            let (lhs, rhs) = (tiles.read.matrix().read(), tiles.dstate.matrix().read().t());
            let size = [len, dstate, chunk.columns()];
            Product { dst: db.matrix(), into: Into::Add, size, lhs, rhs }.run(level, &mut chunk.ahead);
        }
        self.partials.map(0, &chunk.place, db);
    }

    /// The gradient by C.
    fn by_c(&self, scratch: &mut Scratch<T>, ends: Ends<T>) {
        let (chunk, tiles) = (&mut scratch.chunk, scratch.tiles);
        let (level, len, dstate) = (chunk.place.level, chunk.len(), chunk.dstate);
        let by_cb = MatrixMut::new(scratch.by_cb, CHUNK).read();
        let dc = Tile::new(scratch.dc, dstate);
        for i in sides(len, STRIP) {
            let (dst, size) = (dc.matrix().at(i.start, 0), [i.len(), dstate, i.end]);
            let (lhs, rhs) = (by_cb.at(0, i.start).t(), chunk.b());
            Product { dst, into: Into::Replace, size, lhs, rhs }.run(level, &mut chunk.ahead);
        }
        if !ends.empty {
            let (lhs, rhs) = (tiles.faded.matrix().read(), ends.state.t());
            let size = [len, dstate, chunk.columns()];
            Product { dst: dc.matrix(), into: Into::Add, size, lhs, rhs }.run(level, &mut chunk.ahead);
        }
        self.partials.map(1, &chunk.place, dc);
    }

    /// What pairs of steps of the chunk give: part of dx, by_cb, by_dt, by_exponent.
    fn within(&self, scratch: &mut Scratch<T>) {
        let Scratch { chunk, tiles, by_mix, by_cb, by_dt, by_exponent, .. } = scratch;
        let (x, dy, dx) = (chunk.x().matrix().read(), tiles.dy.matrix().read(), tiles.dx.matrix());
        let (headdim, len, level) = (chunk.headdim, chunk.len(), chunk.place.level);
        let wanted = self.targets.need_pairs();
        by_cb.clear(CHUNK * CHUNK);
        for head in 0..chunk.heads() {
            let column = head * headdim;
            for j in sides(len, SIDE).filter(|_| wanted) {
                let dst = MatrixMut::new(*by_mix, CHUNK).at(j.start, j.start);
                let (lhs, rhs) = (x.at(j.start, column), dy.at(j.start, column).t());
                let size = [j.len(), len - j.start, headdim];
                Product { dst, into: Into::Replace, size, lhs, rhs }.run(level, &mut chunk.ahead);
            }
            let [by_dt, by_exponent] = [&*by_dt, by_exponent].map(|rows| rows.from(head * CHUNK));
            let backward = MixBackward { by_mix: *by_mix, by_cb: *by_cb, by_dt, by_exponent };
            chunk.mix(head, wanted.then_some(backward));
            for j in sides(len, STRIP).filter(|_| self.targets.x.is_some()) {
                let (lhs, rhs) = (chunk.mixed().at(j.start, j.start), dy.at(j.start, column));
                let (dst, size) = (dx.at(j.start, column), [j.len(), headdim, len - j.start]);
                Product { dst, into: Into::Add, size, lhs, rhs }.run(level, &mut chunk.ahead);
            }
        }
    }

    /// The gradients by dt A, and with them those by A, dt and its bias, and dt_a.
    fn step_gradients(&self, scratch: &Scratch<T>) {
        let chunk = &scratch.chunk;
        for head in 0..chunk.heads() {
            self.head_gradients(scratch, head);
        }
        for (target, memory) in [(&self.targets.dt, scratch.ddt), (&self.targets.dt_a, scratch.ddt_a)] {
            if let Some(view) = target {
                blocks::steps(&chunk.place, Way::Store(view), Tile::new(memory, chunk.head_pitch));
            }
        }
    }

    /// Those of one head, but for the way out.
    fn head_gradients(&self, scratch: &Scratch<T>, head: usize) {
        let Scratch { chunk, by_dt, by_exponent, read_dot, written_dot, state_dot, ddt, ddt_a, .. } = scratch;
        let (len, dstate, pitch) = (chunk.len(), chunk.dstate, chunk.head_pitch);
        let own = chunk.head_steps(head);
        let first = state_dot.slice(head * dstate, dstate).iter().fold(T::default(), |sum, &v| sum + v);
        let (by_exponent, by_dt) = (by_exponent.slice(head * CHUNK, len), by_dt.slice(head * CHUNK, len));
        let (read_dot, written_dot) = (read_dot.slice(head * len, len), written_dot.slice(head * len, len));
        let (to_end, weight) = (own.to_end.slice(0, len), own.weight.slice(0, len));
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
