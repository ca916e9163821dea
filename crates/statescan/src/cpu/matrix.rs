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
                let (add, before) = (before.is_some(), before.unwrap_or_default());
                // the kernels want columns that lie densely: where rows do, they get the transposed product
                let by_rows = dst.col < dst.row;
                let ([m, n], d, l, r) = if by_rows { ([n, m], dst.t(), rhs.t(), lhs.t()) } else { ([m, n], dst, lhs, rhs) };
                use $gemm as gemm;
                // SAFETY: the caller's contract.
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
