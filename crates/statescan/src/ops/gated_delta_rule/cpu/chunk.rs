//! A chunk of the backward pass: what lies in scratch memory, and work on its rows, element by element.

use super::super::problem::Problem;
use super::forward::Own;
use super::keys::{Keys, ROWS, Rows};
use super::plan::CHUNK;
use super::rates::Rates;
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{self, MAX_LANES, Plane, STEPS, TileMut};
use crate::cpu::{Array, ArrayMut, Kernel, Level, Matrix, MatrixMut, Room};
use crate::tensor::View;

impl<T: Real> Rows<'_, T> {
    pub(super) fn matrix(&self) -> Matrix<'_, T> {
        Matrix::new(self.array.read(), self.pitch)
    }

    pub(super) fn matrix_mut(&mut self) -> MatrixMut<'_, T> {
        MatrixMut::new(self.array.reborrow(), self.pitch)
    }
}

/// One number for each step, or a row of channels for each.
pub(super) struct Factors<'m, T> {
    pub array: ArrayMut<'m, T>,
    pitch: usize,
}

impl<'m, T: Real> Factors<'m, T> {
    fn lay_out(room: &mut Room<'m, T>, by_channel: bool, width: usize) -> Self {
        let pitch = if by_channel { width.next_multiple_of(MAX_LANES) } else { 1 };
        Factors { array: room.array(ROWS * pitch), pitch }
    }

    #[inline(always)]
    pub(super) fn at<S: Isa>(&self, simd: S, row: usize, column: usize) -> V<T, S> {
        factor(simd, &self.array.read(), self.pitch, row, column)
    }
}

/// The factor of a row and a vector of its columns.
#[inline(always)]
fn factor<T: Real, S: Isa>(simd: S, array: &Array<'_, T>, pitch: usize, row: usize, column: usize) -> V<T, S> {
    if pitch == 1 { V::splat(simd, array.get(row)) } else { array.load(simd, row * pitch + column) }
}

/// Gradients of one head of values, by what is read with q and k, and by what is written with k.
pub(super) struct ByRows<'m, T> {
    pub q: Rows<'m, T>,
    pub k: Rows<'m, T>,
    pub written: Rows<'m, T>,
}

/// Everything that jobs of one thread work in. Rows are steps unless something else is said.
pub(super) struct Scratch<'m, T> {
    pub keys: Keys<'m, T>,
    pub rates: Rates<'m, T>,
    pub own: Own<'m, T>,
    /// Gradients of all heads of values that share a key.
    pub dq: Rows<'m, T>,
    pub dk: Rows<'m, T>,
    pub dy: Rows<'m, T>,
    pub u: Rows<'m, T>,
    pub d: Rows<'m, T>,
    /// The gradient by d, and in place of it X.
    pub x: Rows<'m, T>,
    pub dv: Rows<'m, T>,
    /// (column, step)
    pub d_across: Rows<'m, T>,
    /// (key, step), where decays are those of heads.
    pub k_across: Rows<'m, T>,
    /// The state before the chunk, (column, key), and the gradient of that after it.
    pub state_across: Rows<'m, T>,
    pub by_state_across: Rows<'m, T>,
    /// One for each head of values, (key, column).
    pub by_state: ArrayMut<'m, T>,
    /// Decays from the start of the chunk, and to its end.
    pub from_start: Factors<'m, T>,
    pub to_end: Factors<'m, T>,
    /// q and k times the decay from the start, k with the other sign, and k times that to the end.
    pub start_q: Rows<'m, T>,
    pub start_k: Rows<'m, T>,
    pub end_k: Rows<'m, T>,
    pub triangle: Triangle<'m, T>,
    pub by: ByRows<'m, T>,
    /// The gradient by the sum of logarithms up to each step, and in place of it that by the logarithms.
    pub by_log: Factors<'m, T>,
    /// The gradient by the sum of logarithms at the end of the chunk, for every channel.
    pub by_end: ArrayMut<'m, T>,
    pub dbeta: ArrayMut<'m, T>,
    /// Raw gates, and in place of them their gradients.
    pub raw: Rows<'m, T>,
}

