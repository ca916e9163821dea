//! [`Real`]: the compute types, with the operations of their vectors.

use super::coefficients::Coefficients;
use super::matrix::Factor;
use super::simd::Isa;
use crate::tensor::Element;
use bytemuck::Pod;
use core::ops::{Add, Mul, Neg, Sub};

/// A compute type: `f32` or `f64`.
pub(crate) trait Real:
    Element
    + Pod
    + PartialOrd
    + Default
    + core::fmt::Debug
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Neg<Output = Self>
    + Coefficients
    + Factor
{
    /// A vector register.
    type Reg<S: Isa>: Copy + Pod + Send + Sync;
    /// A lane mask.
    type Mask<S: Isa>: Copy;
    /// Whether this is `f64`.
    const DOUBLE: bool;

    fn lanes<S: Isa>() -> usize;
    fn from_f64(x: f64) -> Self;
    fn to_f64(self) -> f64;
    fn splat<S: Isa>(s: S, x: Self) -> Self::Reg<S>;
    fn add<S: Isa>(s: S, a: Self::Reg<S>, b: Self::Reg<S>) -> Self::Reg<S>;
    fn sub<S: Isa>(s: S, a: Self::Reg<S>, b: Self::Reg<S>) -> Self::Reg<S>;
    fn mul<S: Isa>(s: S, a: Self::Reg<S>, b: Self::Reg<S>) -> Self::Reg<S>;
    fn div<S: Isa>(s: S, a: Self::Reg<S>, b: Self::Reg<S>) -> Self::Reg<S>;
    fn neg<S: Isa>(s: S, a: Self::Reg<S>) -> Self::Reg<S>;
    fn abs<S: Isa>(s: S, a: Self::Reg<S>) -> Self::Reg<S>;
    fn mul_add<S: Isa>(s: S, a: Self::Reg<S>, b: Self::Reg<S>, c: Self::Reg<S>) -> Self::Reg<S>;
    fn neg_mul_add<S: Isa>(s: S, a: Self::Reg<S>, b: Self::Reg<S>, c: Self::Reg<S>) -> Self::Reg<S>;
    fn max<S: Isa>(s: S, a: Self::Reg<S>, b: Self::Reg<S>) -> Self::Reg<S>;
    fn min<S: Isa>(s: S, a: Self::Reg<S>, b: Self::Reg<S>) -> Self::Reg<S>;
    fn less<S: Isa>(s: S, a: Self::Reg<S>, b: Self::Reg<S>) -> Self::Mask<S>;
    fn select<S: Isa>(s: S, mask: Self::Mask<S>, a: Self::Reg<S>, b: Self::Reg<S>) -> Self::Reg<S>;
    fn recip<S: Isa>(s: S, a: Self::Reg<S>) -> Self::Reg<S>;
    fn exp<S: Isa>(s: S, a: Self::Reg<S>) -> Self::Reg<S>;
    fn reduce_sum<S: Isa>(s: S, a: Self::Reg<S>) -> Self;
    fn round<S: Isa>(s: S, a: Self::Reg<S>) -> Self::Reg<S>;
    fn scale<S: Isa>(s: S, a: Self::Reg<S>, n: Self::Reg<S>) -> Self::Reg<S>;
    fn exp2_product<S: Isa, const BOUNDED: bool>(s: S, a: Self::Reg<S>, b: Self::Reg<S>) -> Self::Reg<S>;
    fn any_less<S: Isa>(s: S, a: Self::Reg<S>, b: Self::Reg<S>) -> bool;
    /// # Safety
    /// As [`Isa::stream_f32`].
    unsafe fn stream<S: Isa>(s: S, dst: *mut Self, a: Self::Reg<S>);
    /// # Safety
    /// As [`Isa::transpose_f32`].
    unsafe fn transpose<S: Isa>(s: S, src: *const Self, src_step: isize, dst: *mut Self, dst_step: isize);
    /// # Safety
    /// As [`Isa::sum_rows_f32`].
    unsafe fn sum_rows<S: Isa>(s: S, src: *const Self, step: usize) -> Self::Reg<S>;
    /// # Safety
    /// As [`Isa::sum_pairs_f32`].
    unsafe fn sum_pairs<S: Isa>(s: S, src: *const Self, step: usize) -> [Self::Reg<S>; 2];
    fn cycle<S: Isa>(s: S, src: &[Self]) -> Self::Reg<S>;
    fn repeat<S: Isa>(s: S, a: Self::Reg<S>, count: usize, position: usize) -> Self::Reg<S>;
    fn exchange<S: Isa>(s: S, a: Self::Reg<S>, b: Self::Reg<S>, count: usize) -> (Self::Reg<S>, Self::Reg<S>);
    fn follow<S: Isa>(s: S, before: Self::Reg<S>, x: Self::Reg<S>, count: usize) -> Self::Reg<S>;
}

