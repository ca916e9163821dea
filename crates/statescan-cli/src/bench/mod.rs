//! `bench`: shapes of real models.
use crate::cli::BenchArgs;
use crate::error::Result;
/// Runs the command.
///
/// # Errors
/// Those of the operations.
pub fn bench(_args: &BenchArgs) -> Result<u8> {
    Ok(0)
}
