//! The part of a chunk that both passes compute: its inputs, its decays, its mixing matrices.

use super::super::problem::Problem;
use super::blocks::{self, Ahead, Tile, Way};
use super::decay::{Decays, HeadSteps, Mix, MixBackward, StepSizes};
use super::plan::{CHUNK, HeadBlock, Plan};
use super::product::{Into, product};
use super::rows::{Dot, Factors, Rows, Scale};
use crate::cpu::simd::Real;
use crate::cpu::tile::MAX_LANES;
use crate::cpu::{Aligned, Level, Matrix};
use crate::tensor::View;
use core::ops::Range;

/// Side of the diagonal blocks of triangular matrices, which are computed whole: large enough for products that pack their factors.
pub(super) const SIDE: usize = 32;

/// The same for products that do not.
pub(super) const STRIP: usize = 16;

/// Rows of a triangular matrix's diagonal blocks.
pub(super) fn sides(steps: usize, side: usize) -> impl Iterator<Item = Range<usize>> {
    (0..steps).step_by(side).map(move |start| start..steps.min(start + side))
}

/// Memory of one thread and the sizes of its blocks. Rows are padded, and what is in the padding is never used.
pub(super) struct Chunk<T> {
    pub level: Level,
    pub headdim: usize,
    pub dstate: usize,
    /// Elements of a row of heads x headdim.
    pub pitch: usize,
    /// Elements of a row of heads.
    pub head_pitch: usize,
    /// The heads at work.
    pub block: HeadBlock,
    /// The steps at work.
    pub steps: Range<usize>,
    pub batch: usize,
    /// What is asked for while products are computed.
    pub ahead: Ahead,
    x: Aligned<T>,
    b: Aligned<T>,
    c: Aligned<T>,
    /// C once more, (dstate, step).
    across: Aligned<T>,
    dt: Aligned<T>,
    slope: Aligned<T>,
    /// Steps of the decay; empty where they are dt.
    dt_a: Aligned<T>,
    high: Aligned<T>,
    low: Aligned<T>,
    by_head: Aligned<T>,
    total: Aligned<T>,
    a: Aligned<T>,
    bias: Aligned<T>,
    skip: Aligned<T>,
    has_skip: bool,
    index: Vec<T>,
    cb: Aligned<T>,
    mix: Aligned<T>,
    state: Aligned<T>,
}

impl<T: Real> Chunk<T> {
    pub(super) fn new(level: Level, problem: &Problem<'_>, plan: &Plan) -> Self {
        let (headdim, dstate) = (problem.headdim, problem.dstate);
        let pitch = plan.pitch(headdim);
        let head_pitch = plan.heads.next_multiple_of(MAX_LANES);
        // rows have room for a whole chunk, and there are as many as the longest one has steps
        let (rows, by_head, maps) = (plan.steps * pitch, plan.steps * head_pitch, plan.steps * dstate);
        let [x, b, c, across, dt, slope, dt_a, high, low, by_heads, total, a, bias, skip, cb, mix, state] =
            Aligned::zeros_each([
                rows,
                maps,
                maps,
                dstate * CHUNK,
                by_head,
                by_head,
                if problem.dt_a.is_some() { by_head } else { 0 },
                by_head,
                by_head,
                6 * CHUNK * plan.heads,
                plan.heads,
                head_pitch,
                head_pitch,
                pitch,
                plan.steps * CHUNK,
                plan.steps * CHUNK,
                dstate * pitch,
            ]);
        Chunk {
            level,
            headdim,
            dstate,
            pitch,
            head_pitch,
            block: HeadBlock { group: 0, index: 0, first: 0, count: 0 },
            steps: 0..0,
            batch: 0,
            ahead: Ahead::new(),
            x,
            b,
            c,
            across,
            dt,
            slope,
            dt_a,
            high,
            low,
            by_head: by_heads,
            total,
            a,
            bias,
            skip,
            has_skip: problem.d.is_some(),
            index: (0..CHUNK).map(|i| T::from_f64(i as f64)).collect(),
            cb,
            mix,
            state,
        }
    }

