//! The part of a chunk that both passes compute: its inputs, its decays, its mixing matrices.

use super::super::problem::Problem;
use super::blocks::{self, Ahead, Place, Way};
use super::decay::{Decays, HeadSteps, HeadStepsMut, HeadStepsOf, Mix, MixBackward, StepSizes};
use super::plan::{CHUNK, HeadBlock, Plan};
use super::rows::{Dot, Factors, Rows, Scale};
use crate::cpu::product::{Into, Product};
use crate::cpu::simd::Real;
use crate::cpu::tile::{MAX_LANES, Tile, TileMut, TileOf};
use crate::cpu::{Array, ArrayMut, Level, Matrix, MatrixMut, Room};
use crate::tensor::View;
use core::ops::Range;

/// Side of the diagonal blocks of triangular matrices, which are computed whole: large enough for products that pack their factors.
pub(super) const SIDE: usize = 32;

/// Side of the diagonal blocks for products that do not pack their factors.
pub(super) const STRIP: usize = 16;

/// Rows of a triangular matrix's diagonal blocks.
pub(super) fn sides(steps: usize, side: usize) -> impl Iterator<Item = Range<usize>> {
    (0..steps).step_by(side).map(move |start| start..steps.min(start + side))
}

/// Memory of one thread and the sizes of its blocks. Rows are padded, and what is in the padding is never used.
pub(super) struct Chunk<'m, T> {
    pub headdim: usize,
    pub dstate: usize,
    /// Elements of a row of heads x headdim.
    pub pitch: usize,
    /// Elements of a row of heads.
    pub head_pitch: usize,
    /// The heads and steps at work.
    pub place: Place,
    has_skip: bool,
    arrays: Arrays<'m, T>,
}

/// The arrays that a chunk is computed in.
struct Arrays<'m, T> {
    x: ArrayMut<'m, T>,
    b: ArrayMut<'m, T>,
    c: ArrayMut<'m, T>,
    /// C once more, (dstate, step).
    across: ArrayMut<'m, T>,
    /// (step, head): dt, its derivative by the raw one, dt_a where there is one, and the sums of its exponents.
    dt: ArrayMut<'m, T>,
    slope: ArrayMut<'m, T>,
    dt_a: Option<ArrayMut<'m, T>>,
    high: ArrayMut<'m, T>,
    low: ArrayMut<'m, T>,
    /// The values that mixing matrices and states need of them, (head, step).
    by_head: HeadStepsMut<'m, T>,
    /// One number for each head.
    total: ArrayMut<'m, T>,
    a: ArrayMut<'m, T>,
    bias: ArrayMut<'m, T>,
    /// One for each column.
    skip: ArrayMut<'m, T>,
    /// 0, 1, 2, ..
    index: ArrayMut<'m, T>,
    /// `<C_i, B_j>`, and the mixing matrix of a head.
    cb: ArrayMut<'m, T>,
    mix: ArrayMut<'m, T>,
}

impl<'m, T: Real> Arrays<'m, T> {
    fn lay_out(room: &mut Room<'m, T>, problem: &Problem<'_>, plan: &Plan) -> Self {
        let (dstate, pitch, head_pitch) = (problem.dstate, plan.pitch(problem.headdim), plan.heads.next_multiple_of(MAX_LANES));
        // rows have room for a whole chunk, and there are as many as the longest one has steps
        let (map, steps) = (plan.steps * dstate, plan.steps * head_pitch);
        let [dt, slope, high, low] = [steps; 4].map(|len| room.array(len));
        let mut by_head = || room.array(CHUNK * plan.heads);
        let by_head = HeadStepsOf {
            dt: by_head(),
            high: by_head(),
            low: by_head(),
            from_start: by_head(),
            to_end: by_head(),
            weight: by_head(),
        };
        Arrays {
            dt,
            slope,
            high,
            low,
            by_head,
            dt_a: problem.dt_a.is_some().then(|| room.array(steps)),
            x: room.array(plan.steps * pitch),
            b: room.array(map),
            c: room.array(map),
            across: room.array(dstate * CHUNK),
            total: room.array(plan.heads),
            a: room.array(head_pitch),
            bias: room.array(head_pitch),
            skip: room.array(pitch),
            index: room.array(CHUNK),
            cb: room.array(plan.steps * CHUNK),
            mix: room.array(plan.steps * CHUNK),
        }
    }
}

