//! Vectors with operators: [`V`] for real lanes; [`Cx`] for complex ones and [`Field`] for bodies that serve both are beside it.
//!
//! Everything here is `#[inline(always)]`: a function that is not would be compiled without the instruction set of its token.

use super::Kernel;
use super::exp2::{self, Exp2};
use super::field::horner;
pub(crate) use super::field::{Cx, Field};
use super::lanes::{Lanes, first_lanes};
use super::narrow::Narrow;
pub(crate) use super::real::Real;
use super::sizes::MAX_LANES;
use core::ops::{Add, Div, Mul, Neg, Sub};

/// A pulp token with the few operations that pulp does not have.
pub(crate) trait Isa: Exp2 + Lanes + Narrow {
    /// Whether its maximum and minimum are their second operand where either is NaN.
    const NAN_GIVES_SECOND: bool = false;
    /// Whether it pays to ask if arguments are bounded before [`Exp2::exp2_product_f32`].
    const BOUNDS_PAY: bool = false;
    /// Calls a kernel, from code that has a token already, as a function of its own: what is called from many places, or is long and the same
    /// for many variants, would cost compile time if it were inlined everywhere.
    ///
    /// Besides [`Level::dispatch`](super::Level::dispatch) there is this because a token is not looked for twice: `dispatch` asks the
    /// processor for the instructions and branches, once for each job, where this is a call. There is nothing else: what chooses a variant,
    /// as the `walk` of the selective scan, chooses a [`Kernel`] and runs it by one of the two.
    fn call<K: Kernel>(self, kernel: K) -> K::Output;
    /// Nearest integer, ties to even.
    fn round_f32(self, x: Self::f32s) -> Self::f32s;
    /// Nearest integer, ties to even.
    fn round_f64(self, x: Self::f64s) -> Self::f64s;
    /// `1 / x` within an ulp, for numbers that are normal and have a normal reciprocal; 0 for infinity, NaN for NaN, and something
    /// between 0 and the smallest normal number for what is in between.
    #[inline(always)]
    fn recip_f32(self, x: Self::f32s) -> Self::f32s {
        self.div_f32s(self.splat_f32s(1.0), x)
    }
    /// As [`Isa::recip_f32`].
    #[inline(always)]
    fn recip_f64(self, x: Self::f64s) -> Self::f64s {
        self.div_f64s(self.splat_f64s(1.0), x)
    }
    /// `e^x`, see [`exp`](super::math::exp).
    fn exp_f32(self, x: Self::f32s) -> Self::f32s;
    /// As [`Isa::exp_f32`].
    fn exp_f64(self, x: Self::f64s) -> Self::f64s;
    /// `x * 2^n` for integral `n` and `x` in [0.5, 2); results below the normal range may become 0.
    fn scale_f32(self, x: Self::f32s, n: Self::f32s) -> Self::f32s;
    /// `x * 2^n` for integral `n` and `x` in [0.5, 2); results below the normal range may become 0.
    fn scale_f64(self, x: Self::f64s, n: Self::f64s) -> Self::f64s;
    /// `(f, n)` with `x = f + n`, `n` the nearest integer in the layout that [`Isa::join_exp2_f64`] takes; infinities and numbers far out
    /// of the range of exponents give `f = 0`, NaN gives `f = NaN`.
    fn split_exp2_f64(self, x: Self::f64s) -> (Self::f64s, Self::f64s);
    /// `p * 2^n` for `p` in [0.7, 1.42), 1 where `f` was 0, and `n` from [`Isa::split_exp2_f64`]. Below the normal range the result may be
    /// off by half the smallest normal number, yet stays monotone and reaches 0.
    fn join_exp2_f64(self, p: Self::f64s, n: Self::f64s) -> Self::f64s;
    /// As [`Exp2::exp2_product_f32`], within 1.25 ulp and what the rounding of `a b` costs; nothing is gained by a bound.
    #[inline(always)]
    fn exp2_product_f64<const BOUNDED: bool>(self, a: Self::f64s, b: Self::f64s) -> Self::f64s {
        let (f, n) = self.split_exp2_f64(self.mul_f64s(a, b));
        let f = V::<f64, Self> { reg: f, simd: self };
        self.join_exp2_f64(horner(self, f, exp2::DEGREE_11).mul_add(f, V::constant(self, 1.0)).reg, n)
    }
    /// Stores a vector past the caches, for what nobody reads soon; see [`Isa::fence`].
    ///
    /// # Safety
    /// A whole vector can be written, and the address is a multiple of its size.
    #[inline(always)]
    unsafe fn stream_f32(self, dst: *mut f32, x: Self::f32s) {
        // SAFETY: the contract above.
        unsafe { dst.cast::<Self::f32s>().write(x) }
    }
    /// As [`Isa::stream_f32`].
    ///
    /// # Safety
    /// As [`Isa::stream_f32`].
    #[inline(always)]
    unsafe fn stream_f64(self, dst: *mut f64, x: Self::f64s) {
        // SAFETY: the contract of `Isa::stream_f32`.
        unsafe { dst.cast::<Self::f64s>().write(x) }
    }
    /// Makes streamed vectors visible to other threads before whatever this one stores next.
    #[inline(always)]
    fn fence(self) {}
    /// Transposes a square block of as many rows as a vector has lanes; steps are in elements.
    ///
    /// # Safety
    /// - Every row of the source can be read and every row of the destination written.
    /// - They do not overlap.
    #[inline(always)]
    unsafe fn transpose_f32(self, src: *const f32, src_step: isize, dst: *mut f32, dst_step: isize) {
        // SAFETY: the contract above.
        unsafe { transpose_plain(Self::F32_LANES, src, src_step, dst, dst_step) }
    }
    /// As [`Isa::transpose_f32`].
    ///
    /// # Safety
    /// As [`Isa::transpose_f32`].
    #[inline(always)]
    unsafe fn transpose_f64(self, src: *const f64, src_step: isize, dst: *mut f64, dst_step: isize) {
        // SAFETY: the contract of `Isa::transpose_f32`.
        unsafe { transpose_plain(Self::F64_LANES, src, src_step, dst, dst_step) }
    }
    /// The sums of as many rows as a vector has lanes: row `i` in lane `i`; `step` is in elements.
    ///
    /// # Safety
    /// Every row, a whole vector, can be read.
    #[inline(always)]
    unsafe fn sum_rows_f32(self, src: *const f32, step: usize) -> Self::f32s {
        let mut sums = [0.0; MAX_LANES];
        for i in 0..Self::F32_LANES {
            // SAFETY: the contract above.
            sums[i] = self.reduce_sum_f32s(unsafe { src.add(i * step).cast::<Self::f32s>().read_unaligned() });
        }
        first_lanes(&sums)
    }
    /// The sums over even lanes, and over odd ones, of as many rows as a vector has lanes: row `i` in lane `i`; `step` is in elements.
    ///
    /// # Safety
    /// Every row, a whole vector, can be read.
    #[inline(always)]
    unsafe fn sum_pairs_f32(self, src: *const f32, step: usize) -> [Self::f32s; 2] {
        // SAFETY: the contract above.
        let sums = unsafe { V::sum_rows_apart::<2>(self, src, step) };
        [sums[0].reg, sums[1].reg]
    }
    /// As [`Isa::sum_pairs_f32`].
    ///
    /// # Safety
    /// As [`Isa::sum_pairs_f32`].
    #[inline(always)]
    unsafe fn sum_pairs_f64(self, src: *const f64, step: usize) -> [Self::f64s; 2] {
        // SAFETY: the contract of `Isa::sum_pairs_f32`.
        let sums = unsafe { V::sum_rows_apart::<2>(self, src, step) };
        [sums[0].reg, sums[1].reg]
    }
    /// As [`Isa::sum_rows_f32`].
    ///
    /// # Safety
    /// As [`Isa::sum_rows_f32`].
    #[inline(always)]
    unsafe fn sum_rows_f64(self, src: *const f64, step: usize) -> Self::f64s {
        let mut sums = [0.0; MAX_LANES];
        for i in 0..Self::F64_LANES {
            // SAFETY: the contract of `Isa::sum_rows_f32`.
            sums[i] = self.reduce_sum_f64s(unsafe { src.add(i * step).cast::<Self::f64s>().read_unaligned() });
        }
        first_lanes(&sums)
    }
}

