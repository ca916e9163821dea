//! Owned dense tensors in complex `f64`: what the oracles give back and what comparisons are made on.

use super::view::View;
use super::view_mut::ViewMut;
use crate::dtype::{DType, Element};
use crate::error::Result;
use crate::shape::Shape;
use half::{bf16, f16};
use num_complex::Complex64;

/// A dense row-major tensor of complex `f64`; a real tensor has zero imaginary parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Dense {
    shape: Shape,
    data: Vec<Complex64>,
}

impl Dense {
    /// Zeros.
    ///
    /// # Errors
    /// [`crate::Error::TooManyAxes`].
    pub fn zeros(shape: &[usize]) -> Result<Self> {
        Ok(Self::zeroed(Shape::new(shape)?))
    }

    pub(crate) fn zeroed(shape: Shape) -> Self {
        Dense { shape, data: vec![Complex64::ZERO; shape.iter().product()] }
    }

    /// A copy of a view on the CPU.
    ///
    /// # Panics
    /// If the view is not on the CPU.
    pub fn from_view(view: &View<'_>) -> Self {
        assert_eq!(view.device(), super::Device::Cpu, "elements can be read on the CPU only");
        let mut data = Vec::with_capacity(view.len());
        // SAFETY: the offsets are the view's own.
        view.for_each_offset(|offset| data.push(unsafe { view.read(offset) }));
        Dense { shape: view.shape(), data }
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The elements in row-major order.
    pub fn data(&self) -> &[Complex64] {
        &self.data
    }

    /// The elements in row-major order, writable.
    pub fn data_mut(&mut self) -> &mut [Complex64] {
        &mut self.data
    }

    fn position(&self, index: &[usize]) -> usize {
        debug_assert_eq!(index.len(), self.shape.len());
        index.iter().zip(self.shape.iter()).fold(0, |at, (&i, &n)| {
            debug_assert!(i < n, "index {index:?} outside {}", self.shape);
            at * n + i
        })
    }

    /// One element.
    ///
    /// # Panics
    /// If the index lies outside.
    pub fn at(&self, index: &[usize]) -> Complex64 {
        self.data[self.position(index)]
    }

    /// One element, writable.
    ///
    /// # Panics
    /// If the index lies outside.
    pub fn at_mut(&mut self, index: &[usize]) -> &mut Complex64 {
        let at = self.position(index);
        &mut self.data[at]
    }

    /// Returns the elements in another shape of as many.
    pub(crate) fn reshaped(self, shape: Shape) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), self.data.len());
        Dense { shape, data: self.data }
    }

    /// The elements rounded to a storage type, as bytes in row-major order; real types take the real parts.
    pub fn to_bytes(&self, dtype: DType) -> Vec<u8> {
        let mut bytes = vec![0u8; self.data.len() * dtype.size()];
        for (value, out) in self.data.iter().zip(bytes.chunks_exact_mut(dtype.size())) {
            match dtype {
                DType::F32 => out.copy_from_slice(&(value.re as f32).to_le_bytes()),
                DType::F64 => out.copy_from_slice(&value.re.to_le_bytes()),
                DType::BF16 => out.copy_from_slice(&bf16::from_f64(value.re).to_le_bytes()),
                DType::F16 => out.copy_from_slice(&f16::from_f64(value.re).to_le_bytes()),
                DType::Complex64 => {
                    out[..4].copy_from_slice(&(value.re as f32).to_le_bytes());
                    out[4..].copy_from_slice(&(value.im as f32).to_le_bytes());
                }
                DType::Complex128 => {
                    out[..8].copy_from_slice(&value.re.to_le_bytes());
                    out[8..].copy_from_slice(&value.im.to_le_bytes());
                }
                DType::I32 => out.copy_from_slice(&(value.re as i32).to_le_bytes()),
                DType::I64 => out.copy_from_slice(&(value.re as i64).to_le_bytes()),
            }
        }
        bytes
    }

    /// The real parts as `f64`.
    pub fn to_real(&self) -> Vec<f64> {
        self.data.iter().map(|v| v.re).collect()
    }

    /// A view of the tensor itself (complex128).
    pub fn view(&self) -> View<'_> {
        View::new(&self.data, &self.shape).expect("the data has the shape's length")
    }

    /// A writable view of the tensor itself (complex128).
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        let shape = self.shape;
        ViewMut::new(&mut self.data, &shape).expect("the data has the shape's length")
    }

    /// A real view (the real parts of the tensor itself).
    pub fn real_view(&self) -> View<'_> {
        let strides: Vec<isize> = self.shape.row_major().iter().map(|s| s * 2).collect();
        let components: &[f64] = bytemuck::cast_slice(&self.data);
        View::strided(components, 0, &self.shape, &strides).expect("every other component")
    }

    /// Builds a tensor from typed elements.
    ///
    /// # Errors
    /// As [`View::new`].
    pub fn from_slice<T: Element>(data: &[T], shape: &[usize]) -> Result<Self> {
        Ok(Self::from_view(&View::new(data, shape)?))
    }
}

/// How far two results may lie apart: `|a - b| <= absolute * max|b| + relative * |b|`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ErrorBound {
    /// Factor of the largest magnitude of the expected tensor.
    pub absolute: f64,
    /// Factor of the magnitude of the expected element.
    pub relative: f64,
}

