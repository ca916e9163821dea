//! The configuration of a kernel: the constants that make its text specific. Small, printable, hashable.

use crate::tensor::{DType, View};
use core::cell::Cell;
use core::fmt;
use core::hash::{Hash, Hasher};

/// How a tile comes out of global memory (see `common.cuh`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum TileCopy {
    TimeVector,
    TimeShifted,
    Time,
    RowVector,
    RowShifted,
    Row,
}

impl TileCopy {
    /// The way for a view whose axes `row` and `time` a kernel walks in tiles of `rows` x `steps`.
    pub(crate) fn of(view: &View<'_>, row: usize, time: usize, rows: usize, steps: usize) -> Self {
        let (strides, size) = (view.strides(), view.dtype().size());
        // 16 bytes at a time: neighbours contiguous, every line of every tile aligned
        let vector = |axis: usize, line: usize| {
            let aligned = |bytes: usize| bytes.is_multiple_of(16);
            strides[axis] == 1
                && aligned(line * size)
                && aligned(view.as_ptr() as usize)
                && (0..strides.len())
                    .all(|a| a == axis || view.shape()[a] < 2 || aligned(strides[a].unsigned_abs().wrapping_mul(size)))
        };
        // the same from wherever lines begin, which must not differ from tile to tile
        let shifted = |axis: usize, line: usize| {
            let whole = |elements: usize| (elements * size).is_multiple_of(16);
            strides[axis] == 1 && whole(line) && whole(steps) && (view.as_ptr() as usize).is_multiple_of(size)
        };
        let near = |axis: usize| view.shape()[axis] < 2 || strides[axis].unsigned_abs() == 1;
        match (near(time), near(row)) {
            _ if vector(time, steps) => TileCopy::TimeVector,
            _ if vector(row, rows) => TileCopy::RowVector,
            _ if shifted(time, steps) => TileCopy::TimeShifted,
            _ if shifted(row, rows) => TileCopy::RowShifted,
            (false, true) => TileCopy::Row,
            _ => TileCopy::Time,
        }
    }

    /// Whether four neighbouring steps are one aligned piece of memory.
    pub(crate) fn has_quads(view: &View<'_>, time: usize) -> bool {
        let (strides, size) = (view.strides(), view.dtype().size());
        let aligned = |bytes: usize| bytes.is_multiple_of((4 * size).min(16));
        strides[time] == 1
            && aligned(view.as_ptr() as usize)
            && (0..strides.len())
                .all(|a| a == time || view.shape()[a] < 2 || aligned(strides[a].unsigned_abs().wrapping_mul(size)))
    }

    /// Whether neighbouring threads take neighbouring steps.
    pub(crate) fn by_time(self) -> bool {
        matches!(self, TileCopy::TimeVector | TileCopy::TimeShifted | TileCopy::Time)
    }

    /// Bytes that a tile takes in shared memory: lines in whole units of 16 bytes and one more, as `RawTile` has them.
    pub(crate) fn bytes(self, dtype: DType, rows: usize, steps: usize) -> usize {
        self.lines(dtype, rows, steps, 16)
    }

    /// The same without the unit more, unless lines are shifted into it.
    pub(crate) fn dense_bytes(self, dtype: DType, rows: usize, steps: usize) -> usize {
        let shifted = matches!(self, TileCopy::TimeShifted | TileCopy::RowShifted);
        self.lines(dtype, rows, steps, if shifted { 16 } else { 0 })
    }

    fn lines(self, dtype: DType, rows: usize, steps: usize, more: usize) -> usize {
        let (line, lines) = if self.by_time() { (steps, rows) } else { (rows, steps) };
        ((line * dtype.size()).next_multiple_of(16) + more) * lines
    }
}

/// How many neighbours along an axis one access of at most 16 bytes can take, a power of two up to `most`: pieces that start at multiples
/// of so many lie side by side and are aligned wherever the other axes go.
pub(crate) fn neighbours(view: &View<'_>, axis: usize, most: usize) -> usize {
    let (strides, size) = (view.strides(), view.dtype().size());
    let fits = |count: &usize| {
        let aligned = |bytes: usize| bytes.is_multiple_of(count * size);
        count * size <= 16
            && *count <= most
            && strides[axis] == 1
            && aligned(view.as_ptr() as usize)
            && (0..strides.len())
                .all(|a| a == axis || view.shape()[a] < 2 || aligned(strides[a].unsigned_abs().wrapping_mul(size)))
    };
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// The value of a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    Type(DType),
    Int(usize),
    Flag(bool),
    Copy(TileCopy),
    /// A variant of an enumeration in the text: its type and its name.
    Name(&'static str, &'static str),
}

type Line = (&'static str, Value);

thread_local! {
    /// The lines of the last configuration on this thread, for the memory that they have: one is made for nearly every launch.
    static SPARE: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Named constants in a fixed order.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    lines: Vec<Line>,
}

impl Default for Config {
    fn default() -> Self {
        let mut lines = SPARE.take();
        lines.clear();
        Config { lines }
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        SPARE.set(core::mem::take(&mut self.lines));
    }
}

impl Config {
    /// Two configurations of a kernel have the same names: their values tell them apart.
    fn values(&self) -> impl Iterator<Item = Value> {
        self.lines.iter().map(|&(_, value)| value)
    }
}

impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        self.values().eq(other.values())
    }
}

impl Eq for Config {}

impl Hash for Config {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for value in self.values() {
            match value {
                Value::Int(value) => state.write_usize(value),
                Value::Type(dtype) => state.write_usize(dtype as usize),
                Value::Flag(flag) => state.write_usize(flag as usize),
                Value::Copy(way) => state.write_usize(way as usize),
                Value::Name(_, name) => state.write_usize(name.len()),
            }
        }
    }
}

