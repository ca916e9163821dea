//! Step sizes: what becomes of a raw one and its bias.

use super::math::{softplus_derivative, softplus_each};
use super::simd::{Isa, Real, V};
use crate::step_size::StepSize;

impl StepSize {
    /// The steps of `N` vectors of raw ones, to which the bias is added already, and if `SLOPE` their derivatives by those, else 1.
    #[inline(always)]
    pub(crate) fn of<T: Real, S: Isa, const N: usize, const SLOPE: bool>(self, raw: [V<T, S>; N]) -> [[V<T, S>; N]; 2] {
        let simd = raw[0].simd();
        let (zero, one) = (V::constant(simd, 0.0), V::constant(simd, 1.0));
        let (mut dt, mut slope) = (raw, [one; N]);
        if self.softplus {
            for i in 0..if SLOPE { N } else { 0 } {
                slope[i] = softplus_derivative(dt[i]);
            }
            dt = softplus_each(dt);
        }
        let (low, high) = self.limit;
        debug_assert!(low <= high, "an interval");
        if low > f64::NEG_INFINITY || high < f64::INFINITY {
            let (low, high) = (V::constant(simd, low), V::constant(simd, high));
            for i in 0..N {
                if SLOPE {
                    slope[i] = V::select_less(dt[i], low, zero, V::select_less(high, dt[i], zero, slope[i]));
                }
                dt[i] = dt[i].max(low).min(high);
            }
        }
        [dt, slope]
    }
}
