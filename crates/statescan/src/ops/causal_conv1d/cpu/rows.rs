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

/// Rows of channels in memory.
#[derive(Clone, Copy)]
struct Lines<A> {
    bytes: A,
    dtype: DType,
    /// From one channel to the next, in bytes.
    pitch: isize,
}

impl<'m, A> Lines<ArrayOf<'m, u8, A>> {
    /// Returns the lines of a row of the batch of a (B, D, L) tensor; none if time is not contiguous.
    fn of(bytes: ArrayOf<'m, u8, A>, dtype: DType, strides: &[isize], batch: usize) -> Option<Self> {
        let size = dtype.size() as isize;
        let first = batch as isize * strides[0] * size;
        (strides[2] == 1).then(|| Lines { bytes: bytes.moved(first), dtype, pitch: strides[1] * size })
    }

    #[inline(always)]
    fn distance(&self, channel: usize, step: usize) -> isize {
        channel as isize * self.pitch + (step * self.dtype.size()) as isize
    }

    /// The lines that begin at a channel and a step.
    #[inline(always)]
    fn from(self, channel: usize, step: usize) -> Self {
        let by = self.distance(channel, step);
        Lines { bytes: self.bytes.moved(by), ..self }
    }

    /// Returns the address of a channel and a step, inside or not.
    #[inline(always)]
    fn address(&self, channel: usize, step: usize) -> *const u8 {
        self.bytes.ptr().wrapping_offset(self.distance(channel, step))
    }
}

/// Steps of neighbouring channels.
pub(super) struct Rows<'m> {
    x: Lines<Array<'m, u8>>,
    y: Lines<ArrayMut<'m, u8>>,
    channels: usize,
    count: usize,
    /// Whether a segment begins here.
    begins: bool,
}

impl<'m> Rows<'m> {
    /// The steps of a slice, if they lie in a way that allows it; `begins` says that its segment begins with it.
    ///
    /// # Safety
    /// As for [`Divided::part`], of these steps and channels of `y`.
    pub(super) unsafe fn new(
        problem: &Problem<'m>,
        y: &RawViewMut,
        slice: &Slice,
        begins: bool,
        (first, channels): (usize, usize),
    ) -> Option<Self> {
        let x = &problem.x;
        let x = Lines::of(Array::bytes_of(x), x.dtype(), &x.strides(), slice.batch)?.from(first, slice.start);
        // SAFETY: the contract above.
        let bytes = unsafe { Divided::bytes_of(y).part(0) };
        let y = Lines::of(bytes, y.dtype(), &y.strides(), slice.batch)?.from(first, slice.start);
        Some(Rows { x, y, channels, count: slice.end - slice.start, begins })
    }

    /// `y = conv(x)`, with silu if asked for. `states` are what lies before the segment, W-1 inputs of each channel, TAPS apart.
    #[inline(always)]
    pub(super) fn convolve<T: Real, S: Isa>(
        mut self,
        simd: S,
        filters: &Filters<'_, T>,
        (silu, streamed): (bool, bool),
        states: Array<'_, T>,
        [window, sums]: [&mut ArrayMut<'_, T>; 2],
    ) {
        // whole lines, so that every vector widened is stored to one of them
        let to_line = window.ptr().align_offset(64).min(MAX_LANES);
        let (before, mut staged) = (filters.width - 1, window.from(to_line + MAX_LANES));
        for channel in 0..self.channels {
            let mut room = [T::default(); TAPS * MAX_LANES];
            let taps = filters.along_time(simd, channel, false, silu, &mut room);
            let states = states.from(channel * TAPS);
            let sums = Sums { taps, room: sums.reborrow(), streamed };
            Stretches { before, states, staged: staged.reborrow(), sums }.run(&mut self, channel);
        }
        if streamed {
            simd.fence();
        }
    }
}

/// A row of one channel on its way.
struct Stretches<'s, T: Real, S: Isa> {
    /// W-1
    before: usize,
    /// The inputs before the segment.
    states: Array<'s, T>,
    staged: ArrayMut<'s, T>,
    sums: Sums<'s, T, S>,
}

impl<T: Real, S: Isa> Stretches<'_, T, S> {
    #[inline(always)]
    fn run(&mut self, rows: &mut Rows<'_>, channel: usize) {
        let &mut Rows { x, ref mut y, count, begins, .. } = rows;
        let (lanes, size, taps) = (T::lanes::<S>(), x.dtype.size(), self.sums.taps);
        let stretch = STRETCH / size;
        let follow_on = follows::<T, S>(taps.width, x.dtype) && x.dtype == y.dtype && !self.sums.streamed;
        // the rows that come next lie as these do
        let rows_ahead = AHEAD.div_ceil(count * size);
        let (mut start, mut last) = (0, None);
        while start < count {
            let first = begins && start == 0;
            let len = (count - start).min(if first { FIRST } else { stretch });
            tile::prefetch_row(x.address(channel + rows_ahead, start), len * size);
            // the last stretch is at least a vector, and overlaps the one before it
            let (at, len) = (start.min(count - lanes), len.max(lanes));
            let (input, by) = (x.from(channel, at).bytes, y.distance(channel, at));
            let output = y.bytes.reborrow().moved(by);
            if follow_on && !first && len.is_multiple_of(lanes) {
                let input = input.moved(-((self.before * size) as isize));
                follow(taps, x.dtype, (input, output), len / lanes);
                (start, last) = (at + len, None);
                continue;
            }
            let from = if first || x.dtype != T::DTYPE {
                let back = last.replace(at).map(|last| at - last);
                self.stage(x.dtype, input, len, (first, back));
                self.staged.read().moved(-(self.before as isize))
            } else {
                input.elements::<T>().moved(-(self.before as isize))
            };
            self.sums.stretch(y.dtype, from, output, len);
            start += len;
        }
    }

    /// Converts a stretch of the input, with what lies before it: before the segment if it is the `first`, or at the end of the stretch
    /// before, which is so many elements back and still there.
    #[inline(always)]
    fn stage(&mut self, dtype: DType, input: Array<'_, u8>, len: usize, (first, back): (bool, Option<usize>)) {
        let (before, simd) = (self.before, self.sums.taps.bias.simd());
        let mut to = self.staged.reborrow().moved(-(before as isize));
        match back {
            _ if first => to.slice(0, before).copy_from_slice(self.states.shared(0, before)),
            Some(back) => to.slice(0, back + before).copy_within(back.., 0),
            None => {
                let input = input.moved(-((before * dtype.size()) as isize));
                tile::load_row(simd, dtype, input, to.slice(0, before));
            }
        }
        tile::load_row(simd, dtype, input, to.slice(before, len));
    }
}

