//! The tests of all operations share this: random tensors of any type and layout, poisoned outputs, one comparison.
#![allow(dead_code)] // each test binary uses its own part

pub mod device;
pub mod options;
pub mod vectors;

use num_complex::Complex64;
use proptest::prelude::ProptestConfig;
use proptest::test_runner::{FailurePersistence, FileFailurePersistence, RngSeed};
use statescan::tensor::{Dense, Element, ErrorBound, max_errors};
use statescan::{DType, Error, Exec, Level, Tensor, View};

/// A small generator of reproducible numbers (splitmix64).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def0)
    }
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Uniform in [low, high).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * ((self.bits() >> 11) as f64 / (1u64 << 53) as f64)
    }
    /// Roughly normal with unit variance.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform(0.0, 1.0)).sum::<f64>() - 6.0
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A view of any shape of one element.
pub fn broadcast<'a, T: Element>(element: &'a [T; 1], shape: &[usize]) -> View<'a> {
    View::strided(element, 0, shape, &vec![0; shape.len()]).unwrap()
}

/// The result is the error that sizes are beyond their limits, and names the operation.
#[track_caller]
pub fn assert_too_large<T>(op: &str, result: statescan::Result<T>) {
    let error = result.map(drop).expect_err("sizes beyond the limits");
    assert!(matches!(error, Error::Value { .. }) && error.to_string().starts_with(&format!("{op}: `")), "{error}");
    assert!(error.to_string().contains("must be at most 2^"), "{error}");
}

/// How a random tensor lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Row-major and dense.
    Dense,
    /// Axes in a random order, gaps between rows, some axes backwards.
    Scattered,
    /// As a slice of a larger tensor: rows are dense, with gaps between them, and begin anywhere.
    Sliced,
    /// A slice with the last two axes exchanged in memory.
    SlicedAcross,
}

/// Zeros of a type and shape in a layout. The memory between elements is poisoned with NaN bytes.
pub fn tensor(rng: &mut Rng, dtype: DType, shape: &[usize], layout: Layout) -> Tensor {
    match layout {
        Layout::Dense => Tensor::host(dtype, shape).unwrap(),
        Layout::Sliced | Layout::SlicedAcross => {
            let mut order: Vec<usize> = (0..shape.len()).collect();
            if layout == Layout::SlicedAcross && shape.len() > 1 {
                order.swap(shape.len() - 2, shape.len() - 1);
            }
            let (mut strides, mut reach) = (vec![0isize; shape.len()], 1);
            for &axis in order.iter().rev() {
                strides[axis] = reach as isize;
                reach = reach * shape[axis] + rng.below(4);
            }
            let origin = rng.below(9);
            let mut buffer = Tensor::strided(dtype, shape, &strides, origin, origin + reach.max(1)).unwrap();
            buffer.fill_bytes(0xff);
            buffer.fill_with(|| Complex64::ZERO);
            buffer
        }
        Layout::Scattered => {
            let mut order: Vec<usize> = (0..shape.len()).collect();
            for i in (1..order.len()).rev() {
                order.swap(i, rng.below(i + 1));
            }
            let (mut strides, mut reach, mut origin) = (vec![0isize; shape.len()], 0usize, rng.below(3));
            for &axis in &order {
                let stride = reach + 1 + rng.below(2);
                reach += stride * shape[axis].saturating_sub(1);
                let backwards = rng.below(4) == 0;
                strides[axis] = if backwards { -(stride as isize) } else { stride as isize };
                if backwards {
                    origin += stride * shape[axis].saturating_sub(1);
                }
            }
            let mut buffer = Tensor::strided(dtype, shape, &strides, origin, reach + 4 + origin).unwrap();
            buffer.fill_bytes(0xff);
            buffer.fill_with(|| Complex64::ZERO);
            buffer
        }
    }
}

/// A random tensor; `value` draws one number.
pub fn random(
    rng: &mut Rng,
    dtype: DType,
    shape: &[usize],
    layout: Layout,
    mut value: impl FnMut(&mut Rng) -> Complex64,
) -> Tensor {
    let mut buffer = tensor(rng, dtype, shape, layout);
    buffer.fill_with(|| value(rng));
    buffer
}

/// Normal numbers times `scale`; complex types get both parts.
pub fn normal(rng: &mut Rng, dtype: DType, shape: &[usize], layout: Layout, scale: f64) -> Tensor {
    random(rng, dtype, shape, layout, |rng| {
        let im = if dtype.is_complex() { rng.normal() } else { 0.0 };
        Complex64::new(rng.normal(), im) * scale
    })
}

