//! Every function on every level in both types against double-double arithmetic, and what it does at the ends of its range.

mod accuracy;
mod edges;
mod oracle;

use super::super::simd::{Cx, Isa, Real, V};
use crate::cpu::{Kernel, Level};
use core::marker::PhantomData;

/// A function of one complex lane (or its real part) with up to six real results, callable with any vector.
trait Function: Copy {
    fn call<T: Real, S: Isa>(x: Cx<T, S>, out: &mut [V<T, S>; 6]);
}

/// Declares a [`Function`] as a unit struct.
macro_rules! function {
    ($name:ident, |$x:ident| [$($out:expr),+]) => {
        #[derive(Clone, Copy)]
        struct $name;
        impl Function for $name {
            #[inline(always)]
            fn call<T: Real, S: Isa>($x: Cx<T, S>, out: &mut [V<T, S>; 6]) {
                for (out, value) in out.iter_mut().zip([$($out),+]) {
                    *out = value;
                }
            }
        }
    };
}
use function;

struct Run<'a, F, T> {
    function: PhantomData<F>,
    re: &'a [T],
    im: &'a [T],
}

impl<F: Function, T: Real> Kernel for Run<'_, F, T> {
    type Output = Vec<[T; 6]>;
    const EVERY_LEVEL: bool = true;
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) -> Vec<[T; 6]> {
        let Run { re, im, .. } = self;
        let lanes = V::<T, S>::lanes();
        let mut results = Vec::new();
        let mut buffer = [T::default(); 64];
        for start in (0..re.len()).step_by(lanes) {
            let count = lanes.min(re.len() - start);
            let mut load = |from: &[T]| {
                buffer[..count].copy_from_slice(&from[start..start + count]);
                V::<T, S>::first(simd, &buffer)
            };
            let x = Cx { re: load(re), im: load(im) };
            let mut out = [V::constant(simd, 0.0); 6];
            F::call(x, &mut out);
            let first = results.len();
            results.resize(first + count, [T::default(); 6]);
            for (k, out) in out.into_iter().enumerate() {
                let out = out.to_array();
                for lane in 0..count {
                    results[first + lane][k] = out[lane];
                }
            }
        }
        results
    }
}

/// The function at every point of a list, on one level.
fn complex<F: Function, T: Real>(level: Level, _: F, re: &[f64], im: &[f64]) -> Vec<[f64; 6]> {
    let [re, im] = [re, im].map(|x| x.iter().map(|&x| T::from_f64(x)).collect::<Vec<T>>());
    let rows = level.dispatch(Run { function: PhantomData::<F>, re: &re, im: &im });
    rows.into_iter().map(|row| row.map(T::to_f64)).collect()
}

/// As [`complex`], on real numbers.
fn real<F: Function, T: Real>(level: Level, function: F, x: &[f64]) -> Vec<[f64; 6]> {
    complex::<F, T>(level, function, x, &vec![0.0; x.len()])
}

/// The distance between neighbours at a positive number of the compute type.
fn ulp<T: Real>(x: f64) -> f64 {
    let (mantissa, lowest) = if T::DOUBLE { (52, -1022) } else { (23, -126) };
    let exponent = ((x.abs().to_bits() >> 52) as i32 - 1023).max(lowest);
    // in two factors, for one may be below the range
    f64::from_bits(((exponent + 1023).max(1) as u64) << 52) * (-mantissa as f64).exp2()
}

/// Points spread evenly over a range, not on round numbers, as numbers of the compute type.
fn sweep<T: Real>(from: f64, to: f64, count: usize) -> impl Iterator<Item = f64> {
    (0..count).map(move |k| T::from_f64(from + (to - from) * (k as f64 + 0.3717) / count as f64).to_f64())
}

/// Points of both signs spread evenly in magnitude.
fn logarithmic<T: Real>(from: f64, to: f64, count: usize) -> impl Iterator<Item = f64> {
    sweep::<T>(from.log2(), to.log2(), count).flat_map(|e| [e.exp2(), -e.exp2()]).map(|x| T::from_f64(x).to_f64())
}
