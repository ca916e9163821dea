//! Where commands write: what is there already is not overwritten without a word, and nobody else writes there at the same time.

use crate::error::{Error, Result};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// What a folder of a training or a model has, and what it is then.
const CONTENTS: [(&str, &str); 6] = [
    ("training.safetensors", "a training"),
    ("model.safetensors", "a model"),
    ("model.safetensors.index.json", "a model"),
    ("pytorch_model.bin", "a model"),
    ("pytorch_model.bin.index.json", "a model"),
    ("config.json", "a model's configuration"),
];

/// What belongs to a model beside its weights and settings: tokenizers, templates, defaults of generation.
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
        for name in COMPANIONS {
            // it would be taken for that of the model that is written
            let companion = path.join(name);
            if is_there(&companion) {
                std::fs::remove_file(&companion).map_err(io(&companion))?;
            }
        }
        Ok(folder)
    }

    /// A folder that is there.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let lock = match File::open(path) {
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

    /// Copies what belongs to a model beside weights and settings from a folder, and is not here yet; the names.
    pub(crate) fn copy_companions(&self, from: &Path) -> Result<Vec<&'static str>> {
        let mut copied = Vec::new();
        for name in COMPANIONS {
            let (source, target) = (from.join(name), self.path.join(name));
            if source.is_file() && !is_there(&target) {
                std::fs::copy(&source, &target).map_err(io(&source))?;
                copied.push(name);
            }
        }
        Ok(copied)
    }
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

/// Refuses to write into the folder that is read, whatever the two paths look like.
pub(crate) fn check_apart(to: &Path, from: &Path, option: &'static str, expected: &'static str) -> Result<()> {
    match (from.canonicalize(), to.canonicalize()) {
        (Ok(from), Ok(place)) if from == place => Err(Error::Usage { option, expected, got: to.display().to_string() }),
        _ => Ok(()),
    }
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
