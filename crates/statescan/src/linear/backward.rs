//! Gradients of a product, by the `gemm` crate: a job has some rows of a gradient, cut by the shape alone, so that any number of threads
//! takes the same sums.

use super::kernel::Matrix;
use crate::cpu::{Array, Factor, Matrix as Block, MatrixMut};
use crate::exec::Exec;
use crate::tensor::RawViewMut;
use core::ops::Range;

/// Rows of a gradient in a job.
const ROWS: usize = 64;

/// `dx = dy W`, or with a flag `dx += dy W`.
pub(super) fn inputs(exec: &Exec, dy: &Matrix<f32>, weight: &Matrix<f32>, dx: (&RawViewMut, bool)) {
    rows(exec, [dy.rows, weight.columns, dy.columns], dx, &|rows| Factors {
        left: dy.factor(rows.start, 0),
        right: weight.factor(0, 0),
    });
}

/// `dW = dy^T x`.
pub(super) fn weights(exec: &Exec, dy: &Matrix<f32>, x: &Matrix<f32>, dw: &RawViewMut) {
    rows(exec, [dy.columns, x.columns, dy.rows], (dw, false), &|outputs| Factors {
        left: dy.factor(0, outputs.start).t(),
        right: x.factor(0, 0),
    });
}

/// `db`, the sums of the columns of `dy`.
pub(super) fn bias(dy: &Matrix<f32>, db: &RawViewMut) {
    let mut sums = vec![0f32; dy.columns];
    for r in 0..dy.rows {
        sums.iter_mut().zip(dy.row(r)).for_each(|(sum, dy)| *sum += dy);
    }
    let (target, step) = (Array::of_view_mut(db), db.strides()[0]);
    for (o, sum) in sums.into_iter().enumerate() {
        target.moved(o as isize * step).set(0, sum);
    }
}

/// The factors of some rows of a product.
struct Factors {
    left: Block<f32>,
    right: Block<f32>,
}

impl Matrix<f32> {
    /// The part from an element on, as a factor.
    fn factor(&self, row: usize, column: usize) -> Block<f32> {
        Block { array: self.at(row, column), row: self.pitch as usize, col: 1 }
    }
}

/// `count` rows of `columns` sums over `depth`, some rows at a time, or with a flag added to what is there.
fn rows(
    exec: &Exec,
    [count, columns, depth]: [usize; 3],
    (into, add): (&RawViewMut, bool),
    factors: &(dyn Fn(&Range<usize>) -> Factors + Sync),
) {
    let target = MatrixMut::new(Array::of_view_mut(into), into.strides()[0] as usize);
    exec.for_work(count * columns * depth).for_each(
        count.div_ceil(ROWS),
        || (),
        |(), job| {
            let rows = job * ROWS..count.min((job + 1) * ROWS);
            let Factors { left, right } = factors(&rows);
            f32::multiply(target.at(rows.start, 0), add.then_some(1.0), [rows.len(), columns, depth], left, right);
        },
    );
}