/// Uniform real numbers.
pub fn uniform(rng: &mut Rng, dtype: DType, shape: &[usize], layout: Layout, low: f64, high: f64) -> Tensor {
    random(rng, dtype, shape, layout, |rng| rng.uniform(low, high).into())
}

/// An output whose every byte is NaN before the call.
pub fn poisoned(rng: &mut Rng, dtype: DType, shape: &[usize], layout: Layout) -> Tensor {
    let mut buffer = tensor(rng, dtype, shape, layout);
    buffer.fill_bytes(0xff);
    buffer
}

/// Integers as a tensor.
pub fn indices(dtype: DType, values: &[i64]) -> Tensor {
    let (mut buffer, mut next) = (Tensor::host(dtype, &[values.len()]).unwrap(), values.iter());
    buffer.fill_with(|| (*next.next().unwrap() as f64).into());
    buffer
}

/// As many random cases, after those that failed once: the seeds of these are in a file beside the tests. They are the same in every run, unless
/// `PROPTEST_RNG_SEED` has a number for others.
pub fn random_cases(cases: u32, failed: &'static str) -> ProptestConfig {
    let failure_persistence = Some(Box::new(FileFailurePersistence::Direct(failed)) as Box<dyn FailurePersistence>);
    let chosen = ProptestConfig::default();
    let rng_seed = if chosen.rng_seed == RngSeed::Random { RngSeed::Fixed(1) } else { chosen.rng_seed };
    ProptestConfig { cases, failure_persistence, rng_seed, ..chosen }
}

/// Executors over levels and threads: every level on one thread, the best one on three.
pub fn cpu_executors() -> Vec<Exec> {
    let levels = Level::available().map(|level| Exec::cpu(1).with_level(level).unwrap());
    levels.chain([Exec::cpu(3)]).collect()
}

/// Executors over levels, threads and devices: those of the CPU, and the first GPU where there is one.
pub fn executors() -> Vec<Exec> {
    let cpu = if device::only_gpu() { Vec::new() } else { cpu_executors() };
    cpu.into_iter().chain(device::find_gpu().ok()).collect()
}

/// Fails with the name and the figures if `got` is not within the bound of `expected`.
#[track_caller]
pub fn assert_close(name: &str, got: &Tensor, expected: &Dense, bound: ErrorBound) {
    assert_eq!(got.shape(), expected.shape(), "{name}: shape");
    let got = got.to_dense();
    let (absolute, relative, within) = max_errors(got.data(), expected.data(), bound);
    assert!(within, "{name}: error {absolute:.3e}, relative to the largest {relative:.3e}, bound {bound:?}");
}

/// As [`assert_close`] for a tensor of sums whose terms may cancel: the bound's absolute part counts from at least `scale`, the size of the
/// terms.
#[track_caller]
pub fn assert_close_in_scale(name: &str, got: &Tensor, expected: &Dense, bound: ErrorBound, scale: f64) {
    let with_scale = |values: &Dense| [values.data(), &[scale.into()]].concat();
    let (absolute, _, within) = max_errors(&with_scale(&got.to_dense()), &with_scale(expected), bound);
    assert!(within, "{name}: error {absolute:.3e}, scale {scale:.3e}, bound {bound:?}");
}

/// The gradient of `loss` by every element of `at`, by central differences in `f64`.
pub fn central_differences(at: &Dense, step: f64, complex: bool, mut loss: impl FnMut(View<'_>) -> f64) -> Dense {
    let mut grad = Dense::zeros(&at.shape()).unwrap();
    let mut moved = at.clone();
    for i in 0..at.data().len() {
        let mut by = |direction: Complex64| {
            moved.data_mut()[i] = at.data()[i] + direction * step;
            let up = if complex { loss(moved.view()) } else { loss(moved.real_view()) };
            moved.data_mut()[i] = at.data()[i] - direction * step;
            let down = if complex { loss(moved.view()) } else { loss(moved.real_view()) };
            moved.data_mut()[i] = at.data()[i];
            (up - down) / (2.0 * step)
        };
        let re = by(Complex64::ONE);
        let im = if complex { by(Complex64::I) } else { 0.0 };
        grad.data_mut()[i] = Complex64::new(re, im);
    }
    grad
}