/// The sums of a row.
struct Sums<'s, T: Real, S: Isa> {
    taps: Taps<'s, T, S>,
    /// For what is converted on its way out.
    room: ArrayMut<'s, T>,
    streamed: bool,
}

impl<T: Real, S: Isa> Sums<'_, T, S> {
    /// Computes the sums of a stretch, stored as the output wants them.
    #[inline(always)]
    fn stretch(&mut self, dtype: DType, from: Array<'_, T>, output: ArrayMut<'_, u8>, len: usize) {
        if dtype != T::DTYPE {
            line(self.taps, from, self.room.reborrow(), len, true);
            tile::store_row(self.taps.bias.simd(), self.room.shared(0, len), dtype, output);
        } else if self.streamed {
            stream_line(self.taps, from, output.elements(), len);
        } else {
            line(self.taps, from, output.elements(), len, true);
        }
    }
}

/// [`line`], exactly, with whole vectors stored past the caches.
#[inline(always)]
fn stream_line<T: Real, S: Isa>(taps: Taps<'_, T, S>, source: Array<'_, T>, mut target: ArrayMut<'_, T>, count: usize) {
    let lanes = T::lanes::<S>();
    let mut i = target.ptr().align_offset(lanes * size_of::<T>()).min(count);
    if i > 0 {
        line(taps, source, target.reborrow(), i.max(lanes), true);
    }
    while i + 4 * lanes <= count {
        let sums = sums::<T, S, 4>(taps, (source.from(i), lanes as isize));
        for r in 0..4 {
            target.stream(i + r * lanes, sums[r]);
        }
        i += 4 * lanes;
    }
    if i < count {
        let at = i.min(count - lanes);
        line(taps, source.from(at), target.from(at), count - at, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Level;

    /// Stores one line in every way.
    struct Ways<'x> {
        x: &'x [f32],
        y: [&'x mut [f32]; 3],
        count: usize,
    }

    impl Kernel for Ways<'_> {
        type Output = ();
        const EVERY_LEVEL: bool = true;
        #[inline(always)]
        fn run<S: Isa>(self, simd: S) {
            let (weight, bias) = ([0.5, -1.0, 2.0, 0.25, 0.0, 0.0, 0.0, 0.0], [0.125]);
            let filters = Filters { weight: Array::of(&weight), bias: Array::of(&bias), width: 4, pitch: 1 };
            let mut room = [0.0; TAPS * MAX_LANES];
            let taps = filters.along_time(simd, 0, false, true, &mut room);
            let [y, streamed, followed] = self.y;
            let vectors = self.count / S::F32_LANES;
            line(taps, Array::of(self.x), ArrayMut::of(y), self.count, true);
            stream_line(taps, Array::of(self.x), ArrayMut::of(streamed), self.count);
            if S::F32_LANES >= filters.width {
                let bytes = (bytemuck::cast_slice(self.x), bytemuck::cast_slice_mut(followed));
                follow(taps, DType::F32, (Array::of(bytes.0), ArrayMut::of(bytes.1)), vectors);
                let rest = vectors * S::F32_LANES..self.count;
                followed[rest.clone()].copy_from_slice(&y[rest]);
            } else {
                followed[..self.count].copy_from_slice(&y[..self.count]);
            }
            simd.fence();
        }
    }

    #[test]
    fn lines_are_the_same_in_every_way_and_no_longer() {
        let x: Vec<f32> = (0..300).map(|i| (i % 37) as f32 * 0.3 - 5.0).collect();
        for level in Level::available() {
            for offset in 0..17 {
                for count in [16, 17, 31, 64, 65, 100, 130, 200] {
                    let [mut plain, mut streamed, mut followed] = [(); 3].map(|()| vec![7.0; 256]);
                    let y = [&mut plain[offset..], &mut streamed[offset..], &mut followed[offset..]];
                    level.dispatch(Ways { x: &x, y, count });
                    assert_eq!(plain, streamed, "{level} {offset} {count}");
                    assert_eq!(plain, followed, "{level} {offset} {count}");
                    assert!(plain[..offset].iter().chain(&plain[offset + count..]).all(|&y| y == 7.0));
                    assert!(plain[offset..][..count].iter().all(|&y| y != 7.0));
                }
            }
        }
    }
}
