//! Errors of a device.

/// The faults of a device, its driver or its compiler. [`Error::Cuda`] can be about an earlier call, as CUDA finds out late.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The machine, or this build, cannot do what was asked.
    #[error("{what} is not available: {why}")]
    Unavailable {
        /// The thing that was asked for.
        what: &'static str,
        /// Why it is not there.
        why: &'static str,
    },
    /// The CUDA driver refused a call, or found an error of an earlier one.
    #[error("CUDA: {call} failed with {name} ({code})")]
    Cuda {
        /// The driver's function.
        call: &'static str,
        /// Its name for the error.
        name: &'static str,
        /// The error's number.
        code: u32,
    },
    /// A device has not enough memory left.
    #[error("cuda:{device} has not {bytes} bytes of memory left")]
    OutOfMemory {
        /// The device.
        device: usize,
        /// The bytes that were asked for.
        bytes: usize,
    },
    /// A kernel could not be compiled.
    #[error("the kernel {kernel} could not be compiled: {log}")]
    Compile {
        /// The kernel.
        kernel: &'static str,
        /// The compiler's output.
        log: String,
    },
}

/// A result with [`enum@Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;
