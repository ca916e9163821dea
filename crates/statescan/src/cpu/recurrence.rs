//! The recurrence itself, on one vector of channels and a tile of time: what every diagonal operation is built from.

use super::array::{Array, ArrayMut, ArrayOf};
use super::simd::{Field, Isa, Real};

/// A number of a field at every step of a tile, `step` elements apart; a step of 0 stands for a value that does not depend on time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepsOf<A> {
    array: A,
    step: usize,
}

/// Steps that are read.
pub(crate) type Steps<'m, T> = StepsOf<Array<'m, T>>;
/// Steps that are written.
pub(crate) type StepsMut<'m, T> = StepsOf<ArrayMut<'m, T>>;

impl<A> StepsOf<A> {
    #[inline(always)]
    pub(crate) fn new(array: A, step: usize) -> Self {
        StepsOf { array, step }
    }
}

impl<T: Real, A> StepsOf<ArrayOf<'_, T, A>> {
    /// Whether numbers of `len` elements are there at so many steps; only debug builds know.
    #[inline(always)]
    fn has(&self, steps: usize, len: usize) -> bool {
        steps == 0 || self.array.has((steps - 1) * self.step, len)
    }

    /// The number at step `t`.
    #[inline(always)]
    pub(crate) fn load<S: Isa, F: Field<T, S>>(&self, simd: S, t: usize) -> F {
        self.array.load_field(simd, t * self.step)
    }
}

impl<T: Real> Steps<'_, T> {
    /// The steps from `t` on.
    #[inline(always)]
    pub(crate) fn from(self, t: usize) -> Self {
        Steps::new(self.array.from(t * self.step), self.step)
    }
}

impl<T: Real> StepsMut<'_, T> {
    /// Borrows the steps for a shorter time.
    #[inline(always)]
    pub(crate) fn reborrow(&mut self) -> StepsMut<'_, T> {
        self.from(0)
    }

    /// Borrows the steps for reading.
    #[inline(always)]
    pub(crate) fn read(&self) -> Steps<'_, T> {
        Steps::new(self.array.read(), self.step)
    }

    /// The steps from `t` on.
    #[inline(always)]
    pub(crate) fn from(&mut self, t: usize) -> StepsMut<'_, T> {
        StepsMut::new(self.array.from(t * self.step), self.step)
    }

    /// Stores the number at step `t`.
    #[inline(always)]
    pub(crate) fn store<S: Isa, F: Field<T, S>>(&mut self, t: usize, value: F) {
        self.array.store_field(t * self.step, value)
    }
}

/// `h[t] = a[t] h[t-1] + b[t]` from a state; `b` becomes `h`. Gives the state after the last step.
#[inline(always)]
pub(crate) fn scan<T: Real, S: Isa, F: Field<T, S>>(
    simd: S,
    a: Steps<'_, T>,
    mut b: StepsMut<'_, T>,
    steps: usize,
    mut state: F,
) -> F {
    debug_assert!(a.has(steps, F::PARTS * T::lanes::<S>()), "a has the steps");
    debug_assert!(b.has(steps, F::PARTS * T::lanes::<S>()), "b has the steps");
    debug_assert!(steps <= 1 || b.step >= F::PARTS * T::lanes::<S>(), "every step of b has its own number");
    for t in 0..steps {
        state = a.load::<S, F>(simd, t).mul_add(state, b.load(simd, t));
        b.store(t, state);
    }
    state
}

/// `g[t] = p[t] + conj(a[t+1]) g[t+1]`, the adjoint of [`scan`]; `p` becomes `g`. The carry is `conj(a[t+1]) g[t+1]` at the end of the
/// tile; what comes back is the same at its start.
#[inline(always)]
pub(crate) fn adjoint<T: Real, S: Isa, F: Field<T, S>>(
    simd: S,
    a: Steps<'_, T>,
    mut p: StepsMut<'_, T>,
    steps: usize,
    mut carry: F,
) -> F {
    debug_assert!(a.has(steps, F::PARTS * T::lanes::<S>()), "a has the steps");
    debug_assert!(p.has(steps, F::PARTS * T::lanes::<S>()), "p has the steps");
    debug_assert!(steps <= 1 || p.step >= F::PARTS * T::lanes::<S>(), "every step of p has its own number");
    let zero = F::zero(simd);
    for t in (0..steps).rev() {
        let g = p.load::<S, F>(simd, t) + carry;
        p.store(t, g);
        carry = a.load::<S, F>(simd, t).conj_mul_add(g, zero);
    }
    carry
}

/// The total decay: the product of `decay` and every `a[t]`.
#[inline(always)]
pub(crate) fn total_decay<T: Real, S: Isa, F: Field<T, S>>(simd: S, a: Steps<'_, T>, steps: usize, mut decay: F) -> F {
    debug_assert!(a.has(steps, F::PARTS * T::lanes::<S>()), "a has the steps");
    for t in 0..steps {
        decay = a.load::<S, F>(simd, t) * decay;
    }
    decay
}
