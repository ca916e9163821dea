//! `bench`: the operations at shapes of real models. Each case is checked against the oracle before it is timed.

mod args;
mod device;
mod host;
mod row;
mod targets;

use crate::error::Result;
use crate::exec::cuda_device;
pub use args::BenchArgs;
use statescan::Exec;

/// Runs the command: 1 if a check fails or a target is missed.
///
/// # Errors
/// Unknown names; those of the operations.
pub fn bench(args: &BenchArgs) -> Result<u8> {
    if args.targets {
        return targets::run(args);
    }
    match cuda_device(&args.device)? {
        Some(ordinal) => device::run(args, &Exec::cuda(ordinal)?),
        None => host::run(args),
    }
}
