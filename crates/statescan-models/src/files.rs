//! Reading files, and writing them so that they are always whole; what is wrong with those that are not.

use crate::error::{Error, Result};
use crate::memory::no_room;
use safetensors::SafeTensorError;
use std::fs::{File, FileType, Metadata};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Whether something has this name, be it a link that leads nowhere.
pub(crate) fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Opens a file to read it. A path that could make a reader wait for ever, or has no end, is refused before it is opened.
pub(crate) fn open(path: &Path) -> Result<File> {
    check_is_file(path, &metadata(path)?)?;
    File::open(path).map_err(Error::io(path))
}

/// The bytes of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let mut file = open(path)?;
    let len = file.metadata().map_err(Error::io(path))?.len();
    let mut bytes = Vec::new();
    let size = usize::try_from(len).unwrap_or(usize::MAX);
    bytes.try_reserve_exact(size).map_err(|_| no_room(path.display().to_string(), size))?;
    file.read_to_end(&mut bytes).map_err(Error::io(path))?;
    Ok(bytes)
}

/// The text of a file.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read(path)?).map_err(|error| {
        let why = error.utf8_error().to_string();
        Error::Format { path: path.to_owned(), expected: "text in UTF-8", why }
    })
}

/// Makes a folder and those that it lies in.
pub(crate) fn make_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(Error::io(folder))
}

/// Writes a file as all files of models are written: aside first and then renamed, so that whoever looks finds the old file or
/// the new one. A link is replaced, and its target stays as it was. Parts of the file that killed processes left are removed.
///
/// # Errors
/// A path that exists and is no file, a file that cannot be written.
pub fn write_file(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    write_aside(path.as_ref(), bytes)
}

/// Writes a file as [`write_file`] does.
pub(crate) fn write_aside(path: &Path, bytes: &[u8]) -> Result<()> {
    write_aside_with(path, |file| file.write_all(bytes))
}

/// Writes a file as [`write_file`] does, piece by piece.
pub(crate) fn write_aside_with(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
    check_place(path)?;
    remove_abandoned(path);
    let aside = part(path, std::process::id());
    let mut file = create_locked(&aside).map_err(Error::io(path))?;
    let written = write(&mut file).and_then(|()| std::fs::rename(&aside, path));
    if written.is_err() {
        // a file that was only begun is of no use to anybody
        let _ = std::fs::remove_file(&aside);
    }
    written.map_err(Error::io(path))
}

/// Whether a file can be written there, which is better known before long work than after it. Nothing is left.
pub(crate) fn try_aside(path: &Path) -> Result<()> {
    check_place(path)?;
    let aside = part(path, std::process::id());
    create_locked(&aside).and_then(|_| std::fs::remove_file(&aside)).map_err(Error::io(path))
}

/// Refuses a place that has something else than a file, or a link to something else. A link that leads nowhere is replaced like one to a file.
fn check_place(path: &Path) -> Result<()> {
    match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => path.metadata().map_or(Ok(()), |found| check_is_file(path, &found)),
        Ok(found) => check_is_file(path, &found),
        Err(_) => Ok(()),
    }
}

/// Removes a file, if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path)(error)),
        _ => Ok(()),
    }
}

/// Returns the path under which a file is written before it is renamed.
fn part(path: &Path, process: u32) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{process}.part"));
    path.with_file_name(name)
}

/// A new file that is locked while it is open, which says that somebody is writing it.
fn create_locked(path: &Path) -> std::io::Result<File> {
    loop {
        let file = File::create(path)?;
        // file systems without locks write all the same
        let locked = file.lock().is_ok();
        // somebody may have removed it as abandoned before it was locked
        if !locked || path.exists() {
            return Ok(file);
        }
    }
}

/// Removes what killed processes left of this file: it has the name of a part, and nobody has locked it.
fn remove_abandoned(path: &Path) {
    let (Some(name), Some(folder)) = (path.file_name().and_then(|name| name.to_str()), path.parent()) else { return };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let found = entry.file_name();
        let process = found.to_str().and_then(|found| found.strip_prefix(name)?.strip_prefix('.')?.strip_suffix(".part"));
        let is_part = process.is_some_and(|process| process.parse::<u32>().is_ok_and(|process| process != std::process::id()));
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let Some(file) = (is_part && is_file).then(|| File::open(entry.path()).ok()).flatten() else { continue };
        if file.try_lock().is_ok() {
            // while it is locked, so that whoever is about to write it sees that it is gone
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Returns the metadata of the file that a path leads to.
fn metadata(path: &Path) -> Result<Metadata> {
    path.metadata().map_err(|error| match std::fs::read_link(path) {
        Ok(target) if error.kind() == std::io::ErrorKind::NotFound => {
            Error::NotAFile { path: path.to_owned(), is: format!("a link to {}, which does not exist", target.display()) }
        }
        _ => Error::io(path)(error),
    })
}

fn check_is_file(path: &Path, found: &Metadata) -> Result<()> {
    match found.is_file() {
        true => Ok(()),
        false => Err(Error::NotAFile { path: path.to_owned(), is: kind(found.file_type()).into() }),
    }
}

/// Returns the kind of a path that is no file, in words.
fn kind(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a named pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
        if kind.is_block_device() || kind.is_char_device() {
            return "a device";
        }
    }
    if kind.is_dir() { "a folder" } else { "no file" }
}

/// Returns the fault of a safetensors file's bytes, with the numbers that it is about.
pub(crate) fn why_not(error: &SafeTensorError, bytes: &[u8]) -> String {
    let got = bytes.len();
    let Some(header) = bytes.first_chunk().map(|length| u64::from_le_bytes(*length)) else {
        return format!("a header needs 8 bytes, got {got}");
    };
    let whole = || {
        let text = bytes.get(8..)?.get(..usize::try_from(header).ok()?)?;
        let json: serde_json::Value = serde_json::from_slice(text).ok()?;
        let ends = json.as_object()?.values().filter_map(|tensor| tensor["data_offsets"][1].as_u64());
        ends.max().unwrap_or(0).checked_add(header)?.checked_add(8)
    };
    match (error, whole()) {
        (SafeTensorError::InvalidHeaderLength | SafeTensorError::HeaderTooLarge, _) => {
            format!("its header needs {header} bytes, got {got}")
        }
        (_, Some(needs)) if needs != got as u64 => format!("its tensors need {needs} bytes, got {got}"),
        _ => error.to_string(),
    }
}
