//! Sums in parts, which jobs leave behind: each has its own, so that nobody waits, and they are added in the order of the plan, so that any
//! number of threads takes the same sums.

use super::simd::Real;

/// Adds up parts in the order in which they come.
pub(crate) fn add_up<'p, T: Real>(sums: &mut [T], parts: impl IntoIterator<Item = &'p [T]>) {
    sums.fill(T::default());
    for part in parts {
        for (sum, part) in sums.iter_mut().zip(part) {
            *sum = *sum + *part;
        }
    }
}
