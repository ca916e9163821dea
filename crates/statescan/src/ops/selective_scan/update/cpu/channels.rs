//! Neighbouring channels along a vector, for states that do not lie densely or are few.

use super::{Here, Scratch, advance};
use crate::cpu::simd::{Field, Isa, Real, V};
use crate::cpu::tile;
use crate::ops::rules::{FieldKind, Rule};

/// The states of a unit, neighbouring channels along a vector.
#[inline(always)]
pub(super) fn along_channels<T: Real, K: FieldKind, R: Rule, S: Isa>(
    simd: S,
    here: &mut Here<'_, '_, '_, T>,
    row: usize,
    uniform: bool,
) {
    let &mut Here { call, problem, unit, ref mut s } = here;
    let (lanes, states) = (T::lanes::<S>(), problem.dstate);
    let shared = problem.dt_a.is_none();
    let Scratch { dt, dt_a, u, decay, gain, b, c, state: h, a, sum: sums, .. } = &mut **s;
    let (dts, dts_a, us, b, c) = (dt.read(), dt_a.read(), u.read(), b.read(), c.read());
    let (mut h, mut a) = (h.reborrow(), a.reborrow());
    for at in (0..unit.channels).step_by(lanes) {
        let (count, channel) = (lanes.min(unit.channels - at), unit.first + at);
        debug_assert!(h.has(0, states * K::PARTS * lanes), "room for a vector of channels");
        let state = call.state.plane(row, unit.head, channel, 2, 3).area(count, states);
        tile::load_parts(simd, state.read(), K::PARTS, lanes, h.reborrow());
        if !uniform {
            let plane = problem.a.plane(0, unit.head, channel, 2, 3);
            tile::load_parts(simd, plane.area(count, states), K::PARTS, lanes, a.reborrow());
        }
        let (dt, dt_a, u) = (dts.load(simd, at), dts_a.load(simd, at), us.load(simd, at));
        let mut sum: V<T, S> = V::splat(simd, T::default());
        let decay: K::Of<T, S> = decay.load_field(simd, at * K::PARTS);
        let gain = gain.load_field(simd, at * K::PARTS);
        for n in 0..states {
            let map = (n / lanes) * K::PARTS * lanes + n % lanes;
            let b: K::Of<T, S> = b.broadcast_field(simd, map, lanes);
            let c = c.broadcast_field(simd, map, lanes);
            let step = n * K::PARTS * lanes;
            let factors = match uniform {
                true => (decay, gain),
                false => R::step(R::prepare(a.load_field(simd, step)), dt, dt_a, shared),
            };
            sum = advance::<T, S, K::Of<T, S>>(h.from(step), factors, R::GAIN, b.scale(u), c, sum);
        }
        sums.store(at, sum);
        tile::store_parts(simd, h.read(), K::PARTS, lanes, state);
    }
}
