//! Elementwise work on rows of (head, headdim) columns, with one factor for each head and row.

use crate::cpu::math::{silu, silu_and_derivative};
use crate::cpu::parts::{load_part, store_part};
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::Tile;
use crate::cpu::{Array, ArrayMut, Kernel, Matrix};

/// Copies rows to contiguous memory.
pub(super) struct Save<'r, T> {
    pub from: Tile<'r, T>,
    pub to: ArrayMut<'r, T>,
    pub rows: usize,
    pub columns: usize,
    /// Past the caches, where the memory is aligned for that.
    pub streamed: bool,
}

impl<T: Real> Kernel for Save<'_, T> {
    type Output = ();
    const EVERY_LEVEL: bool = true;
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Save { from, mut to, rows, columns, streamed } = self;
        debug_assert!(columns <= from.pitch, "a row has the columns");
        debug_assert!(to.has(0, rows * columns), "room for the rows");
        let width = T::lanes::<S>();
        let streamed = streamed && columns.is_multiple_of(width) && to.ptr().addr().is_multiple_of(width * size_of::<T>());
        for r in 0..rows {
            for column in (0..columns).step_by(width) {
                let len = width.min(columns - column);
                let value = load_part(simd, from.from(r, column).array, len);
                let at = r * columns + column;
                if streamed { to.stream(at, value) } else { store_part(value, to.from(at), len) }
            }
        }
        if streamed {
            simd.fence();
        }
    }
}

/// A block of rows of heads x headdim columns.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub rows: usize,
    pub heads: usize,
    pub headdim: usize,
    /// Elements from row to row.
    pub pitch: usize,
}

/// One number for each head and row: element (h, r) is at `h * head + r * row`.
#[derive(Clone, Copy)]
pub(super) struct Factors<A> {
    pub array: A,
    pub head: usize,
    pub row: usize,
}

impl<A> Factors<A> {
    #[inline(always)]
    fn at(&self, h: usize, r: usize) -> usize {
        h * self.head + r * self.row
    }
}

/// `dst = src * factor`, and `+ other * column` if those are given.
pub(super) struct Scale<'r, T> {
    pub shape: Rows,
    pub dst: ArrayMut<'r, T>,
    /// The block that is multiplied; `None` for the one that is there.
    pub src: Option<Array<'r, T>>,
    pub factors: Factors<Array<'r, T>>,
    /// A block of the same shape, and one number for each column.
    pub plus: Option<(Array<'r, T>, Array<'r, T>)>,
}

impl<T: Real> Kernel for Scale<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let Rows { rows, heads, headdim, pitch } = self.shape;
        debug_assert!(heads * headdim <= pitch, "a row has the columns");
        let width = T::lanes::<S>();
        for r in 0..rows {
            for h in 0..heads {
                let mut p = 0;
                let factor = V::splat(simd, self.factors.array.get(self.factors.at(h, r)));
                while p < headdim {
                    let (column, len) = (h * headdim + p, width.min(headdim - p));
                    let at = r * pitch + column;
                    let mut value = load_part(simd, self.src.unwrap_or(self.dst.read()).from(at), len) * factor;
                    if let Some((other, by)) = self.plus {
                        let by = load_part(simd, by.from(column), len);
                        value = load_part(simd, other.from(at), len).mul_add(by, value);
                    }
                    store_part(value, self.dst.from(at), len);
                    p += width;
                }
            }
        }
    }
}

/// Adds the inner products of the rows of two blocks, head by head: `out = sum_p a * b`.
pub(super) struct Dot<'r, T> {
    pub shape: Rows,
    pub a: Array<'r, T>,
    pub b: Matrix<'r, T>,
    pub out: Factors<ArrayMut<'r, T>>,
}

impl<T: Real> Kernel for Dot<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let Rows { rows, heads, headdim, pitch } = self.shape;
        debug_assert!(heads * headdim <= pitch, "a row has the columns");
        let width = T::lanes::<S>();
        for r in 0..rows {
            for h in 0..heads {
                let mut sum = V::constant(simd, 0.0);
                let mut p = 0;
                while p < headdim {
                    let (column, len) = (h * headdim + p, width.min(headdim - p));
                    let a = load_part(simd, self.a.from(r * pitch + column), len);
                    sum = a.mul_add(load_part(simd, self.b.from(r, column), len), sum);
                    p += width;
                }
                let at = self.out.at(h, r);
                self.out.array.set(at, sum.reduce_sum());
            }
        }
    }
}

