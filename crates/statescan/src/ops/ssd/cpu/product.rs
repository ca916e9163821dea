//! Matrix products on strided blocks of scratch memory.

use crate::cpu::simd::Real;

/// A matrix in memory that someone else owns: element (r, c) is at `r * row + c * col`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<T> {
    pub ptr: *mut T,
    row: isize,
    col: isize,
}

impl<T: Real> Matrix<T> {
    /// Rows of contiguous elements, `pitch` apart.
    pub(super) fn new(ptr: *mut T, pitch: usize) -> Self {
        Matrix { ptr, row: pitch as isize, col: 1 }
    }

    /// The transposed matrix.
    pub(super) fn t(self) -> Self {
        Matrix { ptr: self.ptr, row: self.col, col: self.row }
    }

    /// The matrix whose first element is (r, c).
    pub(super) fn at(self, r: usize, c: usize) -> Self {
        Matrix { ptr: self.ptr.wrapping_offset(r as isize * self.row + c as isize * self.col), ..self }
    }
}

/// Whether a product replaces or adds to what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Into {
    Replace,
    Add,
}

/// `dst (m, n) = lhs (m, k) rhs (k, n)`, or `+=`.
///
/// # Safety
/// The three blocks lie in memory that can be read (`lhs`, `rhs`) and written (`dst`), and `dst` is apart from the others.
pub(super) unsafe fn product<T: Real>(dst: Matrix<T>, into: Into, [m, n, k]: [usize; 3], lhs: Matrix<T>, rhs: Matrix<T>) {
    let (one, keep) = (T::from_f64(1.0), into == Into::Add);
    let alpha = if keep { one } else { T::default() };
    // SAFETY: the caller's contract.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            dst.ptr,
            dst.col,
            dst.row,
            keep,
            lhs.ptr,
            lhs.col,
            lhs.row,
            rhs.ptr,
            rhs.col,
            rhs.row,
            alpha,
            one,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_never_reads_and_empty_sums_are_zero() {
        for m in [1usize, 2, 3, 16, 17, 40] {
            for n in [1usize, 2, 5, 16, 33] {
                for k in [0usize, 1, 2, 3, 20] {
                    for transposed in [false, true] {
                        let mut a: Vec<f32> = (0..m * k).map(|i| (i % 7) as f32 - 3.0).collect();
                        let mut b: Vec<f32> = (0..k * n).map(|i| (i % 5) as f32 - 2.0).collect();
                        let mut c = vec![f32::NAN; m * n];
                        let (a, b, d) =
                            (Matrix::new(a.as_mut_ptr(), k), Matrix::new(b.as_mut_ptr(), n), Matrix::new(c.as_mut_ptr(), n));
                        // SAFETY: the vectors have the sizes given.
                        unsafe {
                            match transposed {
                                false => product(d, Into::Replace, [m, n, k], a, b),
                                true => product(d.t(), Into::Replace, [n, m, k], b.t(), a.t()),
                            }
                        }
                        for r in 0..m {
                            for s in 0..n {
                                // SAFETY: inside the matrices.
                                let expected: f32 = (0..k).map(|i| unsafe { *a.at(r, i).ptr * *b.at(i, s).ptr }).sum();
                                assert_eq!(c[r * n + s], expected, "{m} {n} {k}");
                            }
                        }
                    }
                }
            }
        }
    }
}
