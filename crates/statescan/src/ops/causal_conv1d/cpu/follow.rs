//! Lines that are stored in the type they are read in, without tiles: every input is read and converted once, and what earlier taps take is
//! made from two neighbouring vectors. Three of four loads of shifted inputs would lie in two cache lines.

use super::{Taps, silu_each};
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::Storage;
use crate::tensor::DType;
use half::{bf16, f16};

/// The width of filters that this is for, that of released models: with a width known only at run time it was slower than the loads.
const WIDTH: usize = 4;

/// Whether filters of a width are quicker this way on lines of a type.
#[inline(always)]
pub(super) fn follows<T: Real, S: Isa>(width: usize, dtype: DType) -> bool {
    S::FOLLOWS && width == WIDTH && (dtype == T::DTYPE || !T::DOUBLE && dtype.size() == 2)
}

/// Whole vectors of a line that is stored as it was read, in any type, without anything in between.
///
/// # Safety
/// [`follows`] says so of filters and type. Source and target are of this type, hold at least a vector, and the source, which begins where the first tap
/// of the first output looks, holds WIDTH - 1 elements more.
#[inline(always)]
pub(super) unsafe fn follow<T: Real, S: Isa>(
    taps: Taps<T, S>,
    dtype: DType,
    (source, target): (*const u8, *mut u8),
    vectors: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match dtype {
            DType::F64 if T::DOUBLE => follow_as::<T, S, f64>(taps, source.cast(), target.cast(), vectors),
            DType::F32 if !T::DOUBLE => follow_as::<T, S, f32>(taps, source.cast(), target.cast(), vectors),
            DType::BF16 if !T::DOUBLE => follow_as::<T, S, bf16>(taps, source.cast(), target.cast(), vectors),
            DType::F16 if !T::DOUBLE => follow_as::<T, S, f16>(taps, source.cast(), target.cast(), vectors),
            _ => unreachable!("lines of other types do not come here"),
        }
    }
}

/// [`follow`] for one type.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn follow_as<T: Real, S: Isa, X: Storage<T>>(taps: Taps<T, S>, source: *const X, target: *mut X, vectors: usize) {
    let (simd, lanes, before) = (taps.bias.simd(), T::lanes::<S>(), WIDTH - 1);
    // SAFETY: the caller's contract; there is at least a vector of elements.
    unsafe {
        let first = X::load_vector(simd, source);
        // its first lanes where the last ones of a vector before the line would have them
        let (mut last, source) = (first.follow(first, lanes - before), source.add(before));
        let mut i = 0;
        while i + 4 <= vectors {
            last = follow_group::<T, S, X, 4>(taps, last, source.add(i * lanes), target.add(i * lanes));
            i += 4;
        }
        while i < vectors {
            last = follow_group::<T, S, X, 1>(taps, last, source.add(i * lanes), target.add(i * lanes));
            i += 1;
        }
    }
}

/// `R` neighbouring vectors of [`follow`], given the inputs before them; gives the last inputs. Here source and target begin at the same step.
///
/// # Safety
/// Both hold as many vectors.
#[inline(always)]
unsafe fn follow_group<T: Real, S: Isa, X: Storage<T>, const R: usize>(
    taps: Taps<T, S>,
    last: V<T, S>,
    source: *const X,
    target: *mut X,
) -> V<T, S> {
    let (simd, lanes) = (taps.bias.simd(), T::lanes::<S>());
    let (mut sum, mut x) = ([taps.bias; R], [taps.bias; R]);
    // SAFETY: the caller's contract.
    unsafe {
        for r in 0..R {
            x[r] = X::load_vector(simd, source.add(r * lanes));
        }
        for k in 0..WIDTH {
            let (tap, behind) = (V::load(simd, taps.ptr.add(k * lanes)), WIDTH - 1 - k);
            for r in 0..R {
                let before = if r == 0 { last } else { x[r - 1] };
                let x = if behind == 0 { x[r] } else { x[r].follow(before, behind) };
                sum[r] = x.mul_add(tap, sum[r]);
            }
        }
        if taps.silu {
            sum = silu_each(sum);
        }
        for r in 0..R {
            X::store_vector(sum[r], target.add(r * lanes));
        }
    }
    x[R - 1]
}
