//! `2^(a b)`, the heart of every scan with real states. In f32 each instruction set has its own way:
//!
//! ```text
//! a b = n + r, n the nearest multiple of 1/K;   2^(a b) = 2^floor(n) 2^(n - floor(n)) 2^r
//! ```
//!
//! Adding a large constant rounds the product to a multiple of 1/K and leaves K n, an integer, in the low bits of the sum. Where one
//! instruction looks up a register of K powers the polynomial for `2^r` is short: K = 32 and degree 2 on AVX-512, K = 8 and degree 3
//! on AVX2; elsewhere K = 1 and degree 5. With a table the product is never rounded: it is one operation with the sum after it. Elsewhere
//! its rounding costs up to `ln 2 |a b|` ulp more, as much as that of `a`, into which log2 e has been multiplied.
//!
//! | instructions (AVX-512, AVX2) | bounded | any argument |
//! |---|---|---|
//! | with the product | 8 (one takes two slots), 10 | 9, 19 |
//!
//! A bounded argument gives the same bits either way, so that lanes do not depend on their neighbours.

/// `2^(a b)` for vectors of f32.
pub(crate) trait Exp2: pulp::Simd {
    /// `2^(a b)`, within 2 ulp, and on levels without a table those that the rounding of `a b` costs. `BOUNDED` promises that every lane of `a b` is NaN or between -125 and 125; without it, overflow gives
    /// infinity, and below the normal range the result may be off by half the smallest normal number, yet stays monotone and reaches 0.
    fn exp2_product_f32<const BOUNDED: bool>(self, a: Self::f32s, b: Self::f32s) -> Self::f32s;
}

/// `(2^r - 1) / r` on [-1/2, 1/2]: 1.1 ulp of the result rather than a relative error, which keeps the rounded sum within 2.
const DEGREE_5: [f32; 5] = [0.693_146_8, 0.240_222_35, 0.055_508_93, 0.009_671_788, 0.001_322_571_7];
/// `(2^r - 1) / r` on [-1/2, 1/2] for f64, with an error of 2.7e-17.
pub(crate) const DEGREE_11: &[f64] = &[
    core::f64::consts::LN_2,
    0.2402265069591013,
    0.055504108664820084,
    0.009618129107594119,
    0.0013333558146774662,
    0.00015403530457113699,
    1.525273349309785e-05,
    1.3215435281540125e-06,
    1.0178199581573009e-07,
    7.0737833760220315e-09,
    4.4347701197406733e-10,
];
/// Added to a number of at most 2^21, this loses its fraction.
const ROUND: f32 = 12_582_912.0;

