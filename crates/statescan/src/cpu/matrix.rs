//! Matrices in memory and their products.
//!
//! Products call the kernels for real numbers of the `gemm` crates directly. The crate `gemm` that stands before them brings those for
//! complex numbers too, which took a third of the time that all dependencies take to compile.

use super::array::{Array, ArrayMut, ArrayOf};
use gemm_common::Parallelism;

/// A matrix: element (r, c) is at `r * row + c * col` of an array.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MatrixOf<A> {
    pub array: A,
    pub row: usize,
    pub col: usize,
}

/// A matrix that is read.
pub(crate) type Matrix<'m, T> = MatrixOf<Array<'m, T>>;
/// A matrix that is written.
pub(crate) type MatrixMut<'m, T> = MatrixOf<ArrayMut<'m, T>>;

impl<A> MatrixOf<A> {
    /// Rows of contiguous elements, `pitch` apart.
    #[inline(always)]
    pub fn new(array: A, pitch: usize) -> Self {
        MatrixOf { array, row: pitch, col: 1 }
    }

    /// The transposed matrix.
    #[inline(always)]
    pub fn t(self) -> Self {
        MatrixOf { array: self.array, row: self.col, col: self.row }
    }

    /// Whether no two of the first rows and columns share a place.
    pub fn is_apart_within(&self, m: usize, n: usize) -> bool {
        let &MatrixOf { row, col, .. } = self;
        m * n == 0 || (row >= n * col || m == 1) && (n == 1 || col > 0) || (col >= m * row || n == 1) && (m == 1 || row > 0)
    }

    #[inline(always)]
    fn offset(&self, r: usize, c: usize) -> usize {
        r * self.row + c * self.col
    }
}

impl<'m, T, A> MatrixOf<ArrayOf<'m, T, A>> {
    /// The matrix whose first element is (r, c).
    #[inline(always)]
    pub fn at(self, r: usize, c: usize) -> Self {
        let by = self.offset(r, c) as isize;
        MatrixOf { array: self.array.moved(by), ..self }
    }

    /// An element.
    #[inline(always)]
    pub fn get(&self, r: usize, c: usize) -> T
    where
        T: Copy,
    {
        self.array.get(self.offset(r, c))
    }

    /// The elements from (r, c) on.
    #[inline(always)]
    pub fn from(self, r: usize, c: usize) -> ArrayOf<'m, T, A> {
        let by = self.offset(r, c) as isize;
        self.array.moved(by)
    }

    /// Whether the first rows and columns are there; only debug builds know.
    fn has(&self, rows: usize, columns: usize) -> bool {
        rows * columns == 0 || self.array.has(0, self.offset(rows - 1, columns - 1) + 1)
    }
}

impl<'m, T> Matrix<'m, T> {
    /// Rows in a slice.
    pub fn of(slice: &'m [T], pitch: usize) -> Self {
        Self::new(Array::of(slice), pitch)
    }
}

impl<T> MatrixMut<'_, T> {
    /// Borrows the matrix for reading.
    #[inline(always)]
    pub fn read(&self) -> Matrix<'_, T> {
        MatrixOf { array: self.array.read(), row: self.row, col: self.col }
    }

    /// Borrows the matrix for a shorter time.
    #[inline(always)]
    pub fn reborrow(&mut self) -> MatrixMut<'_, T> {
        MatrixOf { array: self.array.reborrow(), row: self.row, col: self.col }
    }
}

/// Numbers whose matrices can be multiplied.
pub(crate) trait Factor: Copy {
    /// `dst (m, n) = lhs (m, k) rhs (k, n)`, and `before` times what is there if that is given, on the calling thread.
    fn multiply(dst: MatrixMut<'_, Self>, before: Option<Self>, size: [usize; 3], lhs: Matrix<'_, Self>, rhs: Matrix<'_, Self>);
}

macro_rules! factor {
    ($t:ty, $gemm:path) => {
        impl Factor for $t {
            fn multiply(
                dst: MatrixMut<'_, $t>,
                before: Option<$t>,
                [m, n, k]: [usize; 3],
                lhs: Matrix<'_, $t>,
                rhs: Matrix<'_, $t>,
            ) {
                debug_assert!(dst.is_apart_within(m, n), "every element has its own place");
                debug_assert!(dst.has(m, n) && lhs.has(m, k) && rhs.has(k, n), "the matrices lie inside");
                let (add, before) = (before.is_some(), before.unwrap_or_default());
                // the kernels want columns that lie densely: where rows do, they get the transposed product
                let by_rows = dst.col < dst.row;
                let ([m, n], mut d, l, r) = if by_rows { ([n, m], dst.t(), rhs.t(), lhs.t()) } else { ([m, n], dst, lhs, rhs) };
                let (to, left, right) = (d.array.at_mut(0, 0), l.array.ptr(), r.array.ptr());
                let step = |elements: usize| elements as isize;
                use $gemm as gemm;
                // SAFETY: the matrices are borrowed, and lie inside, which debug builds have just checked; a transposed product is the same
                // elements.
                unsafe {
                    gemm::get_gemm_fn()(
                        m,
                        n,
                        k,
                        to,
                        step(d.col),
                        step(d.row),
                        add,
                        left,
                        step(l.col),
                        step(l.row),
                        right,
                        step(r.col),
                        step(r.row),
                        before,
                        1.0,
                        false,
                        false,
                        false,
                        Parallelism::None,
                    )
                }
            }
        }
    };
}
factor!(f32, gemm_f32::gemm::f32);
factor!(f64, gemm_f64::gemm::f64);
