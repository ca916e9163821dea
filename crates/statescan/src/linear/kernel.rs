//! Tiles of rows times outputs, with a vector of partial sums for each element of a tile.
//!
//! Both factors have the summed axis contiguous, so that nothing is packed: a tile of 6 rows and 4 outputs loads 10 vectors for 24
//! multiply-adds. One row alone takes the same steps for itself. Where many rows share weights of 16 bits, a job widens them once.

use crate::cpu::simd::{Isa, V};
use crate::cpu::tile::{LINE, prefetch_row};
use crate::cpu::{Array, ArrayMut, Divided, Kernel};
use crate::exec::Exec;
use crate::tensor::{Element, RawViewMut, View};
use core::ops::Range;
use half::{bf16, f16};

/// Lanes of the widest vector.
const MAX_LANES: usize = 16;
/// Outputs in a tile.
const OUTPUTS: usize = 4;
/// Rows in a tile where there are 32 registers, and where there are 16.
const ROWS: usize = 6;
const FEW_ROWS: usize = 3;
/// Rows in a job.
const ROWS_PER_JOB: usize = 16 * ROWS;
/// Sums of a tile, rounded up to whole vectors of the widest kind.
const SUMS: usize = (ROWS * OUTPUTS).next_multiple_of(MAX_LANES);
/// Rows from which on a job widens its weights first.
const MANY_ROWS: usize = 2 * ROWS;
/// Bytes of wide weights that a job keeps in the second-level cache while it walks its rows.
const WEIGHT_BYTES: usize = 1 << 18;

/// Contiguous rows, `pitch` elements apart.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'m, T> {
    elements: Array<'m, T>,
    pub(super) pitch: isize,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl<'m, T: Element> Matrix<'m, T> {
    /// A view with two axes, the second contiguous.
    pub(super) fn of(view: &View<'m>) -> Self {
        let [rows, columns] = [view.shape()[0], view.shape()[1]];
        Matrix { elements: Array::of_view(view), pitch: view.strides()[0], rows, columns }
    }

    /// The elements from one on.
    pub(super) fn at(&self, row: usize, column: usize) -> Array<'m, T> {
        self.elements.moved(row as isize * self.pitch + column as isize)
    }

    /// The address of an element, which need not be there.
    #[inline(always)]
    fn address(&self, row: usize, column: usize) -> *const T {
        self.elements.ptr().wrapping_offset(row as isize * self.pitch + column as isize)
    }

    #[inline(always)]
    pub(super) fn row(&self, index: usize) -> &'m [T] {
        assert!(index < self.rows, "a row of the matrix");
        self.at(index, 0).shared(0, self.columns)
    }
}

/// The target of the rows of results.
pub(super) struct Target<'y> {
    pub(super) elements: Divided<'y, f32>,
    pub(super) pitch: isize,
    /// The first output.
    pub(super) first: usize,
}

impl Target<'_> {
    pub(super) fn of(view: &RawViewMut) -> Self {
        Target { elements: Divided::of_view(view), pitch: view.strides()[0], first: 0 }
    }
}

/// One product.
pub(super) struct Rows<'p, T> {
    pub(super) x: Matrix<'p, f32>,
    pub(super) weight: Matrix<'p, T>,
    pub(super) bias: Option<&'p [f32]>,
    pub(super) y: Target<'p>,
}

impl<'p, T: Weight> Rows<'p, T> {
    pub(super) fn new(x: Matrix<'p, f32>, weight: &View<'p>, bias: Option<&'p [f32]>, y: Target<'p>) -> Self {
        Rows { x, weight: Matrix::of(weight), bias, y }
    }
}

/// A type that weights are stored in.
pub(super) trait Weight: Element {
    /// The first elements as a vector of f32.
    ///
    /// # Panics
    /// If there are fewer than a vector has.
    fn widen<S: Isa>(simd: S, from: &[Self]) -> V<f32, S>;
    /// As many elements as there is room for.
    fn widen_row<S: Isa>(simd: S, from: &[Self], into: &mut [f32]);
    /// One element.
    fn wide(self) -> f32;
}