impl Exp2 for pulp::Scalar {
    #[inline(always)]
    fn exp2_product_f32<const BOUNDED: bool>(self, a: f32, b: f32) -> f32 {
        let mut x = a * b;
        if !BOUNDED {
            // the bounds are integers: there r is 0 and the polynomial exactly 1, so that the bits add up to those of 0 and of infinity
            x = x.clamp(-127.0, 128.0);
        }
        let t = x + ROUND;
        let r = x - (t - ROUND);
        let [c1, c2, c3, c4, c5] = DEGREE_5;
        let p = ((((c5 * r + c4) * r + c3) * r + c2) * r + c1) * r + 1.0;
        // the bits of a NaN may not move
        let exponent = if x.is_nan() { 0 } else { t.to_bits() << 23 };
        f32::from_bits(p.to_bits().wrapping_add(exponent))
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::Exp2;
    use core::arch::x86_64::{__m256, __m256i, __m512, _CMP_GT_OQ};
    use pulp::x86::{V3, V4};

    /// 2^(i/8), less what i adds to the exponent's bits.
    const TABLE_8: [u32; 8] = {
        let powers: [u32; 8] = [0x3f800000, 0x3f8b95c2, 0x3f9837f0, 0x3fa5fed7, 0x3fb504f3, 0x3fc5672a, 0x3fd744fd, 0x3feac0c7];
        let mut table = [0; 8];
        let mut i = 0;
        while i < 8 {
            table[i] = powers[i] - ((i as u32) << 20);
            i += 1;
        }
        table
    };
    /// `(2^r - 1) / r` on [-1/16, 1/16], 2.5e-8.
    const DEGREE_3: [f32; 3] = [core::f32::consts::LN_2, 0.240_257_63, 0.055_496_223];
    /// Rounds to a multiple of 1/8.
    const ROUND_8: f32 = 1_572_864.0;

    impl Exp2 for V3 {
        #[inline(always)]
        fn exp2_product_f32<const BOUNDED: bool>(self, a: Self::f32s, b: Self::f32s) -> Self::f32s {
            let (avx, avx2, fma) = (self.avx, self.avx2, self.fma);
            let [a, b]: [__m256; 2] = [pulp::cast(a), pulp::cast(b)];
            let splat = |x| avx._mm256_set1_ps(x);
            let mut t = fma._mm256_fmadd_ps(a, b, splat(ROUND_8));
            if !BOUNDED {
                // both give their second operand for NaN; the ends are powers whose bits are those of 0 and of infinity
                t = avx._mm256_max_ps(splat(ROUND_8 - 127.0), t);
                t = avx._mm256_min_ps(splat(ROUND_8 + 128.0), t);
            }
            let mut r = fma._mm256_fmsub_ps(a, b, avx._mm256_sub_ps(t, splat(ROUND_8)));
            if !BOUNDED {
                r = avx._mm256_min_ps(splat(0.25), avx._mm256_max_ps(splat(-0.25), r));
            }
            let [c1, c2, c3] = DEGREE_3;
            let p = fma._mm256_fmadd_ps(splat(c3), r, splat(c2));
            let p = fma._mm256_fmadd_ps(fma._mm256_fmadd_ps(p, r, splat(c1)), r, splat(1.0));
            if BOUNDED {
                return pulp::cast(avx._mm256_mul_ps(p, self.power(avx._mm256_castps_si256(t))));
            }
            // just below overflow the power alone may be infinite, so half of the power is taken, and the product doubled
            let above = avx._mm256_cmp_ps::<_CMP_GT_OQ>(t, splat(ROUND_8));
            let octave = avx2._mm256_and_si256(avx._mm256_castps_si256(above), avx._mm256_set1_epi32(8));
            let product = avx._mm256_mul_ps(p, self.power(avx2._mm256_sub_epi32(avx._mm256_castps_si256(t), octave)));
            pulp::cast(avx._mm256_add_ps(product, avx._mm256_and_ps(product, above)))
        }
    }

    /// 2^(t/8) for eight integers in the low bits of a sum with `ROUND_8`.
    trait Power {
        fn power(self, t: __m256i) -> __m256;
    }

    impl Power for V3 {
        #[inline(always)]
        fn power(self, t: __m256i) -> __m256 {
            let within = self.avx2._mm256_permutevar8x32_epi32(pulp::cast(TABLE_8), t);
            self.avx._mm256_castsi256_ps(self.avx2._mm256_add_epi32(within, self.avx2._mm256_slli_epi32::<20>(t)))
        }
    }

    /// 2^(i/32).
    const TABLE_32: [u32; 32] = [
        0x3f800000, 0x3f82cd87, 0x3f85aac3, 0x3f88980f, 0x3f8b95c2, 0x3f8ea43a, 0x3f91c3d3, 0x3f94f4f0, 0x3f9837f0, 0x3f9b8d3a,
        0x3f9ef532, 0x3fa27043, 0x3fa5fed7, 0x3fa9a15b, 0x3fad583f, 0x3fb123f6, 0x3fb504f3, 0x3fb8fbaf, 0x3fbd08a4, 0x3fc12c4d,
        0x3fc5672a, 0x3fc9b9be, 0x3fce248c, 0x3fd2a81e, 0x3fd744fd, 0x3fdbfbb8, 0x3fe0ccdf, 0x3fe5b907, 0x3feac0c7, 0x3fefe4ba,
        0x3ff5257d, 0x3ffa83b3,
    ];
    /// `(2^r - 1) / r` on [-1/64, 1/64], 5.3e-8.
    const DEGREE_2: [f32; 2] = [0.693_157_3, 0.240_226_5];
    /// Rounds to a multiple of 1/32.
    const ROUND_32: f32 = 393_216.0;

    impl Exp2 for V4 {
        #[inline(always)]
        fn exp2_product_f32<const BOUNDED: bool>(self, a: Self::f32s, b: Self::f32s) -> Self::f32s {
            let f = self.avx512f;
            let [a, b]: [__m512; 2] = [pulp::cast(a), pulp::cast(b)];
            let t = f._mm512_fmadd_ps(a, b, f._mm512_set1_ps(ROUND_32));
            let n = f._mm512_sub_ps(t, f._mm512_set1_ps(ROUND_32));
            let r = f._mm512_fmsub_ps(a, b, n);
            let [c1, c2] = DEGREE_2;
            // 2^r - 1; even a huge r leaves it above -1
            let mut p = f._mm512_mul_ps(f._mm512_fmadd_ps(f._mm512_set1_ps(c2), r, f._mm512_set1_ps(c1)), r);
            if !BOUNDED {
                // x far out of range leaves any r, even NaN; the minimum is its second operand then, and the scale decides
                p = f._mm512_min_ps(p, f._mm512_set1_ps(1.0));
            }
            let power = self.look_up(pulp::cast(TABLE_32), t);
            // scales by 2^floor(n), which saturates by itself and keeps a NaN
            pulp::cast(f._mm512_scalef_ps(f._mm512_fmadd_ps(power, p, power), n))
        }
    }

    /// One of 32 numbers, by the integer in the low bits of a sum with `ROUND_32`.
    trait LookUp {
        fn look_up(self, table: [__m512; 2], t: __m512) -> __m512;
    }

    impl LookUp for V4 {
        #[inline(always)]
        fn look_up(self, [low, high]: [__m512; 2], t: __m512) -> __m512 {
            self.avx512f._mm512_permutex2var_ps(low, self.avx512f._mm512_castps_si512(t), high)
        }
    }

    /// log2(e) in two parts.
    const LOG2_E: [f32; 2] = [core::f32::consts::LOG2_E, 1.925_963e-8];
    /// `(2^r - 1) / r` on [-1/64, 1/64], 6e-10 of 2^r.
    const DEGREE_3_SHORT: [f32; 3] = [core::f32::consts::LN_2, 0.240_226_5, 0.055_504_11];
    /// The part that each number of `TABLE_32` lacks, relative to it.
    const REST_32: [f32; 32] = [
        0.0, -4.708e-08, 4.629e-08, -5.560e-08, -1.199e-08, -4.878e-08, 4.730e-08, -3.481e-08, 3.193e-08, -2.689e-08, 3.621e-08,
        1.118e-09, -3.099e-08, -2.638e-08, -7.475e-09, -4.246e-08, 1.711e-08, 2.300e-08, -3.048e-08, -1.654e-08, 5.233e-09,
        -3.592e-08, 6.108e-09, -3.114e-08, -1.472e-08, -2.822e-08, -5.259e-09, -6.360e-09, -6.128e-09, -2.488e-08, 5.141e-09,
        -8.697e-09,
    ];

    /// `e^x` within 1.25 ulp, the same with second parts of the product and of the table, and one more term: twelve instructions, one of
    /// which takes two slots, where `math::exp` takes sixteen.
    #[inline(always)]
    pub(in crate::cpu) fn exp_f32(simd: V4, x: <V4 as pulp::Simd>::f32s) -> <V4 as pulp::Simd>::f32s {
        let (f, x): (_, __m512) = (simd.avx512f, pulp::cast(x));
        let [high, low] = LOG2_E.map(|c| f._mm512_set1_ps(c));
        let t = f._mm512_fmadd_ps(x, high, f._mm512_set1_ps(ROUND_32));
        let n = f._mm512_sub_ps(t, f._mm512_set1_ps(ROUND_32));
        let r = f._mm512_fmadd_ps(x, low, f._mm512_fmsub_ps(x, high, n));
        // x far out of range leaves any r, even NaN: `range` gives the smaller in magnitude, a number, with the sign of r, and the scale decides
        let r = simd.avx512dq._mm512_range_ps::<0b0010>(r, f._mm512_set1_ps(1.0));
        let [c1, c2, c3] = DEGREE_3_SHORT.map(|c| f._mm512_set1_ps(c));
        let p = f._mm512_fmadd_ps(f._mm512_fmadd_ps(c3, r, c2), r, c1);
        let p = f._mm512_fmadd_ps(p, r, simd.look_up(pulp::cast(REST_32), t));
        let power = simd.look_up(pulp::cast(TABLE_32), t);
        pulp::cast(f._mm512_scalef_ps(f._mm512_fmadd_ps(power, p, power), n))
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{DEGREE_5, Exp2};
    use pulp::aarch64::Neon;

    impl Exp2 for Neon {
        #[inline(always)]
        fn exp2_product_f32<const BOUNDED: bool>(self, a: Self::f32s, b: Self::f32s) -> Self::f32s {
            let neon = self.neon;
            let mut x = neon.vmulq_f32(pulp::cast(a), pulp::cast(b));
            if !BOUNDED {
                // integers, so that r is 0 there; both keep a NaN
                x = neon.vminq_f32(neon.vmaxq_f32(x, neon.vdupq_n_f32(-127.0)), neon.vdupq_n_f32(128.0));
            }
            let n = neon.vrndnq_f32(x);
            let r = neon.vsubq_f32(x, n);
            let [c1, c2, c3, c4, c5] = DEGREE_5.map(|c| neon.vdupq_n_f32(c));
            let p = neon.vfmaq_f32(c3, neon.vfmaq_f32(c4, c5, r), r);
            let p = neon.vfmaq_f32(neon.vdupq_n_f32(1.0), neon.vfmaq_f32(c1, neon.vfmaq_f32(c2, p, r), r), r);
            // a NaN converts to 0 and leaves the NaN in p alone
            let exponent = neon.vshlq_n_s32::<23>(neon.vcvtq_s32_f32(n));
            pulp::cast(neon.vaddq_s32(neon.vreinterpretq_s32_f32(p), exponent))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cpu::simd::{Isa, V};
    use crate::cpu::{Kernel, Level};

    struct Both<'x>(&'x [f32]);

    impl Kernel for Both<'_> {
        type Output = ();
        const EVERY_LEVEL: bool = true;
        #[inline(always)]
        fn run<S: Isa>(self, simd: S) {
            for &x in self.0 {
                let (x, third) = (V::splat(simd, x), V::splat(simd, 1.0f32 / 3.0));
                let any = V::exp2_product::<false>(x, third).reduce_sum();
                let bounded = V::exp2_product::<true>(x, third).reduce_sum();
                assert_eq!(any.to_bits(), bounded.to_bits(), "{}", S::F32_LANES);
            }
        }
    }

    #[test]
    fn bounded_arguments_give_the_same_bits() {
        let x: Vec<f32> = (-37400..=37400).map(|k| k as f32 * 0.010_011).chain([0.0, -0.0, 1e-45]).collect();
        for level in Level::available() {
            level.dispatch(Both(&x));
        }
    }

    #[test]
    fn tables_are_powers_of_two() {
        for level in Level::available() {
            level.dispatch(Table);
        }
    }

    /// Multiples of 1/32 hit the tables alone: the result is the rounded power.
    struct Table;

    impl Kernel for Table {
        type Output = ();
        const EVERY_LEVEL: bool = true;
        #[inline(always)]
        fn run<S: Isa>(self, simd: S) {
            // without a table the polynomial has its own error
            let denominator = match S::F32_LANES {
                16 => 32,
                8 => 8,
                _ => 1,
            };
            for i in -40 * denominator..40 * denominator {
                let x = f64::from(i) / f64::from(denominator);
                let got = V::exp2_product::<false>(V::constant(simd, x), V::<f32, S>::constant(simd, 1.0));
                assert_eq!(got.reduce_sum(), x.exp2() as f32 * S::F32_LANES as f32, "2^{x}");
            }
        }
    }
}
