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

/// What lanes x steps of a plane take up.
#[derive(Clone, Copy)]
pub(crate) struct Area {
    pub plane: Plane,
    pub lanes: usize,
    pub steps: usize,
}

/// Areas whose rows are asked for one after the other.
pub(crate) struct Requests<const AREAS: usize> {
    areas: [Rows; AREAS],
    current: usize,
    at_once: usize,
}

impl<const AREAS: usize> Requests<AREAS> {
    /// In as many calls of [`Requests::ask`] as are announced. Rows are contiguous along either axis; other planes are left out. Any
    /// position is allowed: an address outside the tensor is never touched.
    #[inline(always)]
    pub(crate) fn new(areas: [Option<Area>; AREAS], calls: usize) -> Self {
        let mut all = [Rows { first: core::ptr::null(), step: 0, left: 0, bytes: 0 }; AREAS];
        let mut total = 0;
        for (rows, area) in all.iter_mut().zip(areas) {
            let Some(Area { plane, lanes, steps }) = area else { continue };
            let (left, step, len) = match (plane.lane_step, plane.time_step) {
                (_, 1) => (lanes, plane.lane_step, steps),
                (1, _) => (steps, plane.time_step, lanes),
                _ => continue,
            };
            let size = plane.dtype.size();
            *rows = Rows { first: plane.ptr, step: step * size as isize, left, bytes: len * size };
            total += left;
        }
        Requests { areas: all, current: 0, at_once: total.div_ceil(calls.max(1)) }
    }

    /// Asks for the next ones.
    #[inline(always)]
    pub(crate) fn ask(&mut self) {
        for _ in 0..self.at_once {
            while let Some(Rows { left: 0, .. }) = self.areas.get(self.current) {
                self.current += 1;
            }
            let Some(rows) = self.areas.get_mut(self.current) else { return };
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
        let area = |plane, lanes| Some(Area { plane, lanes, steps: 50 });
        let all = [area(plane, 16), None, area(strided, 16), area(plane.transposed(), 8)];
        for calls in [1, 3, 7, 200] {
            let mut requests = Requests::new(all, calls);
            assert_eq!(requests.areas.map(|rows| rows.left), [16, 0, 0, 50], "steps are the rows of the last one");
            assert_eq!(requests.areas.map(|rows| rows.bytes), [200, 0, 0, 32]);
            for _ in 0..calls {
                requests.ask();
            }
            assert_eq!(requests.areas.map(|rows| rows.left), [0; 4]);
            let end = plane.ptr.wrapping_add(16 * 256).cast_const();
            assert_eq!(requests.areas[0].first, end, "one row after the other");
            requests.ask();
            assert_eq!(requests.areas[0].first, end, "and no more");
        }
    }
}
