//! Memory is asked for in time: what a call needs is asked for as a whole, and given back, before the call begins. A system that has it not says so then;
//! asked for piece by piece, it would end the process.

use crate::error::{Error, Result};

/// Less than this is not asked for beforehand.
const SMALL: usize = 1 << 28;

/// Refuses what needs more memory than there is.
pub(crate) fn check(what: &str, bytes: usize) -> Result<()> {
    if bytes < SMALL {
        return Ok(());
    }
    Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| no_room(what.to_owned(), bytes))
}

pub(crate) fn no_room(what: String, bytes: usize) -> Error {
    let gigabytes = bytes as f64 / 1e9;
    Error::NoRoom { what, gigabytes }
}
