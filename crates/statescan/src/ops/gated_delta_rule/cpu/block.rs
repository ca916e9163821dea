//! The steps of a tile on a block of columns of the state: a pass over the block for each step, which brings the update of the step before to it and reads
//! it for this one.

use super::keys::Keys;
use super::rates::Rates;
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{Tile, TileMut};
use crate::cpu::{Array, ArrayMut, Kernel};

/// The vectors by which steps read the state: keys and queries, decayed themselves where each channel has its decay.
#[derive(Clone, Copy)]
pub(super) struct Readers<'r, T> {
    pub k: Array<'r, T>,
    pub q: Array<'r, T>,
}

/// Some columns of one head during the steps of a tile. `C` says that channels have their own decays.
pub(super) struct Block<'b, 'm, T, const C: bool> {
    pub keys: &'b Keys<'m, T>,
    pub rates: &'b Rates<'m, T>,
    pub readers: Readers<'b, T>,
    /// Width of keys.
    pub width: usize,
    pub steps: usize,
    /// (key, column), in blocks of as many columns as are taken at once: what begins at column `c` begins at `c * width` here.
    pub state: ArrayMut<'b, T>,
    pub v: Tile<'b, T>,
    pub y: TileMut<'b, T>,
    /// `v - S'^T k`
    pub u: TileMut<'b, T>,
    /// A multiple of the widest vector.
    pub columns: usize,
}

/// Vectors of columns that are taken at once: as many as there are registers for.
#[inline(always)]
pub(super) const fn at_once<S: Isa>() -> usize {
    if S::F32_LANES == 8 { 2 } else { 4 }
}

/// The blocks of so many columns: where they begin, and how many columns they have.
pub(super) fn blocks(columns: usize, lanes: usize, at_once: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut first = 0;
    core::iter::from_fn(move || {
        let count = if columns - first >= at_once * lanes { at_once * lanes } else { lanes };
        (first < columns).then(|| {
            first += count;
            (first - count, count)
        })
    })
}

impl<T: Real, const C: bool> Kernel for Block<'_, '_, T, C> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        for (first, count) in blocks(self.columns, T::lanes::<S>(), at_once::<S>()) {
            match count / T::lanes::<S>() {
                4 => self.some::<S, 4>(simd, first),
                2 => self.some::<S, 2>(simd, first),
                _ => self.some::<S, 1>(simd, first),
            }
        }
    }
}

impl<T: Real, const C: bool> Block<'_, '_, T, C> {
    /// `N` vectors of columns.
    #[inline(always)]
    fn some<S: Isa, const N: usize>(&mut self, simd: S, first: usize) {
        let Block { keys, rates, readers, width, steps, .. } = *self;
        let (lanes, pitch) = (T::lanes::<S>(), keys.k.pitch);
        let mut state = self.state.from(first * width);
        let mut written = [V::constant(simd, 0.0); N];
        for t in 0..steps {
            let readers = [readers.k.from(t * pitch), readers.q.from(t * pitch)];
            let [r, p] = match t {
                0 => read(simd, &state, width, readers),
                _ => {
                    let (key, decays) = (keys.k.row(t - 1), decays::<T, C>(rates, t - 1));
                    let decay = V::splat(simd, rates.decay.get(t - 1));
                    update::<T, S, N, C, true>(simd, &mut state, width, Past { key, decays, decay, written }, readers)
                }
            };
            let factor = |array: &ArrayMut<'_, T>| V::splat(simd, array.get(t));
            let (by_k, by_q, dot) = (factor(&keys.by_k), factor(&keys.by_q), factor(&keys.dot));
            let (beta, decay) = (factor(&rates.beta), factor(&rates.decay));
            for c in 0..N {
                let column = first + c * lanes;
                let place = |pitch: usize| t * pitch + column;
                let u = (decay * by_k).neg_mul_add(r[c], self.v.array.load(simd, place(self.v.pitch)));
                let d = beta * u;
                let y = dot.mul_add(d, (decay * by_q) * p[c]);
                self.u.array.store(place(self.u.pitch), u);
                self.y.array.store(place(self.y.pitch), y);
                written[c] = by_k * d;
            }
        }
        if steps > 0 {
            let (key, decays) = (keys.k.row(steps - 1), decays::<T, C>(rates, steps - 1));
            let decay = V::splat(simd, rates.decay.get(steps - 1));
            update::<T, S, N, C, false>(simd, &mut state, width, Past { key, decays, decay, written }, [key; 2]);
        }
    }
}

/// The decays of channels of a row, where they have their own.
#[inline(always)]
fn decays<'r, T: Real, const C: bool>(rates: &'r Rates<'_, T>, row: usize) -> Array<'r, T> {
    if C { rates.decays.row(row) } else { rates.decay.read() }
}

/// Products of the columns of a state with a key and a query, each a sum from the first channel on.
#[inline(always)]
fn read<T: Real, S: Isa, const N: usize>(
    simd: S,
    state: &ArrayMut<'_, T>,
    width: usize,
    [k, q]: [Array<'_, T>; 2],
) -> [[V<T, S>; N]; 2] {
    let lanes = T::lanes::<S>();
    let mut sums = [[V::constant(simd, 0.0); N]; 2];
    for n in 0..width {
        let (k, q) = (V::splat(simd, k.get(n)), V::splat(simd, q.get(n)));
        for c in 0..N {
            let x = state.load(simd, (n * N + c) * lanes);
            sums[0][c] = k.mul_add(x, sums[0][c]);
            sums[1][c] = q.mul_add(x, sums[1][c]);
        }
    }
    sums
}

/// The part of a step that is still to be done: its key, its decays, or its decay, and the value that is written.
struct Past<'p, T: Real, S: Isa, const N: usize> {
    key: Array<'p, T>,
    decays: Array<'p, T>,
    decay: V<T, S>,
    written: [V<T, S>; N],
}

/// The update of a step, by its key, its decay and what is written, and where `READ` says so the same products on the way.
#[inline(always)]
fn update<T: Real, S: Isa, const N: usize, const C: bool, const READ: bool>(
    simd: S,
    state: &mut ArrayMut<'_, T>,
    width: usize,
    Past { key, decays, decay, written }: Past<'_, T, S, N>,
    [k, q]: [Array<'_, T>; 2],
) -> [[V<T, S>; N]; 2] {
    let lanes = T::lanes::<S>();
    let mut sums = [[V::constant(simd, 0.0); N]; 2];
    for n in 0..width {
        let decay = if C { V::splat(simd, decays.get(n)) } else { decay };
        let (key, k, q) = (V::splat(simd, key.get(n)), V::splat(simd, k.get(n)), V::splat(simd, q.get(n)));
        for c in 0..N {
            let at = (n * N + c) * lanes;
            let x = key.mul_add(written[c], decay * state.load(simd, at));
            state.store(at, x);
            if READ {
                sums[0][c] = k.mul_add(x, sums[0][c]);
                sums[1][c] = q.mul_add(x, sums[1][c]);
            }
        }
    }
    sums
}
