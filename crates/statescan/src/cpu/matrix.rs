//! Matrices in memory and their products.
//!
//! Products call the kernels for real numbers of the `gemm` crates directly. The crate `gemm` that stands before them brings those for
//! complex numbers too, which took a third of the time that all dependencies take to compile.

use gemm_common::Parallelism;

/// A matrix in memory that someone else owns: element (r, c) is at `r * row + c * col`, and neither step is negative. `P` is the type of
/// its address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MatrixOf<P> {
    pub ptr: P,
    pub row: isize,
    pub col: isize,
}

/// A matrix that is read.
pub(crate) type Matrix<T> = MatrixOf<*const T>;
/// A matrix that is written.
pub(crate) type MatrixMut<T> = MatrixOf<*mut T>;

impl<P> MatrixOf<P> {
    /// Rows of contiguous elements, `pitch` apart.
    pub fn new(ptr: P, pitch: usize) -> Self {
        MatrixOf { ptr, row: pitch as isize, col: 1 }
    }

    /// The transposed matrix.
    pub fn t(self) -> Self {
        MatrixOf { ptr: self.ptr, row: self.col, col: self.row }
    }

    /// Whether no two of the first rows and columns share a place.
    pub fn is_apart_within(&self, rows: usize, columns: usize) -> bool {
        let ([m, n], [row, col]) = ([rows as isize, columns as isize], [self.row, self.col]);
        rows * columns == 0
            || (row >= n * col || m == 1) && (n == 1 || col > 0)
            || (col >= m * row || n == 1) && (m == 1 || row > 0)
    }

    #[inline(always)]
    fn offset(&self, r: usize, c: usize) -> isize {
        r as isize * self.row + c as isize * self.col
    }
}

impl<T> Matrix<T> {
    /// The matrix whose first element is (r, c).
    #[inline(always)]
    pub fn at(self, r: usize, c: usize) -> Self {
        MatrixOf { ptr: self.ptr.wrapping_offset(self.offset(r, c)), ..self }
    }
}

impl<T> MatrixMut<T> {
    /// The matrix whose first element is (r, c).
    #[inline(always)]
    pub fn at(self, r: usize, c: usize) -> Self {
        MatrixOf { ptr: self.ptr.wrapping_offset(self.offset(r, c)), ..self }
    }

    /// Whether the first rows and columns lie before or behind those of another matrix.
    fn is_apart_from(&self, [rows, columns]: [usize; 2], other: &Matrix<T>, [others, across]: [usize; 2]) -> bool {
        let end = |start: *const T, offset: isize| start.wrapping_offset(offset + 1);
        let own = self.ptr.cast_const()..end(self.ptr, self.offset(rows.saturating_sub(1), columns.saturating_sub(1)));
        let theirs = other.ptr..end(other.ptr, other.offset(others.saturating_sub(1), across.saturating_sub(1)));
        rows * columns * others * across == 0 || own.end <= theirs.start || theirs.end <= own.start
    }

    /// The same matrix, to be read.
    #[inline(always)]
    pub fn read(self) -> Matrix<T> {
        MatrixOf { ptr: self.ptr.cast_const(), row: self.row, col: self.col }
    }
}

/// Numbers whose matrices can be multiplied.
pub(crate) trait Factor: Sized {
    /// `dst (m, n) = lhs (m, k) rhs (k, n)`, and `before` times what is there if that is given, on the calling thread.
    ///
    /// # Safety
    /// - The first `m` rows and `k` columns of `lhs`, and `k` and `n` of `rhs`, can be read.
    /// - Those of `dst` can be written, and read if `before` is given; no other thread uses them.
    /// - `dst` is apart from the others.
    unsafe fn multiply(dst: MatrixMut<Self>, before: Option<Self>, size: [usize; 3], lhs: Matrix<Self>, rhs: Matrix<Self>);
}

macro_rules! factor {
    ($t:ty, $gemm:path) => {
        impl Factor for $t {
            unsafe fn multiply(dst: MatrixMut<$t>, before: Option<$t>, [m, n, k]: [usize; 3], lhs: Matrix<$t>, rhs: Matrix<$t>) {
                debug_assert!(
                    [dst.row, dst.col, lhs.row, lhs.col, rhs.row, rhs.col].iter().all(|&step| step >= 0),
                    "no step is negative"
                );
                debug_assert!(dst.ptr.is_aligned() && lhs.ptr.is_aligned() && rhs.ptr.is_aligned(), "elements are aligned");
                debug_assert!(dst.is_apart_within(m, n), "every element has its own place");
                debug_assert!(dst.is_apart_from([m, n], &lhs, [m, k]), "the left factor is apart from the product");
                debug_assert!(dst.is_apart_from([m, n], &rhs, [k, n]), "the right factor is apart from the product");
                let (add, before) = (before.is_some(), before.unwrap_or_default());
                // the kernels want columns that lie densely: where rows do, they get the transposed product
                let by_rows = dst.col < dst.row;
                let ([m, n], d, l, r) = if by_rows { ([n, m], dst.t(), rhs.t(), lhs.t()) } else { ([m, n], dst, lhs, rhs) };
                use $gemm as gemm;
                // SAFETY: the matrices can be read and written, by the contract of `multiply`; a transposed product is the same elements.
                unsafe {
                    gemm::get_gemm_fn()(
                        m,
                        n,
                        k,
                        d.ptr,
                        d.col,
                        d.row,
                        add,
                        l.ptr,
                        l.col,
                        l.row,
                        r.ptr,
                        r.col,
                        r.row,
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
