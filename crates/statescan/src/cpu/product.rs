//! Matrix products on strided blocks of scratch memory: those along rows by a kernel of their own, which need no packing; the others, whose
//! right factor lies across, by the `gemm` crate.

use super::parts::{load_part, store_part};
use super::simd::{Isa, Real, V};
use super::tile::Prefetch;
use super::{Kernel, Level, Matrix, MatrixMut};

/// Memory that is prefetched while products are computed.
pub(crate) type Ahead = Prefetch<32>;

/// The use of the values that the target has before the product.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Into<T> {
    Replace,
    Add,
    /// It is multiplied by this number first.
    Scaled(T),
}

/// `dst (m, n) = lhs (m, k) rhs (k, n)`, or added to what is there.
pub(crate) struct Product<'p, T> {
    pub dst: MatrixMut<'p, T>,
    pub into: Into<T>,
    pub size: [usize; 3],
    pub lhs: Matrix<'p, T>,
    pub rhs: Matrix<'p, T>,
}

impl<T: Real> Product<'_, T> {
    /// Computes it. Products along rows prefetch what comes next on the way, as work of m n k.
    pub(crate) fn run(self, level: Level, ahead: &mut Ahead) {
        let Product { dst, into, size, lhs, rhs } = self;
        debug_assert!(dst.is_apart_within(size[0], size[1]), "every element has its own place");
        if dst.col == 1 && rhs.col == 1 {
            return level.dispatch(RowProduct { ahead, dst, into, size, lhs, rhs });
        }
        let before = match into {
            Into::Replace => None,
            Into::Add => Some(T::from_f64(1.0)),
            Into::Scaled(factor) => Some(factor),
        };
        T::multiply(dst, before, size, lhs, rhs)
    }
}

/// Multiply-adds between two prefetch for what comes next: some forty nanoseconds.
const STRETCH: usize = 4096;

/// A product whose `dst` and `rhs` have rows of contiguous elements. All of it lies in the second-level cache at worst, so nothing is packed:
/// a block of rows x two vectors stays in registers over all of k, and two vectors of `rhs`, over all of k, stay in the first cache.
struct RowProduct<'p, T> {
    ahead: &'p mut Ahead,
    dst: MatrixMut<'p, T>,
    into: Into<T>,
    size: [usize; 3],
    lhs: Matrix<'p, T>,
    rhs: Matrix<'p, T>,
}

impl<T: Real> Kernel for RowProduct<'_, T> {
    type Output = ();
    const EVERY_LEVEL: bool = true;
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let (n, lanes) = (self.size[1], T::lanes::<S>());
        let mut column = 0;
        while column < n {
            let rest = n - column;
            if rest >= 2 * lanes {
                self.panel::<S, 2>(simd, column, lanes);
                column += 2 * lanes;
            } else {
                self.panel::<S, 1>(simd, column, rest.min(lanes));
                column += lanes;
            }
        }
    }
}

impl<T: Real> RowProduct<'_, T> {
    /// All rows of `C` vectors of columns; the last vector has `len` of them.
    #[inline(always)]
    fn panel<S: Isa, const C: usize>(&mut self, simd: S, column: usize, len: usize) {
        let m = self.size[0];
        debug_assert!(column + (C - 1) * T::lanes::<S>() + len <= self.size[1], "the columns lie inside");
        let mut row = 0;
        // as many sums as hide the latency of a multiply-add, and leave registers for the factors
        if S::F32_LANES == 16 {
            while row + 8 <= m {
                self.block::<S, 8, C>(simd, row, column, len);
                row += 8;
            }
        }
        while row + 4 <= m {
            self.block::<S, 4, C>(simd, row, column, len);
            row += 4;
        }
        while row < m {
            self.block::<S, 1, C>(simd, row, column, len);
            row += 1;
        }
    }

    /// `R` rows of `C` vectors of columns.
    #[inline(always)]
    fn block<S: Isa, const R: usize, const C: usize>(&mut self, simd: S, row: usize, column: usize, len: usize) {
        let lanes = T::lanes::<S>();
        debug_assert!(row + R <= self.size[0], "the rows lie inside");
        let len = |c: usize| if c + 1 == C { len } else { lanes };
        let zero = V::splat(simd, T::default());
        let (lhs, rhs) = (self.lhs.at(row, 0), self.rhs.at(0, column));
        let mut sum = [[zero; C]; R];
        let (depth, stretch) = (self.size[2], STRETCH / (R * C * lanes));
        for start in (0..depth).step_by(stretch) {
            let end = depth.min(start + stretch);
            for k in start..end {
                let mut right = [zero; C];
                for c in 0..C {
                    right[c] = load_part(simd, rhs.from(k, c * lanes), len(c));
                }
                for r in 0..R {
                    let left = V::splat(simd, lhs.get(r, k));
                    for c in 0..C {
                        sum[r][c] = left.mul_add(right[c], sum[r][c]);
                    }
                }
            }
            self.ahead.step(R * C * lanes * (end - start));
        }
        let mut dst = self.dst.reborrow().at(row, column);
        for r in 0..R {
            for c in 0..C {
                let at = dst.reborrow().from(r, c * lanes);
                let value = match self.into {
                    Into::Replace => sum[r][c],
                    Into::Add => load_part(simd, at.read(), len(c)) + sum[r][c],
                    Into::Scaled(factor) => load_part(simd, at.read(), len(c)).mul_add(V::splat(simd, factor), sum[r][c]),
                };
                store_part(value, at, len(c));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::ArrayMut;

    #[test]
    fn products_of_every_size_and_layout_on_every_level() {
        for level in Level::available() {
            for m in [1usize, 2, 5, 16, 23] {
                for n in [1usize, 2, 5, 16, 33, 48] {
                    for k in [0usize, 1, 3, 20] {
                        for across in [false, true] {
                            for into in [Into::Replace, Into::Add, Into::Scaled(-3.0)] {
                                one_product(level, [m, n, k], across, into);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Small integers, so that sums are exact in any order; what is replaced must not be read.
    fn one_product(level: Level, size: [usize; 3], across: bool, into: Into<f32>) {
        let [m, n, k] = size;
        let a: Vec<f32> = (0..m * k).map(|i| (i % 7) as f32 - 3.0).collect();
        let b: Vec<f32> = (0..k * n).map(|i| (i % 5) as f32 - 2.0).collect();
        let before = |i: usize| if into == Into::Replace { f32::NAN } else { (i % 11) as f32 };
        // a row longer than the matrix, to see that nothing beyond is written
        let mut c: Vec<f32> = (0..m * (n + 1)).map(before).collect();
        let lhs = Matrix::of(&a, k);
        let rhs = if across { Matrix::of(&b, k).t() } else { Matrix::of(&b, n) };
        let dst = MatrixMut::new(ArrayMut::of(&mut c), n + 1);
        Product { dst, into, size, lhs, rhs }.run(level, &mut Ahead::new());
        for r in 0..m {
            for s in 0..=n {
                let sum: f32 = (0..k).map(|i| lhs.get(r, i) * rhs.get(i, s.min(n - 1))).sum();
                let old = before(r * (n + 1) + s);
                let expected = match into {
                    _ if s == n => old,
                    Into::Replace => sum,
                    Into::Add => old + sum,
                    Into::Scaled(factor) => old * factor + sum,
                };
                let got = c[r * (n + 1) + s];
                assert!(got == expected || (got.is_nan() && expected.is_nan()), "{level} {size:?} {into:?} at ({r}, {s})");
            }
        }
    }
}
