//! The types of elements.

use core::fmt;

/// The type of one element in a device's memory.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scalar {
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
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
}

impl Scalar {
    /// Size of one element in bytes.
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            Scalar::BF16 | Scalar::F16 => 2,
            Scalar::F32 | Scalar::I32 => 4,
            Scalar::F64 | Scalar::Complex64 | Scalar::I64 => 8,
            Scalar::Complex128 => 16,
        }
    }
}

/// The name that the type has in device code (`types.cuh`).
impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scalar::F32 => "f32",
            Scalar::F64 => "f64",
            Scalar::BF16 => "bf16",
            Scalar::F16 => "f16",
            Scalar::Complex64 => "complex64",
            Scalar::Complex128 => "complex128",
            Scalar::I32 => "i32",
            Scalar::I64 => "i64",
        })
    }
}
