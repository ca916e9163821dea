//! The measures that figures are shares of: work that every implementation has to do, by the best means there is.

use gemm_common::Parallelism;
use statescan::{DType, Tensor};
use std::hint::black_box;
use std::time::{Duration, Instant};
#[cfg(feature = "complex-products")]
use {crate::sizes::Sizes, num_complex::Complex32};

/// Copies an array: so many bytes read and written in all.
pub fn copy(bytes: usize) -> impl FnMut() {
    let (source, mut target) = (vec![1u64; bytes / 16], vec![0u64; bytes / 16]);
    move || {
        black_box(&mut target).copy_from_slice(black_box(&source));
    }
}

/// Reads so many bytes on some threads, as fast as products with weights could: from memory like theirs, at several places at once, each asked
/// for ahead. On small pages, or at four places, a read is up to a fifth slower.
pub fn read(bytes: usize, threads: usize) -> impl FnMut() {
    // larger arrays are read again and again
    let mut data = Tensor::host(DType::F64, &[bytes.min(UNCACHED) / 8]).expect("a size that memory can have");
    data.fill_bytes(1);
    let (all, len) = (bytes / LINE, data.bytes().len() / LINE);
    let part = len.div_ceil(threads.max(1)).max(1);
    move || {
        let rounds = |lines: &[Line]| {
            let mut left = all;
            while left > 0 {
                let len = lines.len() * left.min(part * threads) / (part * threads);
                black_box(pulp::Arch::new().dispatch(Sum(black_box(&lines[..len]))));
                left = left.saturating_sub(part * threads);
            }
        };
        // SAFETY: any bits are numbers.
        let (_, lines, _) = unsafe { data.bytes().align_to::<Line>() };
        let mut parts = lines.chunks(part);
        let own = parts.next();
        std::thread::scope(|scope| {
            parts.for_each(|part| _ = scope.spawn(move || rounds(part)));
            own.map(rounds)
        });
    }
}

/// The least time of reading so many bytes, in nanoseconds: the best of some rounds.
pub fn reading_time(bytes: usize, threads: usize) -> f64 {
    let (mut read, begin, mut best) = (read(bytes, threads), Instant::now(), f64::INFINITY);
    for round in 0.. {
        let start = Instant::now();
        read();
        best = best.min(start.elapsed().as_nanos() as f64);
        if round >= 2 && begin.elapsed() > Duration::from_millis(300) {
            break;
        }
    }
    best
}

/// More bytes than the caches of most processors hold.
const UNCACHED: usize = 256 << 20;

/// A sum that takes numbers from several places, in registers that do not wait for each other.
struct Sum<'d>(&'d [Line]);

/// Numbers of a line of the cache, which one step takes from each place.
type Line = [u64; 8];
const LINE: usize = size_of::<Line>();
const PLACES: usize = 8;
/// Lines by which a place is asked for ahead.
const AHEAD: usize = 8;

impl pulp::NullaryFnOnce for Sum<'_> {
    type Output = u64;

    #[inline(always)]
    fn call(self) -> u64 {
        let (lines, len) = (self.0, self.0.len() / PLACES);
        let mut sums = [Line::default(); PLACES];
        // loops over numbers: closures would not be compiled for the processor's vectors
        for at in 0..len {
            for (place, sums) in sums.iter_mut().enumerate() {
                let line = &lines[place * len + at];
                ask_for(core::ptr::from_ref(line).wrapping_add(AHEAD));
                for i in 0..sums.len() {
                    sums[i] = sums[i].wrapping_add(line[i]);
                }
            }
        }
        sums.as_flattened().iter().fold(0, |sum, x| sum.wrapping_add(*x))
    }
}

/// Asks for a line of the cache, if it is there.
#[inline(always)]
fn ask_for(line: *const Line) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program sees, and may have any address.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// A dense row-major matrix.
struct Matrix<T> {
    rows: usize,
    columns: usize,
    data: Vec<T>,
}

