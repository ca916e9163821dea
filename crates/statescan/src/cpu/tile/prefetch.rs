//! Paced prefetch: rows are fetched ahead of their use, a few at a time. Rows lie a power of two apart, and no hardware prefetcher follows 64
//! of them; a processor has room for sixteen lines on their way, and a thread that prefetches more at once waits for them.

use super::plane::{Area, AreaOf, prefetch_row};

/// Rows of as many bytes, so many bytes apart, still to be prefetched.
#[derive(Clone, Copy)]
struct Rows {
    first: *const u8,
    step: isize,
    left: usize,
    bytes: usize,
}

impl Area<'_> {
    /// Rows are contiguous along either axis; other planes have none.
    #[inline(always)]
    fn rows(self) -> Option<Rows> {
        let AreaOf { plane, lanes, steps } = self;
        let (left, step, len) = match (plane.lane_step, plane.time_step) {
            (_, 1) => (lanes, plane.lane_step, steps),
            (1, _) => (steps, plane.time_step, lanes),
            _ => return None,
        };
        let size = plane.dtype.size();
        Some(Rows { first: plane.ptr(), step: step * size as isize, left, bytes: len * size })
    }

    /// Prefetches all of it at once.
    #[inline(always)]
    pub(crate) fn prefetch(self) {
        let Some(Rows { mut first, step, left, bytes }) = self.rows() else { return };
        for _ in 0..left {
            prefetch_row(first, bytes);
            first = first.wrapping_offset(step);
        }
    }
}

/// Areas whose rows are prefetched one after the other.
pub(crate) struct Prefetch<const MOST: usize> {
    areas: [Rows; MOST],
    count: usize,
    /// Rows of all areas.
    total: usize,
    current: usize,
    /// Work that they are spread over, and what adds up to that for each row.
    work: isize,
    due: isize,
}

impl<const MOST: usize> Prefetch<MOST> {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        let nothing = Rows { first: core::ptr::null(), step: 0, left: 0, bytes: 0 };
        Prefetch { areas: [nothing; MOST], count: 0, total: 0, current: 0, work: 1, due: 0 }
    }

    /// One more area; beyond `MOST` nothing is prefetched.
    #[inline(always)]
    pub(crate) fn add(&mut self, area: Area<'_>) {
        if let Some(rows) = area.rows() {
            self.push(rows);
        }
    }

    /// Rows of `count` elements, `pitch` elements apart: one more area.
    #[inline(always)]
    pub(crate) fn add_rows<T>(&mut self, first: *const T, pitch: usize, rows: usize, count: usize) {
        let size = size_of::<T>();
        self.push(Rows { first: first.cast(), step: (pitch * size) as isize, left: rows, bytes: count * size });
    }

    #[inline(always)]
    fn push(&mut self, rows: Rows) {
        let Some(slot) = self.areas.get_mut(self.count) else { return };
        *slot = rows;
        self.count += 1;
        self.total += rows.left;
    }

    /// Spreads the rows evenly over so much work, in whatever unit.
    #[inline(always)]
    pub(crate) fn spread(&mut self, work: usize) {
        self.work = work.max(1) as isize;
    }

    /// Prefetches what is due after so much more work.
    #[inline(always)]
    pub(crate) fn step(&mut self, work: usize) {
        self.due += (self.total * work) as isize;
        while self.due >= self.work {
            self.due -= self.work;
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
    use crate::cpu::tile::Plane;
    use crate::tensor::View;

    #[test]
    fn every_row_is_prefetched_within_the_work_announced() {
        let data = vec![0.0f32; 64 * 40];
        let view = View::new(&data, &[40, 64]).unwrap();
        let plane = Plane::of(&view, 0, 1);
        let strided = Plane::strided(&view, 128, 2);
        for (calls, work) in [(1, 20), (3, 1), (7, 6), (200, 1)] {
            let mut prefetch = Prefetch::<4>::new();
            prefetch.step(work);
            for area in [(plane, 16), (strided, 16), (plane.transposed(), 8)].map(|(plane, lanes)| plane.area(lanes, 50)) {
                prefetch.add(area);
            }
            prefetch.add_rows(data.as_ptr(), 64, 8, 16);
            prefetch.spread(calls * work);
            assert_eq!(prefetch.areas.map(|rows| rows.left), [16, 50, 8, 0], "steps are the rows of the last plane");
            assert_eq!(prefetch.areas.map(|rows| rows.bytes), [200, 32, 64, 0]);
            for call in 1..=calls {
                prefetch.step(work);
                let left: usize = prefetch.areas.iter().map(|rows| rows.left).sum();
                assert_eq!(left, 74 - 74 * call / calls, "evenly");
            }
            assert_eq!(prefetch.areas.map(|rows| rows.left), [0; 4]);
            let end = plane.ptr().wrapping_add(16 * 256);
            assert_eq!(prefetch.areas[0].first, end, "one row after the other");
            prefetch.step(work);
            assert_eq!(prefetch.areas[0].first, end, "and no more");
        }
    }

    #[test]
    fn areas_without_room_are_left_out() {
        let mut prefetch = Prefetch::<2>::new();
        (1..4).for_each(|rows| prefetch.add_rows([0.0f32].as_ptr(), 0, rows, 1));
        assert_eq!((prefetch.total, prefetch.areas.map(|rows| rows.left)), (3, [1, 2]));
        prefetch.step(10);
        assert_eq!(prefetch.areas.map(|rows| rows.left), [0; 2]);
    }
}