/// Adds to `sums`, one for each column, the inner products of the columns of two blocks.
pub(super) struct ColumnDot<'r, T> {
    pub shape: Rows,
    pub a: Array<'r, T>,
    pub b: Array<'r, T>,
    pub sums: ArrayMut<'r, f64>,
}

impl<T: Real> Kernel for ColumnDot<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let Rows { rows, heads, headdim, pitch } = self.shape;
        debug_assert!(heads * headdim <= pitch, "a row has the columns");
        let (width, columns) = (T::lanes::<S>(), heads * headdim);
        debug_assert!(self.sums.has(0, columns), "a sum for every column");
        let mut column = 0;
        while column < columns {
            let len = width.min(columns - column);
            let mut sum = V::constant(simd, 0.0);
            for r in 0..rows {
                let at = r * pitch + column;
                let b = load_part(simd, self.b.from(at), len);
                sum = load_part(simd, self.a.from(at), len).mul_add(b, sum);
            }
            let lanes = sum.to_array();
            for i in 0..len {
                self.sums.set(column + i, self.sums.get(column + i) + lanes[i].to_f64());
            }
            column += width;
        }
    }
}

/// The use of `silu(z)` and `y` in [`Gate`].
pub(super) enum Gating<'r, T> {
    /// `y *= silu(z)`.
    Apply,
    /// With the cotangent `dy` in place of `y`: `z = dy * output * silu'(z)`, then `y *= silu(z)`.
    Backward {
        /// The output before the gate; none if the gradient by z is not wanted.
        output: Option<Array<'r, T>>,
    },
}

/// The gate.
pub(super) struct Gate<'r, T> {
    pub shape: Rows,
    pub y: ArrayMut<'r, T>,
    pub z: ArrayMut<'r, T>,
    pub gating: Gating<'r, T>,
}

impl<T: Real> Kernel for Gate<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let Rows { rows, heads, headdim, pitch } = self.shape;
        debug_assert!(heads * headdim <= pitch, "a row has the columns");
        let (width, columns) = (T::lanes::<S>(), heads * headdim);
        for r in 0..rows {
            let mut column = 0;
            while column < columns {
                let (at, len) = (r * pitch + column, width.min(columns - column));
                let (y_at, z_at) = (self.y.from(at), self.z.from(at));
                let (y, z) = (load_part(simd, y_at.read(), len), load_part(simd, z_at.read(), len));
                match self.gating {
                    Gating::Backward { output: Some(output) } => {
                        // the value as it is without this gradient, so that no other gradient depends on it
                        let (value, slope) = (silu(z), silu_and_derivative(z).1);
                        store_part(y * load_part(simd, output.from(at), len) * slope, z_at, len);
                        store_part(y * value, y_at, len);
                    }
                    _ => store_part(y * silu(z), y_at, len),
                }
                column += width;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{Arena, Level};

    #[test]
    fn saved_rows_are_the_same_past_the_caches() {
        let (rows, pitch) = (3, 48);
        let from: Vec<f32> = (0..rows * pitch).map(|i| i as f32).collect();
        for level in Level::available() {
            for (columns, offset) in [(32, 0), (32, 1), (16, 0), (21, 0), (5, 3)] {
                for streamed in [false, true] {
                    let (mut arena, len) = (Arena::<f32>::default(), offset + rows * columns + 1);
                    let mut room = arena.lay_out(|room| room.array(len));
                    let to = room.slice(0, len);
                    to.fill(0.0);
                    let (source, target) = (Tile::new(Array::of(&from), pitch), ArrayMut::of(&mut to[offset..]));
                    level.dispatch(Save { from: source, to: target, rows, columns, streamed });
                    let expected = (0..rows * columns).map(|i| (i / columns * pitch + i % columns) as f32);
                    assert!(to[offset..].iter().copied().eq(expected.chain([0.0])), "{level} {columns} {offset} {streamed}");
                    assert!(to[..offset].iter().all(|&value| value == 0.0));
                }
            }
        }
    }
}
