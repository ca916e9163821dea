//! What a target is a share of: work that every implementation has to do, by the best means there is.

use crate::error::Result;
use num_complex::Complex32;
use statescan_cases::sizes::Sizes;
use std::hint::black_box;

/// Copies an array: so many bytes read and written in all.
pub(super) fn copy(bytes: usize) -> impl FnMut() -> Result<()> {
    let (source, mut target) = (vec![1u64; bytes / 16], vec![0u64; bytes / 16]);
    move || {
        black_box(&mut target).copy_from_slice(black_box(&source));
        Ok(())
    }
}

/// A dense row-major matrix.
struct Matrix {
    rows: usize,
    columns: usize,
    data: Vec<Complex32>,
}

impl Matrix {
    fn new(rows: usize, columns: usize, value: Complex32) -> Self {
        Matrix { rows, columns, data: vec![value; rows * columns] }
    }

    /// `self = left right`.
    fn product(&mut self, left: &Matrix, right: &Matrix) {
        assert!(left.rows == self.rows && left.columns == right.rows && right.columns == self.columns);
        // SAFETY: the vectors have the sizes and steps given, and no element of the result is read.
        unsafe {
            gemm::gemm(
                self.rows,
                self.columns,
                left.columns,
                self.data.as_mut_ptr(),
                1,
                self.columns as isize,
                false,
                left.data.as_ptr(),
                1,
                left.columns as isize,
                right.data.as_ptr(),
                1,
                right.columns as isize,
                Complex32::ZERO,
                Complex32::ONE,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    }
}

/// The two complex products of an S5 layer, `B u` and `C x`, for every row of the batch.
pub(super) fn products(sizes: &Sizes) -> impl FnMut() -> Result<()> {
    let [batch, dim, states, seqlen] = ['B', 'H', 'P', 'L'].map(|letter| sizes.get(letter));
    let value = Complex32::new(0.5, -0.25);
    let (b, c) = (Matrix::new(states, dim, value), Matrix::new(dim, states, value));
    let u = Matrix::new(dim, seqlen, value);
    let (mut x, mut y) = (Matrix::new(states, seqlen, value), Matrix::new(dim, seqlen, value));
    move || {
        for _ in 0..batch {
            x.product(&b, black_box(&u));
            y.product(&c, &x);
            black_box(&mut y);
        }
        Ok(())
    }
}
