//! Rows of time straight from `x` to `y`, whatever their types: forward, where time is contiguous in both.
//!
//! A stretch of a row at a time goes by [`super::follow`] where that is quicker. Else it is widened into the first cache and narrowed on its
//! way out, if it is not of the compute type, and read and written where it lies if it is. The stretch some kilobytes ahead is prefetched,
//! since no hardware prefetcher goes on from page to page.

use super::follow::{follow, follows};
use super::*;
use crate::tensor::DType;

/// Bytes of a row that are worked on at once: eight lines, for more at once could not be prefetched without waiting.
const STRETCH: usize = 512;

/// Steps at the beginning of a segment that are put behind what lies before it, more than a vector and W-1.
const FIRST: usize = 64;

/// How far ahead rows are prefetched, in bytes: four pages.
const AHEAD: usize = 16384;

/// An output of so many bytes leaves the caches before anybody reads it.
const LEAVES_CACHES: usize = 32 << 20;

/// Whether an output is stored past the caches, which saves reading its lines first.
pub(super) fn streams(y: &RawViewMut) -> bool {
    y.shape().iter().product::<usize>() * y.dtype().size() >= LEAVES_CACHES
}

/// Rows of channels in memory, from an address of type `P` on.
#[derive(Clone, Copy)]
struct Lines<P> {
    ptr: P,
    dtype: DType,
    /// From one channel to the next, in bytes.
    pitch: isize,
}

impl<P> Lines<P> {
    #[inline(always)]
    fn distance(&self, channel: usize, step: usize) -> isize {
        channel as isize * self.pitch + (step * self.dtype.size()) as isize
    }

    /// Those of a (B, D, L) tensor, and where a row of the batch begins, in bytes; none if time is not contiguous.
    fn of(ptr: P, dtype: DType, strides: &[isize], batch: usize) -> Option<(Self, isize)> {
        let size = dtype.size() as isize;
        (strides[2] == 1).then_some((Lines { ptr, dtype, pitch: strides[1] * size }, batch as isize * strides[0] * size))
    }
}

impl Lines<*const u8> {
    #[inline(always)]
    fn at(&self, channel: usize, step: usize) -> *const u8 {
        self.ptr.wrapping_offset(self.distance(channel, step))
    }
}

impl Lines<*mut u8> {
    #[inline(always)]
    fn at(&self, channel: usize, step: usize) -> *mut u8 {
        self.ptr.wrapping_offset(self.distance(channel, step))
    }
}

/// Steps of neighbouring channels.
pub(super) struct Rows {
    x: Lines<*const u8>,
    y: Lines<*mut u8>,
    channels: usize,
    count: usize,
    /// Whether a segment begins here.
    begins: bool,
}

impl Rows {
    /// The steps of a piece, if they lie in a way that allows it; `begins` says that its segment begins with it.
    pub(super) fn new(
        problem: &Problem<'_>,
        y: &RawViewMut,
        piece: &Piece,
        begins: bool,
        (first, channels): (usize, usize),
    ) -> Option<Self> {
        let (mut x, row) = Lines::of(problem.x.as_ptr(), problem.x.dtype(), &problem.x.strides(), piece.batch)?;
        x.ptr = x.at(first, piece.start).wrapping_offset(row);
        let (mut y, row) = Lines::of(y.as_mut_ptr(), y.dtype(), &y.strides(), piece.batch)?;
        y.ptr = y.at(first, piece.start).wrapping_offset(row);
        Some(Rows { x, y, channels, count: piece.end - piece.start, begins })
    }

