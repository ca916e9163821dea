//! The axes of rows: any number of leading axes becomes at most four, in the order in which they lie in memory.

/// Sizes of four axes, and for each tensor of a call its strides along them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Axes {
    pub sizes: [usize; 4],
    pub strides: Vec<[isize; 4]>,
}

impl Axes {
    /// `strides` are those of each tensor along axes of these sizes. The first tensor decides the order; axes that continue each other in
    /// all of them become one.
    pub(super) fn new(sizes: &[usize], strides: &[Vec<isize>]) -> Self {
        let mut order: Vec<usize> = (0..sizes.len()).filter(|&axis| sizes[axis] != 1).collect();
        order.sort_by_key(|&axis| core::cmp::Reverse(strides[0][axis].unsigned_abs()));
        let mut axes: Vec<(usize, Vec<isize>)> = Vec::new();
        for axis in order {
            let own: Vec<isize> = strides.iter().map(|s| s[axis]).collect();
            match axes.last_mut() {
                Some((size, outer)) if outer.iter().zip(&own).all(|(o, i)| *o == i.wrapping_mul(sizes[axis] as isize)) => {
                    *size = size.saturating_mul(sizes[axis]);
                    *outer = own;
                }
                _ => axes.push((sizes[axis], own)),
            }
        }
        // views have at most four leading axes
        let mut all = Axes { sizes: [1; 4], strides: vec![[0; 4]; strides.len()] };
        let first = 4 - axes.len();
        for (i, (size, own)) in axes.into_iter().enumerate() {
            all.sizes[first + i] = size;
            all.strides.iter_mut().zip(own).for_each(|(to, stride)| to[first + i] = stride);
        }
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
        let dense = vec![60, 20, 5];
        let axes = Axes::new(&[2, 3, 4], &[dense.clone(), dense.clone()]);
        assert_eq!(axes, Axes { sizes: [1, 1, 1, 24], strides: vec![[0, 0, 0, 5]; 2] });
        // the second tensor is expanded along the middle
        let axes = Axes::new(&[2, 3, 4], &[dense, vec![20, 0, 5]]);
        assert_eq!(axes.sizes, [1, 2, 3, 4]);
        assert_eq!(axes.strides, [[0, 60, 20, 5], [0, 20, 0, 5]]);
        assert_eq!((axes.rows(), axes.dense(7)), (24, [168, 84, 28, 7]));
    }

    #[test]
    fn the_axis_that_lies_side_by_side_comes_last() {
        let axes = Axes::new(&[8, 1, 6], &[vec![1, 3, 100]]);
        assert_eq!((axes.sizes, axes.strides[0]), ([1, 1, 6, 8], [0, 0, 100, 1]));
        assert_eq!(Axes::new(&[1], &[vec![9]]).rows(), 1);
        assert_eq!(Axes::new(&[3, 0], &[vec![1, 3]]).rows(), 0);
        assert_eq!(Axes::new(&[1 << 40, 1 << 40], &[vec![0, 0]]).rows(), usize::MAX);
    }
}
