//! The targets of commands: existing contents are not overwritten without a word, and nobody else writes there at the same time.

use crate::error::{Error, Result};
use statescan_models::write_file;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Files of a folder, and the kind of thing that a folder with each is.
const CONTENTS: [(&str, &str); 6] = [
    ("training.safetensors", "a training"),
    ("model.safetensors", "a model"),
    ("model.safetensors.index.json", "a model"),
    ("pytorch_model.bin", "a model"),
    ("pytorch_model.bin.index.json", "a model"),
    ("config.json", "a model's configuration"),
];

/// Files that belong to a model beside its weights and settings: tokenizers, templates, defaults of generation.
const COMPANIONS: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
];

/// Files that a training writes beside the model.
const TRAINING: [&str; 2] = ["training.safetensors", "loss.svg"];

/// A folder that this process alone writes.
#[derive(Debug)]
pub(crate) struct OutputFolder {
    path: PathBuf,
    /// The folder, locked; file systems without locks have none.
    _lock: Option<File>,
}

impl OutputFolder {
    /// Makes a folder, or takes one that [`check_folder`] lets be written.
    pub(crate) fn create(path: &Path, force: bool, instead: &'static str) -> Result<Self> {
        check_folder(path, force, instead)?;
        std::fs::create_dir_all(path).map_err(io(path))?;
        let folder = Self::open(path)?;
        // somebody may have written it before it was locked
        check_folder(path, force, instead)?;
        Ok(folder)
    }

    /// A folder that is there.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        // a file that is no folder could make an opener wait for ever
        let lock = match if path.is_dir() { File::open(path) } else { Err(ErrorKind::NotADirectory.into()) } {
            Ok(folder) => match folder.try_lock() {
                Ok(()) => Some(folder),
                Err(TryLockError::WouldBlock) => return Err(Error::Busy { path: path.to_owned() }),
                Err(TryLockError::Error(_)) => None,
            },
            // nothing is there, or the system opens no folders as files
            Err(_) => None,
        };
        Ok(OutputFolder { path: path.to_owned(), _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces what a folder has of a model or a training beside weights and settings by the files of the first of some folders that
    /// has them, and gives their names back.
    pub(crate) fn replace(&self, from: &[&Path]) -> Result<Vec<&'static str>> {
        let mut copied = Vec::new();
        for name in COMPANIONS {
            let source = from.iter().map(|from| from.join(name)).find(|source| source.is_file());
            if let Some(source) = source {
                let bytes = std::fs::read(&source).map_err(io(&source))?;
                write_file(self.path.join(name), &bytes)?;
                copied.push(name);
            }
        }
        let names = std::fs::read_dir(&self.path).map_err(io(&self.path))?.flatten();
        for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
            if is_of_model(&name) && !copied.contains(&&*name) {
                let surplus = self.path.join(&name);
                std::fs::remove_file(&surplus).map_err(io(&surplus))?;
            }
        }
        Ok(copied)
    }

    /// Removes a folder in it that has a model alone.
    pub(crate) fn remove_model(&self, name: &str) -> Result<()> {
        let folder = self.path.join(name);
        let names = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
            if is_of_model(&name) || CONTENTS.iter().any(|(of_model, _)| *of_model == name) {
                let surplus = folder.join(&name);
                std::fs::remove_file(&surplus).map_err(io(&surplus))?;
            }
        }
        // other files in it are somebody's
        let _ = std::fs::remove_dir(&folder);
        Ok(())
    }
}

/// Whether a file of this name belongs to a model or a training, but for safetensors files of weights, which whoever writes weights replaces.
fn is_of_model(name: &str) -> bool {
    let pickled = name.starts_with("pytorch_model") && (name.ends_with(".bin") || name.ends_with(".bin.index.json"));
    pickled || COMPANIONS.contains(&name) || TRAINING.contains(&name)
}

/// Refuses a folder that has a model or a training, unless it is to be overwritten; `instead` says what else there is to do with a training.
pub(crate) fn check_folder(path: &Path, force: bool, instead: &'static str) -> Result<()> {
    if path.exists() && !path.is_dir() {
        return Err(Error::Usage { option: "the folder to write", expected: "a folder", got: path.display().to_string() });
    }
    let companions = COMPANIONS.map(|name| (name, "a file of a model"));
    let found = CONTENTS.into_iter().chain(companions).find(|(name, _)| is_there(&path.join(name)));
    match found {
        Some((name, has)) if !force => {
            let instead = if has == "a training" { instead } else { "--force overwrites it" };
            Err(Error::Occupied { path: path.to_owned(), has, name, instead })
        }
        _ => Ok(()),
    }
}

/// Refuses to write over what is read: into the same folder, whatever the two paths look like, or into one in which files lie that links lead to.
pub(crate) fn check_apart(to: &Path, from: &Path, option: &'static str, expected: &'static str) -> Result<()> {
    let (Ok(place), Ok(folder)) = (to.canonicalize(), from.canonicalize()) else { return Ok(()) };
    let entries = std::fs::read_dir(from).into_iter().flatten().flatten();
    let inside = |path: PathBuf| path.canonicalize().is_ok_and(|file| file.parent() == Some(&place));
    match folder == place || entries.map(|entry| entry.path()).any(inside) {
        true => Err(Error::Usage { option, expected, got: to.display().to_string() }),
        false => Ok(()),
    }
}

/// The files of a model's folder that are read beside weights and settings.
pub(crate) fn companions(folder: &Path) -> impl Iterator<Item = PathBuf> {
    COMPANIONS.into_iter().map(|name| folder.join(name)).filter(|path| path.is_file())
}

/// Whether something has this name, be it a link that leads nowhere.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// The bytes of a text: a file, or standard input where it is `-`.
pub(crate) fn read_text(path: &Path) -> Result<Vec<u8>> {
    if path != Path::new("-") {
        return std::fs::read(path).map_err(io(path));
    }
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut bytes).map_err(io(Path::new("standard input")))?;
    Ok(bytes)
}

pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let name = path.display().to_string();
    |source| Error::Io { name, source }
}
