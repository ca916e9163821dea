//! The one error type. Variants name the operation and the argument and carry what was expected and what came.

use crate::device::Device;
use crate::dtype::DType;
use crate::shape::{MAX_RANK, Shape, TooManyAxes};
use std::borrow::Cow;

/// The faults of a call. Nothing has been written when one of these comes back, with two exceptions on GPUs: [`Error::Cuda`] can
/// be about an earlier call, and it and [`Error::Compile`] can come when some of the call's kernels are in the stream already.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// An argument has the wrong number of axes.
    #[error("{op}: `{argument}` must have {expected}, got shape {got}{help}")]
    Rank {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The layouts that are accepted, in words.
        expected: Cow<'static, str>,
        /// The shape that came.
        got: Shape,
        /// A colon and what may help: where sizes come from, what would make the call fit. It may be empty.
        help: String,
    },
    /// An argument has the right number of axes, and a wrong size.
    #[error("{op}: `{argument}` must have shape {expected}, got {got}{help}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The shape that follows from the other arguments.
        expected: Shape,
        /// The shape that came.
        got: Shape,
        /// A colon and what may help: where sizes come from, what would make the call fit. It may be empty.
        help: String,
    },
    /// An argument has a type that the operation does not take there.
    #[error("{op}: `{argument}` must be {expected}, got {got}")]
    DType {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The types that are accepted, in words.
        expected: &'static str,
        /// The type that came.
        got: DType,
    },
    /// An argument lives on another device than the one the call runs on.
    #[error("{op}: `{argument}` must be on {expected}, got one on {got}")]
    Device {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The device of the call.
        expected: Device,
        /// The device of the argument.
        got: Device,
    },
    /// An output addresses the same element twice (a zero stride, or strides that fold onto each other).
    #[error("{op}: `{argument}` is written, so its elements must be distinct, got shape {shape} with strides {strides:?}")]
    Stride {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// Its shape.
        shape: Shape,
        /// Its strides in elements.
        strides: Vec<isize>,
    },
    /// An output shares memory with another argument.
    #[error("{op}: `{argument}` is written and must not share memory with `{other}`")]
    Overlap {
        /// The operation.
        op: &'static str,
        /// The output.
        argument: &'static str,
        /// The argument it overlaps.
        other: &'static str,
    },
    /// A scalar option, or a size, is outside what the operation accepts.
    #[error("{op}: `{argument}` must be {expected}, got {got}")]
    Value {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The accepted values, in words.
        expected: &'static str,
        /// The value that came.
        got: f64,
    },
    /// Limits that are no interval.
    #[error("{op}: `{argument}` must be two numbers, the second not below the first, got ({low}, {high})")]
    Limits {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The first limit.
        low: f64,
        /// The second one.
        high: f64,
    },
    /// An element of an index tensor is out of range or out of order.
    #[error("{op}: `{argument}`[{position}] must be {expected} {bound}, got {got}")]
    Index {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// Position of the element in row-major order.
        position: usize,
        /// The relation that fails, in words ("at most", "equal to", ...).
        expected: &'static str,
        /// The other side of that relation.
        bound: i64,
        /// The value that came.
        got: i64,
    },
    /// An argument is missing that another one needs, or one is present that excludes another.
    #[error("{op}: `{argument}` {expected}")]
    Presence {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The condition that must hold, in words.
        expected: &'static str,
    },
    /// A view would reach outside its buffer.
    #[error(
        "view: shape {shape} with strides {strides:?} from element {offset} reaches outside a buffer of {available} elements"
    )]
    Bounds {
        /// The shape asked for.
        shape: Shape,
        /// The strides asked for, in elements.
        strides: Vec<isize>,
        /// The first element.
        offset: usize,
        /// Elements in the buffer.
        available: usize,
    },
    /// More axes than a view can have.
    #[error("view: at most {max} axes, got {got}")]
    TooManyAxes {
        /// The limit.
        max: usize,
        /// The number that came.
        got: usize,
    },
    /// The machine cannot do what was asked (an instruction set, a device).
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

impl From<TooManyAxes> for Error {
    fn from(error: TooManyAxes) -> Self {
        Error::TooManyAxes { max: MAX_RANK, got: error.got }
    }
}

impl From<statescan_cuda::Error> for Error {
    fn from(error: statescan_cuda::Error) -> Self {
        match error {
            statescan_cuda::Error::Unavailable { what, why } => Error::Unavailable { what, why },
            statescan_cuda::Error::Cuda { call, name, code } => Error::Cuda { call, name, code },
            statescan_cuda::Error::OutOfMemory { device, bytes } => Error::OutOfMemory { device, bytes },
            statescan_cuda::Error::Compile { kernel, log } => Error::Compile { kernel, log },
            _ => Error::Unavailable { what: "CUDA", why: "an error that this version does not know" },
        }
    }
}