    /// `y = conv(x)`, with silu if asked for. `states` are what lies before the segment, W-1 inputs of each channel, TAPS apart.
    ///
    /// # Safety
    /// - The rows lie inside the tensors, are at least a vector long, and no other thread writes them.
    /// - The filters are those of the channels.
    /// - `window` has room for a stretch and two vectors, `sums` for a stretch.
    #[inline(always)]
    pub(super) unsafe fn convolve<T: Real, S: Isa>(
        self,
        simd: S,
        filters: &Filters<T>,
        (silu, streamed): (bool, bool),
        states: Array<T>,
        (window, sums): (Array<T>, Array<T>),
    ) {
        // whole lines, so that every vector widened is stored to one of them
        let to_line = window.ptr().align_offset(64).min(MAX_LANES);
        let (before, staged, sums) = (filters.width - 1, window.from(to_line + MAX_LANES).ptr(), sums.ptr());
        for channel in 0..self.channels {
            let mut room = [T::default(); TAPS * MAX_LANES];
            // SAFETY: the caller's contract.
            unsafe {
                let taps = filters.along_time(simd, channel, false, silu, &mut room);
                let states = states.at(channel * TAPS, before).cast_const();
                let stretches = Stretches { taps, before, states, staged, sums, streamed };
                stretches.run(&self, channel);
            }
        }
        if streamed {
            simd.fence();
        }
    }
}

/// A row of one channel on its way.
struct Stretches<T: Real, S: Isa> {
    taps: Taps<T, S>,
    /// W-1
    before: usize,
    /// What lies before the segment.
    states: *const T,
    staged: *mut T,
    sums: *mut T,
    streamed: bool,
}

impl<T: Real, S: Isa> Stretches<T, S> {
    /// # Safety
    /// As [`Rows::convolve`].
    #[inline(always)]
    unsafe fn run(&self, rows: &Rows, channel: usize) {
        let &Rows { x, y, count, begins, .. } = rows;
        let (lanes, size) = (T::lanes::<S>(), x.dtype.size());
        let stretch = STRETCH / size;
        let follow_on = follows::<T, S>(self.taps.width, x.dtype) && x.dtype == y.dtype && !self.streamed;
        // the rows that come next lie as these do
        let rows_ahead = AHEAD.div_ceil(count * size);
        let (mut start, mut last) = (0, None);
        while start < count {
            let first = begins && start == 0;
            let len = (count - start).min(if first { FIRST } else { stretch });
            tile::prefetch_row(x.at(channel + rows_ahead, start), len * size);
            // the last stretch is at least a vector, and overlaps the one before it
            let (at, len) = (start.min(count - lanes), len.max(lanes));
            let (input, output) = (x.at(channel, at), y.at(channel, at));
            // SAFETY: the caller's contract; the stretch and what its taps look at lie inside the row or before its segment.
            unsafe {
                if follow_on && !first && len.is_multiple_of(lanes) {
                    let input = input.wrapping_sub(self.before * size);
                    follow(self.taps, x.dtype, (input, output), len / lanes);
                    (start, last) = (at + len, None);
                    continue;
                }
                let mut from = input.cast::<T>().wrapping_sub(self.before);
                if first || x.dtype != T::DTYPE {
                    from = self.stage(x.dtype, input, len, (first, last.map(|last| at - last)));
                    last = Some(at);
                }
                self.sum(y.dtype, from, output, len);
            }
            start += len;
        }
    }

    /// Converts a stretch of the input, with what lies before it: before the segment if it is the `first`, or at the end of the stretch
    /// before, which is so many elements back and still there. Where that begins.
    ///
    /// # Safety
    /// As [`Rows::convolve`].
    #[inline(always)]
    unsafe fn stage(&self, dtype: DType, input: *const u8, len: usize, (first, back): (bool, Option<usize>)) -> *const T {
        let &Stretches { before, staged, states, .. } = self;
        let simd = self.taps.bias.simd();
        // SAFETY: the caller's contract; there is a vector before `staged`.
        unsafe {
            let from = staged.sub(before);
            match back {
                _ if first => core::ptr::copy_nonoverlapping(states, from, before),
                Some(back) => core::ptr::copy(staged.add(back).sub(before), from, before),
                None => {
                    let looked_at = core::slice::from_raw_parts_mut(from, before);
                    tile::load_row(simd, dtype, input.wrapping_sub(before * dtype.size()), looked_at);
                }
            }
            tile::load_row(simd, dtype, input, core::slice::from_raw_parts_mut(staged, len));
            from
        }
    }