/// A function of the `gemm` crates: `dst (m, n) = lhs (m, k) rhs (k, n)`, each matrix with its steps from column to column and from row to row.
type Kernel<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

/// Numbers with a crate of their own that multiplies them; the crate `gemm` would bring those of all others, too.
trait Factor: Copy + From<f32> {
    fn kernel() -> Kernel<Self>;
}

impl Factor for f32 {
    fn kernel() -> Kernel<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}

#[cfg(feature = "complex-products")]
impl Factor for Complex32 {
    fn kernel() -> Kernel<Complex32> {
        gemm_c32::gemm::f32::get_gemm_fn()
    }
}

impl<T: Factor> Matrix<T> {
    fn new(rows: usize, columns: usize, value: T) -> Self {
        Matrix { rows, columns, data: vec![value; rows * columns] }
    }

    /// `self = left right`, or `left right^T`.
    fn product(&mut self, left: &Matrix<T>, right: &Matrix<T>, transposed: bool) {
        let (mut sizes, mut steps) = ([right.rows, right.columns], [right.columns as isize, 1]);
        if transposed {
            sizes.reverse();
            steps.reverse();
        }
        assert!(left.rows == self.rows && sizes == [left.columns, self.columns]);
        // Kernels want columns that lie densely, so they form the transposed product.
        // SAFETY: the vectors have the sizes and steps given, and no element of the result is read.
        unsafe {
            T::kernel()(
                self.columns,
                self.rows,
                left.columns,
                self.data.as_mut_ptr(),
                self.columns as isize,
                1,
                false,
                right.data.as_ptr(),
                steps[0],
                steps[1],
                left.data.as_ptr(),
                left.columns as isize,
                1,
                T::from(0.0),
                T::from(1.0),
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}

/// The products of rows with matrices of weights (outputs, inputs) in f32, with rows divided among threads.
///
/// # Panics
/// If there is no thread.
pub fn projections(rows: usize, weights: &[[usize; 2]], threads: usize) -> impl FnMut() + use<> {
    let matrices: Vec<_> = weights.iter().map(|&[outputs, inputs]| Matrix::new(outputs, inputs, 0.5f32)).collect();
    let part = rows / threads;
    let of_thread = |_| matrices.iter().map(|w| [Matrix::new(part, w.columns, 0.25), Matrix::new(part, w.rows, 0.0)]).collect();
    let mut parts: Vec<Vec<[Matrix<f32>; 2]>> = (0..threads).map(of_thread).collect();
    move || {
        let (all, matrices) = (
            |part: &mut Vec<[Matrix<f32>; 2]>, matrices: &[Matrix<f32>]| {
                for ([x, y], w) in part.iter_mut().zip(matrices) {
                    y.product(black_box(x), w, true);
                    black_box(y);
                }
            },
            &matrices[..],
        );
        let (own, others) = parts.split_first_mut().expect("at least one thread");
        std::thread::scope(|scope| {
            others.iter_mut().for_each(|part| _ = scope.spawn(move || all(part, matrices)));
            all(own, matrices);
        });
    }
}

/// The two complex products of an S5 layer, `B u` and `C x`, for every row of the batch.
#[cfg(feature = "complex-products")]
pub fn products(sizes: &Sizes) -> impl FnMut() {
    let [batch, dim, states, seqlen] = ['B', 'H', 'P', 'L'].map(|letter| sizes.get(letter));
    let value = Complex32::new(0.5, -0.25);
    let (b, c) = (Matrix::new(states, dim, value), Matrix::new(dim, states, value));
    let u = Matrix::new(dim, seqlen, value);
    let (mut x, mut y) = (Matrix::new(states, seqlen, value), Matrix::new(dim, seqlen, value));
    move || {
        for _ in 0..batch {
            x.product(&b, black_box(&u), false);
            y.product(&c, &x, false);
            black_box(&mut y);
        }
    }
}
