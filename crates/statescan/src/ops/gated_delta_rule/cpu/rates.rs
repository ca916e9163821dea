//! Decays and beta of rows: of the steps of a tile, or of the heads of one step.

use super::keys::{ROWS, Rows};
use crate::cpu::math::{exp_reduced, sigmoid, softplus_each};
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{self, Area, MAX_LANES, TileMut};
use crate::cpu::{Array, ArrayMut, Kernel, Room};
use crate::ops::gated_delta_rule::Gates;
use crate::tensor::View;

/// `exp(A_log)`.
pub(in super::super) fn rate<T: Real>(a_log: &View<'_>, head: usize) -> T {
    T::from_f64(a_log.at(&[head]).re.exp())
}

/// The parameters of a raw gate. Gates of one number lie in one row of all rows, and so do these then; those by channel lie in
/// rows of their own.
#[derive(Clone, Copy)]
pub(in super::super) struct HeadRates<'r, T> {
    /// For every row, or for every channel.
    pub bias: Array<'r, T>,
    /// For every row.
    pub rate: Array<'r, T>,
}

/// See the [module](self).
pub(in super::super) struct Rates<'m, T> {
    /// The decay of each row, 1 where channels have their own.
    pub decay: ArrayMut<'m, T>,
    /// The decays of channels, if they have their own.
    pub decays: Rows<'m, T>,
    pub beta: ArrayMut<'m, T>,
}

impl<'m, T: Real> Rates<'m, T> {
    pub(in super::super) fn lay_out(room: &mut Room<'m, T>, gates: &Gates, width: usize) -> Self {
        let [decay, beta] = [ROWS; 2].map(|len| room.array(len));
        Rates { decay, beta, decays: Rows::lay_out(room, if gates.by_channel { ROWS } else { 0 }, width) }
    }
}

/// Loads gates and makes the rest, of so many rows.
pub(in super::super) struct Load<'l, 'm, T> {
    pub rates: &'l mut Rates<'m, T>,
    /// Rows as lanes of one step, or channels as lanes and rows as steps.
    pub g: Option<Area<'l>>,
    /// Rows as lanes.
    pub beta: Option<Area<'l>>,
    pub gates: &'l Gates,
    pub own: HeadRates<'l, T>,
    pub rows: usize,
}

impl<T: Real> Kernel for Load<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Load { rates, g, beta, gates, own, rows } = self;
        let (padded, lanes) = (rows.next_multiple_of(MAX_LANES), T::lanes::<S>());
        rates.decay.slice(0, padded).fill(T::from_f64(1.0));
        match g {
            Some(area) if gates.by_channel => {
                let pitch = rates.decays.pitch;
                tile::load(simd, area, pitch, rates.decays.tile());
                for row in 0..rows {
                    let rate = V::splat(simd, if gates.raw { own.rate.get(row) } else { T::default() });
                    for at in (0..pitch).step_by(lanes) {
                        let place = row * pitch + at;
                        let raw = rates.decays.array.load(simd, place);
                        let bias = || own.bias.load(simd, at);
                        rates.decays.array.store(place, exp_reduced(logarithm(gates, raw, bias, rate)));
                    }
                }
            }
            Some(area) => {
                tile::load(simd, area, padded, TileMut::new(rates.decay.reborrow(), ROWS));
                for at in (0..padded).step_by(lanes) {
                    let raw = rates.decay.load(simd, at);
                    let rate = if gates.raw { own.rate.load(simd, at) } else { raw };
                    let bias = || own.bias.load(simd, at);
                    rates.decay.store(at, exp_reduced(logarithm(gates, raw, bias, rate)));
                }
            }
            None => {}
        }
        rates.beta.slice(0, padded).fill(T::from_f64(1.0));
        if let Some(area) = beta {
            tile::load(simd, area, padded, TileMut::new(rates.beta.reborrow(), ROWS));
            let factor = V::constant(simd, gates.beta_factor);
            for at in (0..if gates.beta_sigmoid { padded } else { 0 }).step_by(lanes) {
                let beta = sigmoid(rates.beta.load(simd, at)) * factor;
                rates.beta.store(at, beta);
            }
        }
    }
}

/// The logarithm of a decay.
#[inline(always)]
fn logarithm<T: Real, S: Isa>(gates: &Gates, raw: V<T, S>, bias: impl Fn() -> V<T, S>, rate: V<T, S>) -> V<T, S> {
    if !gates.raw {
        return raw;
    }
    let gate = raw + bias();
    match gates.lower_bound {
        Some(bound) => V::constant(raw.simd(), bound) * sigmoid(rate * gate),
        None => {
            let [soft] = softplus_each([gate]);
            -(rate * soft)
        }
    }
}