/// (step, step), on and below the diagonal.
pub(super) struct Triangle<'m, T> {
    /// Decays from one step to another, where they are those of heads.
    pub decay: Rows<'m, T>,
    pub a: Rows<'m, T>,
    /// -M
    pub m: Rows<'m, T>,
    pub da: Rows<'m, T>,
    pub dm: Rows<'m, T>,
    /// The diagonal of da.
    pub diagonal: ArrayMut<'m, T>,
}

impl<'m, T: Real> Scratch<'m, T> {
    pub(super) fn lay_out(room: &mut Room<'m, T>, problem: &Problem<'_>, lanes: usize) -> Self {
        let (keys, values, by_channel) = (problem.keys, problem.values, problem.gates.by_channel);
        let of_heads = |rows: usize| if by_channel { 0 } else { rows };
        macro_rules! rows {
            ($rows:expr, $width:expr) => {
                Rows::lay_out(room, $rows, $width)
            };
        }
        let triangle = Triangle {
            decay: rows!(of_heads(CHUNK), CHUNK),
            a: rows!(CHUNK, CHUNK),
            m: rows!(CHUNK, CHUNK),
            da: rows!(CHUNK, CHUNK),
            dm: rows!(CHUNK, CHUNK),
            diagonal: room.array(CHUNK),
        };
        Scratch {
            triangle,
            keys: Keys::lay_out(room, keys, lanes),
            rates: Rates::lay_out(room, &problem.gates, keys),
            own: Own::lay_out(room, problem),
            dq: rows!(CHUNK, keys),
            dk: rows!(CHUNK, keys),
            dy: rows!(CHUNK, values),
            u: rows!(CHUNK, values),
            d: rows!(CHUNK, values),
            x: rows!(CHUNK, values),
            dv: rows!(CHUNK, values),
            d_across: rows!(values, CHUNK),
            k_across: rows!(of_heads(keys), CHUNK),
            state_across: rows!(values, keys),
            by_state_across: rows!(values, keys),
            by_state: room.array(problem.group * keys * values.next_multiple_of(MAX_LANES)),
            from_start: Factors::lay_out(room, by_channel, keys),
            to_end: Factors::lay_out(room, by_channel, keys),
            start_q: rows!(CHUNK, keys),
            start_k: rows!(CHUNK, keys),
            end_k: rows!(CHUNK, keys),
            by: ByRows { q: rows!(CHUNK, keys), k: rows!(CHUNK, keys), written: rows!(CHUNK, keys) },
            by_log: Factors::lay_out(room, by_channel, keys),
            by_end: room.array(keys.next_multiple_of(MAX_LANES)),
            dbeta: room.array(CHUNK),
            raw: rows!(if problem.gates.raw { CHUNK } else { 0 }, if by_channel { keys } else { 1 }),
        }
    }
}

/// Writes the transpose of a plane of lanes x steps, in pieces of steps: its lanes become the columns of the tile.
pub(super) fn load_across<T: Real>(level: Level, plane: Plane<'_>, lanes: usize, steps: usize, mut to: TileMut<'_, T>) {
    for first in (0..steps).step_by(STEPS) {
        let area = plane.at(0, first).area(lanes, STEPS.min(steps - first));
        let padded = lanes.next_multiple_of(MAX_LANES);
        tile::load_on(level, area, padded, to.from(first, 0));
    }
}

/// The transpose of rows.
pub(super) fn transpose<T: Real>(level: Level, from: &Rows<'_, T>, rows: usize, columns: usize, to: TileMut<'_, T>) {
    if rows * columns == 0 {
        return;
    }
    let slice = from.array.shared(0, (rows - 1) * from.pitch + columns);
    let view = View::strided(slice, 0, &[rows, columns], &[from.pitch as isize, 1]).expect("the rows lie inside");
    load_across(level, Plane::of(&view, 0, 1), rows, columns, to);
}

