//! Rows of keys and queries, with their lengths and their products: those of the steps of a tile, or of the heads of one step.
//!
//! Sums over the channels of a row are taken in one order on every instruction set: sixteen sums of every sixteenth channel, then halves added to
//! halves.

use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{self, Area, MAX_LANES, TileMut};
use crate::cpu::{Array, ArrayMut, Kernel, Room};
use crate::ops::gated_delta_rule::{EPS, Gates};

/// Rows at most.
pub(in super::super) const ROWS: usize = super::plan::CHUNK;

/// Rows of channels in scratch memory, `pitch` apart: whole vectors, filled up with zeros.
pub(in super::super) struct Rows<'m, T> {
    pub array: ArrayMut<'m, T>,
    pub pitch: usize,
}

impl<'m, T: Real> Rows<'m, T> {
    pub(in super::super) fn lay_out(room: &mut Room<'m, T>, rows: usize, width: usize) -> Self {
        let pitch = width.next_multiple_of(MAX_LANES);
        Rows { array: room.array(rows * pitch), pitch }
    }

    #[inline(always)]
    pub(in super::super) fn tile(&mut self) -> TileMut<'_, T> {
        TileMut::new(self.array.reborrow(), self.pitch)
    }

    #[inline(always)]
    pub(in super::super) fn row(&self, at: usize) -> Array<'_, T> {
        self.array.read().from(at * self.pitch)
    }
}

/// The rows of queries and keys of a call.
#[derive(Clone, Copy)]
pub(in super::super) struct Place<'v> {
    pub q: Area<'v>,
    pub k: Area<'v>,
}

/// See the [module](self).
pub(in super::super) struct Keys<'m, T> {
    pub q: Rows<'m, T>,
    pub k: Rows<'m, T>,
    /// The factors of q and k: inverse lengths, or 1; with the scale for q.
    pub by_q: ArrayMut<'m, T>,
    pub by_k: ArrayMut<'m, T>,
    /// `<q, k>` times both.
    pub dot: ArrayMut<'m, T>,
    /// Sums of a lane each, three vectors for every row.
    sums: ArrayMut<'m, T>,
}

impl<'m, T: Real> Keys<'m, T> {
    /// `lanes` are those of the vectors that it is used with.
    pub(in super::super) fn lay_out(room: &mut Room<'m, T>, width: usize, lanes: usize) -> Self {
        let [q, k] = [(); 2].map(|()| Rows::lay_out(room, ROWS, width));
        let [by_q, by_k, dot] = [ROWS; 3].map(|len| room.array(len));
        Keys { q, k, by_q, by_k, dot, sums: room.array(3 * ROWS * lanes) }
    }

    /// The products of a kind of as many rows as a vector has lanes. A closure would not be inlined, and would be compiled without the instructions.
    #[inline(always)]
    fn sums<S: Isa>(&self, simd: S, kind: usize, first: usize) -> V<T, S> {
        let lanes = T::lanes::<S>();
        let [sum, ..] = self.sums.read().sum_rows_apart::<S, 1>(simd, (kind * ROWS + first) * lanes, lanes);
        sum
    }
}

/// Loads rows and makes the rest.
pub(in super::super) struct Load<'l, 'm, T> {
    pub keys: &'l mut Keys<'m, T>,
    pub place: Place<'l>,
    pub gates: &'l Gates,
}

impl<T: Real> Kernel for Load<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Load { keys, place, gates } = self;
        let rows = place.k.steps;
        let pitch = keys.k.pitch;
        tile::load(simd, place.q, pitch, keys.q.tile());
        tile::load(simd, place.k, pitch, keys.k.tile());
        let lanes = T::lanes::<S>();
        for row in 0..rows {
            let (q, k) = (keys.q.row(row), keys.k.row(row));
            for (at, [a, b]) in [[k, k], [q, q], [q, k]].into_iter().enumerate() {
                keys.sums.store((at * ROWS + row) * lanes, products(simd, a, b, pitch));
            }
        }
        let scale = T::from_f64(gates.scale);
        for first in (0..rows).step_by(lanes) {
            let (mut by_q, mut by_k) = (V::splat(simd, scale), V::constant(simd, 1.0));
            if gates.qk_l2norm {
                by_k = inverse_length(keys.sums(simd, 0, first), 1.0);
                by_q = inverse_length(keys.sums(simd, 1, first), gates.scale);
            }
            keys.by_q.store(first, by_q);
            keys.by_k.store(first, by_k);
            keys.dot.store(first, by_q * by_k * keys.sums(simd, 2, first));
        }
    }
}

/// The products of two rows of so many channels: lane `l` has a sum of those at the distances of all lanes.
#[inline(always)]
fn products<T: Real, S: Isa>(simd: S, a: Array<'_, T>, b: Array<'_, T>, pitch: usize) -> V<T, S> {
    let lanes = T::lanes::<S>();
    let mut parts = MAX_LANES / lanes;
    let mut sums = [V::constant(simd, 0.0); MAX_LANES];
    for part in 0..parts {
        for at in (part * lanes..pitch).step_by(MAX_LANES) {
            sums[part] = a.load(simd, at).mul_add(b.load(simd, at), sums[part]);
        }
    }
    while parts > 1 {
        parts /= 2;
        for part in 0..parts {
            sums[part] = sums[part] + sums[part + parts];
        }
    }
    sums[0]
}

/// `factor / sqrt(squares + eps)`, each lane in f64.
#[inline(always)]
fn inverse_length<T: Real, S: Isa>(squares: V<T, S>, factor: f64) -> V<T, S> {
    let mut lanes = squares.to_array();
    for lane in &mut lanes {
        *lane = T::from_f64(factor / (lane.to_f64() + EPS).sqrt());
    }
    V::from_array(squares.simd(), &lanes)
}
