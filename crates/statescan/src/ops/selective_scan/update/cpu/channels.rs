//! Neighbouring channels along a vector, for states that do not lie densely or are few.

use super::super::Problem;
use super::plan::Unit;
use super::{Scratch, advance};
use crate::cpu::simd::{Field, Isa, Real, V};
use crate::cpu::tile;
use crate::ops::rules::{FieldKind, Rule};

/// The states of a unit, neighbouring channels along a vector.
///
/// # Safety
/// The unit lies within the problem.
#[inline(always)]
pub(super) unsafe fn along_channels<T: Real, K: FieldKind, R: Rule, S: Isa>(
    simd: S,
    problem: &Problem<'_>,
    unit: Unit,
    row: usize,
    uniform: bool,
    s: &mut Scratch<T>,
) {
    let (lanes, states) = (T::lanes::<S>(), problem.dstate);
    let shared = problem.dt_a.is_none();
    for at in (0..unit.channels).step_by(lanes) {
        let (count, channel) = (lanes.min(unit.channels - at), unit.first + at);
        let plane = problem.state.plane(row, unit.head, channel, 2, 3);
        // SAFETY: the caller's contract; tiles have room for a vector of channels with all their states.
        unsafe {
            let (h, a) = (s.state, s.a);
            tile::load_parts(simd, plane, K::PARTS, count, lanes, states, h);
            if !uniform {
                let plane = problem.a.plane(0, unit.head, channel, 2, 3);
                tile::load_parts(simd, plane, K::PARTS, count, lanes, states, a);
            }
            let (dt, dt_a) = (V::load(simd, s.dt.add(at)), V::load(simd, s.dt_a.add(at)));
            let u = V::load(simd, s.u.add(at));
            let mut sum = V::splat(simd, T::default());
            let decay = K::Of::<T, S>::load(simd, s.decay.add(at * K::PARTS));
            let gain = K::Of::<T, S>::load(simd, s.gain.add(at * K::PARTS));
            for n in 0..states {
                let map = (n / lanes) * K::PARTS * lanes + n % lanes;
                let b = K::Of::<T, S>::broadcast(simd, s.b.add(map), lanes);
                let c = K::Of::<T, S>::broadcast(simd, s.c.add(map), lanes);
                let step = n * K::PARTS * lanes;
                let factors = match uniform {
                    true => (decay, gain),
                    false => R::step(R::prepare(K::Of::<T, S>::load(simd, a.add(step))), dt, dt_a, shared),
                };
                sum = advance::<T, S, K::Of<T, S>>(h.add(step), factors, R::GAIN, b.scale(u), c, sum);
            }
            sum.store(s.sum.add(at));
            tile::store_parts(simd, h, K::PARTS, lanes, plane, count, states);
        }
    }
}
