//! Triangles of a chunk with one decay for a head, and what all chunks do with theirs.

use super::chunk::{Scratch, Triangle};
use super::plan::CHUNK;
use crate::cpu::product::{Ahead, Into, Product};
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::{Kernel, Level, Matrix, MatrixMut};

/// Rows of a triangle that are computed together, with all columns up to the last one's.
pub(super) const STRIP: usize = 16;

/// The strips of so many rows: where they begin and end.
pub(super) fn strips(rows: usize) -> impl DoubleEndedIterator<Item = (usize, usize)> {
    (0..rows).step_by(STRIP).map(move |first| (first, rows.min(first + STRIP))).collect::<Vec<_>>().into_iter()
}

/// `dst = lhs rhs`, or added to it.
pub(super) fn multiply<T: Real>(
    level: Level,
    dst: MatrixMut<'_, T>,
    into: Into<T>,
    size: [usize; 3],
    [lhs, rhs]: [Matrix<'_, T>; 2],
) {
    Product { dst, into, size, lhs, rhs }.run(level, &mut Ahead::new());
}

/// The products of rows with the columns of `across`, on and below the diagonal.
pub(super) fn below<T: Real>(
    level: Level,
    mut dst: MatrixMut<'_, T>,
    rows: usize,
    depth: usize,
    [lhs, across]: [Matrix<'_, T>; 2],
) {
    for (first, end) in strips(rows) {
        let size = [end - first, end, depth];
        multiply(level, dst.reborrow().at(first, 0), Into::Replace, size, [lhs.at(first, 0), across]);
    }
}

/// A and -M.
pub(super) fn forward<T: Real>(level: Level, s: &mut Scratch<'_, T>, rows: usize, keys: usize) {
    let across = s.k_across.matrix();
    below(level, s.triangle.a.matrix_mut(), rows, keys, [s.keys.q.matrix(), across]);
    below(level, s.triangle.m.matrix_mut(), rows, keys, [s.keys.k.matrix(), across]);
    level.dispatch(Decay { s, rows });
}

/// Decays from step to step, and those of A and -M.
struct Decay<'d, 'm, T> {
    s: &'d mut Scratch<'m, T>,
    rows: usize,
}

impl<T: Real> Kernel for Decay<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Decay { s, rows } = self;
        let (Triangle { decay, a, m, .. }, rates) = (&mut s.triangle, &s.rates);
        let lanes = T::lanes::<S>();
        for row in 0..rows {
            let (own, beta) = (V::splat(simd, rates.decay.get(row)), V::splat(simd, -rates.beta.get(row)));
            for at in (0..CHUNK).step_by(lanes) {
                let place = row * CHUNK + at;
                let before = if row > 0 { decay.array.load(simd, place - CHUNK) * own } else { V::constant(simd, 0.0) };
                decay.array.store(place, before);
            }
            decay.array.set(row * CHUNK + row, T::from_f64(1.0));
            for at in (0..(row / STRIP + 1) * STRIP).step_by(lanes) {
                let place = row * CHUNK + at;
                let decay = decay.array.load(simd, place);
                a.array.store(place, decay * a.array.load(simd, place));
                m.array.store(place, decay * beta * m.array.load(simd, place));
            }
            for column in row..CHUNK {
                if column > row {
                    a.array.set(row * CHUNK + column, T::default());
                }
                m.array.set(row * CHUNK + column, T::default());
            }
        }
    }
}

/// `x <- (I + M)^-T x`, in place, from -M.
pub(super) fn solve<T: Real>(level: Level, s: &mut Scratch<'_, T>, rows: usize) {
    let pitch = s.x.pitch;
    for (first, end) in strips(rows).rev() {
        let (x, m) = (&mut s.x.array, &s.triangle.m);
        let (upper, lower) = x.slice(0, rows * pitch).split_at_mut(end * pitch);
        if end < rows {
            let size = [end - first, pitch, rows - end];
            let dst = MatrixMut::new(crate::cpu::ArrayMut::of(upper), pitch).at(first, 0);
            multiply(level, dst, Into::Add, size, [m.matrix().at(end, first).t(), Matrix::of(lower, pitch)]);
        }
        level.dispatch(Substitute { s, first, end });
    }
}

/// The rows of a strip, from the last one.
struct Substitute<'b, 'm, T> {
    s: &'b mut Scratch<'m, T>,
    first: usize,
    end: usize,
}

impl<T: Real> Kernel for Substitute<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Substitute { s, first, end } = self;
        let (x, m) = (&mut s.x, &s.triangle.m);
        for at in (0..x.pitch).step_by(T::lanes::<S>()) {
            for row in (first..end).rev() {
                let mut sum = x.array.load(simd, row * x.pitch + at);
                for later in row + 1..end {
                    let factor = V::splat(simd, m.array.get(later * CHUNK + row));
                    sum = factor.mul_add(x.array.load(simd, later * x.pitch + at), sum);
                }
                x.array.store(row * x.pitch + at, sum);
            }
        }
    }
}

/// The gradients by A and M before their decays, and the diagonal of the first.
pub(super) fn gradients<T: Real>(level: Level, s: &mut Scratch<'_, T>, rows: usize, values: usize, by_channel: bool) {
    let across = s.d_across.matrix();
    below(level, s.triangle.da.matrix_mut(), rows, values, [s.dy.matrix(), across]);
    below(level, s.triangle.dm.matrix_mut(), rows, values, [s.dv.matrix(), across]);
    level.dispatch(Mask { triangle: &mut s.triangle, rows, by_channel });
}

/// Leaves what is below the diagonal, with its decay where that is one for a head.
struct Mask<'d, 'm, T> {
    triangle: &'d mut Triangle<'m, T>,
    rows: usize,
    by_channel: bool,
}

impl<T: Real> Kernel for Mask<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Mask { triangle: Triangle { decay, da, dm, diagonal, .. }, rows, by_channel } = self;
        for row in 0..rows {
            diagonal.set(row, da.array.get(row * CHUNK + row));
            for at in (0..(row / STRIP + 1) * STRIP).step_by(T::lanes::<S>()) {
                let place = row * CHUNK + at;
                let decay = if by_channel { V::constant(simd, 1.0) } else { decay.array.load(simd, place) };
                da.array.store(place, decay * da.array.load(simd, place));
                dm.array.store(place, -(decay * dm.array.load(simd, place)));
            }
            for column in row..CHUNK {
                da.array.set(row * CHUNK + column, T::default());
                dm.array.set(row * CHUNK + column, T::default());
            }
        }
    }
}

/// Adds to the gradients by rows what the triangles give them.
pub(super) fn backward<T: Real>(level: Level, s: &mut Scratch<'_, T>, rows: usize) {
    let Scratch { triangle, keys, by, .. } = s;
    let (da, dm, q, k) = (triangle.da.matrix(), triangle.dm.matrix(), keys.q.matrix(), keys.k.matrix());
    for (first, end) in strips(rows) {
        let (size, rest) = ([end - first, keys.k.pitch, end], [end - first, keys.k.pitch, rows - first]);
        let to = |dst: MatrixMut<'_, T>, size, lhs, rhs| multiply(level, dst.at(first, 0), Into::Add, size, [lhs, rhs]);
        to(by.q.matrix_mut(), size, da.at(first, 0), k);
        to(by.k.matrix_mut(), size, dm.at(first, 0), k);
        to(by.written.matrix_mut(), rest, da.at(first, first).t(), q.at(first, 0));
        to(by.written.matrix_mut(), rest, dm.at(first, first).t(), k.at(first, 0));
    }
}