/// Multiplies keys and queries with their factors, once for all heads of values.
pub(super) struct Normalize<'n, 'm, T> {
    pub keys: &'n mut Keys<'m, T>,
    pub rows: usize,
}

impl<T: Real> Kernel for Normalize<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Keys { q, k, by_q, by_k, .. } = self.keys;
        for (rows, by) in [(q, by_q), (k, by_k)] {
            for row in 0..self.rows {
                let by = V::splat(simd, by.get(row));
                for at in (0..rows.pitch).step_by(T::lanes::<S>()) {
                    let place = row * rows.pitch + at;
                    rows.array.store(place, rows.array.load(simd, place) * by);
                }
            }
        }
    }
}

/// Decays from the start and to the end of the chunk, what they make of keys and queries, and d.
pub(super) struct Fade<'f, 'm, T> {
    pub s: &'f mut Scratch<'m, T>,
    pub rows: usize,
    pub by_channel: bool,
}

impl<T: Real> Kernel for Fade<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Fade { s, rows, by_channel } = self;
        let Scratch { keys, rates, from_start, to_end, start_q, start_k, end_k, u, d, .. } = s;
        let (lanes, pitch) = (T::lanes::<S>(), keys.k.pitch);
        let own = |row: usize, at: usize| {
            if by_channel { rates.decays.row(row).load(simd, at) } else { V::splat(simd, rates.decay.get(row)) }
        };
        let one = V::constant(simd, 1.0);
        for at in (0..if by_channel { pitch } else { lanes }).step_by(lanes) {
            let (mut before, mut behind) = (one, one);
            for row in 0..rows {
                before = before * own(row, at);
                put(from_start, row, at, before);
                let last = rows - 1 - row;
                put(to_end, last, at, behind);
                behind = behind * own(last, at);
            }
        }
        for row in 0..rows {
            for at in (0..pitch).step_by(lanes) {
                let (q, k) = (keys.q.row(row).load(simd, at), keys.k.row(row).load(simd, at));
                let (start, end, place) = (from_start.at(simd, row, at), to_end.at(simd, row, at), row * pitch + at);
                start_q.array.store(place, q * start);
                start_k.array.store(place, -(k * start));
                end_k.array.store(place, k * end);
            }
            let beta = V::splat(simd, rates.beta.get(row));
            for at in (0..u.pitch).step_by(lanes) {
                let place = row * u.pitch + at;
                d.array.store(place, beta * u.array.load(simd, place));
            }
        }
    }
}

#[inline(always)]
fn put<T: Real, S: Isa>(factors: &mut Factors<'_, T>, row: usize, at: usize, value: V<T, S>) {
    match factors.pitch {
        1 => factors.array.set(row, value.to_array()[0]),
        pitch => factors.array.store(row * pitch + at, value),
    }
}

/// The gradients by v and by beta from X.
pub(super) struct ByValues<'v, 'm, T> {
    pub s: &'v mut Scratch<'m, T>,
    pub rows: usize,
}

impl<T: Real> Kernel for ByValues<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Scratch { rates, x, u, dv, dbeta, .. } = self.s;
        for row in 0..self.rows {
            let (beta, mut sum) = (V::splat(simd, rates.beta.get(row)), V::constant(simd, 0.0));
            for at in (0..x.pitch).step_by(T::lanes::<S>()) {
                let place = row * x.pitch + at;
                let by = x.array.load(simd, place);
                dv.array.store(place, beta * by);
                sum = by.mul_add(u.array.load(simd, place), sum);
            }
            dbeta.set(row, sum.reduce_sum());
        }
    }
}