impl Weight for f32 {
    #[inline(always)]
    fn widen<S: Isa>(simd: S, from: &[f32]) -> V<f32, S> {
        V::first(simd, from)
    }
    #[inline(always)]
    fn widen_row<S: Isa>(_: S, from: &[f32], into: &mut [f32]) {
        into.copy_from_slice(from);
    }
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
}

macro_rules! narrow_weight {
    ($type:ident, $first:ident, $widen:ident) => {
        impl Weight for $type {
            #[inline(always)]
            fn widen<S: Isa>(simd: S, from: &[$type]) -> V<f32, S> {
                V::$first(simd, from)
            }
            #[inline(always)]
            fn widen_row<S: Isa>(simd: S, from: &[$type], into: &mut [f32]) {
                simd.$widen(from, into);
            }
            #[inline(always)]
            fn wide(self) -> f32 {
                self.to_f32()
            }
        }
    };
}
narrow_weight!(bf16, first_bf16, widen_bf16);
narrow_weight!(f16, first_f16, widen_f16);

/// Runs a product on the threads of an executor.
pub(super) fn product<T: Weight>(exec: &Exec, rows: &Rows<'_, T>) {
    let (count, outputs, inputs) = (rows.x.rows, rows.weight.rows, rows.x.columns);
    let outputs_per_job = (WEIGHT_BYTES / (inputs * size_of::<f32>()).max(1)).clamp(OUTPUTS, 64) / OUTPUTS * OUTPUTS;
    let (across, down) = (outputs.div_ceil(outputs_per_job), count.div_ceil(ROWS_PER_JOB));
    let level = exec.level();
    exec.for_work(count * outputs * inputs).for_each(across * down, Vec::new, |wide, job| {
        let (o, r) = (job / down * outputs_per_job, job % down * ROWS_PER_JOB);
        let (o, r) = (o..outputs.min(o + outputs_per_job), r..count.min(r + ROWS_PER_JOB));
        level.dispatch(Job { rows, outputs: o, chosen: r, wide });
    });
}

/// Some outputs of some rows, which nobody else writes.
struct Job<'j, 'p, T> {
    rows: &'j Rows<'p, T>,
    outputs: Range<usize>,
    chosen: Range<usize>,
    /// Room for wide weights.
    wide: &'j mut Vec<f32>,
}

impl<T: Weight> Kernel for Job<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Job { rows, outputs, chosen, wide } = self;
        if size_of::<T>() == size_of::<f32>() || chosen.len() < MANY_ROWS {
            return strips(simd, rows, outputs, chosen);
        }
        let inputs = rows.x.columns;
        wide.resize(outputs.len() * inputs, 0.0);
        for (row, o) in wide.chunks_exact_mut(inputs.max(1)).zip(outputs.clone()) {
            T::widen_row(simd, rows.weight.row(o), row);
        }
        let weight = Matrix { elements: Array::of(wide), pitch: inputs as isize, rows: outputs.len(), columns: inputs };
        let bias = rows.bias.map(|bias| &bias[outputs.clone()]);
        let y = Target { first: outputs.start, ..rows.y };
        strips(simd, &Rows { x: rows.x, weight, bias, y }, 0..outputs.len(), chosen);
    }
}

/// Some outputs of some rows, as many rows at once as there are registers for.
#[inline(always)]
fn strips<T: Weight, S: Isa>(simd: S, rows: &Rows<'_, T>, outputs: Range<usize>, chosen: Range<usize>) {
    let mut first = chosen.start;
    while first < chosen.end {
        first += match chosen.end - first {
            ROWS.. if S::F32_LANES == MAX_LANES => strip::<ROWS, T, S>(simd, rows, &outputs, first),
            4.. if S::F32_LANES == MAX_LANES => strip::<4, T, S>(simd, rows, &outputs, first),
            FEW_ROWS.. if S::F32_LANES < MAX_LANES => strip::<FEW_ROWS, T, S>(simd, rows, &outputs, first),
            2.. => strip::<2, T, S>(simd, rows, &outputs, first),
            _ => strip::<1, T, S>(simd, rows, &outputs, first),
        };
    }
}

/// All outputs of `R` rows; gives their number.
#[inline(always)]
fn strip<const R: usize, T: Weight, S: Isa>(simd: S, rows: &Rows<'_, T>, outputs: &Range<usize>, first: usize) -> usize {
    for output in outputs.clone().step_by(OUTPUTS) {
        let count = OUTPUTS.min(outputs.end - output);
        simd.call(Tile::<R, T> { rows, first, output, count });
    }
    R
}

