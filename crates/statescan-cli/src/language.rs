//! Which language model, on the command line, and states on disk.

use crate::destination::companions;
use crate::error::{Error, Result};
use crate::exec::{ExecArgs, WeightType};
use crate::reader::Reader;
use clap::Args;
use statescan::tensor::Device;
use statescan::{DType, Exec};
use statescan_models::{ChatTemplate, Family, Model, Snapshot, Tokenizer};
use std::path::{Path, PathBuf};

/// The configuration and the weights of the model in the program, which `statescan train` made (docs/models/training.md).
const OWN: (&str, &[u8]) = (include_str!("../assets/alice/config.json"), include_bytes!("../assets/alice/model.safetensors"));

/// A language model, and where it computes.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Folder of a model.
    #[arg(value_name = "DIR", help = format!("{}; a small model of the bytes of \"Alice's Adventures in Wonderland\" if none is given", folder_help()))]
    pub folder: Option<PathBuf>,
    /// How the model is used.
    #[command(flatten)]
    pub with: LanguageArgs,
}

/// Returns the description of a model's folder for the help of commands.
pub(crate) fn folder_help() -> String {
    format!("Folder of a model of `transformers` or `mamba_ssm`: {}", Family::names())
}

/// How a language model is used.
#[derive(Debug, Args)]
pub struct LanguageArgs {
    /// Folder with the tokenizer and the chat template, where the model's own has none
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// Leave out the tokens that the tokenizer adds to a text by itself, such as one for its beginning
    #[arg(long)]
    pub no_special_tokens: bool,
    /// The type of weights on a GPU; the one that they have if not given
    #[arg(long = "type", value_enum, value_name = "TYPE")]
    pub dtype: Option<WeightType>,
    /// Multiply in 32 bits, where processors with AMX would round what they multiply with weights in bf16 to bf16 too
    #[arg(long, conflicts_with = "device")]
    pub exact: bool,
    /// The device, and how to compute on it.
    #[command(flatten)]
    pub exec: ExecArgs,
}

/// A model that was loaded.
pub(crate) struct Language {
    pub(crate) exec: Exec,
    pub(crate) model: Model,
    pub(crate) tokenizer: Tokenizer,
    /// The files that it was read from.
    files: Vec<PathBuf>,
    pub(crate) dtype: Option<DType>,
    /// Whether the tokens that the tokenizer adds belong to a text.
    special_tokens: bool,
}

impl LanguageArgs {
    /// The model of a folder, or the one in the program.
    ///
    /// # Errors
    /// A device that there is not, a folder that has no model or no tokenizer.
    pub(crate) fn load(&self, folder: Option<&Path>) -> Result<Language> {
        let exec = self.exec.exec()?.with_exact_products(self.exact);
        if self.dtype.is_some() && exec.device() == Device::Cpu {
            return Err(Error::Usage { option: "the device of --type", expected: "a GPU", got: self.exec.device.clone() });
        }
        let model = match folder {
            Some(folder) => Model::load(folder)?,
            None => Model::from_bytes(OWN.0, OWN.1)?,
        };
        let tokenizer = self.tokenizer.as_deref().or(folder).map_or_else(|| Ok(Tokenizer::bytes()), Tokenizer::load)?;
        let beside = [folder, self.tokenizer.as_deref()].into_iter().flatten().flat_map(companions);
        let files = model.files().iter().cloned().chain(beside).collect();
        let (dtype, special_tokens) = (self.dtype.map(Into::into), !self.no_special_tokens);
        Ok(Language { exec, model, tokenizer, files, dtype, special_tokens })
    }
}

impl ModelArgs {
    /// # Errors
    /// As [`LanguageArgs::load`].
    pub(crate) fn load(&self) -> Result<Language> {
        self.with.load(self.folder.as_deref())
    }

    /// The chat template of the model's folder or else of the tokenizer's, if there is one.
    pub(crate) fn template(&self) -> Result<Option<ChatTemplate>> {
        for folder in [&self.folder, &self.with.tokenizer].into_iter().flatten() {
            if let Some(template) = ChatTemplate::load(folder)? {
                return Ok(Some(template));
            }
        }
        Ok(None)
    }
}

impl Language {
    /// The tokens of a text, with those that the tokenizer adds if it is one from its beginning.
    pub(crate) fn tokens(&self, text: &[u8], from_the_beginning: bool) -> Result<Vec<u32>> {
        match from_the_beginning && self.special_tokens {
            true => Ok(self.tokenizer.encode_whole(text)?),
            false => Ok(self.tokenizer.encode(text)?),
        }
    }

    /// The state of a file, or the one before the first token.
    pub(crate) fn snapshot(&self, path: Option<&Path>) -> Result<Snapshot> {
        match path {
            Some(path) => Ok(self.model.load_snapshot(path)?),
            None => Ok(Snapshot { state: self.model.state(), logits: None }),
        }
    }

    /// A reader of some texts, each of which goes on from a state.
    pub(crate) fn reader(&self, from: Vec<Snapshot>) -> Result<Reader<'_>> {
        Reader::new(&self.exec, &self.model, from, self.dtype)
    }

    /// Saves what the model remembers, with logits where they are there.
    pub(crate) fn save(&self, snapshot: &Snapshot, path: &Path) -> Result<()> {
        match &snapshot.logits {
            Some(logits) => self.model.save_snapshot(&snapshot.state, logits, path)?,
            None => self.model.save_state(&snapshot.state, path)?,
        }
        Ok(())
    }

    /// Whether a state may be written there: where nothing is lost, or where that is meant; `instead` says how to mean it.
    pub(crate) fn check_place(&self, path: &Path, may_replace: &[&Path], force: bool, instead: &'static str) -> Result<()> {
        self.model.check_path(path)?;
        let same = |other: &Path| matches!((path.canonicalize(), other.canonicalize()), (Ok(a), Ok(b)) if a == b);
        if self.files.iter().any(|file| same(file)) {
            let got = path.display().to_string();
            return Err(Error::Usage { option: "the file of a state", expected: "none of the files of the model in use", got });
        }
        match force || path.symlink_metadata().is_err() || may_replace.iter().any(|other| same(other)) {
            true => Ok(()),
            false => Err(Error::Exists { path: path.to_owned(), instead }),
        }
    }
}
