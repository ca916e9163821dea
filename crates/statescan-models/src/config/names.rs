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
            family if family.is_hybrid() => "model.norm.weight",
            _ => "backbone.norm_f.weight",
        }
    }

    /// Whether the norm of a layer is behind it.
    pub(crate) fn norm_is_behind(&self, layer: usize) -> bool {
        // the layers of a pair have the norms of its mixer
        self.family == Family::OlmoHybrid && self.layers[layer & !1] == Kind::Attention
    }

    /// The number that is added to the weights of norms as checkpoints have them, but for those of gated norms.
    pub(crate) fn norm_offset(&self) -> f32 {
        if self.family == Family::Qwen35 { 1.0 } else { 0.0 }
    }

    /// The norm in front of a layer, or behind it.
    pub(crate) fn norm(&self, layer: usize) -> String {
        let name = match (self.family, self.layers[layer]) {
            (Family::Bamba, Kind::Mlp) => "pre_ff_layernorm",
            (Family::OlmoHybrid, Kind::Mlp) if self.norm_is_behind(layer) => "post_feedforward_layernorm",
            (Family::OlmoHybrid, Kind::Attention) => "post_attention_layernorm",
            (family, Kind::Mlp) if family.is_hybrid() => "post_attention_layernorm",
            (family, _) if family.is_hybrid() => "input_layernorm",
            _ => "norm",
        };
        format!("{}{name}.weight", self.place(layer))
    }

    /// The other names that checkpoints have of tensors, and of parts of them along the first axis.
    pub(crate) fn stored_otherwise(&self) -> impl Iterator<Item = (Vec<String>, String)> {
        let layers = if self.family == Family::OlmoHybrid { self.layers.len() } else { 0 };
        (0..layers).flat_map(|layer| {
            let (place, prefix) = (self.place(layer), self.prefix(layer));
            let other = if self.norm(layer).contains(".input_") { "attention_layer_norm" } else { "feedforward_layer_norm" };
            let norm = (vec![format!("{place}{other}.weight")], self.norm(layer));
            let parts = ["q", "k", "v"].map(|part| format!("{prefix}{part}_conv1d.weight"));
            let conv = (parts.into(), format!("{prefix}conv1d.weight"));
            [Some(norm), (self.layers[layer] == Kind::GatedDelta).then_some(conv)].into_iter().flatten()
        })
    }

    /// Returns the prefix of the names of a mixer's weights.
    pub(crate) fn prefix(&self, layer: usize) -> String {
        let name = match (self.family, self.layers[layer]) {
            (Family::Bamba, Kind::Mlp) => "feed_forward",
            (Family::GraniteHybrid, Kind::Mlp) => "shared_mlp",
            (_, Kind::Mlp) => "mlp",
            (_, Kind::Attention) => "self_attn",
            (_, Kind::GatedDelta) => "linear_attn",
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
