//! How tiles come out of global memory.

use crate::layout::is_aligned;
use crate::{Layout, Scalar, Value};

/// How a tile comes out of global memory: `Copy` of `common.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TileCopy {
    /// 16 bytes at a time along the steps.
    TimeVector,
    /// 16 bytes at a time along the steps, with lines that begin anywhere.
    TimeShifted,
    /// Neighbouring threads take neighbouring steps.
    Time,
    /// 16 bytes at a time along the rows.
    RowVector,
    /// 16 bytes at a time along the rows, with lines that begin anywhere.
    RowShifted,
    /// Neighbouring threads take neighbouring rows.
    Row,
}

impl TileCopy {
    /// The way for a tensor whose axes `row` and `time` a kernel walks in tiles of `rows` x `steps`.
    pub fn of(tensor: &impl Layout, row: usize, time: usize, rows: usize, steps: usize) -> Self {
        let (shape, strides, size) = (tensor.shape(), tensor.strides(), tensor.scalar().size());
        let whole = |elements: usize| (elements * size).is_multiple_of(16);
        // 16 bytes at a time: neighbours contiguous, every line of every tile aligned
        let vector = |axis: usize, line: usize| strides[axis] == 1 && whole(line) && is_aligned(tensor, axis, 16);
        // lines may begin anywhere here, and begin alike in all tiles
        let shifted = |axis: usize, line: usize| {
            strides[axis] == 1 && whole(line) && whole(steps) && tensor.address().is_multiple_of(size as u64)
        };
        let near = |axis: usize| shape[axis] < 2 || strides[axis].unsigned_abs() == 1;
        match (near(time), near(row)) {
            _ if vector(time, steps) => TileCopy::TimeVector,
            _ if vector(row, rows) => TileCopy::RowVector,
            _ if shifted(time, steps) => TileCopy::TimeShifted,
            _ if shifted(row, rows) => TileCopy::RowShifted,
            (false, true) => TileCopy::Row,
            _ => TileCopy::Time,
        }
    }

    /// Whether four neighbouring steps are one aligned group in memory.
    pub fn has_quads(tensor: &impl Layout, time: usize) -> bool {
        tensor.strides()[time] == 1 && is_aligned(tensor, time, (4 * tensor.scalar().size()).min(16))
    }

    /// Whether neighbouring threads take neighbouring steps.
    pub fn by_time(self) -> bool {
        matches!(self, TileCopy::TimeVector | TileCopy::TimeShifted | TileCopy::Time)
    }

    /// The constant in a program.
    pub fn value(self) -> Value {
        let name = match self {
            TileCopy::TimeVector => "TimeVector",
            TileCopy::TimeShifted => "TimeShifted",
            TileCopy::Time => "Time",
            TileCopy::RowVector => "RowVector",
            TileCopy::RowShifted => "RowShifted",
            TileCopy::Row => "Row",
        };
        Value::Name("Copy", name)
    }

    /// Bytes that a tile takes in shared memory: lines in whole units of 16 bytes and one more, as `RawTile` has them.
    pub fn bytes(self, scalar: impl Into<Scalar>, rows: usize, steps: usize) -> usize {
        self.lines(scalar.into(), rows, steps, 16)
    }

    /// Bytes that a tile takes in shared memory without the unit more, unless lines are shifted into it.
    pub fn dense_bytes(self, scalar: impl Into<Scalar>, rows: usize, steps: usize) -> usize {
        let shifted = matches!(self, TileCopy::TimeShifted | TileCopy::RowShifted);
        self.lines(scalar.into(), rows, steps, if shifted { 16 } else { 0 })
    }

    fn lines(self, scalar: Scalar, rows: usize, steps: usize, more: usize) -> usize {
        let (line, lines) = if self.by_time() { (steps, rows) } else { (rows, steps) };
        ((line * scalar.size()).next_multiple_of(16) + more) * lines
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::testing::Described;

    #[test]
    fn wide_copies_need_contiguous_aligned_lines() {
        let tensor = |shape: &[usize], strides: &[isize], offset: usize| Described::strided(Scalar::F32, offset, shape, strides);
        let of = |tensor: Described| TileCopy::of(&tensor, 1, 2, 8, 32);
        assert_eq!(of(tensor(&[2, 8, 64], &[512, 64, 1], 0)), TileCopy::TimeVector);
        assert_eq!(of(tensor(&[2, 8, 64], &[512, 64, 1], 1)), TileCopy::TimeShifted);
        assert_eq!(of(tensor(&[2, 8, 63], &[504, 63, 1], 0)), TileCopy::TimeShifted);
        assert_eq!(of(tensor(&[2, 8, 64], &[512, 1, 8], 0)), TileCopy::RowVector);
        assert_eq!(of(tensor(&[2, 8, 64], &[512, 1, 8], 2)), TileCopy::RowShifted);
        // lines of no whole number of 16 bytes, and tiles whose lines begin elsewhere in each
        assert_eq!(TileCopy::of(&tensor(&[2, 6, 64], &[384, 1, 6], 0), 1, 2, 6, 32), TileCopy::Row);
        assert_eq!(TileCopy::of(&tensor(&[2, 8, 63], &[504, 63, 1], 0), 1, 2, 8, 2), TileCopy::Time);
        assert_eq!(of(tensor(&[2, 8, 64], &[1024, 128, 2], 0)), TileCopy::Time);
        assert_eq!(of(tensor(&[2, 8, 64], &[512, 64, -1], 63)), TileCopy::Time);
        // the stride of an axis of one element does not matter
        assert_eq!(of(tensor(&[1, 8, 64], &[3, 64, 1], 0)), TileCopy::TimeVector);
    }

    #[test]
    fn lines_of_tiles_are_padded() {
        assert_eq!(TileCopy::TimeVector.bytes(Scalar::BF16, 32, 16), 32 * 48);
        assert_eq!(TileCopy::Row.bytes(Scalar::F32, 5, 16), 16 * 48);
        assert_eq!(TileCopy::Row.dense_bytes(Scalar::F32, 5, 16), 16 * 32);
        let shifted = TileCopy::TimeShifted;
        assert_eq!(shifted.dense_bytes(Scalar::BF16, 32, 16), shifted.bytes(Scalar::BF16, 32, 16));
    }
}
