//! Asking for rows ahead of their use, a few at a time. Rows lie a power of two apart, and no hardware prefetcher follows 64 of them;
//! a processor has room for sixteen lines on their way, and whoever asks for more at once waits for them.

use super::plane::{Plane, prefetch_row};
use core::hint::select_unpredictable;

/// Bytes of a small page.
const PAGE: usize = 4096;

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

impl Area {
    /// Rows are contiguous along either axis; other planes have none. Any position is allowed: an address outside the tensor is never touched.
    #[inline(always)]
    fn rows(self) -> Option<Rows> {
        let Area { plane, lanes, steps } = self;
        let (left, step, len) = match (plane.lane_step, plane.time_step) {
            (_, 1) => (lanes, plane.lane_step, steps),
            (1, _) => (steps, plane.time_step, lanes),
            _ => return None,
        };
        let size = plane.dtype.size();
        Some(Rows { first: plane.ptr, step: step * size as isize, left, bytes: len * size })
    }

    /// Asks for all of it at once.
    #[inline(always)]
    pub(crate) fn ask(self) {
        let Some(Rows { mut first, step, left, bytes }) = self.rows() else { return };
        for _ in 0..left {
            prefetch_row(first, bytes);
            first = first.wrapping_offset(step);
        }
    }
}

/// Areas whose rows are asked for one after the other.
pub(crate) struct Requests<const MOST: usize> {
    areas: [Rows; MOST],
    count: usize,
    /// Rows of all areas.
    total: usize,
    current: usize,
    /// Work that they are spread over, and what adds up to that for each row.
    work: isize,
    due: isize,
}

impl<const MOST: usize> Requests<MOST> {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        let nothing = Rows { first: core::ptr::null(), step: 0, left: 0, bytes: 0 };
        Requests { areas: [nothing; MOST], count: 0, total: 0, current: 0, work: 1, due: 0 }
    }

    /// One more area; beyond `MOST` nothing is asked for.
    #[inline(always)]
    pub(crate) fn add(&mut self, area: Area) {
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

    /// To be asked for evenly while so much work is done, in whatever unit.
    #[inline(always)]
    pub(crate) fn spread(&mut self, work: usize) {
        self.work = work.max(1) as isize;
    }

    /// Asks at once for the first lines of rows on pages that the rows asked for before were not on, if each begins `apart` times its length
    /// before the one of its area that was asked for last. Where a page lies has to be looked up, which whoever asks waits for; several are looked
    /// up at the same time.
    #[inline(always)]
    pub(crate) fn ask_pages_below(&self, apart: usize) {
        let here = (&raw const *self).cast();
        for rows in self.areas.iter().take(self.count) {
            let mut first = rows.first;
            for _ in 0..rows.left {
                // without a branch, which would be taken for one row of many: to ask for a line that is here costs less than a wrong guess
                prefetch_row(select_unpredictable(is_last_on_page(first, apart * rows.bytes), first, here), 1);
                first = first.wrapping_offset(rows.step);
            }
        }
    }

    /// Asks for what is due with so much more work.
    #[inline(always)]
    pub(crate) fn ask(&mut self, work: usize) {
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

/// Whether a row is the first on its page that is asked for by who comes from the next one in steps of so many bytes.
#[inline(always)]
fn is_last_on_page(row: *const u8, step: usize) -> bool {
    row as usize % PAGE + step >= PAGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::View;

    #[test]
    fn going_down_one_row_of_each_page_is_the_first() {
        for (step, offset) in [(256, 0), (256, 64), (512, 192), (1024, 0), (5000, 3)] {
            let rows = (0..64).rev().map(|i| offset + i * step);
            let mut before = usize::MAX;
            for row in rows {
                let page = row / PAGE;
                assert_eq!(is_last_on_page(core::ptr::without_provenance(row), step), page != before, "{step} {row}");
                before = page;
            }
        }
    }

    #[test]
    fn every_row_is_asked_for_within_the_work_announced() {
        let data = vec![0.0f32; 64 * 40];
        let view = View::new(&data, &[40, 64]).unwrap();
        let plane = Plane::of(&view, 0, 1);
        let strided = Plane::strided(&view, 128, 2);
        let area = |plane, lanes| Area { plane, lanes, steps: 50 };
        for (calls, work) in [(1, 20), (3, 1), (7, 6), (200, 1)] {
            let mut requests = Requests::<4>::new();
            requests.ask(work);
            for area in [area(plane, 16), area(strided, 16), area(plane.transposed(), 8)] {
                requests.add(area);
            }
            requests.add_rows(data.as_ptr(), 64, 8, 16);
            requests.spread(calls * work);
            assert_eq!(requests.areas.map(|rows| rows.left), [16, 50, 8, 0], "steps are the rows of the last plane");
            assert_eq!(requests.areas.map(|rows| rows.bytes), [200, 32, 64, 0]);
            for call in 1..=calls {
                requests.ask(work);
                let left: usize = requests.areas.iter().map(|rows| rows.left).sum();
                assert_eq!(left, 74 - 74 * call / calls, "evenly");
            }
            assert_eq!(requests.areas.map(|rows| rows.left), [0; 4]);
            let end = plane.ptr.wrapping_add(16 * 256).cast_const();
            assert_eq!(requests.areas[0].first, end, "one row after the other");
            requests.ask(work);
            assert_eq!(requests.areas[0].first, end, "and no more");
        }
    }

    #[test]
    fn areas_without_room_are_left_out() {
        let mut requests = Requests::<2>::new();
        (1..4).for_each(|rows| requests.add_rows([0.0f32].as_ptr(), 0, rows, 1));
        assert_eq!((requests.total, requests.areas.map(|rows| rows.left)), (3, [1, 2]));
        requests.ask(10);
        assert_eq!(requests.areas.map(|rows| rows.left), [0; 2]);
    }
}
