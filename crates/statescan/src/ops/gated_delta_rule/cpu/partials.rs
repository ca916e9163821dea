//! Gradients by gates, by beta, and the sums of those by what raw gates are made with: a part for each segment, which are added up at the end.

use super::super::GradientTargets;
use super::super::problem::Problem;
use super::chunk::Scratch;
use crate::cpu::math::{sigmoid, softplus_derivative, softplus_each};
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::{ArrayMut, Divided, Kernel, add_up};
use crate::ops::gated_delta_rule::Gates;

/// Sums of each segment and head of values: by A_log, and by dt_bias.
pub(super) struct Partials {
    sums: Vec<f64>,
    /// Numbers of a head.
    len: usize,
    heads: usize,
}

impl Partials {
    pub(super) fn new(problem: &Problem<'_>) -> Self {
        let own = if problem.gates.by_channel { problem.keys } else { 1 };
        let (len, heads) = (if problem.gates.raw { 1 + own } else { 0 }, problem.value_heads());
        Partials { sums: vec![0.0; problem.segments.list.len() * heads * len], len, heads }
    }

    pub(super) fn share(&mut self) -> Shared<'_> {
        Shared { len: self.len, heads: self.heads, sums: Divided::of(&mut self.sums) }
    }

    /// Adds up the parts.
    pub(super) fn finish(&self, problem: &Problem<'_>, targets: &GradientTargets) {
        let Partials { sums, len, heads } = self;
        let mut all = vec![0.0; heads * len];
        let segments = problem.segments.list.len();
        add_up(&mut all, (0..segments).map(|segment| &sums[segment * heads * len..][..heads * len]));
        for (head, sums) in all.chunks_exact((*len).max(1)).enumerate() {
            if let Some(target) = &targets.a_log {
                target.write(head as isize * target.strides()[0], sums[0].into());
            }
            let Some(target) = &targets.dt_bias else { continue };
            let strides = target.strides();
            let (at, step) = (head as isize * strides[0], strides.get(1).copied().unwrap_or(0));
            (0..).zip(&sums[1..]).for_each(|(n, sum)| target.write(at + n * step, (*sum).into()));
        }
    }
}

/// The partial sums as jobs share them.
#[derive(Clone, Copy)]
pub(super) struct Shared<'s> {
    sums: Divided<'s, f64>,
    len: usize,
    heads: usize,
}

impl<'s> Shared<'s> {
    /// The sums of a head in a segment, for the job that has them.
    pub(super) fn of(&self, segment: usize, head: usize) -> ArrayMut<'s, f64> {
        // SAFETY: one job has a head of a segment, and its chunks come one after the other.
        unsafe { self.sums.part((segment * self.heads + head) * self.len) }
    }

    /// Their number.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// From the gradients by logarithms and by beta those by what a call has of them.
pub(super) struct ByGates<'b, 'm, T> {
    pub s: &'b mut Scratch<'m, T>,
    pub gates: &'b Gates,
    pub rows: usize,
    pub sums: &'b mut [f64],
    /// Raw numbers of beta, as rows of one number.
    pub raw_beta: Option<[T; super::keys::ROWS]>,
}

impl<T: Real> Kernel for ByGates<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let ByGates { s, gates, rows, sums, raw_beta } = self;
        let lanes = T::lanes::<S>();
        if let Some(raw) = raw_beta {
            let factor = V::constant(simd, gates.beta_factor);
            for at in (0..super::keys::ROWS).step_by(lanes) {
                let x = V::first(simd, &raw[at..]);
                let slope = sigmoid(x) * sigmoid(-x) * factor;
                s.dbeta.store(at, s.dbeta.load(simd, at) * slope);
            }
        }
        if !gates.raw {
            return;
        }
        let Scratch { own, by_log, raw, .. } = s;
        let own = own.read();
        let (count, columns) = if gates.by_channel { (rows, raw.pitch) } else { (1, rows.next_multiple_of(lanes)) };
        for row in 0..count {
            for at in (0..columns).step_by(lanes) {
                let place = row * columns + at;
                let rate = if gates.by_channel { V::splat(simd, own.rate.get(0)) } else { own.rate.load(simd, at) };
                let gate = raw.array.load(simd, place) + own.bias.load(simd, at);
                let (by_gate, by_a_log) = slopes(gates, gate, rate);
                let by = by_log.array.load(simd, place);
                let (by_gate, by_a_log) = ((by * by_gate).to_array(), (by * by_a_log).to_array());
                let lanes = lanes.min(if gates.by_channel { sums.len() - 1 } else { rows }.saturating_sub(at));
                for lane in 0..lanes {
                    raw.array.set(place + lane, by_gate[lane]);
                    sums[0] += by_a_log[lane].to_f64();
                    sums[if gates.by_channel { 1 + at + lane } else { 1 }] += by_gate[lane].to_f64();
                }
            }
        }
    }
}

/// The derivatives of the logarithm of a decay by its gate and by A_log.
#[inline(always)]
fn slopes<T: Real, S: Isa>(gates: &Gates, gate: V<T, S>, rate: V<T, S>) -> (V<T, S>, V<T, S>) {
    match gates.lower_bound {
        Some(bound) => {
            let slope = V::constant(gate.simd(), bound) * sigmoid(rate * gate) * sigmoid(-(rate * gate)) * rate;
            (slope, slope * gate)
        }
        None => {
            let [soft] = softplus_each([gate]);
            (-(rate * softplus_derivative(gate)), -(rate * soft))
        }
    }
}
