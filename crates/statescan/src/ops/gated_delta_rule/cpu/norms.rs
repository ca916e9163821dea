//! The gradients of queries and keys from those of their units.

use super::keys::{Keys, Rows};
use crate::cpu::Kernel;
use crate::cpu::simd::{Isa, Real, V};
use crate::ops::gated_delta_rule::Gates;

/// In place.
pub(super) struct Denormalize<'d, 'm, T> {
    pub keys: &'d Keys<'m, T>,
    pub dq: &'d mut Rows<'m, T>,
    pub dk: &'d mut Rows<'m, T>,
    pub gates: &'d Gates,
    pub rows: usize,
}

impl<T: Real> Kernel for Denormalize<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Denormalize { keys, dq, dk, gates, rows } = self;
        let lanes = T::lanes::<S>();
        for (x, by, to, scale) in [(&keys.q, &keys.by_q, dq, gates.scale), (&keys.k, &keys.by_k, dk, 1.0)] {
            let unscaled = V::constant(simd, 1.0 / scale);
            for row in 0..rows {
                let (x, start, by) = (x.row(row), row * to.pitch, V::splat(simd, by.get(row)));
                let mut along = V::constant(simd, 0.0);
                for at in (0..if gates.qk_l2norm { to.pitch } else { 0 }).step_by(lanes) {
                    along = x.load(simd, at).mul_add(to.array.load(simd, start + at), along);
                }
                let along = V::splat(simd, along.reduce_sum()) * unscaled;
                for at in (0..to.pitch).step_by(lanes) {
                    let mut grad = to.array.load(simd, start + at);
                    if gates.qk_l2norm {
                        grad = (x.load(simd, at) * unscaled).neg_mul_add(along, grad);
                    }
                    to.array.store(start + at, grad * by);
                }
            }
        }
    }
}
