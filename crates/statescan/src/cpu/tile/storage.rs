//! Storage types: conversion to the compute type and back.

use super::super::simd::{Isa, Real, V};
use super::{Array, ArrayMut, MAX_LANES};
use crate::tensor::Element;
use half::{bf16, f16};

/// Conversion between a storage type and a compute type.
pub(crate) trait Storage<T>: Element {
    /// Whether no conversion is needed.
    const IS_COMPUTE_TYPE: bool = false;
    fn load(self) -> T;
    fn store(value: T) -> Self;
    /// Converts a contiguous row, as long as the other.
    #[inline(always)]
    fn load_row<S: Isa>(_simd: S, src: &[Self], dst: &mut [T]) {
        for (d, s) in dst.iter_mut().zip(src) {
            *d = s.load();
        }
    }
    /// The inverse of [`Storage::load_row`].
    #[inline(always)]
    fn store_row<S: Isa>(_simd: S, src: &[T], dst: &mut [Self])
    where
        T: Copy,
    {
        for (d, s) in dst.iter_mut().zip(src) {
            *d = Self::store(*s);
        }
    }
    /// Converts as many neighbours as a vector has lanes, from element `at` on.
    #[inline(always)]
    fn load_vector<S: Isa>(simd: S, from: Array<'_, Self>, at: usize) -> V<T, S>
    where
        T: Real,
    {
        let mut row = [T::default(); MAX_LANES];
        let lanes = T::lanes::<S>();
        Self::load_row(simd, from.shared(at, lanes), &mut row[..lanes]);
        V::from_array(simd, &row)
    }
    /// The inverse of [`Storage::load_vector`].
    #[inline(always)]
    fn store_vector<S: Isa>(vector: V<T, S>, mut to: ArrayMut<'_, Self>, at: usize)
    where
        T: Real,
    {
        let lanes = T::lanes::<S>();
        Self::store_row(vector.simd(), &vector.to_array()[..lanes], to.slice(at, lanes));
    }
}

impl<T: Real> Storage<T> for f32 {
    const IS_COMPUTE_TYPE: bool = !T::DOUBLE;
    #[inline(always)]
    fn load(self) -> T {
        T::from_f64(f64::from(self))
    }
    #[inline(always)]
    fn store(value: T) -> Self {
        value.to_f64() as f32
    }
}

impl<T: Real> Storage<T> for f64 {
    const IS_COMPUTE_TYPE: bool = T::DOUBLE;
    #[inline(always)]
    fn load(self) -> T {
        T::from_f64(self)
    }
    #[inline(always)]
    fn store(value: T) -> Self {
        value.to_f64()
    }
}

/// The two 16-bit types, whose rows have conversions of their own from and to f32.
macro_rules! narrow {
    ($t:ident, $widen:ident, $narrow:ident) => {
        impl<T: Real> Storage<T> for $t {
            #[inline(always)]
            fn load(self) -> T {
                T::from_f64(self.to_f64())
            }
            #[inline(always)]
            fn store(value: T) -> Self {
                if T::DOUBLE { $t::from_f64(value.to_f64()) } else { $t::from_f32(value.to_f64() as f32) }
            }
            #[inline(always)]
            fn load_row<S: Isa>(simd: S, src: &[Self], dst: &mut [T]) {
                match bytemuck::try_cast_slice_mut::<T, f32>(dst) {
                    Ok(dst) if !T::DOUBLE => simd.$widen(src, dst),
                    _ => dst.iter_mut().zip(src).for_each(|(d, s)| *d = s.load()),
                }
            }
            #[inline(always)]
            fn store_row<S: Isa>(simd: S, src: &[T], dst: &mut [Self]) {
                match bytemuck::try_cast_slice::<T, f32>(src) {
                    Ok(src) if !T::DOUBLE => simd.$narrow(src, dst),
                    _ => dst.iter_mut().zip(src).for_each(|(d, s)| *d = Self::store(*s)),
                }
            }
        }
    };
}
narrow!(bf16, widen_bf16, narrow_bf16);
narrow!(f16, widen_f16, narrow_f16);
