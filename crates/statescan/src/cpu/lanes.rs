//! Movements between lanes, for kernels that give one channel several lanes. `count` is a power of two, at most the number of lanes.

use super::sizes::MAX_LANES;
use bytemuck::Pod;

/// Lane movements that pulp's token does not offer; the bodies here serve where an instruction set has nothing better.
pub(crate) trait Lanes: pulp::Simd {
    /// Whether [`Lanes::follow_f32`] is one instruction, quicker than a load that lies in two lines.
    const FOLLOWS: bool = false;
    /// The last `count` lanes of `before` and then the first ones of `x`; `count` is less than the number of lanes.
    #[inline(always)]
    fn follow_f32(self, before: Self::f32s, x: Self::f32s, count: usize) -> Self::f32s {
        let both = [before, x];
        let both: &[f32] = bytemuck::cast_slice(&both);
        from_lanes(|lane| both[both.len() / 2 - count + lane])
    }
    /// As [`Lanes::follow_f32`].
    #[inline(always)]
    fn follow_f64(self, before: Self::f64s, x: Self::f64s, count: usize) -> Self::f64s {
        let both = [before, x];
        let both: &[f64] = bytemuck::cast_slice(&both);
        from_lanes(|lane| both[both.len() / 2 - count + lane])
    }
    /// The elements over and over; there are `count` of them.
    #[inline(always)]
    fn cycle_f32(self, src: &[f32]) -> Self::f32s {
        from_lanes(|lane| src[lane % src.len()])
    }
    /// As [`Lanes::cycle_f32`].
    #[inline(always)]
    fn cycle_f64(self, src: &[f64]) -> Self::f64s {
        from_lanes(|lane| src[lane % src.len()])
    }
    /// Each `count` neighbours become copies of the one at `position` among them.
    #[inline(always)]
    fn repeat_f32(self, x: Self::f32s, count: usize, position: usize) -> Self::f32s {
        let x: &[f32] = bytemuck::cast_slice(core::slice::from_ref(&x));
        from_lanes(|lane| x[lane / count * count + position])
    }
    /// As [`Lanes::repeat_f32`].
    #[inline(always)]
    fn repeat_f64(self, x: Self::f64s, count: usize, position: usize) -> Self::f64s {
        let x: &[f64] = bytemuck::cast_slice(core::slice::from_ref(&x));
        from_lanes(|lane| x[lane / count * count + position])
    }
    /// In each pair of neighbouring blocks of `count` lanes, the second block of `a` changes places with the first of `b`.
    #[inline(always)]
    fn exchange_f32(self, a: Self::f32s, b: Self::f32s, count: usize) -> (Self::f32s, Self::f32s) {
        let [first, second] = exchanged::<f32>(bytemuck::cast_slice(&[a, b]), count);
        (first_lanes(&first), first_lanes(&second))
    }
    /// As [`Lanes::exchange_f32`].
    #[inline(always)]
    fn exchange_f64(self, a: Self::f64s, b: Self::f64s, count: usize) -> (Self::f64s, Self::f64s) {
        let [first, second] = exchanged::<f64>(bytemuck::cast_slice(&[a, b]), count);
        (first_lanes(&first), first_lanes(&second))
    }
}

/// The lanes of both results of `exchange`, from those of `a` followed by those of `b`.
#[inline(always)]
fn exchanged<T: Copy + Default>(both: &[T], count: usize) -> [[T; MAX_LANES]; 2] {
    let width = both.len() / 2;
    let mut lanes = [[T::default(); MAX_LANES]; 2];
    for lane in 0..width {
        let (first, second) = match lane / count % 2 {
            0 => (lane, lane + count),
            _ => (width + lane - count, width + lane),
        };
        (lanes[0][lane], lanes[1][lane]) = (both[first], both[second]);
    }
    lanes
}

/// A vector from its lanes.
#[inline(always)]
fn from_lanes<T: Pod + Default, R: Pod>(lane: impl Fn(usize) -> T) -> R {
    let mut lanes = [T::default(); MAX_LANES];
    for i in 0..size_of::<R>() / size_of::<T>() {
        lanes[i] = lane(i);
    }
    first_lanes(&lanes)
}

/// The vector that an array begins with.
#[inline(always)]
pub(super) fn first_lanes<T: Pod, R: Pod>(lanes: &[T; MAX_LANES]) -> R {
    const { assert!(size_of::<R>() <= size_of::<[T; MAX_LANES]>(), "no vector has more lanes") };
    bytemuck::pod_read_unaligned(&bytemuck::cast_slice(lanes)[..size_of::<R>()])
}

