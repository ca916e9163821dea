//! Triangles of a chunk whose channels have their own decays: a pair of steps after the other, since the decay between them is another one for every
//! channel. It is the product of the decays of the steps between, so that nothing overflows.

use super::chunk::Scratch;
use super::plan::CHUNK;
use crate::cpu::Kernel;
use crate::cpu::simd::{Isa, Real, V};

/// A and -M.
pub(super) struct Forward<'p, 'm, T> {
    pub s: &'p mut Scratch<'m, T>,
    pub rows: usize,
}

impl<T: Real> Kernel for Forward<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Forward { s, rows } = self;
        // nobody has written anything there yet
        let Scratch { keys, rates, triangle, by, .. } = s;
        let (lanes, pitch) = (T::lanes::<S>(), keys.k.pitch);
        let faded = &mut by.q.array;
        triangle.a.array.clear(rows * CHUNK);
        triangle.m.array.clear(rows * CHUNK);
        for j in 0..rows {
            faded.slice(0, pitch).copy_from_slice(keys.k.row(j).shared(0, pitch));
            for i in j..rows {
                let (mut a, mut m) = (V::constant(simd, 0.0), V::constant(simd, 0.0));
                for at in (0..pitch).step_by(lanes) {
                    let mut x = faded.load(simd, at);
                    if i > j {
                        x = x * rates.decays.row(i).load(simd, at);
                        faded.store(at, x);
                    }
                    a = keys.q.row(i).load(simd, at).mul_add(x, a);
                    m = keys.k.row(i).load(simd, at).mul_add(x, m);
                }
                triangle.a.array.set(i * CHUNK + j, a.reduce_sum());
                if i > j {
                    triangle.m.array.set(i * CHUNK + j, -(rates.beta.get(i) * m.reduce_sum()));
                }
            }
        }
    }
}

/// Adds to the gradients by rows what the triangles give them.
pub(super) struct Backward<'p, 'm, T> {
    pub s: &'p mut Scratch<'m, T>,
    pub rows: usize,
}

impl<T: Real> Kernel for Backward<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Backward { s, rows } = self;
        // start_q has been used
        let Scratch { keys, rates, triangle, by, start_q, .. } = s;
        let (lanes, pitch) = (T::lanes::<S>(), keys.k.pitch);
        let decay = &mut start_q.array;
        for j in 0..rows {
            decay.slice(0, pitch).fill(T::from_f64(1.0));
            for i in j + 1..rows {
                let [da, dm] = [&triangle.da, &triangle.dm].map(|rows| V::splat(simd, rows.array.get(i * CHUNK + j)));
                for at in (0..pitch).step_by(lanes) {
                    let (later, earlier) = (i * pitch + at, j * pitch + at);
                    let fade = decay.load(simd, at) * rates.decays.row(i).load(simd, at);
                    decay.store(at, fade);
                    let x = fade * keys.k.array.load(simd, earlier);
                    by.q.array.store(later, da.mul_add(x, by.q.array.load(simd, later)));
                    by.k.array.store(later, dm.mul_add(x, by.k.array.load(simd, later)));
                    let back = da.mul_add(keys.q.array.load(simd, later), dm * keys.k.array.load(simd, later));
                    by.written.array.store(earlier, fade.mul_add(back, by.written.array.load(simd, earlier)));
                }
            }
        }
    }
}
