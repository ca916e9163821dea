//! Rows of 16-bit numbers, to f32 and back, rounding to nearest, ties to even. AVX-512 converts sixteen at a time, AVX2 eight; elsewhere f16 is
//! left to `half`, which uses what the processor has, and the loops over bf16 to the compiler.

use super::lanes::first_lanes;
use super::sizes::MAX_LANES;
use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Conversions of rows of equal lengths.
pub(crate) trait Narrow: pulp::Simd {
    /// Whether [`Narrow::load_f16`] and [`Narrow::load_pairs_bf16`] are so short that numbers may be widened once for each use.
    const WIDENS: bool = false;
    /// A vector from as many numbers as it has lanes.
    #[inline(always)]
    fn load_f16(self, src: &[f16]) -> Self::f32s {
        by_way_of_memory(|wide| self.widen_f16(src, wide))
    }
    /// As [`Narrow::load_f16`].
    #[inline(always)]
    fn load_bf16(self, src: &[bf16]) -> Self::f32s {
        by_way_of_memory(|wide| self.widen_bf16(src, wide))
    }
    /// Two vectors from twice as many numbers as one has lanes: those at even places, and those at odd ones.
    #[inline(always)]
    fn load_pairs_bf16(self, src: &[bf16]) -> [Self::f32s; 2] {
        let mut pairs = [[bf16::ZERO; MAX_LANES]; 2];
        for i in 0..2 * Self::F32_LANES {
            pairs[i % 2][i / 2] = src[i];
        }
        [self.load_bf16(&pairs[0][..Self::F32_LANES]), self.load_bf16(&pairs[1][..Self::F32_LANES])]
    }
    /// The inverse of [`Narrow::load_pairs_bf16`].
    #[inline(always)]
    fn store_pairs_bf16(self, pairs: [Self::f32s; 2], dst: &mut [bf16]) {
        let numbers: &[f32] = bytemuck::cast_slice(&pairs);
        for (i, x) in numbers.iter().enumerate() {
            let (place, odd) = (i % Self::F32_LANES, i / Self::F32_LANES);
            dst[2 * place + odd] = bf16::from_f32(*x);
        }
    }
    #[inline(always)]
    fn widen_f16(self, src: &[f16], dst: &mut [f32]) {
        src.convert_to_f32_slice(dst);
    }
    #[inline(always)]
    fn narrow_f16(self, src: &[f32], dst: &mut [f16]) {
        dst.convert_from_f32_slice(src);
    }
    #[inline(always)]
    fn widen_bf16(self, src: &[bf16], dst: &mut [f32]) {
        for (d, s) in dst.iter_mut().zip(src) {
            *d = f32::from_bits(u32::from(s.to_bits()) << 16);
        }
    }
    #[inline(always)]
    fn narrow_bf16(self, src: &[f32], dst: &mut [bf16]) {
        for (d, s) in dst.iter_mut().zip(src) {
            *d = bf16::from_f32(*s);
        }
    }
}

/// A vector of numbers that a conversion writes.
#[inline(always)]
fn by_way_of_memory<R: Pod>(widen: impl FnOnce(&mut [f32])) -> R {
    let mut wide = [0f32; MAX_LANES];
    widen(&mut wide[..size_of::<R>() / size_of::<f32>()]);
    first_lanes(&wide)
}

