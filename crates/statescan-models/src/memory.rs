//! Memory is asked for in time: what a call needs is asked for as a whole, and given back, before the call begins. A system that has it not says so then;
//! asked for piece by piece, it would end the process. Some systems promise any memory, and end the process when it is used: there the size of the machine counts.

use crate::error::{Error, Result};

/// Less than this is not asked for beforehand.
const SMALL: usize = 1 << 28;

/// Refuses what needs more memory than there is.
pub(crate) fn check(what: &str, bytes: usize) -> Result<()> {
    if bytes < SMALL {
        return Ok(());
    }
    let given = machine().is_none_or(|all| bytes as u64 <= all) && Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
    if given { Ok(()) } else { Err(no_room(what.to_owned(), bytes)) }
}

/// Bytes of memory and swap of the machine, where the system says so.
fn machine() -> Option<u64> {
    Some(bytes_of("MemTotal:")?.saturating_add(bytes_of("SwapTotal:").unwrap_or(0)))
}

/// Bytes of memory that the machine has left, where the system says so.
pub(crate) fn left() -> Option<u64> {
    bytes_of("MemAvailable:")
}

fn bytes_of(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_end_matches("kB").trim().parse::<u64>().ok()?.saturating_mul(1024))
}

pub(crate) fn no_room(what: String, bytes: usize) -> Error {
    let gigabytes = bytes as f64 / 1e9;
    Error::NoRoom { what, gigabytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn more_than_the_machine_has_is_refused() {
        let all = machine().unwrap() as usize;
        assert!(all > SMALL);
        let error = check("this call", all + 1).unwrap_err().to_string();
        assert!(error.starts_with("this call: it needs ") && error.contains("GB of memory"), "{error}");
        check("this call", SMALL).unwrap();
    }
}