/// Products with states get the decays from and to the ends of the chunk; what they give the logarithm of the whole chunk's decay.
pub(super) struct Ends<'e, 'm, T> {
    pub s: &'e mut Scratch<'m, T>,
    pub rows: usize,
    pub columns: usize,
}

impl<T: Real> Kernel for Ends<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Ends { s, rows, columns } = self;
        let Scratch { keys, from_start, to_end, by, by_end, state_across, by_state_across, .. } = s;
        let pitch = keys.k.pitch;
        for at in (0..pitch).step_by(T::lanes::<S>()) {
            let mut states = V::constant(simd, 0.0);
            for column in 0..columns {
                let place = column * pitch + at;
                states = state_across.array.load(simd, place).mul_add(by_state_across.array.load(simd, place), states);
            }
            let mut sum = states * from_start.at(simd, rows - 1, at);
            for row in 0..rows {
                let (place, start, end) = (row * pitch + at, from_start.at(simd, row, at), to_end.at(simd, row, at));
                by.q.array.store(place, by.q.array.load(simd, place) * start);
                by.k.array.store(place, -(by.k.array.load(simd, place) * start));
                let written = by.written.array.load(simd, place) * end;
                by.written.array.store(place, written);
                sum = written.mul_add(keys.k.array.load(simd, place), sum);
            }
            by_end.store(at, sum);
        }
    }
}

/// Gradients by the logarithms of decays, and the gradients of this head of values added to those of the others.
pub(super) struct Join<'j, 'm, T> {
    pub s: &'j mut Scratch<'m, T>,
    pub rows: usize,
    pub by_channel: bool,
}

impl<T: Real> Kernel for Join<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Join { s, rows, by_channel } = self;
        let Scratch { keys, by, by_end, by_log, triangle, dq, dk, .. } = s;
        let (lanes, pitch, zero) = (T::lanes::<S>(), keys.k.pitch, V::constant(simd, 0.0));
        let mut end = zero;
        for at in (0..pitch).step_by(lanes) {
            end = end + by_end.load(simd, at);
        }
        // for one decay the running sum of sums over channels, else that of every channel
        let mut sum = end.reduce_sum();
        for row in (0..rows).rev() {
            let (mut of_row, diagonal) = (zero, V::splat(simd, triangle.diagonal.get(row)));
            for at in (0..pitch).step_by(lanes) {
                let place = row * pitch + at;
                let (q, k) = (keys.q.array.load(simd, place), keys.k.array.load(simd, place));
                let [by_q, by_k, written] = [&by.q, &by.k, &by.written].map(|rows| rows.array.load(simd, place));
                let log = q.mul_add(by_q, k * (by_k - written));
                if by_channel {
                    let sum = by_end.load(simd, at) + log;
                    by_end.store(at, sum);
                    by_log.array.store(place, sum);
                }
                of_row = of_row + log;
                dq.array.store(place, dq.array.load(simd, place) + diagonal.mul_add(k, by_q));
                dk.array.store(place, dk.array.load(simd, place) + diagonal.mul_add(q, by_k + written));
            }
            if !by_channel {
                sum = sum + of_row.reduce_sum();
                by_log.array.set(row, sum);
            }
        }
    }
}

/// The gradient of the state, times the decay of the whole chunk.
pub(super) struct FadeState<'f, T> {
    /// (key, column)
    pub state: ArrayMut<'f, T>,
    pub pitch: usize,
    pub keys: usize,
    /// The decay of the whole chunk, one or for every key.
    pub decay: Array<'f, T>,
    pub by_channel: bool,
}

impl<T: Real> Kernel for FadeState<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        for n in 0..self.keys {
            let decay = V::splat(simd, self.decay.get(if self.by_channel { n } else { 0 }));
            for at in (n * self.pitch..(n + 1) * self.pitch).step_by(T::lanes::<S>()) {
                let faded = decay * self.state.load(simd, at);
                self.state.store(at, faded);
            }
        }
    }
}