macro_rules! real {
    ($t:ty, $double:literal, $reg:ident, $mask:ident, $lanes:ident, $splat:ident, $add:ident, $sub:ident, $mul:ident, $div:ident, $neg:ident,
     $abs:ident, $fma:ident, $nfma:ident, $max:ident, $min:ident, $less:ident, $select:ident, $recip:ident, $exp:ident, $sum:ident, $round:ident, $scale:ident,
     $exp2:ident, $first_true:ident, $stream:ident, $transpose:ident, $sum_rows:ident, $sum_pairs:ident, $cycle:ident, $repeat:ident, $exchange:ident,
     $follow:ident) => {
        impl Real for $t {
            type Reg<S: Isa> = S::$reg;
            type Mask<S: Isa> = S::$mask;
            const DOUBLE: bool = $double;

            #[inline(always)]
            fn lanes<S: Isa>() -> usize {
                S::$lanes
            }
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn splat<S: Isa>(s: S, x: Self) -> S::$reg {
                s.$splat(x)
            }
            #[inline(always)]
            fn add<S: Isa>(s: S, a: S::$reg, b: S::$reg) -> S::$reg {
                s.$add(a, b)
            }
            #[inline(always)]
            fn sub<S: Isa>(s: S, a: S::$reg, b: S::$reg) -> S::$reg {
                s.$sub(a, b)
            }
            #[inline(always)]
            fn mul<S: Isa>(s: S, a: S::$reg, b: S::$reg) -> S::$reg {
                s.$mul(a, b)
            }
            #[inline(always)]
            fn div<S: Isa>(s: S, a: S::$reg, b: S::$reg) -> S::$reg {
                s.$div(a, b)
            }
            #[inline(always)]
            fn neg<S: Isa>(s: S, a: S::$reg) -> S::$reg {
                s.$neg(a)
            }
            #[inline(always)]
            fn abs<S: Isa>(s: S, a: S::$reg) -> S::$reg {
                s.$abs(a)
            }
            #[inline(always)]
            fn mul_add<S: Isa>(s: S, a: S::$reg, b: S::$reg, c: S::$reg) -> S::$reg {
                s.$fma(a, b, c)
            }
            #[inline(always)]
            fn neg_mul_add<S: Isa>(s: S, a: S::$reg, b: S::$reg, c: S::$reg) -> S::$reg {
                s.$nfma(a, b, c)
            }
            #[inline(always)]
            fn max<S: Isa>(s: S, a: S::$reg, b: S::$reg) -> S::$reg {
                s.$max(a, b)
            }
            #[inline(always)]
            fn min<S: Isa>(s: S, a: S::$reg, b: S::$reg) -> S::$reg {
                s.$min(a, b)
            }
            #[inline(always)]
            fn less<S: Isa>(s: S, a: S::$reg, b: S::$reg) -> S::$mask {
                s.$less(a, b)
            }
            #[inline(always)]
            fn select<S: Isa>(s: S, mask: S::$mask, a: S::$reg, b: S::$reg) -> S::$reg {
                s.$select(mask, a, b)
            }
            #[inline(always)]
            fn recip<S: Isa>(s: S, a: S::$reg) -> S::$reg {
                s.$recip(a)
            }
            #[inline(always)]
            fn exp<S: Isa>(s: S, a: S::$reg) -> S::$reg {
                s.$exp(a)
            }
            #[inline(always)]
            fn reduce_sum<S: Isa>(s: S, a: S::$reg) -> Self {
                s.$sum(a)
            }
            #[inline(always)]
            fn round<S: Isa>(s: S, a: S::$reg) -> S::$reg {
                s.$round(a)
            }
            #[inline(always)]
            fn scale<S: Isa>(s: S, a: S::$reg, n: S::$reg) -> S::$reg {
                s.$scale(a, n)
            }
            #[inline(always)]
            fn exp2_product<S: Isa, const BOUNDED: bool>(s: S, a: S::$reg, b: S::$reg) -> S::$reg {
                s.$exp2::<BOUNDED>(a, b)
            }
            #[inline(always)]
            fn any_less<S: Isa>(s: S, a: S::$reg, b: S::$reg) -> bool {
                s.$first_true(s.$less(a, b)) < S::$lanes
            }
            #[inline(always)]
            unsafe fn stream<S: Isa>(s: S, dst: *mut Self, a: S::$reg) {
                // SAFETY: the contract of the trait's method.
                unsafe { s.$stream(dst, a) }
            }
            #[inline(always)]
            unsafe fn transpose<S: Isa>(s: S, src: *const Self, src_step: isize, dst: *mut Self, dst_step: isize) {
                // SAFETY: the contract of the trait's method.
                unsafe { s.$transpose(src, src_step, dst, dst_step) }
            }
            #[inline(always)]
            unsafe fn sum_rows<S: Isa>(s: S, src: *const Self, step: usize) -> S::$reg {
                // SAFETY: the contract of the trait's method.
                unsafe { s.$sum_rows(src, step) }
            }
            #[inline(always)]
            unsafe fn sum_pairs<S: Isa>(s: S, src: *const Self, step: usize) -> [S::$reg; 2] {
                // SAFETY: the contract of the trait's method.
                unsafe { s.$sum_pairs(src, step) }
            }
            #[inline(always)]
            fn cycle<S: Isa>(s: S, src: &[Self]) -> S::$reg {
                s.$cycle(src)
            }
            #[inline(always)]
            fn repeat<S: Isa>(s: S, a: S::$reg, count: usize, position: usize) -> S::$reg {
                s.$repeat(a, count, position)
            }
            #[inline(always)]
            fn exchange<S: Isa>(s: S, a: S::$reg, b: S::$reg, count: usize) -> (S::$reg, S::$reg) {
                s.$exchange(a, b, count)
            }
            #[inline(always)]
            fn follow<S: Isa>(s: S, before: S::$reg, x: S::$reg, count: usize) -> S::$reg {
                s.$follow(before, x, count)
            }
        }
    };
}