/// `R` rows and up to [`OUTPUTS`] outputs.
struct Tile<'j, 'p, const R: usize, T> {
    rows: &'j Rows<'p, T>,
    first: usize,
    output: usize,
    count: usize,
}

impl<const R: usize, T: Weight> Kernel for Tile<'_, '_, R, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Rows { x, weight, bias, y } = self.rows;
        let lanes = S::F32_LANES;
        let columns = x.columns;
        let whole = columns / lanes * lanes;
        let x: [Array<'_, f32>; R] = core::array::from_fn(|r| x.at(self.first + r, 0));
        // outputs that are not there repeat the last one, and are not written
        let w: [Array<'_, T>; OUTPUTS] = core::array::from_fn(|o| weight.at(self.output + o.min(self.count - 1), 0));
        let mut sums = [[V::splat(simd, 0f32); OUTPUTS]; R];
        for k in (0..whole).step_by(lanes) {
            // Few rows wait for their weights, and those of 16 bits end too soon for the processor to prefetch the next ones by itself.
            if R < ROWS && size_of::<T>() < size_of::<f32>() && k % (LINE / size_of::<T>()) == 0 {
                for o in 0..OUTPUTS {
                    prefetch_row(weight.address(self.output + OUTPUTS + o, k).cast(), LINE);
                }
            }
            // no closure here, which could be compiled on its own, without the instruction set
            let mut rows = [V::splat(simd, 0f32); R];
            for (row, x) in rows.iter_mut().zip(&x) {
                *row = x.load(simd, k);
            }
            // One output after another: three rows, one vector of weights and the sums of a tile are what sixteen registers hold.
            for o in 0..OUTPUTS {
                let wide = T::widen(simd, w[o].shared(k, lanes));
                for r in 0..R {
                    sums[r][o] = rows[r].mul_add(wide, sums[r][o]);
                }
            }
        }
        let left = columns - whole;
        if left > 0 {
            // the last vector is filled up with zeros
            let w = w.map(|w| rest(simd, w.shared(whole, left), T::wide));
            for r in 0..R {
                let x = rest(simd, x[r].shared(whole, left), |x| x);
                for o in 0..OUTPUTS {
                    sums[r][o] = x.mul_add(w[o], sums[r][o]);
                }
            }
        }
        let sums = sums_over_lanes(simd, &sums);
        for r in 0..R {
            for o in 0..self.count {
                let bias = bias.map_or(0.0, |bias| bias[self.output + o]);
                let place = y.elements.moved((self.first + r) as isize * y.pitch + (y.first + self.output + o) as isize);
                // SAFETY: no other job has these outputs of these rows.
                unsafe { place.part(0) }.set(0, sums[r * OUTPUTS + o] + bias);
            }
        }
    }
}

/// The sums of vectors over their lanes, all by the same addition tree.
#[inline(always)]
fn sums_over_lanes<const R: usize, S: Isa>(simd: S, vectors: &[[V<f32, S>; OUTPUTS]; R]) -> [f32; SUMS] {
    let (lanes, mut partial, mut sums) = (S::F32_LANES, [[0f32; MAX_LANES]; SUMS], [0f32; SUMS]);
    for (room, vector) in partial.iter_mut().zip(vectors.as_flattened()) {
        *room = vector.to_array();
    }
    let (partial, mut total) = (Array::of(partial.as_flattened()), ArrayMut::of(&mut sums));
    for first in (0..R * OUTPUTS).step_by(lanes) {
        total.store(first, partial.sum_rows(simd, first * MAX_LANES, MAX_LANES));
    }
    sums
}

/// Fewer elements than a vector has, and zeros.
#[inline(always)]
fn rest<T: Copy, S: Isa>(simd: S, from: &[T], wide: impl Fn(T) -> f32) -> V<f32, S> {
    let mut lanes = [0.0; MAX_LANES];
    for (lane, &element) in lanes.iter_mut().zip(from) {
        *lane = wide(element);
    }
    V::from_array(simd, &lanes)
}