    /// The sums of a stretch, stored as the output wants them.
    ///
    /// # Safety
    /// As [`Rows::convolve`].
    #[inline(always)]
    unsafe fn sum(&self, dtype: DType, from: *const T, output: *mut u8, len: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            if dtype != T::DTYPE {
                line(self.taps, from, self.sums, len, true);
                tile::store_row(self.taps.bias.simd(), core::slice::from_raw_parts(self.sums, len), dtype, output);
            } else if self.streamed {
                stream_line(self.taps, from, output.cast(), len);
            } else {
                line(self.taps, from, output.cast(), len, true);
            }
        }
    }
}

/// [`line`], exactly, with whole vectors stored past the caches.
///
/// # Safety
/// As [`line`].
#[inline(always)]
unsafe fn stream_line<T: Real, S: Isa>(taps: Taps<T, S>, source: *const T, target: *mut T, count: usize) {
    let lanes = T::lanes::<S>();
    // SAFETY: the caller's contract; from `i` on, targets are as aligned as streaming wants them.
    unsafe {
        let mut i = target.align_offset(lanes * size_of::<T>()).min(count);
        if i > 0 {
            line(taps, source, target, i.max(lanes), true);
        }
        while i + 4 * lanes <= count {
            let sums = sums::<T, S, 4>(taps, (source.add(i), lanes as isize));
            for r in 0..4 {
                sums[r].stream(target.add(i + r * lanes));
            }
            i += 4 * lanes;
        }
        if i < count {
            let at = i.min(count - lanes);
            line(taps, source.add(at), target.add(at), count - at, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Level;

    /// The same line stored in every way.
    struct Ways<'x> {
        x: &'x mut [f32],
        y: [&'x mut [f32]; 3],
        count: usize,
    }

    impl Kernel for Ways<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Isa>(self, simd: S) {
            let (mut weight, mut bias) = ([0.5, -1.0, 2.0, 0.25, 0.0, 0.0, 0.0, 0.0], [0.125]);
            let filters = Filters { weight: Array::of(&mut weight), bias: Array::of(&mut bias), width: 4, pitch: 1 };
            let mut room = [0.0; TAPS * MAX_LANES];
            // SAFETY: the filter is there.
            let taps = unsafe { filters.along_time(simd, 0, false, true, &mut room) };
            let [y, streamed, followed] = self.y;
            let vectors = self.count / S::F32_LANES;
            // SAFETY: there are three more inputs than outputs.
            unsafe {
                line(taps, self.x.as_mut_ptr(), y.as_mut_ptr(), self.count, true);
                stream_line(taps, self.x.as_mut_ptr(), streamed.as_mut_ptr(), self.count);
                if S::F32_LANES >= filters.width {
                    follow(taps, DType::F32, (self.x.as_ptr().cast(), followed.as_mut_ptr().cast()), vectors);
                    let rest = vectors * S::F32_LANES..self.count;
                    followed[rest.clone()].copy_from_slice(&y[rest]);
                } else {
                    followed[..self.count].copy_from_slice(&y[..self.count]);
                }
            }
            simd.fence();
        }
    }

    #[test]
    fn lines_are_the_same_in_every_way_and_no_longer() {
        let mut x: Vec<f32> = (0..300).map(|i| (i % 37) as f32 * 0.3 - 5.0).collect();
        for level in Level::available() {
            for offset in 0..17 {
                for count in [16, 17, 31, 64, 65, 100, 130, 200] {
                    let [mut plain, mut streamed, mut followed] = [(); 3].map(|()| vec![7.0; 256]);
                    let y = [&mut plain[offset..], &mut streamed[offset..], &mut followed[offset..]];
                    level.dispatch(Ways { x: &mut x, y, count });
                    assert_eq!(plain, streamed, "{level} {offset} {count}");
                    assert_eq!(plain, followed, "{level} {offset} {count}");
                    assert!(plain[..offset].iter().chain(&plain[offset + count..]).all(|&y| y == 7.0));
                    assert!(plain[offset..][..count].iter().all(|&y| y != 7.0));
                }
            }
        }
    }
}
