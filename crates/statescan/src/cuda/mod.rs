//! NVIDIA GPUs: contexts, streams, memory, and kernels that are compiled when they are first needed.
//!
//! An operation runs on a GPU when its executor is [`Exec::cuda`](crate::Exec::cuda) or
//! [`Exec::cuda_stream`](crate::Exec::cuda_stream) and its views lie in the memory of that device. The device's primary context
//! is used, so pointers and streams of other libraries in the process are valid here. A call only puts kernels into the stream:
//! it allocates nothing, copies nothing and waits for nothing, so that CUDA graphs can capture it. An error that it finds too
//! late, such as an address that does not exist, is reported by a later call, as CUDA does.
//!
//! A kernel is CUDA C++ text, made specific to types, sizes and options by the constants of a configuration, and compiled by
//! NVRTC for the device at hand. Compiled kernels are kept in memory and on disk: in the folder `STATESCAN_CACHE_DIR` if that variable is
//! set, else in `statescan` in the user's cache folder.
//!
//! Kernels of one's own are written with the crate [`statescan_cuda`], on which those of this one stand; [`View`](crate::View) is
//! a [`Layout`](statescan_cuda::Layout) and [`Exec`](crate::Exec) has a [`Stream`] there.
//!
//! Driver and NVRTC are loaded at run time. Without the feature `cuda`, without a driver, without NVRTC or without a device everything
//! here answers [`Error::Unavailable`](crate::Error::Unavailable).

mod landing;
mod layout;
mod plan;
mod step_size;
#[cfg(all(test, feature = "cuda"))]
pub(crate) mod testing;

pub use landing::Landing;
pub use plan::{Gpu, PlannedLaunch};
pub(crate) use plan::{nowhere, on_a_device, written_like};
pub(crate) use statescan_cuda::{
    Address, BLOCKS, COMMON, Config, HOPPER, Header, Kernel, Key, Launch, MMA, Numbers, Program, Queue, SharedMemory, Strided,
    Sum, Swizzle, TensorMap, TileCopy, Tiling, Value, are_runs, blocks_of_lines, header, neighbours, params, sum_terms,
};
#[doc(inline)]
pub use statescan_cuda::{AsStream, Ceilings, Stream, elapsed};
pub(crate) use step_size::StepTypes;

/// Calls recorded once, to be put into the stream as often as wanted: [`statescan_cuda::Graph`].
pub type Graph = statescan_cuda::Graph<crate::Error>;

/// Step sizes and gates in device code.
pub const STEP_SIZE: Header = header!("step_size.cuh");
/// Runs of neighbours that begin anywhere.
pub(crate) const RUNS: Header = header!("runs.cuh");
/// The discretizations.
pub(crate) const DISCRETIZATION: Header = header!("discretization.cuh");
/// Slots of pools of states; it comes behind the configuration.
pub(crate) const SLOTS: Header = header!("slots.cuh");
/// Slots of steps; it comes behind the configuration.
pub(crate) const STEP_SLOTS: Header = header!("step_slots.cuh");
/// Steps of packed sequences; it comes behind the configuration.
pub(crate) const SEQUENCES: Header = header!("sequences.cuh");

/// The names of the devices that can be used.
///
/// # Errors
/// [`Error::Unavailable`](crate::Error::Unavailable) and [`Error::Cuda`](crate::Error::Cuda) if there are none.
pub fn devices() -> crate::Result<Vec<String>> {
    Ok(statescan_cuda::devices()?)
}
