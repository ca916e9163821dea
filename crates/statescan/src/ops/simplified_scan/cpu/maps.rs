//! The dense maps as real matrices. A complex product is a real one of twice the size,
//!
//! ```text
//! [re; im] of M v  =  [Mr -Mi; Mi Mr] [vr; vi]
//! ```
//!
//! with as many multiplications as the complex one, and with half of them where only one part goes in (a real input) or comes out (a real
//! output). Its adjoint is the transposed matrix, and its gradient folds back onto that of M.

use crate::cpu::simd::Real;
use crate::cpu::tile::{self, Plane, PlaneMut, STEPS};
use crate::cpu::{Array, ArrayMut, Divided, Matrix, MatrixMut};
use crate::exec::Exec;
use crate::tensor::{RawViewMut, View};

/// How the parts of a vector of numbers lie side by side: groups of `width` real parts, each followed by as many imaginary parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Side {
    /// Numbers.
    pub count: usize,
    /// 1: only real parts; 2.
    pub parts: usize,
    /// Numbers in a group; `count` puts all real parts before all imaginary ones.
    pub width: usize,
}

impl Side {
    /// Real numbers in all, those of the last group's padding included.
    pub(super) fn len(&self) -> usize {
        self.parts * self.count.next_multiple_of(self.width.max(1))
    }

    fn index(&self, i: usize, part: usize) -> usize {
        i / self.width * self.width * self.parts + part * self.width + i % self.width
    }
}

/// A map from one side to another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Map {
    pub from: Side,
    pub to: Side,
    /// Multiplies the matrix.
    pub factor: f64,
}

impl Map {
    pub(super) fn len(&self) -> usize {
        self.from.len() * self.to.len()
    }

    /// The real matrix (from, to), row-major, of a complex one (to, from).
    pub(super) fn pack<T: Real>(&self, exec: &Exec, view: &View<'_>) -> Vec<T> {
        let mut packed = vec![T::default(); self.len()];
        let target = Divided::of(&mut packed);
        exec.for_each(self.to.count.div_ceil(STEPS), Vec::new, |scratch: &mut Vec<T>, block| {
            scratch.resize(2 * STEPS * self.from.count, T::default());
            let start = block * STEPS;
            let steps = STEPS.min(self.to.count - start);
            let plane = Plane::of(view, 1, 0).at(0, start);
            let from = plane.area(self.from.count, steps);
            tile::load_parts_on(exec.level(), from, 2, self.from.count, ArrayMut::of(scratch));
            self.blocks(start, steps, |part_from, columns, factor, imaginary| {
                for j in 0..self.from.count {
                    // SAFETY: no other job has these columns.
                    let mut row = unsafe { target.part(self.from.index(j, part_from) * self.to.len()) };
                    for i in 0..steps {
                        let value = scratch[(2 * i + imaginary) * self.from.count + j] * T::from_f64(factor);
                        row.set(columns[i], value);
                    }
                }
            });
        });
        packed
    }

    /// Folds the gradient of the real matrix onto the complex one.
    pub(super) fn unpack<T: Real>(&self, exec: &Exec, packed: &[T], target: &RawViewMut) {
        let parts = 1 + usize::from(target.dtype().is_complex());
        exec.for_each(self.to.count.div_ceil(STEPS), Vec::new, |scratch: &mut Vec<T>, block| {
            scratch.clear();
            scratch.resize(parts * STEPS * self.from.count, T::default());
            let start = block * STEPS;
            let steps = STEPS.min(self.to.count - start);
            self.blocks(start, steps, |part_from, columns, factor, imaginary| {
                if imaginary >= parts {
                    return;
                }
                for j in 0..self.from.count {
                    let row = &packed[self.from.index(j, part_from) * self.to.len()..];
                    for i in 0..steps {
                        let value = &mut scratch[(parts * i + imaginary) * self.from.count + j];
                        *value = *value + row[columns[i]] * T::from_f64(factor);
                    }
                }
            });
            let plane = PlaneMut::of(target, 1, 0).at(0, start);
            let to = plane.area(self.from.count, steps);
            tile::store_parts_on(exec.level(), Array::of(scratch), parts, self.from.count, to);
        });
    }

    /// Calls `f(part of from, columns of the outputs, factor, which part of the matrix)` for each block of the real matrix, the outputs
    /// being `steps` from `start`.
    fn blocks(&self, start: usize, steps: usize, mut f: impl FnMut(usize, &[usize], f64, usize)) {
        let mut columns = [0; STEPS];
        for part_from in 0..self.from.parts {
            for part_to in 0..self.to.parts {
                let factor = if part_from > part_to { -self.factor } else { self.factor };
                for (i, column) in columns[..steps].iter_mut().enumerate() {
                    *column = self.to.index(start + i, part_to);
                }
                f(part_from, &columns[..steps], factor, part_from ^ part_to);
            }
        }
    }
}

/// `to (m, n) = left (m, k) right (k, n)`, or `+=`. On the calling thread.
pub(super) fn product<T: Real>(
    [m, n, k]: [usize; 3],
    mut to: MatrixMut<'_, T>,
    add: bool,
    left: Matrix<'_, T>,
    right: Matrix<'_, T>,
) {
    if m == 0 || n == 0 || (k == 0 && add) {
        return;
    }
    debug_assert!(to.col == 1, "rows are contiguous");
    debug_assert!(to.is_apart_within(m, n), "every element has its own place");
    if k == 0 {
        return (0..m).for_each(|row| to.reborrow().from(row, 0).clear(n));
    }
    T::multiply(to, add.then(|| T::from_f64(1.0)), [m, n, k], left, right)
}
