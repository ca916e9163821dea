//! Rows of a view: its last axis, and all axes before it as one.

use statescan::error::{Error, Result};
use statescan::tensor::{DType, View};

/// Rows of neighbours, the same distance apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) address: u64,
    pub(super) dtype: DType,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// From row to row, in elements.
    pub(super) pitch: usize,
}

impl Rows {
    pub(super) fn of(op: &'static str, argument: &'static str, view: &View<'_>) -> Result<Self> {
        let (shape, strides) = (view.shape(), view.strides());
        let Some(last) = shape.len().checked_sub(1) else {
            return Err(Error::Rank { op, argument, expected: "rows".into(), got: shape, help: String::new() });
        };
        let mut rows = (1, None);
        let mut apart = shape[last] > 1 && strides[last] != 1;
        for axis in (0..last).rev().filter(|&axis| shape[axis] != 1) {
            let pitch = *rows.1.get_or_insert(strides[axis]);
            apart |= strides[axis] != pitch.wrapping_mul(rows.0 as isize) || pitch < 0;
            rows.0 *= shape[axis];
        }
        if apart && !view.is_empty() {
            let expected = "must have rows of neighbours, the same distance apart";
            return Err(Error::Presence { op, argument, expected });
        }
        let pitch = rows.1.map_or(shape[last], |pitch| pitch as usize);
        Ok(Rows { address: view.as_ptr() as u64, dtype: view.dtype(), rows: rows.0, columns: shape[last], pitch })
    }

    /// As [`Rows::of`], of a vector or a single row of so many elements.
    pub(super) fn row(op: &'static str, argument: &'static str, view: &View<'_>, count: usize) -> Result<Self> {
        let row = Self::of(op, argument, view)?;
        match row.rows == 1 && row.columns == count {
            true => Ok(row),
            false => {
                let expected = statescan::tensor::Shape::new(&[1, count])?;
                Err(Error::Shape { op, argument, expected, got: view.shape(), help: String::new() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_axes_count_as_rows_where_they_can() {
        let data = [0f32; 120];
        let whole = View::new(&data, &[2, 5, 12]).unwrap();
        let of = |view: View<'_>| Rows::of("op", "x", &view).map(|rows| (rows.rows, rows.columns, rows.pitch)).ok();
        assert_eq!(of(whole), Some((10, 12, 12)));
        assert_eq!(of(whole.slice(2, 3..7)), Some((10, 4, 12)));
        assert_eq!(of(whole.slice(1, 0..1)), Some((2, 12, 60)));
        assert_eq!(of(whole.slice(1, 0..4)), None);
        assert_eq!(of(whole.slice(1, 4..5).slice(0, 0..1)), Some((1, 12, 12)));
        assert_eq!(of(whole.index(0, 0).permute(&[1, 0])), None);
        assert_eq!(of(whole.index(0, 0).index(0, 0)), Some((1, 12, 12)));
        assert_eq!(of(whole.slice(1, 0..0)), Some((0, 12, 12)));
    }
}
