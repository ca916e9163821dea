//! CUDA kernels in Rust programs: texts that are compiled at run time, cached, launched and recorded. The kernels of `statescan` stand on it.
//!
//! # A kernel
//!
//! Device code is CUDA C++ in a file of its own. It is made specific by constants: a [`Config`] becomes lines such as
//! `constexpr int THREADS = 256;` and `typedef bf16 X;` in front of the text. The kernel takes one struct, by value, which
//! [`params!`] declares for host and device, where `static_assert` compares every offset. A [`Program`] holds the text together,
//! a [`Launch`] the blocks, and a [`Kernel`] all that one launch needs.
//!
//! ```
//! use statescan_cuda::{Address, COMMON, Config, Kernel, Launch, Program, Result, Scalar, params};
//!
//! params! {
//!     struct Params {
//!         x: Address<f32>,
//!         count: i64,
//!         factor: f32,
//!     }
//! }
//!
//! static SCALE: Program<Params> = Program::new("scale", &[COMMON], r#"
//!     extern "C" __global__ void scale(const __grid_constant__ Params p) {
//!       const i64 i = i64(blockIdx.x) * THREADS + threadIdx.x;
//!       if (i < p.count) p.x[i] *= p.factor;
//!     }
//! "#);
//!
//! fn plan(x: u64, count: usize, factor: f32) -> Result<Kernel<Params>> {
//!     let params = Params { x: Address::new(x), count: count as i64, factor };
//!     Ok(Kernel { config: Config::default().int("THREADS", 256), launch: Launch::elementwise("scale", Some(count), 256)?, params })
//! }
//!
//! let kernel = plan(1 << 20, 1000, 2.0)?;
//! assert_eq!(kernel.launch.blocks(), 4);
//! assert_eq!(kernel.config.to_string(), "constexpr int THREADS = 256;\n");
//! // on a GPU: unsafe { kernel.launch(&stream, &SCALE)? }
//! # Ok::<(), statescan_cuda::Error>(())
//! ```
//!
//! `examples/axpby.rs` is a whole one with its tests. Plans are pure functions of types, sizes and the [`Numbers`] of a device: that is what makes them
//! testable without one, and `testing::Suite` (feature `testing`) compiles what they ask for, for every architecture, with NVRTC alone.
//!
//! # Text
//!
//! A program is, in this order: the names of types (`f32`, `bf16`, `complex64`, ...), the declarations of its parameters, its prelude, the lines of the
//! configuration, and the kernel. [`COMMON`] is what every prelude begins with: conversions of storage types, elementary functions, asynchronous copies,
//! [`Strided`] tensors. [`MMA`] has products on tensor cores, [`BLOCKS`] products of blocks of any type, and [`HOPPER`] barriers, copied tiles and products of
//! warpgroups; each comes after those before it. No header of the toolkit is included, because NVRTC is often installed without them.
//!
//! Code that several kernels share stands in a [`Header`], which the kernel's text includes by name and [`Program::including`]
//! hands over. A header says in its first lines which constants of the configuration it needs, for the compiler to check:
//! `static_assert(given<int>(THREADS, STEPS) && given_types<X, Y>());` fails with the name of one that is missing, or has another
//! type. `testing::Suite` looks for constants that a header uses and does not name there.
//!
//! # Device functions
//!
#![doc = include_str!("device_functions.md")]
//!
//! # Streams
//!
//! A [`Stream`] is of the device's primary context, so that pointers and streams of other libraries in the process are valid. A launch allocates nothing,
//! copies nothing and waits for nothing: a [`Graph`] can record it. A [`Queue`] is a stream for one pass of a library's operation, and remembers under a [`Key`]
//! what earlier passes like it have found out.
//!
//! Launches are unsafe: that addresses are valid, and that the configuration describes what lies there, nobody but the caller can know. Everything else
//! gives an [`enum@Error`].
//!
//! # Compiled kernels
//!
//! They are kept in memory and on disk, in the folder `STATESCAN_CACHE_DIR` if that variable is set, else in `statescan` in the user's cache folder. An entry is
//! found by its whole text, the architecture and the compiler's version.
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `driver` (default) | streams: driver, NVRTC and cuBLASLt are loaded at run time. Without it [`Stream::own`] answers [`Error::Unavailable`] |
//! | `testing` | `testing`: compiling configurations without a GPU, and memory for tests that have one |

#![deny(missing_debug_implementations, missing_docs)]

/// Code that needs a driver: the text, or, in a build without one, the answer that is possible without it. Streams cannot exist
/// then.
macro_rules! driven {
    (ABSENT => $($text:tt)*) => {{
        #[cfg(feature = "driver")]
        {
            $($text)*
        }
        #[cfg(not(feature = "driver"))]
        Err(crate::absent::ABSENT)
    }};
    ($this:ident => $($text:tt)*) => {{
        #[cfg(feature = "driver")]
        {
            $($text)*
        }
        #[cfg(not(feature = "driver"))]
        $this.absent.never()
    }};
}

#[cfg(not(feature = "driver"))]
mod absent;
#[cfg(feature = "driver")]
mod blaslt;
#[cfg(feature = "driver")]
mod cache;
mod ceilings;
mod config;
#[cfg(feature = "driver")]
mod driver;
mod error;
mod graph;
#[cfg(feature = "driver")]
mod jit;
mod kernel;
mod launch;
mod layout;
#[cfg(feature = "driver")]
mod library;
mod memory;
#[cfg(feature = "driver")]
mod nodes;
mod numbers;
#[cfg(feature = "driver")]
pub mod nvrtc;
mod params;
mod product;
mod program;
mod queue;
mod recent;
mod scalar;
mod shared;
mod stream;
mod sums;
mod tensor_map;
#[cfg(feature = "testing")]
pub mod testing;
mod tile_copy;

pub use ceilings::Ceilings;
pub use config::{Config, Constants, Value};
pub use error::{Error, Result};
pub use graph::{Graph, elapsed};
pub use kernel::{Kernel, blocks_of_lines};
pub use launch::Launch;
pub use layout::{Layout, Strided, are_runs, neighbours};
pub use memory::DeviceMemory;
pub use numbers::Numbers;
pub use params::{Address, Parameter};
#[cfg(feature = "driver")]
pub use params::{Declarations, Field};
pub use product::{Blaslt, Product};
#[cfg(feature = "driver")]
pub use program::Source;
pub use program::{BLOCKS, COMMON, HOPPER, Header, MMA, Program};
pub use queue::{Key, Queue};
pub use scalar::Scalar;
pub use shared::SharedMemory;
pub use stream::{AsStream, Stream};
pub use sums::{Sum, sum_terms};
pub use tensor_map::{Swizzle, TensorMap, Tiling};
pub use tile_copy::TileCopy;

/// A kernel that is loaded on a device.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(not(feature = "driver"), allow(dead_code))] // only a driver reads it
pub struct Function {
    /// Its name in its text.
    kernel: &'static str,
    address: usize,
}

/// The names of the devices that can be used.
///
/// # Errors
/// [`Error::Unavailable`] and [`Error::Cuda`] if there are none.
pub fn devices() -> Result<Vec<String>> {
    Stream::devices()
}
