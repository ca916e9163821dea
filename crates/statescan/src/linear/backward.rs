//! Gradients of a product, by the `gemm` crate: a job has some rows of a gradient, cut by the shape alone, so that any number of threads
//! takes the same sums.

use super::kernel::Matrix;
use crate::cpu::{Divided, Factor, Matrix as Block, MatrixMut};
use crate::exec::Exec;
use crate::tensor::RawViewMut;
use core::ops::Range;

/// Rows of a gradient in a job.
const ROWS: usize = 64;

/// `dx = dy W`, or with a flag `dx += dy W`.
pub(super) fn inputs(exec: &Exec, dy: &Matrix<'_, f32>, weight: &Matrix<'_, f32>, dx: (&RawViewMut, bool)) {
    rows(exec, [dy.rows, weight.columns, dy.columns], dx, &|rows| Factors {
        left: dy.factor(rows.start, 0),
        right: weight.factor(0, 0),
    });
}

/// `dW = dy^T x`.
pub(super) fn weights(exec: &Exec, dy: &Matrix<'_, f32>, x: &Matrix<'_, f32>, dw: &RawViewMut) {
    rows(exec, [dy.columns, x.columns, dy.rows], (dw, false), &|outputs| Factors {
        left: dy.factor(0, outputs.start).t(),
        right: x.factor(0, 0),
    });
}

/// `db`, the sums of the columns of `dy`.
pub(super) fn bias(dy: &Matrix<'_, f32>, db: &RawViewMut) {
    let mut sums = vec![0f32; dy.columns];
    for r in 0..dy.rows {
        sums.iter_mut().zip(dy.row(r)).for_each(|(sum, dy)| *sum += dy);
    }
    for (o, sum) in sums.into_iter().enumerate() {
        db.write(o as isize * db.strides()[0], f64::from(sum).into());
    }
}

/// The factors of some rows of a product.
struct Factors<'f> {
    left: Block<'f, f32>,
    right: Block<'f, f32>,
}

impl<'m> Matrix<'m, f32> {
    /// The part from an element on, as a factor.
    fn factor(&self, row: usize, column: usize) -> Block<'m, f32> {
        Block { array: self.at(row, column), row: self.pitch as usize, col: 1 }
    }
}

/// `count` rows of `columns` sums over `depth`, some rows at a time, or with a flag added to what is there.
fn rows<'f>(
    exec: &Exec,
    [count, columns, depth]: [usize; 3],
    (into, add): (&RawViewMut, bool),
    factors: &(dyn Fn(&Range<usize>) -> Factors<'f> + Sync),
) {
    let (target, pitch) = (Divided::of_view(into), into.strides()[0] as usize);
    exec.for_work(count * columns * depth).for_each(
        count.div_ceil(ROWS),
        || (),
        |(), job| {
            let rows = job * ROWS..count.min((job + 1) * ROWS);
            let Factors { left, right } = factors(&rows);
            // SAFETY: no other job has these rows.
            let to = MatrixMut::new(unsafe { target.part(rows.start * pitch) }, pitch);
            f32::multiply(to, add.then_some(1.0), [rows.len(), columns, depth], left, right);
        },
    );
}
