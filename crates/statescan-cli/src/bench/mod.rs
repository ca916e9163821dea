//! `bench`: the operations at shapes of real models, and whole models. Each case of an operation is checked against the oracle before it is timed.

mod args;
mod device;
mod host;
mod model;
mod model_device;
mod model_row;
mod row;

use crate::error::{Error, Result};
use crate::exec::cuda_device;
pub use args::BenchArgs;
use statescan::Exec;

/// Runs the command: 1 if a check fails.
///
/// # Errors
/// Unknown names; those of the operations.
pub fn bench(args: &BenchArgs) -> Result<u8> {
    if args.op.as_deref() == Some(model::NAME) {
        return model::run(args);
    }
    if !args.size.is_empty() {
        let got = args.op.clone().unwrap_or_else(|| "nothing".into());
        return Err(Error::Usage { option: "the work of --size", expected: "model", got });
    }
    match cuda_device(&args.device)? {
        Some(ordinal) => device::run(args, &Exec::cuda(ordinal)?),
        None => host::run(args),
    }
}