#[inline(always)]
unsafe fn transpose_plain<T: Copy>(lanes: usize, src: *const T, src_step: isize, dst: *mut T, dst_step: isize) {
    for i in 0..lanes {
        for j in 0..lanes {
            let (from, to) = (i as isize * src_step + j as isize, j as isize * dst_step + i as isize);
            // SAFETY: the contract of `transpose_f32` covers the whole block; pairs of f32 that pass as f64 need not be aligned like those.
            unsafe { dst.offset(to).write_unaligned(src.offset(from).read_unaligned()) };
        }
    }
}

impl<S: Isa> V<f32, S> {
    /// The first numbers of a slice, as many as there are lanes.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline(always)]
    pub fn first_f16(simd: S, from: &[half::f16]) -> Self {
        V { reg: simd.load_f16(&from[..S::F32_LANES]), simd }
    }
    /// As [`V::first_f16`].
    #[inline(always)]
    pub fn first_bf16(simd: S, from: &[half::bf16]) -> Self {
        V { reg: simd.load_bf16(&from[..S::F32_LANES]), simd }
    }
    /// Loads twice as many numbers as there are lanes: those at even places, and those at odd ones.
    #[inline(always)]
    pub fn load_pairs(simd: S, from: &[half::bf16]) -> [Self; 2] {
        let [even, odd] = simd.load_pairs_bf16(from);
        [V { reg: even, simd }, V { reg: odd, simd }]
    }
    /// The inverse of [`V::load_pairs`].
    #[inline(always)]
    pub fn store_pairs([even, odd]: [Self; 2], to: &mut [half::bf16]) {
        even.simd.store_pairs_bf16([even.reg, odd.reg], to);
    }
}