impl<'m, T: Real> Chunk<'m, T> {
    pub(super) fn lay_out(room: &mut Room<'m, T>, level: Level, problem: &Problem<'_>, plan: &Plan) -> Self {
        let block = HeadBlock { group: 0, index: 0, first: 0, count: 0 };
        Chunk {
            headdim: problem.headdim,
            dstate: problem.dstate,
            pitch: plan.pitch(problem.headdim),
            head_pitch: plan.heads.next_multiple_of(MAX_LANES),
            place: Place { level, batch: 0, block, steps: 0..0 },
            has_skip: problem.d.is_some(),
            arrays: Arrays::lay_out(room, problem, plan),
        }
    }

    /// Number of steps at work.
    pub(super) fn len(&self) -> usize {
        self.place.steps.len()
    }

    /// Number of columns at work.
    pub(super) fn columns(&self) -> usize {
        self.place.block.count * self.headdim
    }

    /// Number of heads at work.
    pub(super) fn heads(&self) -> usize {
        self.place.block.count
    }

    /// A tile of steps or states x columns in other memory.
    pub(super) fn tile<A>(&self, memory: A) -> TileOf<A> {
        TileOf::new(memory, self.pitch)
    }

    pub(super) fn x(&self) -> Tile<'_, T> {
        Tile::new(self.arrays.x.read(), self.pitch)
    }

    /// B, (step, dstate).
    pub(super) fn b(&self) -> Matrix<'_, T> {
        Matrix::new(self.arrays.b.read(), self.dstate)
    }

    /// C, (step, dstate).
    pub(super) fn c(&self) -> Matrix<'_, T> {
        Matrix::new(self.arrays.c.read(), self.dstate)
    }

    /// M^T of the head that [`Chunk::mix`] computed last.
    pub(super) fn mixed(&self) -> Matrix<'_, T> {
        Matrix::new(self.arrays.mix.read(), CHUNK)
    }

    /// The derivative of the processed dt by the raw one, at a step of a head.
    pub(super) fn slope(&self, step: usize, head: usize) -> T {
        debug_assert!(step < self.len() && head < self.heads(), "the chunk has them");
        self.arrays.slope.get(step * self.head_pitch + head)
    }

    /// The step of the decay.
    pub(super) fn decay_step(&self, step: usize, head: usize) -> T {
        debug_assert!(step < self.len() && head < self.heads(), "the chunk has them");
        self.arrays.dt_a.as_ref().unwrap_or(&self.arrays.dt).get(step * self.head_pitch + head)
    }

    /// A of a head.
    pub(super) fn a(&self, head: usize) -> T {
        debug_assert!(head < self.heads(), "the chunk has the head");
        self.arrays.a.get(head)
    }

    /// exp of the chunk's whole sum.
    pub(super) fn total(&self, head: usize) -> T {
        debug_assert!(head < self.heads(), "the chunk has the head");
        self.arrays.total.get(head)
    }

    /// The rows of every head, or of those from `head`.
    pub(super) fn head_steps(&self, head: usize) -> HeadSteps<'_, T> {
        self.arrays.by_head.from(head)
    }

    /// The shape of a block of these rows.
    pub(super) fn rows(&self, rows: usize) -> Rows {
        Rows { rows, heads: self.heads(), headdim: self.headdim, pitch: self.pitch }
    }

    /// Takes up a block of heads.
    pub(super) fn start(&mut self, problem: &Problem<'_>, batch: usize, block: HeadBlock) {
        (self.place.batch, self.place.block) = (batch, block);
        let Arrays { a, bias, skip, index, .. } = &mut self.arrays;
        [&mut *a, bias].into_iter().for_each(|numbers| numbers.clear(self.head_pitch));
        index.slice(0, CHUNK).iter_mut().enumerate().for_each(|(i, index)| *index = T::from_f64(i as f64));
        blocks::parameter(&problem.a, &block, 1, a);
        if let Some(view) = &problem.dt_bias {
            blocks::parameter(view, &block, 1, bias);
        }
        if let Some(d) = &problem.d {
            blocks::parameter(d, &block, self.headdim, skip);
        }
    }

    /// Loads x, dt, dt_a, B and C of some steps and computes their decays.
    pub(super) fn load(&mut self, problem: &Problem<'_>, steps: Range<usize>) {
        debug_assert!((1..=CHUNK).contains(&steps.len()), "the steps of a chunk");
        debug_assert!(steps.end <= problem.seqlen, "the steps are the problem's");
        self.place.steps = steps;
        let (place, len, pitch) = (&self.place, self.len(), self.head_pitch);
        let Arrays { x, b, c, dt, slope, dt_a, high, low, a, bias, .. } = &mut self.arrays;
        blocks::timed(place, Way::Load(&problem.x, TileMut::new(x.reborrow(), self.pitch)));
        for (view, memory) in [(&problem.b, b), (&problem.c, c)] {
            blocks::timed(&blocks::of_group(place), Way::Load(view, TileMut::new(memory.reborrow(), self.dstate)));
        }
        blocks::steps(place, Way::Load(&problem.dt, TileMut::new(dt.reborrow(), pitch)));
        if let (Some(view), Some(dt_a)) = (&problem.dt_a, &mut *dt_a) {
            blocks::steps(place, Way::Load(view, TileMut::new(dt_a.reborrow(), pitch)));
        }
        place.level.dispatch(StepSizes {
            steps: len,
            pitch,
            dt: dt.reborrow(),
            slope: slope.reborrow(),
            dt_a: dt_a.as_ref().map(ArrayMut::read),
            high: high.reborrow(),
            low: low.reborrow(),
            a: a.read(),
            bias: bias.read(),
            step: problem.step_size,
        });
        self.transpose_steps();
        let (heads, Arrays { by_head, total, .. }) = (self.heads(), &mut self.arrays);
        self.place.level.dispatch(Decays { steps: len, heads, of: by_head, total: total.reborrow() });
    }

    /// Has a tensor of the block's heads, (B, L, H, P), prefetched at some steps.
    pub(super) fn prefetch(&self, ahead: &mut Ahead, view: &View<'_>, steps: &Range<usize>) {
        let place = Place { steps: steps.clone(), ..self.place.clone() };
        blocks::prefetch(ahead, &place, view);
    }

    /// Prefetches the tensors that [`Chunk::load`] loads.
    pub(super) fn prefetch_inputs(&self, ahead: &mut Ahead, problem: &Problem<'_>, steps: &Range<usize>) {
        self.prefetch(ahead, &problem.x, steps);
        let place = Place { steps: steps.clone(), ..blocks::of_group(&self.place) };
        for view in [&problem.b, &problem.c] {
            blocks::prefetch(ahead, &place, view);
        }
    }

    /// dt and its sums from (step, head) to (head, step), the last whole vector filled up.
    fn transpose_steps(&mut self) {
        let (len, heads) = (self.len(), self.heads());
        let (padded, Arrays { dt, high, low, by_head, .. }) = (len.next_multiple_of(MAX_LANES), &mut self.arrays);
        for (from, to) in [(dt, &mut by_head.dt), (high, &mut by_head.high), (low, &mut by_head.low)] {
            for h in 0..heads {
                let row = to.slice(h * CHUNK, CHUNK);
                for t in 0..padded {
                    row[t] = from.get(t.min(len - 1) * self.head_pitch + h);
                }
            }
        }
    }

    /// `<C_i, B_j>` for all i >= j, once for all heads.
    pub(super) fn couple(&mut self, ahead: &mut Ahead, problem: &Problem<'_>) {
        let (len, dstate) = (self.len(), self.dstate);
        let Arrays { b, cb, across, .. } = &mut self.arrays;
        let (b, mut cb) = (Matrix::new(b.read(), dstate), MatrixMut::new(cb.reborrow(), CHUNK));
        let mut across = TileMut::new(across.reborrow(), CHUNK);
        blocks::map_across(&self.place, &problem.c, across.reborrow());
        for j in sides(len, STRIP) {
            let (dst, lhs) = (cb.reborrow().at(j.start, j.start), b.at(j.start, 0));
            let rhs = across.read().matrix().at(0, j.start);
            let size = [j.len(), len - j.start, dstate];
            Product { dst, into: Into::Replace, size, lhs, rhs }.run(self.place.level, ahead);
        }
    }

    /// Computes the mixing matrix of a head.
    pub(super) fn mix(&mut self, head: usize, backward: Option<MixBackward<'_, T>>) {
        debug_assert!(head < self.heads(), "the chunk has the head");
        let (steps, Arrays { index, cb, mix, by_head, .. }) = (self.len(), &mut self.arrays);
        let (index, of, cb, mix) = (index.read(), by_head.from(head), cb.read(), mix.reborrow());
        self.place.level.dispatch(Mix { steps, side: SIDE, index, of, cb, mix, backward });
    }

    /// `dst = src * factor(head, step)`, and `+ D other` where D and `other` are given; `src` is `dst` if it is not given.
    pub(super) fn scale(
        &self,
        dst: &mut TileMut<'_, T>,
        src: Option<Tile<'_, T>>,
        factors: Array<'_, T>,
        other: Option<Tile<'_, T>>,
    ) {
        debug_assert!(dst.pitch == self.pitch && src.is_none_or(|src| src.pitch == self.pitch), "tiles of the chunk's columns");
        let factors = Factors { array: factors, head: CHUNK, row: 1 };
        let plus = other.filter(|_| self.has_skip).map(|other| (other.array, self.arrays.skip.read()));
        let (shape, dst, src) = (self.rows(self.len()), dst.array.reborrow(), src.map(|src| src.array));
        self.place.level.dispatch(Scale { shape, dst, src, factors, plus });
    }

    /// `S <- exp(cs_last) S + maps^T added`, head by head; what was there is 0 if `empty`.
    pub(super) fn carry(
        &self,
        ahead: &mut Ahead,
        state: &mut TileMut<'_, T>,
        empty: bool,
        maps: Matrix<'_, T>,
        added: Tile<'_, T>,
    ) {
        let size = [self.dstate, self.headdim, self.len()];
        for head in 0..self.heads() {
            let column = head * self.headdim;
            let (dst, rhs) = (state.matrix().at(0, column), added.matrix().at(0, column));
            let into = if empty { Into::Replace } else { Into::Scaled(self.total(head)) };
            Product { dst, into, size, lhs: maps.t(), rhs }.run(self.place.level, ahead);
        }
    }

    /// `out[head, row] = <a, b>` over headdim.
    pub(super) fn dot(&self, rows: usize, a: Tile<'_, T>, b: Matrix<'_, T>, out: &mut ArrayMut<'_, T>) {
        debug_assert!(a.pitch == self.pitch, "a tile of the chunk's columns");
        debug_assert!(out.has(0, rows * self.heads()), "room for every head's rows");
        let out = Factors { array: out.reborrow(), head: rows, row: 1 };
        self.place.level.dispatch(Dot { shape: self.rows(rows), a: a.array, b, out });
    }

    /// `y = C S`, zero for an empty state.
    pub(super) fn read_state(&self, ahead: &mut Ahead, state: Matrix<'_, T>, empty: bool, y: &mut TileMut<'_, T>) {
        let (size, lhs) = ([self.len(), self.columns(), self.dstate], self.c());
        if empty {
            return y.array.clear(self.len() * y.pitch);
        }
        let dst = y.matrix();
        Product { dst, into: Into::Replace, size, lhs, rhs: state }.run(self.place.level, ahead);
    }

    /// Adds M x to `y`, head by head; [`Chunk::couple`] comes before.
    pub(super) fn add_mixed(&mut self, ahead: &mut Ahead, y: &mut TileMut<'_, T>) {
        let (len, headdim) = (self.len(), self.headdim);
        for head in 0..self.heads() {
            let column = head * headdim;
            self.mix(head, None);
            let rhs = self.x().matrix().at(0, column);
            for i in sides(len, STRIP) {
                let (dst, lhs) = (y.matrix().at(i.start, column), self.mixed().at(0, i.start).t());
                let size = [i.len(), headdim, i.end];
                Product { dst, into: Into::Add, size, lhs, rhs }.run(self.place.level, ahead);
            }
        }
    }
}
