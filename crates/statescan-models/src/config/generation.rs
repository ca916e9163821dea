//! The `generation_config.json` of a folder.

use super::Config;
use crate::error::{Error, Result};
use crate::fields::{Fields, standard_json};
use crate::files::{is_there, read_text};
use serde_json::Value;
use std::path::Path;

impl Config {
    /// Returns the configuration with the tokens that end a text from a folder's `generation_config.json`, if it has some: they
    /// come before those of `config.json`.
    pub(crate) fn with_generation(self, folder: &Path) -> Result<Self> {
        let path = folder.join("generation_config.json");
        if !is_there(&path) {
            return Ok(self);
        }
        let format = |why: String| Error::Format { path: path.clone(), expected: "settings of generation", why };
        let json: Value = serde_json::from_str(&standard_json(&read_text(&path)?)).map_err(|error| format(error.to_string()))?;
        let map = json.as_object().ok_or_else(|| format("it is no object".into()))?;
        let eos = Fields::new(&path, map).tokens("eos_token_id")?;
        Ok(if eos.is_empty() { self } else { Config { eos, ..self } })
    }
}
