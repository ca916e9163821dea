//! States of a model, in memory and on disk.

use super::Model;
use crate::error::{Error, Result};
use crate::files::try_aside;
use crate::state::{Snapshot, State};
use std::path::Path;

impl Model {
    /// The state before the first token.
    pub fn state(&self) -> State {
        State::new(&self.config)
    }

    /// Writes a state to a safetensors file, aside first and then renamed.
    ///
    /// # Errors
    /// If the file cannot be written, or the state is of another model or not finite.
    pub fn save_state(&self, state: &State, path: impl AsRef<Path>) -> Result<()> {
        state.check(&self.config)?;
        state.save(&self.config, None, path.as_ref())
    }

    /// Saves a state with the logits after the last token, (vocab), so that a text goes on from the file without another token.
    ///
    /// # Errors
    /// As [`Model::save_state`]; logits of another length.
    pub fn save_snapshot(&self, state: &State, logits: &[f32], path: impl AsRef<Path>) -> Result<()> {
        state.check(&self.config)?;
        let (expected, got) = (self.config.vocab, logits.len());
        if expected != got {
            return Err(Error::Size { layer: "save_snapshot", argument: "logits", shape: "(vocab)", expected, got });
        }
        state.save(&self.config, Some(logits), path.as_ref())
    }

    /// Whether a state can be written there, which is better known before a text is read than after it. Nothing is left there.
    ///
    /// # Errors
    /// If it cannot.
    pub fn check_path(&self, path: impl AsRef<Path>) -> Result<()> {
        try_aside(path.as_ref())
    }

    /// Reads a state that [`Model::save_state`] or [`Model::save_snapshot`] wrote.
    ///
    /// # Errors
    /// If the file cannot be read, or has no state of a model with this one's kind and sizes, or one that is not finite.
    pub fn load_state(&self, path: impl AsRef<Path>) -> Result<State> {
        Ok(self.load_snapshot(path)?.state)
    }

    /// Loads a state, with the logits if they were saved.
    ///
    /// # Errors
    /// As [`Model::load_state`].
    pub fn load_snapshot(&self, path: impl AsRef<Path>) -> Result<Snapshot> {
        State::load(&self.config, path.as_ref())
    }
}
