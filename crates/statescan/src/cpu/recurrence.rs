//! The recurrence itself, on one vector of channels and a tile of time: what every diagonal operation is built from.

use super::Array;
use super::simd::{Field, Isa, Real};

/// A number of a field at every step of a tile, `step` elements apart; a step of 0 stands for a value that does not depend on time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Steps<T> {
    array: Array<T>,
    step: usize,
}

impl<T: Real> Steps<T> {
    #[inline(always)]
    pub(crate) fn new(array: Array<T>, step: usize) -> Self {
        Steps { array, step }
    }

    /// The steps from `t` on.
    #[inline(always)]
    pub(crate) fn from(self, t: usize) -> Self {
        Steps { array: self.array.from(t * self.step), ..self }
    }

    /// The number at step `t`.
    ///
    /// # Safety
    /// The contract of [`Array`].
    #[inline(always)]
    pub(crate) unsafe fn load<S: Isa, F: Field<T, S>>(self, simd: S, t: usize) -> F {
        // SAFETY: the caller's contract.
        unsafe { self.array.load_field(simd, t * self.step) }
    }

    /// Stores the number at step `t`.
    ///
    /// # Safety
    /// The contract of [`Array`].
    #[inline(always)]
    pub(crate) unsafe fn store<S: Isa, F: Field<T, S>>(self, t: usize, value: F) {
        // SAFETY: the caller's contract.
        unsafe { self.array.store_field(t * self.step, value) }
    }
}

/// `h[t] = a[t] h[t-1] + b[t]` from a state; `b` becomes `h`. Gives the state after the last step.
///
/// # Safety
/// - `a` and `b` have so many steps.
/// - `b` is this thread's.
#[inline(always)]
pub(crate) unsafe fn scan<T: Real, S: Isa, F: Field<T, S>>(simd: S, a: Steps<T>, b: Steps<T>, steps: usize, mut state: F) -> F {
    for t in 0..steps {
        // SAFETY: the caller's contract.
        unsafe {
            state = a.load::<S, F>(simd, t).mul_add(state, b.load(simd, t));
            b.store(t, state);
        }
    }
    state
}

/// `g[t] = p[t] + conj(a[t+1]) g[t+1]`, the adjoint of [`scan`]; `p` becomes `g`. The carry is `conj(a[t+1]) g[t+1]` at the end of the
/// tile; what comes back is the same at its start.
///
/// # Safety
/// As [`scan`].
#[inline(always)]
pub(crate) unsafe fn adjoint<T: Real, S: Isa, F: Field<T, S>>(
    simd: S,
    a: Steps<T>,
    p: Steps<T>,
    steps: usize,
    mut carry: F,
) -> F {
    let zero = F::zero(simd);
    for t in (0..steps).rev() {
        // SAFETY: the caller's contract.
        unsafe {
            let g = p.load::<S, F>(simd, t) + carry;
            p.store(t, g);
            carry = a.load::<S, F>(simd, t).conj_mul_add(g, zero);
        }
    }
    carry
}

/// The total decay: the product of `decay` and every `a[t]`.
///
/// # Safety
/// `a` has so many steps.
#[inline(always)]
pub(crate) unsafe fn total_decay<T: Real, S: Isa, F: Field<T, S>>(simd: S, a: Steps<T>, steps: usize, mut decay: F) -> F {
    for t in 0..steps {
        // SAFETY: the caller's contract.
        decay = unsafe { a.load::<S, F>(simd, t) } * decay;
    }
    decay
}
