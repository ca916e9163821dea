//! Matrices in memory and their products.
//!
//! Products call the kernels for real numbers of the `gemm` crates directly. The crate `gemm` that stands before them brings those for
//! complex numbers too, which took a third of the time that all dependencies take to compile.

use super::Array;
use gemm_common::Parallelism;

/// A matrix in memory that someone else owns: element (r, c) is at `r * row + c * col`. It has the promises of its [`Array`].
#[derive(Debug)]
pub(crate) struct MatrixOf<T, const WRITTEN: bool> {
    pub array: Array<T>,
    pub row: usize,
    pub col: usize,
}

impl<T, const WRITTEN: bool> Clone for MatrixOf<T, WRITTEN> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, const WRITTEN: bool> Copy for MatrixOf<T, WRITTEN> {}

/// A matrix that is read.
pub(crate) type Matrix<T> = MatrixOf<T, false>;
/// A matrix that is written.
pub(crate) type MatrixMut<T> = MatrixOf<T, true>;

impl<T, const WRITTEN: bool> MatrixOf<T, WRITTEN> {
    /// Rows of contiguous elements, `pitch` apart.
    #[inline(always)]
    pub fn new(array: Array<T>, pitch: usize) -> Self {
        MatrixOf { array, row: pitch, col: 1 }
    }

    /// The transposed matrix.
    #[inline(always)]
    pub fn t(self) -> Self {
        MatrixOf { array: self.array, row: self.col, col: self.row }
    }

    /// The matrix whose first element is (r, c).
    #[inline(always)]
    pub fn at(self, r: usize, c: usize) -> Self {
        MatrixOf { array: self.array.moved(self.offset(r, c) as isize), ..self }
    }

    /// An element.
    #[inline(always)]
    pub fn get(self, r: usize, c: usize) -> T
    where
        T: Copy,
    {
        self.array.get(self.offset(r, c))
    }

    /// The elements from (r, c) on.
    #[inline(always)]
    pub fn from(self, r: usize, c: usize) -> Array<T> {
        self.array.moved(self.offset(r, c) as isize)
    }

    /// Whether no two of the first rows and columns share a place.
    pub fn is_apart_within(&self, m: usize, n: usize) -> bool {
        let &MatrixOf { row, col, .. } = self;
        m * n == 0 || (row >= n * col || m == 1) && (n == 1 || col > 0) || (col >= m * row || n == 1) && (m == 1 || row > 0)
    }

    /// Where the first rows and columns begin and end.
    fn reach(&self, rows: usize, columns: usize) -> core::ops::Range<*mut T> {
        let len = if rows * columns == 0 { 0 } else { self.offset(rows - 1, columns - 1) + 1 };
        let start = self.array.at(0, len);
        start..start.wrapping_add(len)
    }

    #[inline(always)]
    fn offset(&self, r: usize, c: usize) -> usize {
        r * self.row + c * self.col
    }
}

impl<T> Matrix<T> {
    /// Rows in a slice, as long as that is borrowed.
    pub fn of(slice: &[T], pitch: usize) -> Self {
        Self::new(Array::of_shared(slice), pitch)
    }
}

impl<T> MatrixMut<T> {
    /// Whether the first rows and columns lie before or behind those of another matrix.
    fn is_apart_from(&self, [rows, columns]: [usize; 2], other: &Matrix<T>, [others, across]: [usize; 2]) -> bool {
        let (own, theirs) = (self.reach(rows, columns), other.reach(others, across));
        own.is_empty() || theirs.is_empty() || own.end <= theirs.start || theirs.end <= own.start
    }

    /// The same matrix, to be read.
    #[inline(always)]
    pub fn read(self) -> Matrix<T> {
        MatrixOf { array: self.array, row: self.row, col: self.col }
    }
}

/// Numbers whose matrices can be multiplied.
pub(crate) trait Factor: Copy {
    /// `dst (m, n) = lhs (m, k) rhs (k, n)`, and `before` times what is there if that is given, on the calling thread; `dst` is apart from the
    /// others.
    fn multiply(dst: MatrixMut<Self>, before: Option<Self>, size: [usize; 3], lhs: Matrix<Self>, rhs: Matrix<Self>);
}

macro_rules! factor {
    ($t:ty, $gemm:path) => {
        impl Factor for $t {
            fn multiply(dst: MatrixMut<$t>, before: Option<$t>, [m, n, k]: [usize; 3], lhs: Matrix<$t>, rhs: Matrix<$t>) {
                debug_assert!(dst.is_apart_within(m, n), "every element has its own place");
                debug_assert!(dst.is_apart_from([m, n], &lhs, [m, k]), "the left factor is apart from the product");
                debug_assert!(dst.is_apart_from([m, n], &rhs, [k, n]), "the right factor is apart from the product");
                let (add, before) = (before.is_some(), before.unwrap_or_default());
                // the kernels want columns that lie densely: where rows do, they get the transposed product
                let by_rows = dst.col < dst.row;
                let ([m, n], d, l, r) = if by_rows { ([n, m], dst.t(), rhs.t(), lhs.t()) } else { ([m, n], dst, lhs, rhs) };
                let (to, left, right) = (d.array.ptr(), l.array.ptr(), r.array.ptr());
                let step = |elements: usize| elements as isize;
                use $gemm as gemm;
                // SAFETY: the promises of `Array`: the matrices lie inside, which debug builds have just checked, and `dst` is this
                // thread's; a transposed product is the same elements.
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