/// A vector of real lanes.
#[derive(Clone, Copy)]
pub(crate) struct V<T: Real, S: Isa> {
    reg: T::Reg<S>,
    simd: S,
}

impl<T: Real, S: Isa> V<T, S> {
    /// The vector in a register.
    #[inline(always)]
    pub(super) fn of_register(simd: S, reg: T::Reg<S>) -> Self {
        V { reg, simd }
    }
    /// The register that it is in.
    #[inline(always)]
    pub(super) fn register(self) -> T::Reg<S> {
        self.reg
    }
    #[inline(always)]
    pub fn splat(simd: S, x: T) -> Self {
        V { reg: T::splat(simd, x), simd }
    }
    /// A constant, rounded to the compute type.
    #[inline(always)]
    pub fn constant(simd: S, x: f64) -> Self {
        Self::splat(simd, T::from_f64(x))
    }
    #[inline(always)]
    pub fn simd(self) -> S {
        self.simd
    }
    /// Number of lanes.
    #[inline(always)]
    pub fn lanes() -> usize {
        T::lanes::<S>()
    }
    /// The first elements of a slice, as many as there are lanes.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline(always)]
    pub fn first(simd: S, from: &[T]) -> Self {
        V { reg: bytemuck::pod_read_unaligned(bytemuck::cast_slice(&from[..Self::lanes()])), simd }
    }
    /// The first elements of an array.
    #[inline(always)]
    pub fn from_array(simd: S, lanes: &[T; MAX_LANES]) -> Self {
        V { reg: first_lanes(lanes), simd }
    }
    /// The lanes, and zeros behind them.
    #[inline(always)]
    pub fn to_array(self) -> [T; MAX_LANES] {
        let mut lanes = [T::default(); MAX_LANES];
        lanes[..Self::lanes()].copy_from_slice(bytemuck::cast_slice(core::slice::from_ref(&self.reg)));
        lanes
    }
    /// # Safety
    /// - A whole vector can be read.
    /// - No alignment is needed beyond the element's.
    #[inline(always)]
    pub unsafe fn load(simd: S, ptr: *const T) -> Self {
        debug_assert!(ptr.is_aligned(), "elements are aligned");
        // SAFETY: a whole vector can be read, by the contract above; a register is plain data of that many elements.
        V { reg: unsafe { ptr.cast::<T::Reg<S>>().read_unaligned() }, simd }
    }
    /// # Safety
    /// - A whole vector can be written.
    /// - No alignment is needed beyond the element's.
    #[inline(always)]
    pub unsafe fn store(self, ptr: *mut T) {
        debug_assert!(ptr.is_aligned(), "elements are aligned");
        // SAFETY: a whole vector can be written, by the contract above.
        unsafe { ptr.cast::<T::Reg<S>>().write_unaligned(self.reg) }
    }
    /// Stores past the caches, see [`Isa::stream_f32`].
    ///
    /// # Safety
    /// - A whole vector can be written.
    /// - The address is a multiple of its size.
    #[inline(always)]
    pub unsafe fn stream(self, ptr: *mut T) {
        debug_assert!(ptr.addr().is_multiple_of(size_of::<T::Reg<S>>()), "the address is a multiple of the vector's size");
        // SAFETY: the contract above is that of the instruction set's store.
        unsafe { T::stream(self.simd, ptr, self.reg) }
    }
    /// `1 / self` within an ulp, see [`Isa::recip_f32`].
    #[inline(always)]
    pub fn short_recip(self) -> Self {
        V { reg: T::recip(self.simd, self.reg), simd: self.simd }
    }
    /// `e^self`, see [`exp`](super::math::exp).
    #[inline(always)]
    pub fn power_of_e(self) -> Self {
        V { reg: <T as Real>::exp(self.simd, self.reg), simd: self.simd }
    }
    /// `self * a + b`, fused where the instruction set has it.
    #[inline(always)]
    pub fn mul_add(self, a: Self, b: Self) -> Self {
        V { reg: T::mul_add(self.simd, self.reg, a.reg, b.reg), simd: self.simd }
    }
    /// `b - self * a`, fused where the instruction set has it.
    #[inline(always)]
    pub fn neg_mul_add(self, a: Self, b: Self) -> Self {
        V { reg: T::neg_mul_add(self.simd, self.reg, a.reg, b.reg), simd: self.simd }
    }
    #[inline(always)]
    pub fn abs(self) -> Self {
        V { reg: <T as Real>::abs(self.simd, self.reg), simd: self.simd }
    }
    /// Nearest integer, ties to even.
    #[inline(always)]
    pub fn round(self) -> Self {
        V { reg: T::round(self.simd, self.reg), simd: self.simd }
    }
    /// `self * 2^n`, see [`Isa::scale_f32`].
    #[inline(always)]
    pub fn scale_pow2(self, n: Self) -> Self {
        V { reg: T::scale(self.simd, self.reg, n.reg), simd: self.simd }
    }
    /// `2^(a b)`; see [`Exp2::exp2_product_f32`] for the meaning of `BOUNDED`.
    #[inline(always)]
    pub fn exp2_product<const BOUNDED: bool>(a: Self, b: Self) -> Self {
        V { reg: T::exp2_product::<S, BOUNDED>(a.simd, a.reg, b.reg), simd: a.simd }
    }
    /// Whether `self < other` in some lane.
    #[inline(always)]
    pub fn any_less(self, other: Self) -> bool {
        T::any_less(self.simd, self.reg, other.reg)
    }
    /// Lane by lane `if a < b { yes } else { no }`; `no` if either is NaN.
    #[inline(always)]
    pub fn select_less(a: Self, b: Self, yes: Self, no: Self) -> Self {
        let mask = T::less(a.simd, a.reg, b.reg);
        V { reg: T::select(a.simd, mask, yes.reg, no.reg), simd: a.simd }
    }
    /// The larger lane; NaN if `self` is NaN.
    #[inline(always)]
    pub fn max(self, other: Self) -> Self {
        if S::NAN_GIVES_SECOND {
            return V { reg: <T as Real>::max(self.simd, other.reg, self.reg), simd: self.simd };
        }
        Self::select_less(self, other, other, self)
    }
    /// The smaller lane; NaN if `self` is NaN.
    #[inline(always)]
    pub fn min(self, other: Self) -> Self {
        if S::NAN_GIVES_SECOND {
            return V { reg: <T as Real>::min(self.simd, other.reg, self.reg), simd: self.simd };
        }
        Self::select_less(other, self, other, self)
    }
    /// The sums over lanes of as many rows as there are lanes, see [`Isa::sum_rows_f32`].
    ///
    /// # Safety
    /// Every row, a whole vector, can be read.
    #[inline(always)]
    pub unsafe fn sum_rows(simd: S, src: *const T, step: usize) -> Self {
        debug_assert!(src.is_aligned(), "elements are aligned");
        // SAFETY: the rows can be read, by the contract above.
        V { reg: unsafe { T::sum_rows(simd, src, step) }, simd }
    }
    /// The sums over every second lane of as many rows as there are lanes, see [`Isa::sum_pairs_f32`].
    ///
    /// # Safety
    /// Every row, a whole vector, can be read.
    #[inline(always)]
    pub unsafe fn sum_pairs(simd: S, src: *const T, step: usize) -> [Self; 2] {
        debug_assert!(src.is_aligned(), "elements are aligned");
        // SAFETY: the rows can be read, by the contract above.
        let [even, odd] = unsafe { T::sum_pairs(simd, src, step) };
        [V { reg: even, simd }, V { reg: odd, simd }]
    }
    /// The sums over every `APART`-th lane of as many rows as there are lanes, from each of the first lanes on: row `i` in lane `i`.
    ///
    /// # Safety
    /// Every row, a whole vector, can be read.
    #[inline(always)]
    pub unsafe fn sum_rows_apart<const APART: usize>(simd: S, src: *const T, step: usize) -> [Self; MAX_LANES] {
        let width = T::lanes::<S>();
        debug_assert!(APART.is_power_of_two() && APART <= MAX_LANES, "lanes are halved");
        let mut v = [V::constant(simd, 0.0); MAX_LANES];
        for i in 0..width {
            // SAFETY: the row can be read, by the contract above.
            v[i] = unsafe { V::load(simd, src.add(i * step)) };
        }
        // row `i + half` gets the lanes beside those of row `i`
        let mut half = width / 2;
        while half >= APART {
            for i in 0..half {
                let (a, b) = v[i].exchange(v[i + half], half);
                v[i] = a + b;
            }
            half /= 2;
        }
        // a square for each block of lanes is left, a row of it in each vector, to be transposed
        while half > 0 {
            for i in (0..APART).filter(|i| i & half == 0) {
                (v[i], v[i + half]) = v[i].exchange(v[i + half], half);
            }
            half /= 2;
        }
        v
    }
    /// The elements over and over: lane `l` is `src[l % count]`; `count`, their number, is a power of two, at most the number of lanes.
    #[inline(always)]
    pub fn cycle(simd: S, src: &[T]) -> Self {
        debug_assert!(src.len().is_power_of_two() && src.len() <= Self::lanes(), "a vector is whole cycles");
        V { reg: T::cycle(simd, src), simd }
    }
    /// Each `count` neighbours become copies of the one at `position` among them; `count` as in [`V::cycle`].
    #[inline(always)]
    pub fn repeat(self, count: usize, position: usize) -> Self {
        debug_assert!(count.is_power_of_two() && count <= Self::lanes(), "a vector is whole groups");
        debug_assert!(position < count, "a position in a group");
        V { reg: T::repeat(self.simd, self.reg, count, position), simd: self.simd }
    }
    /// In each pair of neighbouring blocks of `count` lanes, the second block of `self` changes places with the first of `other`; `count`
    /// is a power of two, at most half the number of lanes.
    #[inline(always)]
    pub fn exchange(self, other: Self, count: usize) -> (Self, Self) {
        debug_assert!(count.is_power_of_two() && 2 * count <= Self::lanes(), "a vector is whole pairs of blocks");
        let (first, second) = T::exchange(self.simd, self.reg, other.reg, count);
        (V { reg: first, simd: self.simd }, V { reg: second, simd: self.simd })
    }
    /// The last `count` lanes of `before` and then the first ones of `self`; `count` is less than the number of lanes.
    #[inline(always)]
    pub fn follow(self, before: Self, count: usize) -> Self {
        debug_assert!(count < Self::lanes(), "fewer lanes than a vector has");
        V { reg: T::follow(self.simd, before.reg, self.reg, count), simd: self.simd }
    }
    /// The sum of the lanes, in a fixed order.
    #[inline(always)]
    pub fn reduce_sum(self) -> T {
        T::reduce_sum(self.simd, self.reg)
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident) => {
        impl<T: Real, S: Isa> $trait for V<T, S> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                V { reg: <T as Real>::$method(self.simd, self.reg, other.reg), simd: self.simd }
            }
        }
    };
}
operator!(Add, add);
operator!(Sub, sub);
operator!(Mul, mul);
operator!(Div, div);

impl<T: Real, S: Isa> Neg for V<T, S> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        V { reg: <T as Real>::neg(self.simd, self.reg), simd: self.simd }
    }
}
