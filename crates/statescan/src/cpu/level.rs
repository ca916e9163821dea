//! Instruction sets: found once, forceable in tests.

use super::simd::Isa;
use crate::error::{Error, Result};
use core::fmt;
use std::sync::OnceLock;

/// A SIMD instruction set that kernels are compiled for.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    /// One element at a time, on any processor.
    Scalar,
    /// 128-bit vectors on aarch64.
    Neon,
    /// 256-bit vectors with fused multiply-add and conversions of f16 on x86-64.
    Avx2,
    /// 512-bit vectors on x86-64 (F, BW, CD, DQ, VL).
    Avx512,
}

impl Level {
    /// Every level, the narrowest first.
    pub const ALL: [Level; 4] = [Level::Scalar, Level::Neon, Level::Avx2, Level::Avx512];

    /// The widest level that this processor has.
    pub fn best() -> Level {
        static BEST: OnceLock<Level> = OnceLock::new();
        *BEST.get_or_init(|| *Level::ALL.iter().rev().find(|level| level.is_available()).unwrap_or(&Level::Scalar))
    }

    /// The levels that this processor has, the narrowest first.
    pub fn available() -> impl Iterator<Item = Level> {
        Level::ALL.into_iter().filter(|level| level.is_available())
    }

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            Level::Scalar => cfg!(not(all(target_arch = "x86_64", fuzzing))),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Level::Avx2 => avx2().is_some(),
            #[cfg(all(target_arch = "x86_64", not(any(miri, fuzzing))))]
            Level::Avx512 => pulp::x86::V4::try_new().is_some(),
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            Level::Neon => pulp::aarch64::Neon::try_new().is_some(),
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    pub(crate) fn check(self) -> Result<Self> {
        match self.is_available() {
            true => Ok(self),
            false => Err(Error::Unavailable { what: self.name(), why: "this processor does not have the instructions" }),
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Scalar => "scalar",
            Level::Neon => "neon",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }

    /// Lanes of a vector of f32, or of f64.
    pub(crate) fn lanes(self, double: bool) -> usize {
        struct Lanes(bool);
        impl Kernel for Lanes {
            type Output = usize;
            const EVERY_LEVEL: bool = true;
            #[inline(always)]
            fn run<S: Isa>(self, _simd: S) -> usize {
                if self.0 { S::F64_LANES } else { S::F32_LANES }
            }
        }
        self.dispatch(Lanes(double))
    }

    /// Runs a kernel compiled for this level; a level that the processor lacks runs as scalar code.
    pub(crate) fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if K::EVERY_LEVEL => {
                if let Some(token) = pulp::x86::V4::try_new() {
                    return token.call(kernel);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 if K::EVERY_LEVEL || cfg!(fuzzing) => {
                if let Some(token) = avx2() {
                    return token.call(kernel);
                }
            }
            #[cfg(target_arch = "aarch64")]
            Level::Neon if K::EVERY_LEVEL => {
                if let Some(token) = pulp::aarch64::Neon::try_new() {
                    return token.call(kernel);
                }
            }
            _ => {}
        }
        if !K::EVERY_LEVEL {
            unreachable!("no kernel for {self}: see `Kernel::EVERY_LEVEL`");
        }
        pulp::Scalar.call(kernel)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The token of [`Level::Avx2`], where the processor converts f16 as well, which every one with AVX2 and FMA does unless that is hidden.
#[cfg(target_arch = "x86_64")]
#[inline]
fn avx2() -> Option<pulp::x86::V3> {
    pulp::x86::V3::try_new().filter(|_| std::is_x86_feature_detected!("f16c"))
}

/// A kernel body: a struct of arguments with one generic method, which must be `#[inline(always)]` (as everything it calls with the token),
/// so that it is compiled with the instruction set enabled.
///
/// The functions that it is compiled into are methods of the kernel, because the compiler puts methods where their type is: kernels of
/// different files are compiled beside each other, on as many cores as there are.
pub(crate) trait Kernel: Sized {
    /// The type of its result.
    type Output;
    /// Whether it is compiled for every level. Of the kernels of operations, which take minutes to build, unit tests have none: the tests in `tests/` run
    /// them. Fuzzing builds for x86-64, where the sanitizer's checks make them larger still, have those for AVX2.
    const EVERY_LEVEL: bool = !cfg!(any(test, all(target_arch = "x86_64", fuzzing)));
    /// The body.
    fn run<S: Isa>(self, simd: S) -> Self::Output;

    /// The body as scalar code.
    #[inline(never)]
    fn run_scalar(self) -> Self::Output {
        align_frame();
        self.run(pulp::Scalar)
    }

    /// The body with the instructions of [`Level::Neon`].
    ///
    /// # Safety
    /// The processor has them.
    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "neon")]
    unsafe fn run_neon(self, token: pulp::aarch64::Neon) -> Self::Output {
        align_frame();
        self.run(token)
    }

    /// The body with the instructions of [`Level::Avx2`].
    ///
    /// # Safety
    /// The processor has them.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "sse,sse2,fxsr,sse3,ssse3,sse4.1,sse4.2,popcnt,avx,avx2,bmi1,bmi2,fma,lzcnt,f16c")]
    unsafe fn run_avx2(self, token: pulp::x86::V3) -> Self::Output {
        align_frame();
        self.run(token)
    }

    /// The body with the instructions of [`Level::Avx512`].
    ///
    /// # Safety
    /// The processor has them.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "sse,sse2,fxsr,sse3,ssse3,sse4.1,sse4.2,popcnt,avx,avx2,bmi1,bmi2,fma,lzcnt")]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    unsafe fn run_avx512(self, token: pulp::x86::V4) -> Self::Output {
        align_frame();
        self.run(token)
    }
}

/// Makes the function that this is inlined into begin its stack frame at a cache line. The compiler decides on that before it knows which
/// registers it will have to store there, by the variables of the source alone; without this, most of those stores and loads would touch two
/// lines, and where a process's stack happens to put one across two pages, a kernel takes twice its time.
#[inline(always)]
fn align_frame() {
    core::hint::black_box(&mut core::mem::MaybeUninit::<crate::tensor::Line>::uninit());
}

#[cfg(all(test, target_arch = "aarch64", not(miri)))]
mod tests {
    use super::Level;

    /// Or the tests of the kernels would quietly run scalar code alone.
    #[test]
    fn neon_is_found() {
        assert_eq!(Level::available().collect::<Vec<_>>(), [Level::Scalar, Level::Neon]);
    }
}