    /// Number of steps at work.
    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Number of columns at work.
    pub(super) fn columns(&self) -> usize {
        self.block.count * self.headdim
    }

    /// A tile of steps or states x columns in other memory.
    pub(super) fn tile(&self, memory: &mut [T]) -> Tile<T> {
        Tile { ptr: memory.as_mut_ptr(), pitch: self.pitch }
    }

    pub(super) fn x(&mut self) -> Tile<T> {
        Tile { ptr: self.x.as_mut_ptr(), pitch: self.pitch }
    }

    pub(super) fn state(&mut self) -> Tile<T> {
        Tile { ptr: self.state.as_mut_ptr(), pitch: self.pitch }
    }

    /// B, (step, dstate).
    pub(super) fn b(&mut self) -> Matrix<T> {
        Matrix::new(self.b.as_mut_ptr(), self.dstate)
    }

    /// C, (step, dstate).
    pub(super) fn c(&mut self) -> Matrix<T> {
        Matrix::new(self.c.as_mut_ptr(), self.dstate)
    }

    /// M^T of the head that [`Chunk::mix`] computed last.
    pub(super) fn mixed(&mut self) -> Matrix<T> {
        Matrix::new(self.mix.as_mut_ptr(), CHUNK)
    }

    /// The derivative of the processed dt by the raw one, (step, head).
    pub(super) fn slope(&self, step: usize, head: usize) -> T {
        self.slope[step * self.head_pitch + head]
    }

    /// The step of the decay.
    pub(super) fn decay_step(&self, step: usize, head: usize) -> T {
        let steps = if self.dt_a.is_empty() { &self.dt } else { &self.dt_a };
        steps[step * self.head_pitch + head]
    }

    pub(super) fn a(&self, head: usize) -> T {
        self.a[head]
    }

    /// exp of the chunk's whole sum.
    pub(super) fn total(&self, head: usize) -> T {
        self.total[head]
    }

    /// The rows of every head, or of those from `head`.
    pub(super) fn head_steps(&mut self, head: usize) -> HeadSteps<T> {
        let len = self.by_head.len() / 6;
        let base = self.by_head.as_mut_ptr();
        let [dt, high, low, from_start, to_end, weight] = core::array::from_fn(|i| base.wrapping_add(i * len + head * CHUNK));
        HeadSteps { dt, high, low, from_start, to_end, weight }
    }

    /// The shape of a block of these rows.
    pub(super) fn rows(&self, rows: usize) -> Rows {
        Rows { rows, heads: self.block.count, headdim: self.headdim, pitch: self.pitch }
    }

    /// Takes up a block of heads.
    ///
    /// # Safety
    /// The block is the problem's, for which this memory was made.
    pub(super) unsafe fn start(&mut self, problem: &Problem<'_>, batch: usize, block: HeadBlock) {
        (self.batch, self.block) = (batch, block);
        // SAFETY: the caller's contract.
        unsafe {
            blocks::parameter(&problem.a, &block, 1, &mut self.a);
            if let Some(bias) = &problem.dt_bias {
                blocks::parameter(bias, &block, 1, &mut self.bias);
            }
            if let Some(d) = &problem.d {
                blocks::parameter(d, &block, self.headdim, &mut self.skip);
            }
        }
    }