impl Config {
    pub(crate) fn set(mut self, name: &'static str, value: Value) -> Self {
        self.lines.push((name, value));
        self
    }
    pub(crate) fn dtype(self, name: &'static str, dtype: DType) -> Self {
        self.set(name, Value::Type(dtype))
    }
    pub(crate) fn int(self, name: &'static str, value: usize) -> Self {
        self.set(name, Value::Int(value))
    }
    pub(crate) fn flag(self, name: &'static str, value: bool) -> Self {
        self.set(name, Value::Flag(value))
    }
}

/// The constants as they stand in a program.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.lines {
            match value {
                Value::Type(dtype) => writeln!(f, "typedef {dtype} {name};")?,
                Value::Int(n) => writeln!(f, "constexpr int {name} = {n};")?,
                Value::Flag(flag) => writeln!(f, "constexpr bool {name} = {flag};")?,
                Value::Copy(copy) => writeln!(f, "constexpr Copy {name} = Copy::{copy:?};")?,
                Value::Name(of, variant) => writeln!(f, "constexpr {of} {name} = {of}::{variant};")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_lines_of_the_program() {
        let config = Config::default()
            .dtype("X", DType::BF16)
            .int("STEPS", 32)
            .flag("HAS_Z", true)
            .set("X_COPY", Value::Copy(TileCopy::Time))
            .set("METHOD", Value::Name("Discretization", "Zoh"));
        let expected = "typedef bf16 X;\nconstexpr int STEPS = 32;\nconstexpr bool HAS_Z = true;\nconstexpr Copy X_COPY = Copy::Time;\n\
                        constexpr Discretization METHOD = Discretization::Zoh;\n";
        assert_eq!(config.to_string(), expected);
    }

    #[test]
    fn wide_copies_need_contiguous_aligned_lines() {
        let data = vec![0u64; 4096];
        let view = |shape: &[usize], strides: &[isize], offset: usize| {
            let data: &[f32] = bytemuck::cast_slice(&data);
            // the memory of a vector of words is aligned to 16 bytes by chance only
            let shift = (16 - data.as_ptr() as usize % 16) % 16 / 4;
            View::strided(data, shift + offset, shape, strides).unwrap()
        };
        let of = |view: View<'_>| TileCopy::of(&view, 1, 2, 8, 32);
        assert_eq!(of(view(&[2, 8, 64], &[512, 64, 1], 0)), TileCopy::TimeVector);
        assert_eq!(of(view(&[2, 8, 64], &[512, 64, 1], 1)), TileCopy::TimeShifted);
        assert_eq!(of(view(&[2, 8, 63], &[504, 63, 1], 0)), TileCopy::TimeShifted);
        assert_eq!(of(view(&[2, 8, 64], &[512, 1, 8], 0)), TileCopy::RowVector);
        assert_eq!(of(view(&[2, 8, 64], &[512, 1, 8], 2)), TileCopy::RowShifted);
        // lines of no whole number of pieces, and tiles whose lines begin elsewhere in each
        assert_eq!(TileCopy::of(&view(&[2, 6, 64], &[384, 1, 6], 0), 1, 2, 6, 32), TileCopy::Row);
        assert_eq!(TileCopy::of(&view(&[2, 8, 63], &[504, 63, 1], 0), 1, 2, 8, 2), TileCopy::Time);
        assert_eq!(of(view(&[2, 8, 64], &[1024, 128, 2], 0)), TileCopy::Time);
        assert_eq!(of(view(&[2, 8, 64], &[512, 64, -1], 63)), TileCopy::Time);
        // the stride of an axis of one element does not matter
        assert_eq!(of(view(&[1, 8, 64], &[3, 64, 1], 0)), TileCopy::TimeVector);
    }

    #[test]
    fn neighbours_are_aligned_everywhere() {
        let data = vec![0u64; 1024];
        let at = |dtype: DType, offset: usize, strides: &[isize]| {
            let size = dtype.size();
            let start = (data.as_ptr() as usize).next_multiple_of(16) + offset * size;
            // SAFETY: nothing reads through the view.
            let view = unsafe { View::from_raw_parts(start as *const u8, dtype, crate::Device::Cpu, &[2, 4, 64], strides) };
            neighbours(&view.unwrap(), 2, 8)
        };
        assert_eq!(at(DType::BF16, 0, &[256, 64, 1]), 8);
        assert_eq!(at(DType::F32, 0, &[256, 64, 1]), 4);
        assert_eq!(at(DType::BF16, 2, &[256, 64, 1]), 2);
        assert_eq!(at(DType::BF16, 0, &[264, 66, 1]), 2);
        assert_eq!(at(DType::BF16, 0, &[260, 65, 1]), 1);
        assert_eq!(at(DType::BF16, 0, &[256, 1, 4]), 1);
        assert_eq!(at(DType::F32, 63, &[256, 64, -1]), 1);
    }

    #[test]
    fn lines_of_tiles_are_padded() {
        assert_eq!(TileCopy::TimeVector.bytes(DType::BF16, 32, 16), 32 * 48);
        assert_eq!(TileCopy::Row.bytes(DType::F32, 5, 16), 16 * 48);
        assert_eq!(TileCopy::Row.dense_bytes(DType::F32, 5, 16), 16 * 32);
        assert_eq!(TileCopy::TimeShifted.dense_bytes(DType::BF16, 32, 16), TileCopy::TimeShifted.bytes(DType::BF16, 32, 16));
    }
}
