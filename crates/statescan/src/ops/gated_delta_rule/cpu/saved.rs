//! Kernels that save numbers for the backward pass and read them.

use crate::cpu::Kernel;
use crate::cpu::simd::{Isa, Real};
use crate::cpu::tile::{Tile, TileMut};

/// Saved numbers of so many bytes leave the caches before the backward pass reads them.
const LEAVES_CACHES: usize = 4 << 20;

/// Copies rows.
pub(super) struct Save<'s, T> {
    pub from: Tile<'s, T>,
    pub to: TileMut<'s, T>,
    pub rows: usize,
    pub columns: usize,
    /// Bytes of all numbers that are saved.
    pub bytes: usize,
}

impl<T: Real> Kernel for Save<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Save { from, mut to, rows, columns, bytes } = self;
        let lanes = T::lanes::<S>();
        let aligned = to.array.ptr().addr().is_multiple_of(lanes * size_of::<T>()) && to.pitch.is_multiple_of(lanes);
        let streamed = bytes >= LEAVES_CACHES && aligned && columns.is_multiple_of(lanes);
        for row in 0..rows {
            let (source, mut target) = (from.from(row, 0).array, to.from(row, 0).array);
            if streamed {
                for at in (0..columns).step_by(lanes) {
                    target.stream(at, source.load(simd, at));
                }
            } else {
                target.slice(0, columns).copy_from_slice(source.shared(0, columns));
            }
        }
        if streamed {
            simd.fence();
        }
    }
}
