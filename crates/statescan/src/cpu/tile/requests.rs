//! Asking for rows ahead of their use, a few at a time. Rows lie a power of two apart, and no hardware prefetcher follows 64 of them;
//! a processor has room for sixteen lines on their way, and whoever asks for more at once waits for them.

use super::plane::{Plane, prefetch_row};

/// Rows of as many bytes, so many bytes apart, still to be asked for.
#[derive(Clone, Copy)]
struct Rows {
    first: *const u8,
    step: isize,
    left: usize,
    bytes: usize,
}

/// Planes whose rows are asked for one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Requests<const PLANES: usize> {
    planes: [Rows; PLANES],
    current: usize,
    at_once: usize,
}

impl<const PLANES: usize> Requests<PLANES> {
    /// Of lanes x steps of these planes, in as many calls of [`Requests::ask`] as are announced. Rows are contiguous along either axis;
    /// other planes are left out. Any position is allowed: an address outside the tensor is never touched.
    #[inline(always)]
    pub(crate) fn new(planes: [Option<Plane>; PLANES], [lanes, steps]: [usize; 2], calls: usize) -> Self {
        let mut rows = [Rows { first: core::ptr::null(), step: 0, left: 0, bytes: 0 }; PLANES];
        let mut total = 0;
        for (rows, plane) in rows.iter_mut().zip(planes) {
            let Some(plane) = plane else { continue };
            let (left, step, len) = match (plane.lane_step, plane.time_step) {
                (_, 1) => (lanes, plane.lane_step, steps),
                (1, _) => (steps, plane.time_step, lanes),
                _ => continue,
            };
            let size = plane.dtype.size();
            *rows = Rows { first: plane.ptr, step: step * size as isize, left, bytes: len * size };
            total += left;
        }
        Requests { planes: rows, current: 0, at_once: total.div_ceil(calls.max(1)) }
    }

    /// Asks for the next ones.
    #[inline(always)]
    pub(crate) fn ask(&mut self) {
        for _ in 0..self.at_once {
            while let Some(Rows { left: 0, .. }) = self.planes.get(self.current) {
                self.current += 1;
            }
            let Some(rows) = self.planes.get_mut(self.current) else { return };
            prefetch_row(rows.first, rows.bytes);
            rows.first = rows.first.wrapping_offset(rows.step);
            rows.left -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::View;

    #[test]
    fn every_row_is_asked_for_within_the_calls_announced() {
        let data = vec![0.0f32; 64 * 40];
        let view = View::new(&data, &[40, 64]).unwrap();
        let plane = Plane::of(&view, 0, 1);
        let strided = Plane::strided(&view, 128, 2);
        let planes = [Some(plane), None, Some(strided), Some(plane.transposed())];
        for calls in [1, 3, 7, 200] {
            let mut requests = Requests::new(planes, [16, 50], calls);
            assert_eq!(requests.planes.map(|rows| rows.left), [16, 0, 0, 50], "steps are the rows of the last one");
            assert_eq!(requests.planes.map(|rows| rows.bytes), [200, 0, 0, 64]);
            for _ in 0..calls {
                requests.ask();
            }
            assert_eq!(requests.planes.map(|rows| rows.left), [0; 4]);
            let end = plane.ptr.wrapping_add(16 * 256).cast_const();
            assert_eq!(requests.planes[0].first, end, "one row after the other");
            requests.ask();
            assert_eq!(requests.planes[0].first, end, "and no more");
        }
    }
}
