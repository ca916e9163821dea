//! The recurrence itself, on one vector of channels and a tile of time: what every diagonal operation is built from.
//!
//! A tile holds one field vector a step, `step` elements apart; a step of 0 stands for a value that does not depend on time.

use crate::cpu::simd::{Field, Isa, Real};

/// `h[t] = a[t] h[t-1] + b[t]` from a state; `b` becomes `h`. Gives the state after the last step.
///
/// # Safety
/// `a` can be read and `b` written for `steps` field vectors.
#[inline(always)]
pub(crate) unsafe fn scan<T: Real, S: Isa, F: Field<T, S>>(
    simd: S,
    a: *const T,
    a_step: usize,
    b: *mut T,
    b_step: usize,
    steps: usize,
    mut state: F,
) -> F {
    for t in 0..steps {
        // SAFETY: the caller's contract.
        unsafe {
            let b = b.add(t * b_step);
            state = F::load(simd, a.add(t * a_step)).mul_add(state, F::load(simd, b));
            state.store(b);
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
    a: *const T,
    a_step: usize,
    p: *mut T,
    p_step: usize,
    steps: usize,
    mut carry: F,
) -> F {
    let zero = F::zero(simd);
    for t in (0..steps).rev() {
        // SAFETY: the caller's contract.
        unsafe {
            let p = p.add(t * p_step);
            let g = F::load(simd, p) + carry;
            g.store(p);
            carry = F::load(simd, a.add(t * a_step)).conj_mul_add(g, zero);
        }
    }
    carry
}

/// The total decay: the product of `decay` and every `a[t]`.
///
/// # Safety
/// `a` can be read for `steps` field vectors.
#[inline(always)]
pub(crate) unsafe fn total_decay<T: Real, S: Isa, F: Field<T, S>>(
    simd: S,
    a: *const T,
    a_step: usize,
    steps: usize,
    mut decay: F,
) -> F {
    for t in 0..steps {
        // SAFETY: the caller's contract.
        decay = unsafe { F::load(simd, a.add(t * a_step)) } * decay;
    }
    decay
}
