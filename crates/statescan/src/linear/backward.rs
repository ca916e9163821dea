//! Gradients of a product, by the `gemm` crate: a job has some rows of a gradient, cut by the shape alone, so that any number of threads
//! takes the same sums.

use super::kernel::Matrix;
use crate::cpu::Shared;
use crate::exec::Exec;
use crate::tensor::ViewMut;
use core::ops::Range;

/// Rows of a gradient in a job.
const ROWS: usize = 64;

/// `dx = dy W`.
pub(super) fn inputs(exec: &Exec, dy: &Matrix<f32>, weight: &Matrix<f32>, dx: &mut ViewMut<'_>) {
    rows(exec, dy.rows, weight.columns, dy.columns, dx, &|rows| Factors {
        left: (dy.at(rows.start, 0), 1, dy.pitch),
        right: (weight.at(0, 0), 1, weight.pitch),
    });
}

/// `dW = dy^T x`.
pub(super) fn weights(exec: &Exec, dy: &Matrix<f32>, x: &Matrix<f32>, dw: &mut ViewMut<'_>) {
    rows(exec, dy.columns, x.columns, dy.rows, dw, &|outputs| Factors {
        left: (dy.at(0, outputs.start), dy.pitch, 1),
        right: (x.at(0, 0), 1, x.pitch),
    });
}

/// `db`, the sums of the columns of `dy`.
pub(super) fn bias(dy: &Matrix<f32>, db: &mut ViewMut<'_>) {
    let mut sums = vec![0f32; dy.columns];
    for r in 0..dy.rows {
        sums.iter_mut().zip(dy.row(r)).for_each(|(sum, dy)| *sum += dy);
    }
    let (target, step) = (db.as_mut_ptr().cast::<f32>(), db.as_view().strides()[0]);
    for (o, sum) in sums.into_iter().enumerate() {
        // SAFETY: the view was checked to have as many f32 elements.
        unsafe { *target.offset(o as isize * step) = sum };
    }
}

/// The factors of some rows of a product: where each begins, and the steps of its columns and rows.
struct Factors {
    left: (*const f32, isize, isize),
    right: (*const f32, isize, isize),
}

/// `count` rows of `columns` sums over `depth`, some rows at a time.
fn rows(
    exec: &Exec,
    count: usize,
    columns: usize,
    depth: usize,
    into: &mut ViewMut<'_>,
    factors: &(dyn Fn(&Range<usize>) -> Factors + Sync),
) {
    let (target, pitch) = (Shared::new(into.as_mut_ptr().cast::<f32>()), into.as_view().strides()[0]);
    exec.for_work(count * columns * depth).for_each(
        count.div_ceil(ROWS),
        || (),
        |(), job| {
            let rows = job * ROWS..count.min((job + 1) * ROWS);
            let Factors { left, right } = factors(&rows);
            // SAFETY: the views were checked to have these rows and columns; nobody else writes the rows of this job.
            unsafe {
                let target = target.get().offset(rows.start as isize * pitch);
                gemm::gemm(
                    rows.len(),
                    columns,
                    depth,
                    target,
                    1,
                    pitch,
                    false,
                    left.0,
                    left.1,
                    left.2,
                    right.0,
                    right.1,
                    right.2,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    gemm::Parallelism::None,
                );
            }
        },
    );
}
