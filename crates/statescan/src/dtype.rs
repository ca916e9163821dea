//! Storage types. They are values: any argument may come in any of them, and kernels convert at the edge of a tile.

use core::fmt;
use half::{bf16, f16};
use num_complex::Complex;
use statescan_cuda::Scalar;

/// The storage type of one element.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// bfloat16.
    BF16,
    /// IEEE 754 binary16.
    F16,
    /// Two `f32`: real, imaginary.
    Complex64,
    /// Two `f64`: real, imaginary.
    Complex128,
    /// Signed 32-bit integer (indices).
    I32,
    /// Signed 64-bit integer (indices).
    I64,
}

impl DType {
    /// Returns the type of device code, which has this one's size and its name.
    pub(crate) const fn scalar(self) -> Scalar {
        match self {
            DType::F32 => Scalar::F32,
            DType::F64 => Scalar::F64,
            DType::BF16 => Scalar::BF16,
            DType::F16 => Scalar::F16,
            DType::Complex64 => Scalar::Complex64,
            DType::Complex128 => Scalar::Complex128,
            DType::I32 => Scalar::I32,
            DType::I64 => Scalar::I64,
        }
    }

    /// Size of one element in bytes.
    pub const fn size(self) -> usize {
        self.scalar().size()
    }

    /// Whether this is a complex type.
    pub const fn is_complex(self) -> bool {
        matches!(self, DType::Complex64 | DType::Complex128)
    }

    /// Whether this is a real floating-point type.
    pub const fn is_real(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::BF16 | DType::F16)
    }

    /// Whether this is an integer type.
    pub const fn is_index(self) -> bool {
        matches!(self, DType::I32 | DType::I64)
    }

    /// Whether kernels compute in `f64` for it (otherwise in `f32`).
    pub const fn is_double(self) -> bool {
        matches!(self, DType::F64 | DType::Complex128)
    }

    /// Distance from 1 to the next larger number of the (component) type; 0 for integers.
    pub const fn epsilon(self) -> f64 {
        match self {
            DType::F32 | DType::Complex64 => f32::EPSILON as f64,
            DType::F64 | DType::Complex128 => f64::EPSILON,
            DType::BF16 => 0.0078125,
            DType::F16 => 0.0009765625,
            DType::I32 | DType::I64 => 0.0,
        }
    }

    /// The real type of the same precision.
    pub const fn real(self) -> DType {
        match self {
            DType::Complex64 => DType::F32,
            DType::Complex128 => DType::F64,
            other => other,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.scalar().fmt(f)
    }
}

/// A Rust type that can be the element of a view.
///
/// # Safety
/// `DTYPE` must describe the type's layout exactly, and every bit pattern must be a valid value.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// The storage type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ty => $d:ident),* $(,)?) => {
        // SAFETY: each pair is the same layout, and all of these are plain data.
        $(unsafe impl Element for $t { const DTYPE: DType = DType::$d; })*
    };
}

elements! {
    f32 => F32, f64 => F64, bf16 => BF16, f16 => F16,
    Complex<f32> => Complex64, Complex<f64> => Complex128,
    i32 => I32, i64 => I64,
}