impl ErrorBound {
    /// The one tolerance of the tests: what a scan of `length` dependent steps may differ from its `f64` oracle when inputs and outputs are
    /// stored as `dtype`.
    ///
    /// Carried values are `f32` (`f64` for double inputs), whose rounding errors add like a random walk over the steps that the state
    /// remembers; one rounding to the storage type follows. The factor leaves room for cancellation in sums over states.
    pub fn for_scan(dtype: DType, length: usize) -> Self {
        let carried = if dtype.is_double() { f64::EPSILON } else { f64::from(f32::EPSILON) };
        let walk = (length.max(1) as f64).sqrt();
        ErrorBound { absolute: 4.0 * carried * (4.0 + walk), relative: dtype.epsilon() + 16.0 * carried }
    }

    /// The bound for products on tensor cores, whose factors, states and decayed products of B and C among them, are rounded to
    /// 16 bits where inputs are stored so: every term of a sum has such an error of its own.
    pub fn in_products(self, dtype: DType) -> Self {
        let rounding = dtype.epsilon() * f64::from(dtype.size() == 2);
        ErrorBound { absolute: self.absolute + rounding, relative: self.relative + rounding }
    }

    /// How far a number may be from an expected one, in a tensor where the [`largest`] that is expected has this magnitude.
    pub fn at(self, expected: Complex64, largest: f64) -> f64 {
        let finite = |part: f64| if part.is_finite() { part } else { 0.0 };
        self.absolute * largest + self.relative * finite(expected.re).hypot(finite(expected.im))
    }

    /// The tolerance for gradients: they sum over a whole axis on top of the scan.
    pub fn for_gradient(dtype: DType, length: usize) -> Self {
        let bound = Self::for_scan(dtype, length);
        ErrorBound {
            absolute: 8.0 * bound.absolute + 0.5 * dtype.epsilon() * f64::from(dtype.size() == 2),
            relative: 8.0 * bound.relative,
        }
    }
}

/// Largest absolute difference, that relative to the largest expected magnitude, and whether every element is within the bound.
/// NaN must meet NaN and infinities must agree, in each part of a complex number; where they do not, the difference is infinite.
pub fn max_errors(got: &[Complex64], expected: &[Complex64], bound: ErrorBound) -> (f64, f64, bool) {
    if got.len() != expected.len() {
        return (f64::INFINITY, f64::INFINITY, false);
    }
    let scale = largest(expected);
    let (mut worst, mut within) = (0.0f64, true);
    for (a, b) in got.iter().zip(expected) {
        let error = difference(*a, *b);
        within &= error <= bound.at(*b, scale);
        worst = worst.max(error);
    }
    let relative = if scale > 0.0 { worst / scale } else { worst };
    (worst, relative, within)
}

/// The largest finite magnitude.
pub fn largest(values: &[Complex64]) -> f64 {
    values.iter().filter(|z| z.is_finite()).map(|z| z.norm()).fold(0.0, f64::max)
}

/// How far two numbers are apart: nothing where the same parts are NaN, or infinite with the same sign, infinitely where others are.
pub fn difference(a: Complex64, b: Complex64) -> f64 {
    let apart = |a: f64, b: f64| match () {
        () if a == b || (a.is_nan() && b.is_nan()) => 0.0,
        () if a.is_finite() && b.is_finite() => a - b,
        () => f64::INFINITY,
    };
    apart(a.re, b.re).hypot(apart(a.im, b.im))
}

#[cfg(test)]
mod tests {
    use super::{ErrorBound, max_errors};
    use num_complex::Complex64;

    #[test]
    fn what_is_not_finite_must_be_so_in_the_same_way() {
        const INF: f64 = f64::INFINITY;
        const NAN: f64 = f64::NAN;
        let bound = ErrorBound { absolute: 1e-3, relative: 0.0 };
        let errors = |got: [f64; 2], expected: [f64; 2]| {
            let with_a_number = |[re, im]: [f64; 2]| [Complex64::new(re, im), Complex64::ONE];
            max_errors(&with_a_number(got), &with_a_number(expected), bound)
        };
        for same in [[INF, 0.0], [-INF, 0.0], [NAN, 0.0], [1.0, NAN], [INF, -INF], [NAN, NAN]] {
            assert_eq!(errors(same, same), (0.0, 0.0, true), "{same:?}");
        }
        for (one, other) in [
            ([INF, 0.0], [-INF, 0.0]),
            ([INF, 0.0], [NAN, 0.0]),
            ([INF, 0.0], [1e300, 0.0]),
            ([1.0, NAN], [1.0, 0.0]),
            ([1.0, NAN], [NAN, NAN]),
            ([INF, -INF], [INF, INF]),
        ] {
            assert_eq!((errors(one, other).0, errors(one, other).2), (INF, false), "{one:?} in place of {other:?}");
            assert_eq!((errors(other, one).0, errors(other, one).2), (INF, false), "{other:?} in place of {one:?}");
        }
        // the part beside an infinity is compared as any other
        assert_eq!(errors([INF, 1.0], [INF, 1.5]), (0.5, 0.5, false));
        assert!(errors([INF, 1.0], [INF, 1.0 + 1e-4]).2);
    }
}
