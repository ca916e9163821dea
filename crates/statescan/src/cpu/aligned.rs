//! Scratch memory on cache lines: a vector that lies across two of them takes two accesses.

use super::simd::Real;
use crate::tensor::Line;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

/// A slice of a compute type that starts on a cache line.
pub(crate) struct Aligned<T> {
    lines: Vec<Line>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Real> Aligned<T> {
    pub(crate) fn zeros(len: usize) -> Self {
        let lines = bytemuck::zeroed_vec((len * size_of::<T>()).div_ceil(size_of::<Line>()));
        Aligned { lines, len, element: PhantomData }
    }
}

impl<T: Real> Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl<T: Real> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}
