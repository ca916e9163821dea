//! The highest rates of this machine: memory copied, multiply-adds and exponentials per second, for a number of threads.
//!
//! They are measured in the process that uses them, on as many threads as the pass that they are compared with. Loops over small arrays
//! are left to the compiler, which gets the widest instructions that the processor has.

use crate::work::Work;
use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Rates per nanosecond.
#[derive(Debug, Clone, Copy)]
pub struct Floors {
    /// Bytes read and written by a copy that no cache holds.
    pub bytes: f64,
    /// Bytes read and written by a copy that a core's own caches hold.
    pub cached_bytes: f64,
    /// Threads that they were measured on.
    pub threads: usize,
    /// Additions and multiplications in f32, by fused multiply-adds.
    pub flops: f64,
    /// Additions and multiplications in f64, by fused multiply-adds.
    pub flops_double: f64,
    /// Exponentials in f32, of about single precision.
    pub exps: f64,
}

impl Floors {
    /// Measures them; a fraction of a second.
    pub fn measure(threads: usize) -> Self {
        Floors {
            bytes: copy_rate(threads, ((256usize << 20) / threads.max(1)).max(16 << 20), 4),
            cached_bytes: copy_rate(threads, CACHED / 2, 400),
            threads,
            flops: rate(threads, || pulp::Arch::new().dispatch(Fma::<f32>::new())),
            flops_double: rate(threads, || pulp::Arch::new().dispatch(Fma::<f64>::new())),
            exps: rate(threads, || pulp::Arch::new().dispatch(Exps)),
        }
    }

    /// The least time that so much work can take: memory goes on beside arithmetic, and exponentials are arithmetic too.
    pub fn time(&self, work: &Work, bytes: usize, double: bool) -> f64 {
        let flops = if double { self.flops_double } else { self.flops };
        let exps = if double { self.exps / 4.0 } else { self.exps };
        // a small problem that is repeated stays in the caches
        let rate = if bytes <= CACHED * self.threads { self.cached_bytes } else { self.bytes };
        (work.flops / flops + work.exps / exps).max(bytes as f64 / rate)
    }
}

impl fmt::Display for Floors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Floors { bytes, threads, flops, flops_double, exps, .. } = self;
        let s = if *threads == 1 { "" } else { "s" };
        write!(
            f,
            "{threads} thread{s}: copy {bytes:.1} GB/s, multiply-add {flops:.0} GFLOP/s (f64 {flops_double:.0}), exp {exps:.2} G/s"
        )
    }
}

/// Exponentials per nanosecond of the slowest of so many threads just now, in a third of a millisecond. They need the first cache and what a
/// core can look ahead over, both of which whoever else runs there takes its part of; chains of multiply-adds need neither.
pub fn speed(threads: usize) -> f64 {
    let job = || pulp::Arch::new().dispatch(Exps);
    on_each(threads, Duration::from_micros(300), &job).into_iter().fold(f64::INFINITY, f64::min)
}

/// Runs a job on every thread at once and adds up what each got done per nanosecond; the best of a few rounds.
fn rate(threads: usize, job: impl Fn() -> f64 + Sync) -> f64 {
    let round = || on_each(threads, Duration::from_millis(8), &job).iter().sum::<f64>();
    (0..5).map(|_| round()).fold(0.0, f64::max)
}

/// Repeats a job on every thread at once for so long: what each got done per nanosecond.
fn on_each(threads: usize, time: Duration, job: &(impl Fn() -> f64 + Sync)) -> Vec<f64> {
    let one = || {
        let (begin, mut done) = (Instant::now(), 0.0);
        while begin.elapsed() < time {
            done += job();
        }
        done / begin.elapsed().as_nanos() as f64
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(one)).collect();
        std::iter::once(one()).chain(others.into_iter().map(|t| t.join().unwrap_or(0.0))).collect()
    })
}

/// Bytes that the caches of one core hold on most machines.
const CACHED: usize = 512 << 10;

/// Copies an array of so many bytes on each thread; the best of some rounds.
fn copy_rate(threads: usize, bytes: usize, rounds: usize) -> f64 {
    let len = bytes / 8;
    let round = || -> f64 {
        let one = || {
            let (source, mut target) = (vec![1u64; len], vec![0u64; len]);
            let mut best: f64 = 0.0;
            for _ in 0..rounds {
                let begin = Instant::now();
                black_box(&mut target).copy_from_slice(black_box(&source));
                best = best.max((16 * len) as f64 / begin.elapsed().as_nanos().max(1) as f64);
            }
            best
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(one)).collect();
            one() + others.into_iter().map(|t| t.join().unwrap_or(0.0)).sum::<f64>()
        })
    };
    round()
}

/// Independent chains of multiply-adds, enough of them to hide their latency.
struct Fma<T>(T, T);

const CHAINS: usize = 256;
const ROUNDS: usize = 2000;

macro_rules! fma {
    ($t:ty) => {
        impl Fma<$t> {
            fn new() -> Self {
                Fma(black_box(0.999), black_box(0.001))
            }
        }
        impl pulp::NullaryFnOnce for Fma<$t> {
            type Output = f64;
            #[inline(always)]
            fn call(self) -> f64 {
                // as many chains as fit into registers, so that no load or store is in the way
                const WIDTH: usize = CHAINS / size_of::<$t>() * 2;
                let mut sums = [0.5 as $t; WIDTH];
                for _ in 0..ROUNDS {
                    for sum in &mut sums {
                        *sum = sum.mul_add(self.0, self.1);
                    }
                }
                black_box(sums);
                (2 * WIDTH * ROUNDS) as f64
            }
        }
    };
}
fma!(f32);
fma!(f64);

/// Exponentials of an array in the first cache: 2^round(x) by the exponent's bits, the rest by a polynomial.
struct Exps;

impl pulp::NullaryFnOnce for Exps {
    type Output = f64;
    #[inline(always)]
    fn call(self) -> f64 {
        // adding it leaves the rounded number in the low bits
        const SHIFT: f32 = 12_582_912.0;
        let mut values = [0.0f32; 1024];
        values.iter_mut().enumerate().for_each(|(i, v)| *v = -(i as f32) * 0.01);
        let values = black_box(values);
        let mut results = [0.0f32; 1024];
        for _ in 0..64 {
            for (result, &value) in results.iter_mut().zip(&values) {
                let shifted = value.mul_add(std::f32::consts::LOG2_E, SHIFT);
                let rest = value.mul_add(std::f32::consts::LOG2_E, SHIFT - shifted);
                let p = 1.339_887_4e-3f32.mul_add(rest, 9.618_437e-3);
                let p = p.mul_add(rest, 5.550_332_7e-2);
                let p = p.mul_add(rest, 2.402_264_7e-1);
                let p = p.mul_add(rest, 6.931_472e-1);
                let p = p.mul_add(rest, 1.0);
                *result = f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23));
            }
            black_box(&mut results);
        }
        (64 * 1024) as f64
    }
}
