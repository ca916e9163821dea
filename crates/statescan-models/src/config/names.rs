//! What checkpoints call the parts of a model; mixers name their own weights.

use super::{Config, Package};

impl Config {
    /// The embedding, which may be the head too.
    pub(crate) fn embedding(&self) -> &'static str {
        match self.package {
            Package::Transformers => "backbone.embeddings.weight",
            Package::MambaSsm => "backbone.embedding.weight",
        }
    }

    /// The head.
    pub(crate) fn head(&self) -> &'static str {
        if self.tied { self.embedding() } else { HEAD }
    }

    /// The norm in front of the head.
    pub(crate) fn last_norm(&self) -> &'static str {
        "backbone.norm_f.weight"
    }

    /// The norm in front of a layer.
    pub(crate) fn norm(&self, layer: usize) -> String {
        format!("backbone.layers.{layer}.norm.weight")
    }

    /// What the names of the weights of a layer's mixer begin with.
    pub(crate) fn prefix(&self, layer: usize) -> String {
        format!("backbone.layers.{layer}.mixer.")
    }
}

/// The head where it is not the embedding.
pub(crate) const HEAD: &str = "lm_head.weight";