impl Narrow for pulp::Scalar {}
#[cfg(target_arch = "aarch64")]
impl Narrow for pulp::aarch64::Neon {}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Narrow;
    use core::arch::x86_64::*;
    use half::{bf16, f16};
    use pulp::x86::{V3, V4};

    /// The numbers of a slice that is as long, which the compiler knows wherever it is inlined.
    #[inline(always)]
    fn known<T: Copy, const N: usize>(src: &[T]) -> [T; N] {
        *src.first_chunk().expect("as many numbers")
    }

    impl Narrow for V3 {
        const WIDENS: bool = true;
        #[inline(always)]
        fn load_pairs_bf16(self, src: &[bf16]) -> [Self::f32s; 2] {
            let (avx, avx2) = (self.avx, self.avx2);
            let pairs = pulp::cast(known::<_, 16>(src));
            let odd = avx2._mm256_and_si256(pairs, avx._mm256_set1_epi32(UPPER_HALF));
            [pulp::cast(avx2._mm256_slli_epi32::<16>(pairs)), pulp::cast(odd)]
        }
        #[inline(always)]
        fn store_pairs_bf16(self, pairs: [Self::f32s; 2], dst: &mut [bf16]) {
            let avx2 = self.avx2;
            let [even, odd] = [rounded_to_bf16(self, pulp::cast(pairs[0])), rounded_to_bf16(self, pulp::cast(pairs[1]))];
            let words = avx2._mm256_blend_epi16::<0xaa>(avx2._mm256_srli_epi32::<16>(even), odd);
            dst.copy_from_slice(&pulp::cast::<_, [bf16; 16]>(words));
        }
        #[inline(always)]
        fn load_bf16(self, src: &[bf16]) -> Self::f32s {
            let bits = pulp::cast(known::<_, 8>(src));
            pulp::cast(self.avx2._mm256_slli_epi32::<16>(self.avx2._mm256_cvtepu16_epi32(bits)))
        }
        #[inline(always)]
        fn load_f16(self, src: &[f16]) -> Self::f32s {
            pulp::cast(WidenF16(self).convert(known(src)))
        }
        #[inline(always)]
        fn widen_f16(self, src: &[f16], dst: &mut [f32]) {
            rows(WidenF16(self), src, dst);
        }
        #[inline(always)]
        fn narrow_f16(self, src: &[f32], dst: &mut [f16]) {
            rows(NarrowF16(self), src, dst);
        }
        #[inline(always)]
        fn narrow_bf16(self, src: &[f32], dst: &mut [bf16]) {
            rows(NarrowBf16(self), src, dst);
        }
    }

    impl Narrow for V4 {
        #[inline(always)]
        fn load_f16(self, src: &[f16]) -> Self::f32s {
            pulp::cast(WidenF16(self).convert(known(src)))
        }
        #[inline(always)]
        fn load_bf16(self, src: &[bf16]) -> Self::f32s {
            let bits = pulp::cast(known::<_, 16>(src));
            pulp::cast(self.avx512f._mm512_slli_epi32::<16>(self.avx512f._mm512_cvtepu16_epi32(bits)))
        }
        #[inline(always)]
        fn widen_f16(self, src: &[f16], dst: &mut [f32]) {
            rows(WidenF16(self), src, dst);
        }
        #[inline(always)]
        fn narrow_f16(self, src: &[f32], dst: &mut [f16]) {
            rows(NarrowF16(self), src, dst);
        }
        #[inline(always)]
        fn narrow_bf16(self, src: &[f32], dst: &mut [bf16]) {
            rows(NarrowBf16(self), src, dst);
        }
    }

    /// A conversion of `N` numbers.
    trait Block<const N: usize>: Copy {
        type From: Copy + Default;
        type To: Copy + Default;
        fn convert(self, from: [Self::From; N]) -> [Self::To; N];
    }

    /// Converts a row; what is left of a vector goes by way of arrays, so that a number's place does not matter.
    #[inline(always)]
    fn rows<const N: usize, C: Block<N>>(conversion: C, src: &[C::From], dst: &mut [C::To]) {
        let (src, src_rest) = src.as_chunks::<N>();
        let (dst, dst_rest) = dst.as_chunks_mut::<N>();
        for (src, dst) in src.iter().zip(dst) {
            *dst = conversion.convert(*src);
        }
        if !dst_rest.is_empty() {
            let mut from = [C::From::default(); N];
            from[..src_rest.len()].copy_from_slice(src_rest);
            dst_rest.copy_from_slice(&conversion.convert(from)[..dst_rest.len()]);
        }
    }

    #[derive(Clone, Copy)]
    struct WidenF16<S>(S);

    impl Block<8> for WidenF16<V3> {
        type From = f16;
        type To = f32;
        #[inline(always)]
        fn convert(self, from: [f16; 8]) -> [f32; 8] {
            // SAFETY: kernels of this level are not run without F16C.
            pulp::cast(unsafe { _mm256_cvtph_ps(pulp::cast(from)) })
        }
    }

    impl Block<16> for WidenF16<V4> {
        type From = f16;
        type To = f32;
        #[inline(always)]
        fn convert(self, from: [f16; 16]) -> [f32; 16] {
            pulp::cast(self.0.avx512f._mm512_cvtph_ps(pulp::cast(from)))
        }
    }

    #[derive(Clone, Copy)]
    struct NarrowF16<S>(S);

    impl Block<8> for NarrowF16<V3> {
        type From = f32;
        type To = f16;
        #[inline(always)]
        fn convert(self, from: [f32; 8]) -> [f16; 8] {
            // SAFETY: kernels of this level are not run without F16C.
            pulp::cast(unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(pulp::cast(from)) })
        }
    }

    impl Block<16> for NarrowF16<V4> {
        type From = f32;
        type To = f16;
        #[inline(always)]
        fn convert(self, from: [f32; 16]) -> [f16; 16] {
            const ROUNDING: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            pulp::cast(self.0.avx512f._mm512_cvtps_ph::<ROUNDING>(pulp::cast(from)))
        }
    }

    /// The upper halves of 32-bit words, as places of 16-bit words.
    const UPPER: [u16; 32] = {
        let mut places = [0; 32];
        let mut i = 0;
        while i < 16 {
            places[i] = 2 * i as u16 + 1;
            i += 1;
        }
        places
    };

    #[derive(Clone, Copy)]
    struct NarrowBf16<S>(S);

    /// The upper half of a word.
    const UPPER_HALF: i32 = 0xffff << 16;

    /// bf16 in the upper halves of words; the lower ones are anything.
    #[inline(always)]
    fn rounded_to_bf16(simd: V3, wide: __m256) -> __m256i {
        let (avx, avx2) = (simd.avx, simd.avx2);
        let bits = avx._mm256_castps_si256(wide);
        // half of the last place, and a little more where that place is odd: a tie goes to even
        let odd = avx2._mm256_and_si256(avx2._mm256_srli_epi32::<16>(bits), avx._mm256_set1_epi32(1));
        let sum = avx2._mm256_add_epi32(avx2._mm256_add_epi32(bits, avx._mm256_set1_epi32(0x7fff)), odd);
        // a NaN could round to infinity or change its sign: it is made quiet instead
        let nan = avx._mm256_castps_si256(avx._mm256_cmp_ps::<_CMP_UNORD_Q>(wide, wide));
        avx2._mm256_blendv_epi8(sum, avx2._mm256_or_si256(bits, avx._mm256_set1_epi32(0x40_0000)), nan)
    }

    impl Block<8> for NarrowBf16<V3> {
        type From = f32;
        type To = bf16;
        #[inline(always)]
        fn convert(self, from: [f32; 8]) -> [bf16; 8] {
            let (avx, avx2) = (self.0.avx, self.0.avx2);
            let words = avx2._mm256_srli_epi32::<16>(rounded_to_bf16(self.0, pulp::cast(from)));
            let (low, high) = (avx._mm256_castsi256_si128(words), avx2._mm256_extracti128_si256::<1>(words));
            pulp::cast(self.0.sse4_1._mm_packus_epi32(low, high))
        }
    }

    impl Block<16> for NarrowBf16<V4> {
        type From = f32;
        type To = bf16;
        #[inline(always)]
        fn convert(self, from: [f32; 16]) -> [bf16; 16] {
            let (f, wide) = (self.0.avx512f, pulp::cast(from));
            let bits = f._mm512_castps_si512(wide);
            // half of the last place, and a little more where that place is odd: a tie goes to even
            let odd = f._mm512_test_epi32_mask(bits, f._mm512_set1_epi32(0x1_0000));
            let sum = f._mm512_add_epi32(bits, f._mm512_set1_epi32(0x7fff));
            let sum = f._mm512_mask_add_epi32(sum, odd, sum, f._mm512_set1_epi32(1));
            // a NaN could round to infinity or change its sign: it is made quiet instead
            let nan = f._mm512_cmpunord_ps_mask(wide, wide);
            let sum = f._mm512_mask_or_epi32(sum, nan, bits, f._mm512_set1_epi32(0x40_0000));
            let words = self.0.avx512bw._mm512_permutexvar_epi16(pulp::cast(UPPER), sum);
            pulp::cast(f._mm512_castsi512_si256(words))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::Isa;
    use crate::cpu::{Kernel, Level};

    struct Convert<'x>(&'x [f32]);

    impl Kernel for Convert<'_> {
        type Output = (Vec<f16>, Vec<bf16>, Vec<f32>, Vec<f32>);
        const EVERY_LEVEL: bool = true;
        #[inline(always)]
        fn run<S: Isa>(self, simd: S) -> Self::Output {
            let len = self.0.len();
            let (mut half, mut brain) = (vec![f16::ZERO; len], vec![bf16::ZERO; len]);
            let (mut from_half, mut from_brain) = (vec![0.0; len], vec![0.0; len]);
            simd.narrow_f16(self.0, &mut half);
            simd.narrow_bf16(self.0, &mut brain);
            simd.widen_f16(&half, &mut from_half);
            simd.widen_bf16(&brain, &mut from_brain);
            for (numbers, wide) in brain.chunks_exact(2 * S::F32_LANES).zip(from_brain.chunks_exact(2 * S::F32_LANES)) {
                let mut again = vec![bf16::ZERO; numbers.len()];
                let pairs = simd.load_pairs_bf16(numbers);
                simd.store_pairs_bf16(pairs, &mut again);
                let pairs: &[f32] = bytemuck::cast_slice(&pairs);
                let bits = |x: &f32| x.to_bits();
                assert!(pairs[..S::F32_LANES].iter().map(bits).eq(wide.iter().step_by(2).map(bits)));
                assert!(pairs[S::F32_LANES..].iter().map(bits).eq(wide.iter().skip(1).step_by(2).map(bits)));
                assert_eq!(
                    numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
                    again.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                );
            }
            (half, brain, from_half, from_brain)
        }
    }

    #[test]
    fn rows_convert_as_single_numbers_do() {
        // every exponent with fractions around ties of both types, both signs, and what is not a number
        let fractions = [0u32, 1, 0xfff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001, 0x1_8000, 0x7f_ffff];
        let numbers = (0..512u32).flat_map(|top| fractions.map(|fraction| f32::from_bits(top << 23 | fraction)));
        let x: Vec<f32> = numbers.collect();
        let same = |got: f64, expected: f64| got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
        for level in Level::available() {
            for len in [x.len(), 15, 17] {
                let (half, brain, from_half, from_brain) = level.dispatch(Convert(&x[..len]));
                for i in 0..len {
                    let (h, b) = (f16::from_f32_const(x[i]), bf16::from_f32(x[i]));
                    assert!(same(half[i].to_f64(), h.to_f64()), "{level} f16 of {}", x[i]);
                    assert!(same(brain[i].to_f64(), b.to_f64()), "{level} bf16 of {}", x[i]);
                    assert!(same(from_half[i].into(), h.to_f64()), "{level} from f16 {h}");
                    assert!(same(from_brain[i].into(), b.to_f64()), "{level} from bf16 {b}");
                }
            }
        }
    }
}
