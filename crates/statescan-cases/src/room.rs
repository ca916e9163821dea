//! How much memory there is.

use crate::error::{Error, Result};

/// The most memory that the results of a call may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes.
    pub bytes: u64,
}

impl Default for Limits {
    /// The memory that the machine has left.
    fn default() -> Self {
        Limits { bytes: available_memory().unwrap_or(8 << 30) }
    }
}

/// Whether so many bytes can be had: the machine has them left, and the system gives them.
pub fn fits(bytes: u64) -> bool {
    let given = || usize::try_from(bytes).is_ok_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok());
    bytes <= Limits::default().bytes && given()
}

/// Refuses what needs more memory than there is, before it is asked for piece by piece, which would end the process.
///
/// # Errors
/// [`Error::NoRoom`].
pub fn need(what: &'static str, bytes: u64) -> Result<()> {
    if fits(bytes) { Ok(()) } else { Err(Error::NoRoom { what, bytes }) }
}

fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
