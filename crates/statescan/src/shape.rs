//! Shapes and strides without allocation.

use core::fmt;
use core::ops::Deref;

/// The largest number of axes of a view.
pub const MAX_RANK: usize = 6;

/// More than [`MAX_RANK`] axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a view has at most {MAX_RANK} axes, got {got}")]
pub struct TooManyAxes {
    /// The number that came.
    pub got: usize,
}

/// Up to [`MAX_RANK`] sizes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    rank: u8,
    sizes: [usize; MAX_RANK],
}

impl Shape {
    /// A shape from its sizes.
    ///
    /// # Errors
    /// [`TooManyAxes`] for more than [`MAX_RANK`] of them.
    #[inline]
    pub fn new(sizes: &[usize]) -> Result<Self, TooManyAxes> {
        if sizes.len() > MAX_RANK {
            return Err(TooManyAxes { got: sizes.len() });
        }
        Ok(Self::of(sizes))
    }

    /// A shape whose rank is known to fit.
    #[inline]
    pub(crate) fn of(sizes: &[usize]) -> Self {
        Shape { rank: sizes.len() as u8, sizes: filled(sizes, 1) }
    }

    /// The axes of several parts, whose number is known to fit.
    pub(crate) fn concat(parts: &[&[usize]]) -> Self {
        let mut shape = Shape { rank: 0, sizes: [1; MAX_RANK] };
        for &size in parts.iter().copied().flatten() {
            shape.sizes[shape.rank as usize] = size;
            shape.rank += 1;
        }
        shape
    }

    pub(crate) fn as_mut(&mut self) -> &mut [usize] {
        &mut self.sizes[..self.rank as usize]
    }

    /// A new axis; there is room for it, and `at` is at most the rank.
    pub(crate) fn insert(&mut self, at: usize, size: usize) {
        self.rank += 1;
        self.as_mut()[at..].rotate_right(1);
        self.as_mut()[at] = size;
    }

    /// One axis less.
    pub(crate) fn remove(&mut self, at: usize) {
        self.as_mut()[at..].rotate_left(1);
        self.rank -= 1;
        // equal shapes are equal behind the rank, too
        self.sizes[self.rank as usize] = 1;
    }

    /// Number of elements, or `None` if it overflows.
    #[inline]
    pub fn checked_len(&self) -> Option<usize> {
        // a zero anywhere makes the shape empty, whatever the other sizes multiply to
        if self.contains(&0) {
            return Some(0);
        }
        self.iter().try_fold(1usize, |n, &s| n.checked_mul(s))
    }

    /// The strides, in elements, of a dense row-major array of this shape.
    #[inline]
    pub fn row_major(&self) -> Strides {
        let mut strides = Strides { rank: self.rank, steps: [0; MAX_RANK] };
        let mut step = 1isize;
        for axis in (0..self.len()).rev() {
            strides.steps[axis] = step;
            step = step.wrapping_mul(self.sizes[axis].max(1) as isize);
        }
        strides
    }
}

impl Deref for Shape {
    type Target = [usize];
    #[inline]
    fn deref(&self) -> &[usize] {
        &self.sizes[..self.rank as usize]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (axis, size) in self.iter().enumerate() {
            if axis > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{size}")?;
        }
        f.write_str(if self.len() == 1 { ",)" } else { ")" })
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A few numbers, filled up: one by one, because a call of `memcpy` for each takes longer.
#[inline]
fn filled<T: Copy>(numbers: &[T], rest: T) -> [T; MAX_RANK] {
    assert!(numbers.len() <= MAX_RANK, "too many axes");
    core::array::from_fn(|axis| if axis < numbers.len() { numbers[axis] } else { rest })
}

/// Up to [`MAX_RANK`] strides, in elements; negative ones walk backwards.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Strides {
    rank: u8,
    steps: [isize; MAX_RANK],
}

impl Strides {
    #[inline]
    pub(crate) fn of(steps: &[isize]) -> Self {
        Strides { rank: steps.len() as u8, steps: filled(steps, 0) }
    }

    pub(crate) fn as_mut(&mut self) -> &mut [isize] {
        &mut self.steps[..self.rank as usize]
    }

    /// A new axis, as [`Shape::insert`].
    pub(crate) fn insert(&mut self, at: usize, step: isize) {
        self.rank += 1;
        self.as_mut()[at..].rotate_right(1);
        self.as_mut()[at] = step;
    }

    /// One axis less.
    pub(crate) fn remove(&mut self, at: usize) {
        self.as_mut()[at..].rotate_left(1);
        self.rank -= 1;
        self.steps[self.rank as usize] = 0;
    }
}

impl Deref for Strides {
    type Target = [isize];
    #[inline]
    fn deref(&self) -> &[isize] {
        &self.steps[..self.rank as usize]
    }
}

impl fmt::Debug for Strides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
