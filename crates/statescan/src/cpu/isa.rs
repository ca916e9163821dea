//! Operations that pulp's token does not offer: rounding, scaling by powers of two, and block transposition, for each instruction
//! set.

use super::Kernel;
use super::math::exp_reduced;
use super::simd::{Isa, V};

/// Smallest and largest exponent that [`Isa::scale_f32`] takes as is; others saturate to 0 and infinity.
const MIN_EXP_F32: f32 = -126.0;
const MAX_EXP_F32: f32 = 129.0;
const MIN_EXP_F64: f64 = -1022.0;
const MAX_EXP_F64: f64 = 1025.0;

/// Range that the argument of `2^x` is clamped to where the exponent is added to the bits of a number near 1: both ends are integers, so
/// that the fraction is 0 there, the number is exactly 1, and the sums are the bits of 0 and of infinity.
const EXP2_MIN_F64: f64 = -1023.0;
const EXP2_MAX_F64: f64 = 1024.0;

/// So large that a small number added to it loses its fraction.
const ROUND_F64: f64 = 6_755_399_441_055_744.0;

impl Isa for pulp::Scalar {
    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run_scalar()
    }
    #[inline(always)]
    fn exp_f32(self, x: Self::f32s) -> Self::f32s {
        exp_reduced(V::<f32, Self>::of_register(self, x)).register()
    }
    #[inline(always)]
    fn exp_f64(self, x: Self::f64s) -> Self::f64s {
        exp_reduced(V::<f64, Self>::of_register(self, x)).register()
    }
    #[inline(always)]
    fn round_f32(self, x: f32) -> f32 {
        x.round_ties_even()
    }
    #[inline(always)]
    fn round_f64(self, x: f64) -> f64 {
        x.round_ties_even()
    }
    #[inline(always)]
    fn scale_f32(self, x: f32, n: f32) -> f32 {
        // half of the scale goes into x, so that 2^128 times a number below 1 does not overflow early
        let n = n.clamp(MIN_EXP_F32, MAX_EXP_F32);
        (x * 2.0) * f32::from_bits(((n as i32 + 126) << 23) as u32)
    }
    #[inline(always)]
    fn scale_f64(self, x: f64, n: f64) -> f64 {
        let n = n.clamp(MIN_EXP_F64, MAX_EXP_F64);
        (x * 2.0) * f64::from_bits(((n as i64 + 1022) << 52) as u64)
    }
    #[inline(always)]
    fn split_exp2_f64(self, x: f64) -> (f64, f64) {
        let x = x.clamp(EXP2_MIN_F64, EXP2_MAX_F64);
        // rounds without the call that `round_ties_even` is on plain x86-64
        let n = (x + ROUND_F64) - ROUND_F64;
        (x - n, n)
    }
    #[inline(always)]
    fn join_exp2_f64(self, p: f64, n: f64) -> f64 {
        f64::from_bits(p.to_bits().wrapping_add((n as i64 as u64) << 52))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use crate::cpu::exp2;
    use core::arch::x86_64::*;
    use pulp::x86::{V3, V4};

    // The unsafe functions have the contracts that the trait states. A token is made only where the processor has the instructions that it names, so
    // what is left to each caller is the memory: so many rows, so far apart, readable or writable.

    impl Isa for V3 {
        const NAN_GIVES_SECOND: bool = true;
        const BOUNDS_PAY: bool = true;
        #[inline(always)]
        fn call<K: Kernel>(self, kernel: K) -> K::Output {
            // SAFETY: the token proves the instructions.
            unsafe { kernel.run_avx2(self) }
        }
        #[inline(always)]
        fn exp_f32(self, x: Self::f32s) -> Self::f32s {
            exp_reduced(V::<f32, Self>::of_register(self, x)).register()
        }
        #[inline(always)]
        fn exp_f64(self, x: Self::f64s) -> Self::f64s {
            exp_reduced(V::<f64, Self>::of_register(self, x)).register()
        }
        #[inline(always)]
        fn round_f32(self, x: Self::f32s) -> Self::f32s {
            pulp::cast(self.avx._mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(pulp::cast(x)))
        }
        #[inline(always)]
        fn round_f64(self, x: Self::f64s) -> Self::f64s {
            pulp::cast(self.avx._mm256_round_pd::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(pulp::cast(x)))
        }
        #[inline(always)]
        fn scale_f32(self, x: Self::f32s, n: Self::f32s) -> Self::f32s {
            // min and max give their second operand for NaN, so a NaN stays one until it meets the NaN in x
            let (avx, avx2) = (self.avx, self.avx2);
            let n = avx._mm256_max_ps(avx._mm256_set1_ps(MIN_EXP_F32), pulp::cast(n));
            let n = avx._mm256_min_ps(avx._mm256_set1_ps(MAX_EXP_F32), n);
            let n = avx2._mm256_add_epi32(avx._mm256_cvtps_epi32(n), avx._mm256_set1_epi32(126));
            let power = avx._mm256_castsi256_ps(avx2._mm256_slli_epi32::<23>(n));
            let x = avx._mm256_add_ps(pulp::cast(x), pulp::cast(x));
            pulp::cast(avx._mm256_mul_ps(x, power))
        }
        #[inline(always)]
        fn scale_f64(self, x: Self::f64s, n: Self::f64s) -> Self::f64s {
            let (avx, avx2) = (self.avx, self.avx2);
            let n = avx._mm256_max_pd(avx._mm256_set1_pd(MIN_EXP_F64), pulp::cast(n));
            let n = avx._mm256_min_pd(avx._mm256_set1_pd(MAX_EXP_F64), n);
            let n = avx2._mm256_cvtepi32_epi64(avx._mm256_cvtpd_epi32(n));
            let n = avx2._mm256_add_epi64(n, avx._mm256_set1_epi64x(1022));
            let power = avx._mm256_castsi256_pd(avx2._mm256_slli_epi64::<52>(n));
            let x = avx._mm256_add_pd(pulp::cast(x), pulp::cast(x));
            pulp::cast(avx._mm256_mul_pd(x, power))
        }
        #[inline(always)]
        fn split_exp2_f64(self, x: Self::f64s) -> (Self::f64s, Self::f64s) {
            let avx = self.avx;
            let x = avx._mm256_max_pd(avx._mm256_set1_pd(EXP2_MIN_F64), pulp::cast(x));
            let x = avx._mm256_min_pd(avx._mm256_set1_pd(EXP2_MAX_F64), x);
            let n = avx._mm256_cvtpd_epi32(x);
            let f = avx._mm256_sub_pd(x, avx._mm256_cvtepi32_pd(n));
            (pulp::cast(f), pulp::cast(self.avx2._mm256_cvtepi32_epi64(n)))
        }
        #[inline(always)]
        fn join_exp2_f64(self, p: Self::f64s, n: Self::f64s) -> Self::f64s {
            let avx2 = self.avx2;
            pulp::cast(avx2._mm256_add_epi64(pulp::cast(p), avx2._mm256_slli_epi64::<52>(pulp::cast(n))))
        }
        #[inline(always)]
        unsafe fn stream_f32(self, dst: *mut f32, x: Self::f32s) {
            // SAFETY: the contract of the trait's method.
            unsafe { self.avx._mm256_stream_ps(dst, pulp::cast(x)) }
        }
        #[inline(always)]
        unsafe fn stream_f64(self, dst: *mut f64, x: Self::f64s) {
            // SAFETY: the contract of the trait's method; a register is a register.
            unsafe { self.avx._mm256_stream_ps(dst.cast(), pulp::cast(x)) }
        }
        #[inline(always)]
        fn fence(self) {
            self.sse._mm_sfence();
        }
        #[inline(always)]
        unsafe fn transpose_f32(self, src: *const f32, src_step: isize, dst: *mut f32, dst_step: isize) {
            let avx = self.avx;
            // SAFETY: the caller gives eight rows of eight on both sides; the token proves the instructions.
            unsafe {
                let mut r = [avx._mm256_setzero_ps(); 8];
                for i in 0..8 {
                    r[i] = src.offset(i as isize * src_step).cast::<__m256>().read_unaligned();
                }
                for k in [0, 2, 4, 6] {
                    let (a, b) = (r[k], r[k + 1]);
                    r[k] = avx._mm256_unpacklo_ps(a, b);
                    r[k + 1] = avx._mm256_unpackhi_ps(a, b);
                }
                for k in [0, 4] {
                    let [a, b, c, d] = [r[k], r[k + 1], r[k + 2], r[k + 3]];
                    r[k] = avx._mm256_shuffle_ps::<0x44>(a, c);
                    r[k + 1] = avx._mm256_shuffle_ps::<0xee>(a, c);
                    r[k + 2] = avx._mm256_shuffle_ps::<0x44>(b, d);
                    r[k + 3] = avx._mm256_shuffle_ps::<0xee>(b, d);
                }
                for k in 0..4 {
                    dst.offset(k as isize * dst_step)
                        .cast::<__m256>()
                        .write_unaligned(avx._mm256_permute2f128_ps::<0x20>(r[k], r[k + 4]));
                    dst.offset((k + 4) as isize * dst_step)
                        .cast::<__m256>()
                        .write_unaligned(avx._mm256_permute2f128_ps::<0x31>(r[k], r[k + 4]));
                }
            }
        }
        #[inline(always)]
        unsafe fn transpose_f64(self, src: *const f64, src_step: isize, dst: *mut f64, dst_step: isize) {
            let avx = self.avx;
            // SAFETY: the caller gives four rows of four on both sides; the token proves the instructions.
            unsafe {
                for q in 0..2 {
                    let half = |row: isize| src.offset(row * src_step + 2 * q).cast::<__m128d>().read_unaligned();
                    let rows = |i: isize| avx._mm256_insertf128_pd::<1>(avx._mm256_castpd128_pd256(half(i)), half(2 + i));
                    let (a, b) = (rows(0), rows(1));
                    let to = |column: isize| dst.offset((2 * q + column) * dst_step).cast::<__m256d>();
                    to(0).write_unaligned(avx._mm256_unpacklo_pd(a, b));
                    to(1).write_unaligned(avx._mm256_unpackhi_pd(a, b));
                }
            }
        }
        #[inline(always)]
        unsafe fn sum_rows_f32(self, src: *const f32, step: usize) -> Self::f32s {
            let avx = self.avx;
            let mut pairs = [avx._mm256_setzero_ps(); 4];
            for i in 0..4 {
                // SAFETY: the caller gives eight rows of eight.
                let half = |row: usize, k: usize| unsafe { src.add(row * step + 4 * k).cast::<__m128>().read_unaligned() };
                let low = avx._mm256_insertf128_ps::<1>(avx._mm256_castps128_ps256(half(i, 0)), half(i + 4, 0));
                let high = avx._mm256_insertf128_ps::<1>(avx._mm256_castps128_ps256(half(i, 1)), half(i + 4, 1));
                pairs[i] = avx._mm256_add_ps(low, high);
            }
            let join = |a, b| avx._mm256_add_ps(avx._mm256_unpacklo_ps(a, b), avx._mm256_unpackhi_ps(a, b));
            let (a, b) = (join(pairs[0], pairs[1]), join(pairs[2], pairs[3]));
            let (low, high) = (avx._mm256_shuffle_ps::<0x44>(a, b), avx._mm256_shuffle_ps::<0xee>(a, b));
            pulp::cast(avx._mm256_add_ps(low, high))
        }
    }

    impl Isa for V4 {
        const NAN_GIVES_SECOND: bool = true;
        #[inline(always)]
        fn call<K: Kernel>(self, kernel: K) -> K::Output {
            // SAFETY: the token proves the instructions.
            unsafe { kernel.run_avx512(self) }
        }
        #[inline(always)]
        fn exp_f64(self, x: Self::f64s) -> Self::f64s {
            exp_reduced(V::<f64, Self>::of_register(self, x)).register()
        }
        #[inline(always)]
        fn round_f32(self, x: Self::f32s) -> Self::f32s {
            pulp::cast(self.avx512f._mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT }>(pulp::cast(x)))
        }
        #[inline(always)]
        fn round_f64(self, x: Self::f64s) -> Self::f64s {
            pulp::cast(self.avx512f._mm512_roundscale_pd::<{ _MM_FROUND_TO_NEAREST_INT }>(pulp::cast(x)))
        }
        #[inline(always)]
        fn recip_f32(self, x: Self::f32s) -> Self::f32s {
            // 14 bits, then Newton: a division would keep its unit busy for sixteen clocks
            let (f, x) = (self.avx512f, pulp::cast(x));
            let r = f._mm512_rcp14_ps(x);
            let rest = f._mm512_fnmadd_ps(x, r, f._mm512_set1_ps(1.0));
            // infinity times 0 is NaN; the minimum then takes its second operand, and the result stays 0
            let rest = f._mm512_min_ps(rest, f._mm512_set1_ps(1.0));
            pulp::cast(f._mm512_fmadd_ps(r, rest, r))
        }
        #[inline(always)]
        fn exp_f32(self, x: Self::f32s) -> Self::f32s {
            exp2::x86::exp_f32(self, x)
        }
        #[inline(always)]
        fn scale_f32(self, x: Self::f32s, n: Self::f32s) -> Self::f32s {
            pulp::cast(self.avx512f._mm512_scalef_ps(pulp::cast(x), pulp::cast(n)))
        }
        #[inline(always)]
        fn scale_f64(self, x: Self::f64s, n: Self::f64s) -> Self::f64s {
            pulp::cast(self.avx512f._mm512_scalef_pd(pulp::cast(x), pulp::cast(n)))
        }
        #[inline(always)]
        fn split_exp2_f64(self, x: Self::f64s) -> (Self::f64s, Self::f64s) {
            let f = self.avx512dq._mm512_reduce_pd::<{ _MM_FROUND_TO_NEAREST_INT }>(pulp::cast(x));
            (pulp::cast(f), pulp::cast(self.avx512f._mm512_sub_pd(pulp::cast(x), f)))
        }
        #[inline(always)]
        fn join_exp2_f64(self, p: Self::f64s, n: Self::f64s) -> Self::f64s {
            self.scale_f64(p, n)
        }
        #[inline(always)]
        unsafe fn stream_f32(self, dst: *mut f32, x: Self::f32s) {
            // SAFETY: the contract of the trait's method.
            unsafe { self.avx512f._mm512_stream_ps(dst, pulp::cast(x)) }
        }
        #[inline(always)]
        unsafe fn stream_f64(self, dst: *mut f64, x: Self::f64s) {
            // SAFETY: the contract of the trait's method; a register is a register.
            unsafe { self.avx512f._mm512_stream_ps(dst.cast(), pulp::cast(x)) }
        }
        #[inline(always)]
        fn fence(self) {
            self.sse._mm_sfence();
        }
        #[inline(always)]
        unsafe fn transpose_f32(self, src: *const f32, src_step: isize, dst: *mut f32, dst_step: isize) {
            let f = self.avx512f;
            // quarters of rows are inserted from memory, which any of two ports does: half of the shuffles, which only one does, are saved
            // SAFETY: the caller gives sixteen rows of sixteen on both sides; the token proves the instructions.
            unsafe {
                // r[q][i]: quarter k is quarter q of row 4k + i. Four rows are read to their ends before others: rows a power of two
                // apart share so few sets of the first cache that sixteen lines push each other out
                let mut r = [[f._mm512_setzero_ps(); 4]; 4];
                for i in 0..4 {
                    for q in 0..4 {
                        let quarter = |row: isize| src.offset(row * src_step + 4 * q).cast::<__m128>().read_unaligned();
                        let x = f._mm512_castps128_ps512(quarter(i));
                        let x = f._mm512_insertf32x4::<1>(x, quarter(4 + i));
                        let x = f._mm512_insertf32x4::<2>(x, quarter(8 + i));
                        r[q as usize][i as usize] = f._mm512_insertf32x4::<3>(x, quarter(12 + i));
                    }
                }
                for q in 0..4 {
                    let r = r[q as usize];
                    let (ab0, ab1) = (f._mm512_unpacklo_ps(r[0], r[1]), f._mm512_unpackhi_ps(r[0], r[1]));
                    let (cd0, cd1) = (f._mm512_unpacklo_ps(r[2], r[3]), f._mm512_unpackhi_ps(r[2], r[3]));
                    let columns = [
                        f._mm512_shuffle_ps::<0x44>(ab0, cd0),
                        f._mm512_shuffle_ps::<0xee>(ab0, cd0),
                        f._mm512_shuffle_ps::<0x44>(ab1, cd1),
                        f._mm512_shuffle_ps::<0xee>(ab1, cd1),
                    ];
                    for j in 0..4 {
                        dst.offset((4 * q + j) * dst_step).cast::<__m512>().write_unaligned(columns[j as usize]);
                    }
                }
            }
        }
        #[inline(always)]
        unsafe fn transpose_f64(self, src: *const f64, src_step: isize, dst: *mut f64, dst_step: isize) {
            let (f, dq) = (self.avx512f, self.avx512dq);
            // SAFETY: the caller gives eight rows of eight on both sides; the token proves the instructions.
            unsafe {
                for q in 0..4 {
                    let quarter = |row: isize| src.offset(row * src_step + 2 * q).cast::<__m128d>().read_unaligned();
                    let mut r = [f._mm512_setzero_pd(); 2];
                    for i in 0..2 {
                        // quarter k of r[i] is row 2k + i
                        let x = f._mm512_castpd128_pd512(quarter(i));
                        let x = dq._mm512_insertf64x2::<1>(x, quarter(2 + i));
                        let x = dq._mm512_insertf64x2::<2>(x, quarter(4 + i));
                        r[i as usize] = dq._mm512_insertf64x2::<3>(x, quarter(6 + i));
                    }
                    let to = |column: isize| dst.offset((2 * q + column) * dst_step).cast::<__m512d>();
                    to(0).write_unaligned(f._mm512_unpacklo_pd(r[0], r[1]));
                    to(1).write_unaligned(f._mm512_unpackhi_pd(r[0], r[1]));
                }
            }
        }
        #[inline(always)]
        unsafe fn sum_rows_f32(self, src: *const f32, step: usize) -> Self::f32s {
            let f = self.avx512f;
            // SAFETY: the contract of the trait's method.
            let quads = unsafe { quarters(self, src, step) };
            let join = |a, b| f._mm512_add_ps(f._mm512_unpacklo_ps(a, b), f._mm512_unpackhi_ps(a, b));
            let (a, b) = (join(quads[0], quads[1]), join(quads[2], quads[3]));
            pulp::cast(f._mm512_add_ps(f._mm512_shuffle_ps::<0x44>(a, b), f._mm512_shuffle_ps::<0xee>(a, b)))
        }
        #[inline(always)]
        unsafe fn sum_pairs_f32(self, src: *const f32, step: usize) -> [Self::f32s; 2] {
            let f = self.avx512f;
            // SAFETY: the contract of the trait's method.
            let quads = unsafe { quarters(self, src, step) };
            let join = |a, b| f._mm512_add_ps(f._mm512_shuffle_ps::<0x44>(a, b), f._mm512_shuffle_ps::<0xee>(a, b));
            let (a, b) = (join(quads[0], quads[1]), join(quads[2], quads[3]));
            [pulp::cast(f._mm512_shuffle_ps::<0x88>(a, b)), pulp::cast(f._mm512_shuffle_ps::<0xdd>(a, b))]
        }
    }

    /// Sixteen rows, each summed over its quarters: quarter `k` of the `i`-th result is of row `4 k + i`.
    ///
    /// # Safety
    /// As [`Isa::sum_rows_f32`].
    #[inline(always)]
    unsafe fn quarters(simd: V4, src: *const f32, step: usize) -> [__m512; 4] {
        let f = simd.avx512f;
        let mut quads = [f._mm512_setzero_ps(); 4];
        for i in 0..4 {
            // SAFETY: the caller gives sixteen rows of sixteen.
            let half = |row: usize, k: usize| unsafe { src.add(row * step + 8 * k).cast::<__m256d>().read_unaligned() };
            let pair = |a, b| {
                let low = f._mm512_insertf64x4::<1>(f._mm512_castpd256_pd512(half(a, 0)), half(b, 0));
                let high = f._mm512_insertf64x4::<1>(f._mm512_castpd256_pd512(half(a, 1)), half(b, 1));
                f._mm512_add_ps(f._mm512_castpd_ps(low), f._mm512_castpd_ps(high))
            };
            // quarters 0 and 1 are of the first row of a pair, 2 and 3 of the second
            let (a, b) = (pair(i, i + 4), pair(i + 8, i + 12));
            quads[i] = f._mm512_add_ps(f._mm512_shuffle_f32x4::<0x88>(a, b), f._mm512_shuffle_f32x4::<0xdd>(a, b));
        }
        quads
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::*;
    use core::arch::aarch64::*;
    use pulp::aarch64::Neon;

    impl Isa for Neon {
        #[inline(always)]
        fn call<K: Kernel>(self, kernel: K) -> K::Output {
            // SAFETY: the token proves the instructions.
            unsafe { kernel.run_neon(self) }
        }
        #[inline(always)]
        fn exp_f32(self, x: Self::f32s) -> Self::f32s {
            exp_reduced(V::<f32, Self>::of_register(self, x)).register()
        }
        #[inline(always)]
        fn exp_f64(self, x: Self::f64s) -> Self::f64s {
            exp_reduced(V::<f64, Self>::of_register(self, x)).register()
        }
        #[inline(always)]
        fn round_f32(self, x: Self::f32s) -> Self::f32s {
            pulp::cast(self.neon.vrndnq_f32(pulp::cast(x)))
        }
        #[inline(always)]
        fn round_f64(self, x: Self::f64s) -> Self::f64s {
            pulp::cast(self.neon.vrndnq_f64(pulp::cast(x)))
        }
        #[inline(always)]
        fn scale_f32(self, x: Self::f32s, n: Self::f32s) -> Self::f32s {
            let neon = self.neon;
            let n = neon.vmaxq_f32(pulp::cast(n), neon.vdupq_n_f32(MIN_EXP_F32));
            let n = neon.vminq_f32(n, neon.vdupq_n_f32(MAX_EXP_F32));
            let n = neon.vaddq_s32(neon.vcvtq_s32_f32(n), neon.vdupq_n_s32(126));
            let power = neon.vreinterpretq_f32_s32(neon.vshlq_n_s32::<23>(n));
            let x: float32x4_t = pulp::cast(x);
            pulp::cast(neon.vmulq_f32(neon.vaddq_f32(x, x), power))
        }
        #[inline(always)]
        fn scale_f64(self, x: Self::f64s, n: Self::f64s) -> Self::f64s {
            let neon = self.neon;
            let n = neon.vmaxq_f64(pulp::cast(n), neon.vdupq_n_f64(MIN_EXP_F64));
            let n = neon.vminq_f64(n, neon.vdupq_n_f64(MAX_EXP_F64));
            let n = neon.vaddq_s64(neon.vcvtq_s64_f64(n), neon.vdupq_n_s64(1022));
            let power = neon.vreinterpretq_f64_s64(neon.vshlq_n_s64::<52>(n));
            let x: float64x2_t = pulp::cast(x);
            pulp::cast(neon.vmulq_f64(neon.vaddq_f64(x, x), power))
        }
        #[inline(always)]
        fn split_exp2_f64(self, x: Self::f64s) -> (Self::f64s, Self::f64s) {
            let neon = self.neon;
            let x = neon.vmaxq_f64(pulp::cast(x), neon.vdupq_n_f64(EXP2_MIN_F64));
            let x = neon.vminq_f64(x, neon.vdupq_n_f64(EXP2_MAX_F64));
            let n = neon.vrndnq_f64(x);
            (pulp::cast(neon.vsubq_f64(x, n)), pulp::cast(n))
        }
        #[inline(always)]
        fn join_exp2_f64(self, p: Self::f64s, n: Self::f64s) -> Self::f64s {
            let neon = self.neon;
            let exponent = neon.vshlq_n_s64::<52>(neon.vcvtq_s64_f64(pulp::cast(n)));
            pulp::cast(neon.vaddq_s64(pulp::cast(p), exponent))
        }
    }
}
