//! Rows of time straight from `x` to `y`, whatever their types: forward, where time is contiguous in both.
//!
//! A stretch of a row at a time goes by [`super::follow`] where that is quicker. Else it is widened into the first cache and narrowed on its
//! way out, if it is not of the compute type, and read and written where it lies if it is. The stretch some kilobytes ahead is asked for,
//! since no hardware prefetcher goes on from page to page.

use super::follow::{follow, follows};
use super::*;
use crate::tensor::DType;

/// Bytes of a row that are worked on at once: eight lines, for more at once could not be asked for without waiting.
const STRETCH: usize = 512;

/// Steps at the beginning of a segment that are put behind what lies before it, more than a vector and W-1.
const FIRST: usize = 64;

/// How far ahead rows are asked for, in bytes: four pages.
const AHEAD: usize = 16384;

/// An output of so many bytes leaves the caches before anybody reads it.
const LEAVES_CACHES: usize = 32 << 20;

/// Whether an output is stored past the caches, which saves reading its lines first.
pub(super) fn streams(y: &RawViewMut) -> bool {
    y.shape().iter().product::<usize>() * y.dtype().size() >= LEAVES_CACHES
}

/// Rows of channels in memory.
#[derive(Clone, Copy)]
struct Lines {
    ptr: *mut u8,
    dtype: DType,
    /// From one channel to the next, in bytes.
    pitch: isize,
}

impl Lines {
    /// Those of a (B, D, L) tensor from a channel and a step on, if time is contiguous.
    fn of(view: &View<'_>, batch: usize, channel: usize, step: usize) -> Option<Self> {
        let [row, pitch, along] = [view.strides()[0], view.strides()[1], view.strides()[2]];
        let (dtype, size) = (view.dtype(), view.dtype().size() as isize);
        let start = (batch as isize * row + channel as isize * pitch + step as isize) * size;
        let ptr = view.as_ptr().cast_mut().wrapping_offset(start);
        (along == 1).then_some(Lines { ptr, dtype, pitch: pitch * size })
    }

    #[inline(always)]
    fn at(self, channel: usize, step: usize) -> *mut u8 {
        self.ptr.wrapping_offset(channel as isize * self.pitch).wrapping_add(step * self.dtype.size())
    }
}

/// Steps of neighbouring channels.
pub(super) struct Rows {
    x: Lines,
    y: Lines,
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
        let x = Lines::of(&problem.x, piece.batch, first, piece.start)?;
        let y = Lines::of(&y.as_read(), piece.batch, first, piece.start)?;
        Some(Rows { x, y, channels, count: piece.end - piece.start, begins })
    }

    /// `y = conv(x)`, with silu if asked for. `states` are what lies before the segment, W-1 inputs of each channel, `pitch` apart.
    ///
    /// # Safety
    /// The rows lie inside the tensors and are at least a vector; the filters are those of the channels; `window` has room for a stretch and
    /// two vectors, `sums` for a stretch.
    #[inline(always)]
    pub(super) unsafe fn convolve<T: Real, S: Isa>(
        self,
        simd: S,
        filters: &Filters<'_, T>,
        (silu, streamed): (bool, bool),
        (states, pitch): (*const T, usize),
        (window, sums): (*mut T, *mut T),
    ) {
        let Rows { x, y, channels, count, begins } = self;
        let (lanes, before, size) = (T::lanes::<S>(), filters.width - 1, x.dtype.size());
        let stretch = STRETCH / size;
        // whole lines, so that every vector widened is stored to one of them
        let staged = window.wrapping_add(window.align_offset(64).min(MAX_LANES)).wrapping_add(MAX_LANES);
        let follow_on = follows::<T, S>(filters.width, x.dtype) && x.dtype == y.dtype && !streamed;
        // the rows that come next lie as these do
        let rows_ahead = AHEAD.div_ceil(count * size);
        for channel in 0..channels {
            let mut room = [T::default(); TAPS * MAX_LANES];
            let taps = filters.along_time(simd, channel, false, silu, &mut room);
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
                        follow(taps, x.dtype, (input.wrapping_sub(before * size), output), len / lanes);
                        (start, last) = (at + len, None);
                        continue;
                    }
                    let mut from = input.cast::<T>().wrapping_sub(before);
                    if first || x.dtype != T::DTYPE {
                        from = staged.sub(before);
                        if first {
                            core::ptr::copy_nonoverlapping(states.add(channel * pitch), from, before);
                        } else if let Some(last) = last {
                            // the end of the stretch before, which is still there
                            core::ptr::copy(staged.add(at - last).sub(before), from, before);
                        } else {
                            let looked_at = core::slice::from_raw_parts_mut(from, before);
                            tile::load_row(simd, x.dtype, input.wrapping_sub(before * size), looked_at);
                        }
                        tile::load_row(simd, x.dtype, input, core::slice::from_raw_parts_mut(staged, len));
                        last = Some(at);
                    }
                    if y.dtype != T::DTYPE {
                        line(taps, from, sums, len, true);
                        tile::store_row(simd, core::slice::from_raw_parts(sums, len), y.dtype, output);
                    } else if streamed {
                        stream_line(taps, from, output.cast(), len);
                    } else {
                        line(taps, from, output.cast(), len, true);
                    }
                }
                start += len;
            }
        }
        if streamed {
            simd.fence();
        }
    }
}

/// [`line`], exactly, with whole vectors stored past the caches.
///
/// # Safety
/// As [`line`].
#[inline(always)]
unsafe fn stream_line<T: Real, S: Isa>(taps: Taps<T, S>, source: *mut T, target: *mut T, count: usize) {
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
    use crate::cpu::{Kernel, Level};

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
            let filters = Filters { weight: &mut weight, bias: &mut bias, width: 4 };
            let mut room = [0.0; TAPS * MAX_LANES];
            let taps = filters.along_time(simd, 0, false, true, &mut room);
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
