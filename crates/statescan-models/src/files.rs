//! Writing files so that they are always whole.

use crate::error::{Error, Result};
use std::path::Path;

/// Writes a file beside its place and renames it, so that whoever looks finds the old file or the new one.
pub(crate) fn write_aside(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let aside = path.with_file_name(name);
    let written = std::fs::write(&aside, bytes).and_then(|()| std::fs::rename(&aside, path));
    if written.is_err() {
        // what was begun is of no use to anybody
        let _ = std::fs::remove_file(&aside);
    }
    written.map_err(Error::io(path))
}
