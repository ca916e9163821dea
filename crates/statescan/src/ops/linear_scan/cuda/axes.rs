//! The axes of rows: any number of leading axes becomes at most four, in the order in which they lie in memory.

/// Sizes of four axes, and for each tensor of a call its strides along them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Axes {
    pub sizes: [usize; 4],
    pub strides: Vec<[isize; 4]>,
}

impl Axes {
    /// `strides` are those of each tensor along axes of these sizes, of which there are four at most. The first tensor decides the order; axes
    /// that continue each other in all of them become one.
    pub(super) fn new(sizes: &[usize], strides: &[[isize; 4]]) -> Self {
        let mut order = [0, 1, 2, 3];
        let order = &mut order[..sizes.len()];
        order.sort_by_key(|&axis| core::cmp::Reverse(strides[0][axis].unsigned_abs()));
        let mut all = Axes { sizes: [1; 4], strides: vec![[0; 4]; strides.len()] };
        let mut count = 0;
        for axis in order.iter().copied().filter(|&axis| sizes[axis] != 1) {
            let continued =
                |(outer, own): (&[isize; 4], &[isize; 4])| outer[count - 1] == own[axis].wrapping_mul(sizes[axis] as isize);
            if count > 0 && all.strides.iter().zip(strides).all(continued) {
                all.sizes[count - 1] = all.sizes[count - 1].saturating_mul(sizes[axis]);
            } else {
                all.sizes[count] = sizes[axis];
                count += 1;
            }
            all.strides.iter_mut().zip(strides).for_each(|(to, own)| to[count - 1] = own[axis]);
        }
        // the innermost axis is the last of four
        all.sizes.rotate_right(4 - count);
        all.strides.iter_mut().for_each(|strides| strides.rotate_right(4 - count));
        all
    }

    /// Rows in all.
    pub(super) fn rows(&self) -> usize {
        self.sizes.iter().fold(1, |n, &size| n.saturating_mul(size))
    }

    /// The strides of a tensor whose rows follow each other, `row` elements apart.
    pub(super) fn dense(&self, row: usize) -> [isize; 4] {
        let mut stride = row;
        let mut strides = [0; 4];
        for axis in (0..4).rev() {
            strides[axis] = stride as isize;
            stride = stride.saturating_mul(self.sizes[axis]);
        }
        strides
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_continue_each_other_are_one() {
        let dense = [60, 20, 5, 0];
        let axes = Axes::new(&[2, 3, 4], &[dense, dense]);
        assert_eq!(axes, Axes { sizes: [1, 1, 1, 24], strides: vec![[0, 0, 0, 5]; 2] });
        // the second tensor is expanded along the middle
        let axes = Axes::new(&[2, 3, 4], &[dense, [20, 0, 5, 0]]);
        assert_eq!(axes.sizes, [1, 2, 3, 4]);
        assert_eq!(axes.strides, [[0, 60, 20, 5], [0, 20, 0, 5]]);
        assert_eq!((axes.rows(), axes.dense(7)), (24, [168, 84, 28, 7]));
    }

    #[test]
    fn the_axis_that_lies_side_by_side_comes_last() {
        let axes = Axes::new(&[8, 1, 6], &[[1, 3, 100, 0]]);
        assert_eq!((axes.sizes, axes.strides[0]), ([1, 1, 6, 8], [0, 0, 100, 1]));
        assert_eq!(Axes::new(&[1], &[[9, 0, 0, 0]]).rows(), 1);
        assert_eq!(Axes::new(&[3, 0], &[[1, 3, 0, 0]]).rows(), 0);
        assert_eq!(Axes::new(&[1 << 40, 1 << 40], &[[0; 4]]).rows(), usize::MAX);
    }
}