real!(
    f32,
    false,
    f32s,
    m32s,
    F32_LANES,
    splat_f32s,
    add_f32s,
    sub_f32s,
    mul_f32s,
    div_f32s,
    neg_f32s,
    abs_f32s,
    mul_add_e_f32s,
    negate_mul_add_e_f32s,
    max_f32s,
    min_f32s,
    less_than_f32s,
    select_f32s,
    recip_f32,
    exp_f32,
    reduce_sum_f32s,
    round_f32,
    scale_f32,
    exp2_product_f32,
    first_true_m32s,
    stream_f32,
    transpose_f32,
    sum_rows_f32,
    sum_pairs_f32,
    cycle_f32,
    repeat_f32,
    exchange_f32,
    follow_f32
);
real!(
    f64,
    true,
    f64s,
    m64s,
    F64_LANES,
    splat_f64s,
    add_f64s,
    sub_f64s,
    mul_f64s,
    div_f64s,
    neg_f64s,
    abs_f64s,
    mul_add_e_f64s,
    negate_mul_add_e_f64s,
    max_f64s,
    min_f64s,
    less_than_f64s,
    select_f64s,
    recip_f64,
    exp_f64,
    reduce_sum_f64s,
    round_f64,
    scale_f64,
    exp2_product_f64,
    first_true_m64s,
    stream_f64,
    transpose_f64,
    sum_rows_f64,
    sum_pairs_f64,
    cycle_f64,
    repeat_f64,
    exchange_f64,
    follow_f64
);
