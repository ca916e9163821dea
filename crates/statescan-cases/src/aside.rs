//! Files that are written aside and renamed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};

/// A file beside its target, which it replaces once it is whole; else it is removed.
pub(crate) struct Aside {
    file: File,
    path: PathBuf,
    target: PathBuf,
}

impl Aside {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        // a link to a file is replaced, and never what it leads to; a device or a directory is not
        if std::fs::metadata(path).is_ok_and(|existing| !existing.is_file()) {
            return Err(Error::other("it exists and is not a regular file"));
        }
        let target = path.to_path_buf();
        let name = target.file_name().ok_or_else(|| Error::other("it has no file name"))?;
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.part", std::process::id()));
        let path = target.with_file_name(hidden);
        Ok(Aside { file: File::create_new(&path)?, path, target })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name, once it is on the disk.
    pub(crate) fn finish(self) -> Result<()> {
        self.file.sync_all()?;
        std::fs::rename(&self.path, &self.target)
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // once the file is renamed there is nothing to remove
        let _ = std::fs::remove_file(&self.path);
    }
}
