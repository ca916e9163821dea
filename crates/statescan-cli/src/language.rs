//! Which language model, on the command line, and states on disk.

use crate::error::{Error, Result};
use crate::exec::{ExecArgs, TypeName};
use crate::reader::Reader;
use clap::Args;
use statescan::tensor::Device;
use statescan::{DType, Exec};
use statescan_models::{ChatTemplate, Model, Snapshot, Tokenizer};
use std::path::{Path, PathBuf};

/// The configuration and the weights of the model in the program, which `statescan train` made (docs/models.md).
const OWN: (&str, &[u8]) = (include_str!("../assets/alice/config.json"), include_bytes!("../assets/alice/model.safetensors"));

/// A language model, and where it computes.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Folder of a mamba, falcon_mamba or mamba2 model of `transformers` or `mamba_ssm`, with safetensors files; a small model of the bytes of
    /// "Alice's Adventures in Wonderland" if none is given
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// The type of weights on a GPU, f32, bf16 or f16; the one that they have if not given
    #[arg(long = "type", value_enum, value_name = "TYPE")]
    pub dtype: Option<TypeName>,
    /// Where and how to compute.
    #[command(flatten)]
    pub exec: ExecArgs,
}

/// A model that was loaded.
pub(crate) struct Language {
    pub(crate) exec: Exec,
    pub(crate) model: Model,
    pub(crate) tokenizer: Tokenizer,
    dtype: Option<DType>,
}

impl ModelArgs {
    /// # Errors
    /// A device that there is not, a folder that has no model.
    pub(crate) fn load(&self) -> Result<Language> {
        let exec = self.exec.exec()?;
        if self.dtype.is_some() && exec.device() == Device::Cpu {
            return Err(Error::Usage { option: "the device of --type", expected: "a GPU", got: self.exec.device.clone() });
        }
        let (model, tokenizer) = match &self.folder {
            Some(folder) => (Model::load(folder)?, Tokenizer::load(folder)?),
            None => (Model::from_bytes(OWN.0, OWN.1)?, Tokenizer::bytes()),
        };
        Ok(Language { exec, model, tokenizer, dtype: self.dtype.map(Into::into) })
    }

    /// The chat template of the folder, if there is one.
    pub(crate) fn template(&self) -> Result<Option<ChatTemplate>> {
        Ok(self.folder.as_ref().map(ChatTemplate::load).transpose()?.flatten())
    }
}

impl Language {
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

    /// Whether a state may be written there: where nothing is lost, or where that is meant.
    pub(crate) fn check_place(&self, path: &Path, may_replace: &[&Path], force: bool) -> Result<()> {
        self.model.check_path(path)?;
        let same = |other: &&Path| matches!((path.canonicalize(), other.canonicalize()), (Ok(a), Ok(b)) if a == b);
        match force || path.symlink_metadata().is_err() || may_replace.iter().any(same) {
            true => Ok(()),
            false => Err(Error::Exists { path: path.to_owned() }),
        }
    }
}
