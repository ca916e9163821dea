//! What pulp's token does not offer: rounding, scaling by powers of two, and block transposition, for each instruction set.

use super::simd::Isa;

/// Smallest and largest exponent that [`Isa::scale_f32`] takes as is; others saturate to 0 and infinity.
const MIN_EXP_F32: f32 = -126.0;
const MAX_EXP_F32: f32 = 129.0;
const MIN_EXP_F64: f64 = -1022.0;
const MAX_EXP_F64: f64 = 1025.0;

/// Range that the argument of `2^x` is clamped to where the exponent is added to the bits of a number near 1: both ends are integers, so
/// that the fraction is 0 there, the number is exactly 1, and the sums are the bits of 0 and of infinity.
const EXP2_MIN_F32: f32 = -127.0;
const EXP2_MAX_F32: f32 = 128.0;
const EXP2_MIN_F64: f64 = -1023.0;
const EXP2_MAX_F64: f64 = 1024.0;

/// Numbers so large that a small one added to them loses its fraction.
const ROUND_F32: f32 = 12_582_912.0;
const ROUND_F64: f64 = 6_755_399_441_055_744.0;

impl Isa for pulp::Scalar {
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
    fn split_exp2_f32(self, x: f32) -> (f32, f32) {
        let x = x.clamp(EXP2_MIN_F32, EXP2_MAX_F32);
        // rounds without the call that `round_ties_even` is on plain x86-64
        let n = (x + ROUND_F32) - ROUND_F32;
        (x - n, n)
    }
    #[inline(always)]
    fn split_exp2_f64(self, x: f64) -> (f64, f64) {
        let x = x.clamp(EXP2_MIN_F64, EXP2_MAX_F64);
        // rounds without the call that `round_ties_even` is on plain x86-64
        let n = (x + ROUND_F64) - ROUND_F64;
        (x - n, n)
    }
    #[inline(always)]
    fn join_exp2_f32(self, p: f32, n: f32) -> f32 {
        // a NaN converts to 0 and leaves the NaN in p alone
        f32::from_bits(p.to_bits().wrapping_add((n as i32 as u32) << 23))
    }
    #[inline(always)]
    fn join_exp2_f64(self, p: f64, n: f64) -> f64 {
        f64::from_bits(p.to_bits().wrapping_add((n as i64 as u64) << 52))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use core::arch::x86_64::*;
    use pulp::x86::{V3, V4};

    impl Isa for V3 {
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
        fn split_exp2_f32(self, x: Self::f32s) -> (Self::f32s, Self::f32s) {
            // n is kept as integers; max and min give their second operand for NaN
            let avx = self.avx;
            let x = avx._mm256_max_ps(avx._mm256_set1_ps(EXP2_MIN_F32), pulp::cast(x));
            let x = avx._mm256_min_ps(avx._mm256_set1_ps(EXP2_MAX_F32), x);
            let n = avx._mm256_cvtps_epi32(x);
            (pulp::cast(avx._mm256_sub_ps(x, avx._mm256_cvtepi32_ps(n))), pulp::cast(n))
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
        fn join_exp2_f32(self, p: Self::f32s, n: Self::f32s) -> Self::f32s {
            // the integer of a NaN shifts to 0 and leaves the NaN in p alone
            let avx2 = self.avx2;
            pulp::cast(avx2._mm256_add_epi32(pulp::cast(p), avx2._mm256_slli_epi32::<23>(pulp::cast(n))))
        }
        #[inline(always)]
        fn join_exp2_f64(self, p: Self::f64s, n: Self::f64s) -> Self::f64s {
            let avx2 = self.avx2;
            pulp::cast(avx2._mm256_add_epi64(pulp::cast(p), avx2._mm256_slli_epi64::<52>(pulp::cast(n))))
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
    }

    impl Isa for V4 {
        #[inline(always)]
        fn round_f32(self, x: Self::f32s) -> Self::f32s {
            pulp::cast(self.avx512f._mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT }>(pulp::cast(x)))
        }
        #[inline(always)]
        fn round_f64(self, x: Self::f64s) -> Self::f64s {
            pulp::cast(self.avx512f._mm512_roundscale_pd::<{ _MM_FROUND_TO_NEAREST_INT }>(pulp::cast(x)))
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
        fn split_exp2_f32(self, x: Self::f32s) -> (Self::f32s, Self::f32s) {
            // the reduction of an infinity is 0; a subtraction is cheaper than rounding a second time
            let f = self.avx512dq._mm512_reduce_ps::<{ _MM_FROUND_TO_NEAREST_INT }>(pulp::cast(x));
            (pulp::cast(f), pulp::cast(self.avx512f._mm512_sub_ps(pulp::cast(x), f)))
        }
        #[inline(always)]
        fn split_exp2_f64(self, x: Self::f64s) -> (Self::f64s, Self::f64s) {
            let f = self.avx512dq._mm512_reduce_pd::<{ _MM_FROUND_TO_NEAREST_INT }>(pulp::cast(x));
            (pulp::cast(f), pulp::cast(self.avx512f._mm512_sub_pd(pulp::cast(x), f)))
        }
        #[inline(always)]
        fn join_exp2_f32(self, p: Self::f32s, n: Self::f32s) -> Self::f32s {
            self.scale_f32(p, n)
        }
        #[inline(always)]
        fn join_exp2_f64(self, p: Self::f64s, n: Self::f64s) -> Self::f64s {
            self.scale_f64(p, n)
        }
        #[inline(always)]
        unsafe fn transpose_f32(self, src: *const f32, src_step: isize, dst: *mut f32, dst_step: isize) {
            let f = self.avx512f;
            // SAFETY: the caller gives sixteen rows of sixteen on both sides; the token proves the instructions.
            unsafe {
                let mut r = [f._mm512_setzero_ps(); 16];
                for i in 0..16 {
                    r[i] = src.offset(i as isize * src_step).cast::<__m512>().read_unaligned();
                }
                for k in (0..16).step_by(2) {
                    let (a, b) = (r[k], r[k + 1]);
                    r[k] = f._mm512_unpacklo_ps(a, b);
                    r[k + 1] = f._mm512_unpackhi_ps(a, b);
                }
                for k in (0..16).step_by(4) {
                    let [a, b, c, d] = [r[k], r[k + 1], r[k + 2], r[k + 3]];
                    r[k] = f._mm512_shuffle_ps::<0x44>(a, c);
                    r[k + 1] = f._mm512_shuffle_ps::<0xee>(a, c);
                    r[k + 2] = f._mm512_shuffle_ps::<0x44>(b, d);
                    r[k + 3] = f._mm512_shuffle_ps::<0xee>(b, d);
                }
                // each 128-bit quarter q of r[4g + j] now holds column 4q + j of rows 4g .. 4g + 3
                for j in 0..4 {
                    let [a, b, c, d] = [r[j], r[4 + j], r[8 + j], r[12 + j]];
                    let (ab0, ab1) = (f._mm512_shuffle_f32x4::<0x88>(a, b), f._mm512_shuffle_f32x4::<0xdd>(a, b));
                    let (cd0, cd1) = (f._mm512_shuffle_f32x4::<0x88>(c, d), f._mm512_shuffle_f32x4::<0xdd>(c, d));
                    dst.offset(j as isize * dst_step).cast::<__m512>().write_unaligned(f._mm512_shuffle_f32x4::<0x88>(ab0, cd0));
                    dst.offset((j + 4) as isize * dst_step)
                        .cast::<__m512>()
                        .write_unaligned(f._mm512_shuffle_f32x4::<0x88>(ab1, cd1));
                    dst.offset((j + 8) as isize * dst_step)
                        .cast::<__m512>()
                        .write_unaligned(f._mm512_shuffle_f32x4::<0xdd>(ab0, cd0));
                    dst.offset((j + 12) as isize * dst_step)
                        .cast::<__m512>()
                        .write_unaligned(f._mm512_shuffle_f32x4::<0xdd>(ab1, cd1));
                }
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::*;
    use core::arch::aarch64::*;
    use pulp::aarch64::Neon;

    impl Isa for Neon {
        #[inline(always)]
        fn round_f32(self, x: Self::f32s) -> Self::f32s {
            // SAFETY: NEON is part of every aarch64 target that has the token.
            pulp::cast(unsafe { vrndnq_f32(pulp::cast(x)) })
        }
        #[inline(always)]
        fn round_f64(self, x: Self::f64s) -> Self::f64s {
            // SAFETY: as above.
            pulp::cast(unsafe { vrndnq_f64(pulp::cast(x)) })
        }
        #[inline(always)]
        fn scale_f32(self, x: Self::f32s, n: Self::f32s) -> Self::f32s {
            // SAFETY: as above.
            pulp::cast(unsafe {
                let n = vminq_f32(vmaxq_f32(pulp::cast(n), vdupq_n_f32(MIN_EXP_F32)), vdupq_n_f32(MAX_EXP_F32));
                let n = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(126));
                let power = vreinterpretq_f32_s32(vshlq_n_s32::<23>(n));
                let x: float32x4_t = pulp::cast(x);
                vmulq_f32(vaddq_f32(x, x), power)
            })
        }
        #[inline(always)]
        fn scale_f64(self, x: Self::f64s, n: Self::f64s) -> Self::f64s {
            // SAFETY: as above.
            pulp::cast(unsafe {
                let n = vminq_f64(vmaxq_f64(pulp::cast(n), vdupq_n_f64(MIN_EXP_F64)), vdupq_n_f64(MAX_EXP_F64));
                let n = vaddq_s64(vcvtq_s64_f64(n), vdupq_n_s64(1022));
                let power = vreinterpretq_f64_s64(vshlq_n_s64::<52>(n));
                let x: float64x2_t = pulp::cast(x);
                vmulq_f64(vaddq_f64(x, x), power)
            })
        }
        #[inline(always)]
        fn split_exp2_f32(self, x: Self::f32s) -> (Self::f32s, Self::f32s) {
            // SAFETY: as above.
            unsafe {
                let x = vminq_f32(vmaxq_f32(pulp::cast(x), vdupq_n_f32(EXP2_MIN_F32)), vdupq_n_f32(EXP2_MAX_F32));
                let n = vrndnq_f32(x);
                (pulp::cast(vsubq_f32(x, n)), pulp::cast(n))
            }
        }
        #[inline(always)]
        fn split_exp2_f64(self, x: Self::f64s) -> (Self::f64s, Self::f64s) {
            // SAFETY: as above.
            unsafe {
                let x = vminq_f64(vmaxq_f64(pulp::cast(x), vdupq_n_f64(EXP2_MIN_F64)), vdupq_n_f64(EXP2_MAX_F64));
                let n = vrndnq_f64(x);
                (pulp::cast(vsubq_f64(x, n)), pulp::cast(n))
            }
        }
        #[inline(always)]
        fn join_exp2_f32(self, p: Self::f32s, n: Self::f32s) -> Self::f32s {
            // SAFETY: as above; a NaN converts to 0 and leaves the NaN in p alone.
            unsafe { pulp::cast(vaddq_s32(pulp::cast(p), vshlq_n_s32::<23>(vcvtq_s32_f32(pulp::cast(n))))) }
        }
        #[inline(always)]
        fn join_exp2_f64(self, p: Self::f64s, n: Self::f64s) -> Self::f64s {
            // SAFETY: as above.
            unsafe { pulp::cast(vaddq_s64(pulp::cast(p), vshlq_n_s64::<52>(vcvtq_s64_f64(pulp::cast(n))))) }
        }
    }
}