/// A register, or a number as large as several, of exactly these elements.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn whole<T: Pod, R: Pod>(src: &[T]) -> R {
    bytemuck::pod_read_unaligned(bytemuck::cast_slice(src))
}

impl Lanes for pulp::Scalar {}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Lanes, whole};
    use core::arch::x86_64::*;
    use pulp::x86::{V3, V4};

    impl Lanes for V3 {
        #[inline(always)]
        fn cycle_f32(self, src: &[f32]) -> Self::f32s {
            let avx = self.avx;
            pulp::cast(match src.len() {
                1 => avx._mm256_set1_ps(src[0]),
                2 => avx._mm256_castpd_ps(avx._mm256_set1_pd(whole(src))),
                4 => avx._mm256_broadcast_ps(&whole::<_, __m128>(src)),
                _ => whole::<_, __m256>(src),
            })
        }
        #[inline(always)]
        fn cycle_f64(self, src: &[f64]) -> Self::f64s {
            let avx = self.avx;
            pulp::cast(match src.len() {
                1 => avx._mm256_set1_pd(src[0]),
                2 => avx._mm256_broadcast_pd(&whole::<_, __m128d>(src)),
                _ => whole::<_, __m256d>(src),
            })
        }
        #[inline(always)]
        fn repeat_f32(self, x: Self::f32s, count: usize, position: usize) -> Self::f32s {
            let first: [u32; 8] = match count {
                1 => return x,
                2 => [0, 0, 2, 2, 4, 4, 6, 6],
                4 => [0, 0, 0, 0, 4, 4, 4, 4],
                _ => [0; 8],
            };
            let lanes = self.avx2._mm256_add_epi32(pulp::cast(first), self.avx._mm256_set1_epi32(position as i32));
            pulp::cast(self.avx2._mm256_permutevar8x32_ps(pulp::cast(x), lanes))
        }
        #[inline(always)]
        fn repeat_f64(self, x: Self::f64s, count: usize, position: usize) -> Self::f64s {
            let first: [u32; 8] = match count {
                1 => return x,
                2 => [0, 1, 0, 1, 4, 5, 4, 5],
                _ => [0, 1, 0, 1, 0, 1, 0, 1],
            };
            let lanes = self.avx2._mm256_add_epi32(pulp::cast(first), self.avx._mm256_set1_epi32(2 * position as i32));
            pulp::cast(self.avx2._mm256_permutevar8x32_ps(pulp::cast(x), lanes))
        }
        #[inline(always)]
        fn exchange_f32(self, a: Self::f32s, b: Self::f32s, count: usize) -> (Self::f32s, Self::f32s) {
            let (avx, a, b) = (self.avx, pulp::cast(a), pulp::cast(b));
            let (first, second) = match count {
                1 => (
                    avx._mm256_blend_ps::<0xaa>(a, avx._mm256_moveldup_ps(b)),
                    avx._mm256_blend_ps::<0xaa>(avx._mm256_movehdup_ps(a), b),
                ),
                2 => (avx._mm256_shuffle_ps::<0x44>(a, b), avx._mm256_shuffle_ps::<0xee>(a, b)),
                _ => (avx._mm256_permute2f128_ps::<0x20>(a, b), avx._mm256_permute2f128_ps::<0x31>(a, b)),
            };
            (pulp::cast(first), pulp::cast(second))
        }
        #[inline(always)]
        fn exchange_f64(self, a: Self::f64s, b: Self::f64s, count: usize) -> (Self::f64s, Self::f64s) {
            let (avx, a, b) = (self.avx, pulp::cast(a), pulp::cast(b));
            let (first, second) = match count {
                1 => (avx._mm256_unpacklo_pd(a, b), avx._mm256_unpackhi_pd(a, b)),
                _ => (avx._mm256_permute2f128_pd::<0x20>(a, b), avx._mm256_permute2f128_pd::<0x31>(a, b)),
            };
            (pulp::cast(first), pulp::cast(second))
        }
    }

    /// The lanes of `repeat` for position 0.
    const fn repeated(count: u32) -> [u32; 16] {
        let mut lanes = [0; 16];
        let mut i = 0;
        while i < 16 {
            lanes[i as usize] = i / count * count;
            i += 1;
        }
        lanes
    }

    /// The lanes of both results of `exchange`, those of `b` from 16 on.
    const fn exchanged(count: u32) -> [[u32; 16]; 2] {
        let mut lanes = [[0; 16]; 2];
        let mut i = 0;
        while i < 16 {
            let odd = i / count % 2;
            lanes[0][i as usize] = i + odd * (16 - count);
            lanes[1][i as usize] = i + odd * 16 + (1 - odd) * count;
            i += 1;
        }
        lanes
    }

    const REPEATED: [[u32; 16]; 5] = [repeated(1), repeated(2), repeated(4), repeated(8), repeated(16)];
    const EXCHANGED: [[[u32; 16]; 2]; 4] = [exchanged(1), exchanged(2), exchanged(4), exchanged(8)];

    impl Lanes for V4 {
        const FOLLOWS: bool = true;
        #[inline(always)]
        fn follow_f32(self, before: Self::f32s, x: Self::f32s, count: usize) -> Self::f32s {
            let f = self.avx512f;
            let places = f._mm512_add_epi32(pulp::cast(REPEATED[0]), f._mm512_set1_epi32(16 - count as i32));
            pulp::cast(f._mm512_permutex2var_ps(pulp::cast(before), places, pulp::cast(x)))
        }
        #[inline(always)]
        fn follow_f64(self, before: Self::f64s, x: Self::f64s, count: usize) -> Self::f64s {
            let f = self.avx512f;
            let places =
                f._mm512_add_epi64(f._mm512_cvtepu32_epi64(low_half(REPEATED[0])), f._mm512_set1_epi64(8 - count as i64));
            pulp::cast(f._mm512_permutex2var_pd(pulp::cast(before), places, pulp::cast(x)))
        }
        #[inline(always)]
        fn cycle_f32(self, src: &[f32]) -> Self::f32s {
            let (f, dq) = (self.avx512f, self.avx512dq);
            pulp::cast(match src.len() {
                1 => f._mm512_set1_ps(src[0]),
                2 => f._mm512_castpd_ps(f._mm512_set1_pd(whole(src))),
                4 => f._mm512_broadcast_f32x4(whole(src)),
                8 => dq._mm512_broadcast_f32x8(whole(src)),
                _ => whole::<_, __m512>(src),
            })
        }
        #[inline(always)]
        fn cycle_f64(self, src: &[f64]) -> Self::f64s {
            let (f, dq) = (self.avx512f, self.avx512dq);
            pulp::cast(match src.len() {
                1 => f._mm512_set1_pd(src[0]),
                2 => dq._mm512_broadcast_f64x2(whole(src)),
                4 => f._mm512_broadcast_f64x4(whole(src)),
                _ => whole::<_, __m512d>(src),
            })
        }
        #[inline(always)]
        fn repeat_f32(self, x: Self::f32s, count: usize, position: usize) -> Self::f32s {
            let f = self.avx512f;
            let first = pulp::cast(REPEATED[count.trailing_zeros() as usize % 5]);
            let lanes = f._mm512_add_epi32(first, f._mm512_set1_epi32(position as i32));
            pulp::cast(f._mm512_permutexvar_ps(lanes, pulp::cast(x)))
        }
        #[inline(always)]
        fn repeat_f64(self, x: Self::f64s, count: usize, position: usize) -> Self::f64s {
            let f = self.avx512f;
            let first = self.avx512f._mm512_cvtepu32_epi64(low_half(REPEATED[count.trailing_zeros() as usize % 5]));
            let lanes = f._mm512_add_epi64(first, f._mm512_set1_epi64(position as i64));
            pulp::cast(f._mm512_permutexvar_pd(lanes, pulp::cast(x)))
        }
        #[inline(always)]
        fn exchange_f32(self, a: Self::f32s, b: Self::f32s, count: usize) -> (Self::f32s, Self::f32s) {
            let (f, a, b) = (self.avx512f, pulp::cast(a), pulp::cast(b));
            let [first, second] = EXCHANGED[count.trailing_zeros() as usize % 4];
            (
                pulp::cast(f._mm512_permutex2var_ps(a, pulp::cast(first), b)),
                pulp::cast(f._mm512_permutex2var_ps(a, pulp::cast(second), b)),
            )
        }
        #[inline(always)]
        fn exchange_f64(self, a: Self::f64s, b: Self::f64s, count: usize) -> (Self::f64s, Self::f64s) {
            let (f, a, b) = (self.avx512f, pulp::cast(a), pulp::cast(b));
            let (first, second) = match count {
                1 => (f._mm512_unpacklo_pd(a, b), f._mm512_unpackhi_pd(a, b)),
                2 => {
                    // blocks 0 and 2 of both, in pairs; then in the order a, b, a, b
                    let order = |x| f._mm512_shuffle_f64x2::<0b11_01_10_00>(x, x);
                    (order(f._mm512_shuffle_f64x2::<0x88>(a, b)), order(f._mm512_shuffle_f64x2::<0xdd>(a, b)))
                }
                _ => (f._mm512_shuffle_f64x2::<0x44>(a, b), f._mm512_shuffle_f64x2::<0xee>(a, b)),
            };
            (pulp::cast(first), pulp::cast(second))
        }
    }

    #[inline(always)]
    fn low_half(lanes: [u32; 16]) -> __m256i {
        let [low, _]: [__m256i; 2] = pulp::cast(lanes);
        low
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{Lanes, whole};
    use core::arch::aarch64::*;
    use pulp::aarch64::Neon;

    impl Lanes for Neon {
        #[inline(always)]
        fn cycle_f32(self, src: &[f32]) -> Self::f32s {
            let neon = self.neon;
            pulp::cast(match src.len() {
                1 => neon.vdupq_n_f32(src[0]),
                2 => neon.vreinterpretq_f32_f64(neon.vdupq_n_f64(whole(src))),
                _ => whole::<_, float32x4_t>(src),
            })
        }
        #[inline(always)]
        fn exchange_f32(self, a: Self::f32s, b: Self::f32s, count: usize) -> (Self::f32s, Self::f32s) {
            let neon = self.neon;
            match count {
                1 => {
                    let (a, b) = (pulp::cast(a), pulp::cast(b));
                    (pulp::cast(neon.vtrn1q_f32(a, b)), pulp::cast(neon.vtrn2q_f32(a, b)))
                }
                _ => {
                    let (a, b) = (pulp::cast(a), pulp::cast(b));
                    (pulp::cast(neon.vtrn1q_f64(a, b)), pulp::cast(neon.vtrn2q_f64(a, b)))
                }
            }
        }
        #[inline(always)]
        fn exchange_f64(self, a: Self::f64s, b: Self::f64s, _count: usize) -> (Self::f64s, Self::f64s) {
            let (neon, a, b) = (self.neon, pulp::cast(a), pulp::cast(b));
            (pulp::cast(neon.vtrn1q_f64(a, b)), pulp::cast(neon.vtrn2q_f64(a, b)))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cpu::simd::{Isa, Real, V};
    use crate::cpu::sizes::MAX_LANES;
    use crate::cpu::{Array, Kernel, Level};
    use core::marker::PhantomData;

    struct Check<T>(PhantomData<T>);

    impl<T: Real> Kernel for Check<T> {
        type Output = ();
        const EVERY_LEVEL: bool = true;
        #[inline(always)]
        fn run<S: Isa>(self, simd: S) {
            let width = T::lanes::<S>();
            let numbers: Vec<T> = (0..2 * MAX_LANES).map(|i| T::from_f64(i as f64)).collect();
            let lanes = |x: V<T, S>| x.to_array()[..width].iter().map(|x| x.to_f64() as usize).collect::<Vec<_>>();
            let [a, b] = [V::first(simd, &numbers), V::first(simd, &numbers[width..])];
            if width > 1 {
                let rows: Vec<T> = (0..width * width).map(|i| T::from_f64((i * i % 97) as f64)).collect();
                let sums = Array::of(&rows).sum_pairs(simd, 0, width);
                for (parity, sums) in sums.into_iter().enumerate() {
                    let sum = |row: usize| (parity..width).step_by(2).map(|l| (row * width + l).pow(2) % 97).sum();
                    assert_eq!(lanes(sums), (0..width).map(sum).collect::<Vec<usize>>());
                }
            }
            for count in 0..width {
                let expected = (width - count..2 * width - count).collect::<Vec<_>>();
                assert_eq!(lanes(b.follow(a, count)), expected);
            }
            let mut count = 1;
            while count <= width {
                let cycled = V::cycle(simd, &numbers[1..=count]);
                assert_eq!(lanes(cycled), (0..width).map(|l| 1 + l % count).collect::<Vec<_>>());
                for position in 0..count {
                    let expected = (0..width).map(|l| l / count * count + position).collect::<Vec<_>>();
                    assert_eq!(lanes(a.repeat(count, position)), expected);
                }
                if count < width {
                    let (first, second) = a.exchange(b, count);
                    let odd = |l: usize| l / count % 2 == 1;
                    let expected = |l| if odd(l) { width + l - count } else { l };
                    assert_eq!(lanes(first), (0..width).map(expected).collect::<Vec<_>>());
                    let expected = |l| if odd(l) { width + l } else { l + count };
                    assert_eq!(lanes(second), (0..width).map(expected).collect::<Vec<_>>());
                }
                count *= 2;
            }
        }
    }

    #[test]
    fn lanes_go_where_they_should_at_every_level() {
        for level in Level::available() {
            level.dispatch(Check::<f32>(PhantomData));
            level.dispatch(Check::<f64>(PhantomData));
        }
    }
}
