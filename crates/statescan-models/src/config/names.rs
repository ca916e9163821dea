//! The names of a model's parts in checkpoints; mixers name their own weights.

use super::{Config, Family, Kind, Package};

impl Config {
    /// The embedding, which may be the head too.
    pub(crate) fn embedding(&self) -> &'static str {
        match self.package {
            _ if self.family.is_hybrid() => "model.embed_tokens.weight",
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
        match self.family {
            Family::Bamba => "model.final_layernorm.weight",
            Family::GraniteHybrid => "model.norm.weight",
            _ => "backbone.norm_f.weight",
        }
    }

    /// The norm in front of a layer.
    pub(crate) fn norm(&self, layer: usize) -> String {
        let name = match (self.family, self.layers[layer]) {
            (Family::Bamba, Kind::Mlp) => "pre_ff_layernorm",
            (Family::GraniteHybrid, Kind::Mlp) => "post_attention_layernorm",
            (Family::Bamba | Family::GraniteHybrid, _) => "input_layernorm",
            _ => "norm",
        };
        format!("{}{name}.weight", self.place(layer))
    }

    /// Returns the prefix of the names of a mixer's weights.
    pub(crate) fn prefix(&self, layer: usize) -> String {
        let name = match (self.family, self.layers[layer]) {
            (Family::Bamba, Kind::Mlp) => "feed_forward",
            (Family::GraniteHybrid, Kind::Mlp) => "shared_mlp",
            (Family::Bamba | Family::GraniteHybrid, Kind::Attention) => "self_attn",
            (Family::Bamba | Family::GraniteHybrid, _) => "mamba",
            _ => "mixer",
        };
        format!("{}{name}.", self.place(layer))
    }

    /// Returns the prefix of both; the layers of a pair have one number.
    fn place(&self, layer: usize) -> String {
        if self.family.is_hybrid() { format!("model.layers.{}.", layer / 2) } else { format!("backbone.layers.{layer}.") }
    }
}

/// The head where it is not the embedding.
pub(crate) const HEAD: &str = "lm_head.weight";
