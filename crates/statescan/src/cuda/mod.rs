//! NVIDIA GPUs: contexts, streams, memory, and kernels that are compiled when they are first needed.
//!
//! An operation runs on a GPU when its executor is [`Exec::cuda`](crate::Exec::cuda) or
//! [`Exec::cuda_stream`](crate::Exec::cuda_stream) and its views lie in the memory of that device. The device's primary context is used, so
//! pointers and streams of other libraries in the process are valid here. A call only puts kernels into the stream: it allocates nothing,
//! copies nothing and waits for nothing, so that CUDA graphs can capture it. What it finds out too late, an address that does not exist,
//! is reported by a later call, as CUDA does.
//!
//! A kernel is CUDA C++ text, made specific to types, sizes and options by the constants of a configuration, and compiled by
//! NVRTC for the device at hand. Compiled kernels are kept in memory and on disk: in the folder `STATESCAN_CACHE_DIR` if that variable is
//! set, else in `statescan` in the user's cache folder.
//!
//! Driver and NVRTC are loaded at run time. Without the feature `cuda`, without a driver, without NVRTC or without a device everything
//! here answers [`Error::Unavailable`](crate::Error::Unavailable).

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod blaslt;
#[cfg(feature = "cuda")]
mod cache;
mod ceilings;
mod config;
#[cfg(feature = "cuda")]
mod driver;
mod graph;
#[cfg(feature = "cuda")]
mod jit;
mod kernel;
mod landing;
mod launch;
pub mod layers;
#[cfg(feature = "cuda")]
mod library;
mod memory;
#[cfg(feature = "cuda")]
mod nodes;
mod numbers;
#[cfg(feature = "cuda")]
pub(crate) mod nvrtc;
mod params;
mod plan;
mod program;
mod queue;
mod recent;
mod step_size;
#[cfg(feature = "cuda")]
mod stream;
mod strided;
mod sums;
mod tensor_map;
#[cfg(all(test, feature = "cuda"))]
pub(crate) mod testing;

#[cfg(not(feature = "cuda"))]
pub(crate) use absent::{Blaslt, Stream};
#[cfg(feature = "cuda")]
pub(crate) use blaslt::Blaslt;
pub use ceilings::Ceilings;
pub(crate) use config::{Config, TileCopy, Value, neighbours};
pub use graph::{Graph, elapsed};
pub(crate) use kernel::{Kernel, blocks_of_lines};
pub use landing::Landing;
pub(crate) use launch::Launch;
pub(crate) use memory::DeviceMemory;
pub(crate) use numbers::Numbers;
pub(crate) use params::{Address, Parameter, params};
#[cfg(feature = "cuda")]
pub(crate) use params::{Declarations, Field};
pub use plan::{Gpu, PlannedLaunch};
pub(crate) use plan::{nowhere, on_a_device, written_like};
pub(crate) use program::{BLOCKS, COMMON, DISCRETIZATION, HOPPER, MMA, Program, STEP_SIZE};
pub(crate) use queue::{Key, Queue};
use recent::Recent;
pub(crate) use step_size::StepTypes;
#[cfg(feature = "cuda")]
pub(crate) use stream::Stream;
pub(crate) use strided::Strided;
pub(crate) use sums::{Sum, sum_terms};
pub(crate) use tensor_map::{Swizzle, TensorMap, Tiling};

use crate::error::Result;

/// A kernel that is loaded on a device.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // only a driver reads it
pub(crate) struct Function {
    /// Its name in its text.
    kernel: &'static str,
    address: usize,
}

/// The names of the devices that can be used.
///
/// # Errors
/// [`crate::Error::Unavailable`] and [`crate::Error::Cuda`] if there are none.
pub fn devices() -> Result<Vec<String>> {
    Stream::devices()
}