    /// Loads x, dt, dt_a, B and C of some steps and computes their decays.
    ///
    /// # Safety
    /// The steps, at most [`CHUNK`] and at least one, are the problem's.
    pub(super) unsafe fn load(&mut self, problem: &Problem<'_>, steps: Range<usize>) {
        let (level, batch, block, len) = (self.level, self.batch, self.block, steps.len());
        self.steps = steps.clone();
        let x = self.x();
        let dt = Tile { ptr: self.dt.as_mut_ptr(), pitch: self.head_pitch };
        // SAFETY: the caller's contract; the tiles have room for the plan's steps.
        unsafe {
            blocks::timed(level, Way::Load, &problem.x, batch, &block, &steps, x);
            for (view, memory) in [(&problem.b, &mut self.b), (&problem.c, &mut self.c)] {
                let tile = Tile { ptr: memory.as_mut_ptr(), pitch: self.dstate };
                blocks::map(level, Way::Load, view, batch, block.group, &steps, tile);
            }
            blocks::steps(level, Way::Load, &problem.dt, batch, &block, &steps, dt);
            if let Some(view) = &problem.dt_a {
                let dt_a = Tile { ptr: self.dt_a.as_mut_ptr(), pitch: self.head_pitch };
                blocks::steps(level, Way::Load, view, batch, &block, &steps, dt_a);
            }
        }
        level.dispatch(StepSizes {
            steps: len,
            pitch: self.head_pitch,
            dt: dt.ptr,
            slope: self.slope.as_mut_ptr(),
            dt_a: problem.dt_a.is_some().then(|| self.dt_a.as_ptr()),
            high: self.high.as_mut_ptr(),
            low: self.low.as_mut_ptr(),
            a: self.a.as_ptr(),
            bias: self.bias.as_ptr(),
            softplus: problem.dt_softplus,
            limit: problem.dt_limit,
        });
        self.transpose_steps();
        let (of, total) = (self.head_steps(0), self.total.as_mut_ptr());
        level.dispatch(Decays { steps: len, heads: block.count, of, total });
    }

    /// Adds a tensor of the block's heads, (B, L, H, P), to what is asked for.
    pub(super) fn ask(&mut self, view: &View<'_>, steps: &Range<usize>) {
        blocks::ask(&mut self.ahead, view, self.batch, &self.block, steps);
    }

    /// The same for what [`Chunk::load`] loads.
    pub(super) fn ask_inputs(&mut self, problem: &Problem<'_>, steps: &Range<usize>) {
        self.ask(&problem.x, steps);
        for view in [&problem.b, &problem.c] {
            blocks::ask_map(&mut self.ahead, view, self.batch, self.block.group, steps);
        }
    }

    /// dt and its sums from (step, head) to (head, step), the last whole vector filled up.
    fn transpose_steps(&mut self) {
        let (len, part) = (self.len(), self.by_head.len() / 6);
        let padded = len.next_multiple_of(MAX_LANES);
        for (i, source) in [&self.dt, &self.high, &self.low].into_iter().enumerate() {
            for h in 0..self.block.count {
                let row = &mut self.by_head[i * part + h * CHUNK..][..CHUNK];
                for t in 0..padded {
                    row[t] = source[t.min(len - 1) * self.head_pitch + h];
                }
            }
        }
    }

    /// `<C_i, B_j>` for all i >= j, once for all heads.
    ///
    /// # Safety
    /// The steps at work are the problem's.
    pub(super) unsafe fn couple(&mut self, problem: &Problem<'_>) {
        let (level, len, dstate) = (self.level, self.len(), self.dstate);
        let across = Tile { ptr: self.across.as_mut_ptr(), pitch: CHUNK };
        let (b, cb) = (self.b(), Matrix::new(self.cb.as_mut_ptr(), CHUNK));
        // SAFETY: the caller's contract; the blocks lie inside the matrices, whose rows have CHUNK elements.
        unsafe {
            blocks::map_across(level, &problem.c, self.batch, self.block.group, &self.steps, across);
            for j in sides(len, STRIP) {
                let (size, right) = ([j.len(), len - j.start, dstate], across.matrix().at(0, j.start));
                let dst = cb.at(j.start, j.start);
                product(level, &mut self.ahead, dst, Into::Replace, size, b.at(j.start, 0), right);
            }
        }
    }

    /// Computes the mixing matrix of a head.
    pub(super) fn mix(&mut self, head: usize, backward: Option<MixBackward<T>>) {
        self.level.dispatch(Mix {
            steps: self.len(),
            side: SIDE,
            index: self.index.as_ptr(),
            of: self.head_steps(head),
            cb: self.cb.as_ptr(),
            mix: self.mix.as_mut_ptr(),
            backward,
        });
    }

    /// `dst = src * factor(head, step)`, and `+ D other` where D and `other` are given.
    ///
    /// # Safety
    /// The tiles have room for the steps.
    pub(super) unsafe fn scale(&self, dst: Tile<T>, src: Tile<T>, factors: *mut T, other: Option<Tile<T>>) {
        let factors = Factors { ptr: factors, head: CHUNK, row: 1 };
        let plus = other.filter(|_| self.has_skip).map(|other| (other.ptr.cast_const(), self.skip.as_ptr()));
        self.level.dispatch(Scale { shape: self.rows(self.len()), dst: dst.ptr, src: src.ptr, factors, plus });
    }

    /// `S <- exp(cs_last) S + maps^T added`, head by head; what was there is 0 if `empty`.
    ///
    /// # Safety
    /// `maps` is (step, dstate), and the tiles have room for a state and for the steps.
    pub(super) unsafe fn carry(&mut self, state: Tile<T>, empty: bool, maps: Matrix<T>, added: Tile<T>) {
        let size = [self.dstate, self.headdim, self.len()];
        for head in 0..self.block.count {
            let column = head * self.headdim;
            let into = if empty { Into::Replace } else { Into::Scaled(self.total[head]) };
            let (state, added) = (state.matrix().at(0, column), added.matrix().at(0, column));
            // SAFETY: the caller's contract, some of the columns.
            unsafe { product(self.level, &mut self.ahead, state, into, size, maps.t(), added) };
        }
    }

    /// `out[head, row] = <a, b>` over headdim.
    ///
    /// # Safety
    /// The tiles have `rows` rows, `out` as many for each head.
    pub(super) unsafe fn dot(&self, rows: usize, a: Tile<T>, b: Tile<T>, out: &mut [T]) {
        let out = Factors { ptr: out.as_mut_ptr(), head: rows, row: 1 };
        self.level.dispatch(Dot { shape: self.rows(rows), a: a.ptr, b: b.ptr, b_pitch: b.pitch, out });
    }

    /// `y = C S`, zero for an empty state.
    ///
    /// # Safety
    /// The tiles have room for a state and for the steps.
    pub(super) unsafe fn read_state(&mut self, state: Tile<T>, empty: bool, y: Tile<T>) {
        let (size, c) = ([self.len(), self.columns(), self.dstate], self.c());
        // SAFETY: the caller's contract.
        unsafe {
            match empty {
                true => core::slice::from_raw_parts_mut(y.ptr, self.len() * y.pitch).fill(T::default()),
                false => product(self.level, &mut self.ahead, y.matrix(), Into::Replace, size, c, state.matrix()),
            }
        }
    }

    /// Adds M x to `y`, head by head; [`Chunk::couple`] comes before.
    ///
    /// # Safety
    /// The tile has room for the steps.
    pub(super) unsafe fn add_mixed(&mut self, y: Tile<T>) {
        for head in 0..self.block.count {
            self.mix(head, None);
            let (len, headdim, column) = (self.len(), self.headdim, head * self.headdim);
            let (x, y, mix) = (self.x().matrix(), y.matrix(), self.mixed());
            for i in sides(len, STRIP) {
                // SAFETY: the blocks lie inside the tiles.
                unsafe {
                    let size = [i.len(), headdim, i.end];
                    let (dst, left) = (y.at(i.start, column), mix.at(0, i.start).t());
                    product(self.level, &mut self.ahead, dst, Into::Add, size, left, x.at(0, column));
                }
            }
        }
    }
}
