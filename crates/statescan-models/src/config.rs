//! [`Config`]: sizes and options of a model, from the `config.json` of `transformers` or of `mamba_ssm`.

mod shapes;

use crate::error::{Error, Result};
use crate::fields::{Fields, standard_json};
use serde_json::{Map, Value, json};
use std::path::Path;

/// The embedding's name in checkpoints of `transformers`.
const EMBEDDING: &str = "backbone.embeddings.weight";

/// What the blocks of a model are.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Selective scan; step sizes, input and output maps are projections of the convolution's result.
    Mamba,
    /// The same with norms on step sizes, input and output maps.
    FalconMamba,
    /// One decay for each head; everything comes from one projection, and a gated norm follows the scan.
    Mamba2,
}

impl Kind {
    /// The word of `model_type`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Mamba => "mamba",
            Kind::FalconMamba => "falcon_mamba",
            Kind::Mamba2 => "mamba2",
        }
    }
}

/// Sizes and options of a model.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// What the blocks are.
    pub kind: Kind,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Width of the stream between blocks.
    pub dim: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Channels of the scan.
    pub inner: usize,
    /// States of a channel.
    pub dstate: usize,
    /// Taps of the convolution.
    pub width: usize,
    /// Rank of the projection to step sizes; 0 in Mamba-2.
    pub dt_rank: usize,
    /// Heads of the scan; as many as channels but in Mamba-2.
    pub nheads: usize,
    /// Groups of heads that share input and output maps.
    pub ngroups: usize,
    /// Whether the projections into and out of a block have a bias.
    pub bias: bool,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Added to the mean square in norms between blocks.
    pub eps: f32,
    /// The same in norms within a block.
    pub mixer_eps: f32,
    /// Lowest and highest step.
    pub dt_limit: (f64, f64),
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// The embedding's name in checkpoints.
    pub(crate) embedding: &'static str,
}

impl Config {
    /// Reads the `config.json` of a folder.
    ///
    /// # Errors
    /// A file that cannot be read or is no JSON, settings that are missing or that no model here has.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
        Self::parse(&path, &text)
    }

    /// The configuration of the text of a `config.json`, which errors call `path`.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self> {
        let format = |why: String| Error::Format { path: path.to_owned(), expected: "a model's configuration", why };
        let json: Value = serde_json::from_str(&standard_json(text)).map_err(|error| format(error.to_string()))?;
        let map = json.as_object().ok_or_else(|| format("it is no object".into()))?;
        let fields = Fields::new(path, map);
        if !fields.has("model_type") && fields.has("d_model") {
            return mamba_ssm(&fields);
        }
        let kind = match fields.get("model_type").and_then(Value::as_str) {
            Some("mamba") => Kind::Mamba,
            Some("falcon_mamba") => Kind::FalconMamba,
            Some("mamba2") => Kind::Mamba2,
            _ => return Err(fields.bad("model_type", "mamba, falcon_mamba or mamba2")),
        };
        transformers(kind, &fields)
    }

    /// A Mamba with a tied head and everything else as its paper has it.
    pub fn mamba(vocab: usize, dim: usize, layers: usize) -> Self {
        Config {
            kind: Kind::Mamba,
            vocab,
            dim,
            layers,
            inner: dim.saturating_mul(2),
            dstate: 16,
            width: 4,
            dt_rank: dim.div_ceil(16),
            nheads: dim.saturating_mul(2),
            ngroups: 1,
            bias: false,
            conv_bias: true,
            eps: 1e-5,
            mixer_eps: 1e-5,
            dt_limit: (0.0, f64::INFINITY),
            tied: true,
            eos: Vec::new(),
            embedding: EMBEDDING,
        }
    }

    /// A Mamba-2 with a tied head, heads of so many channels and everything else as its paper has it.
    pub fn mamba2(vocab: usize, dim: usize, layers: usize, headdim: usize) -> Self {
        let like = Self::mamba(vocab, dim, layers);
        let nheads = like.inner.checked_div(headdim).unwrap_or(0);
        Config { kind: Kind::Mamba2, dstate: 128, dt_rank: 0, nheads, ..like }
    }

    /// The `config.json` of a model as [`Config::mamba`] gives it, as `transformers` has it.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "model_type": self.kind.name(),
            "architectures": ["MambaForCausalLM"],
            "vocab_size": self.vocab,
            "hidden_size": self.dim,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "state_size": self.dstate,
            "conv_kernel": self.width,
            "time_step_rank": self.dt_rank,
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": self.tied,
            "eos_token_id": null,
        })
    }
}

/// The configuration of a model of `transformers`.
fn transformers(kind: Kind, fields: &Fields<'_>) -> Result<Config> {
    fields.word("hidden_act", "silu", &["silu", "swish"], "silu")?;
    let dim = fields.size("hidden_size")?;
    let expanded = fields.size_or("expand", 2)?.saturating_mul(dim);
    let inner = if kind == Kind::Mamba { fields.size_or("intermediate_size", expanded)? } else { expanded };
    let eps = fields.epsilon("layer_norm_epsilon", 1e-5)?;
    let (dt_rank, nheads, ngroups) = match kind {
        Kind::Mamba2 => (0, fields.size("num_heads")?, fields.size("n_groups")?),
        _ => (fields.rank("time_step_rank", dim)?, inner, 1),
    };
    if kind == Kind::Mamba2 {
        fields.only("rms_norm", true)?;
        if nheads.checked_mul(fields.size("head_dim")?) != Some(inner) {
            return Err(fields.bad("num_heads", "such that num_heads x head_dim is expand x hidden_size"));
        }
        check_groups(fields, "n_groups", nheads, ngroups)?;
    }
    Ok(Config {
        kind,
        vocab: fields.size("vocab_size")?,
        dim,
        layers: fields.size("num_hidden_layers")?,
        inner,
        dstate: fields.size("state_size")?,
        width: width(fields, "conv_kernel")?,
        dt_rank,
        nheads,
        ngroups,
        bias: fields.flag("use_bias", false)?,
        conv_bias: fields.flag("use_conv_bias", true)?,
        eps,
        mixer_eps: if kind == Kind::FalconMamba { fields.epsilon("mixer_rms_eps", 1e-6)? } else { eps },
        dt_limit: if kind == Kind::Mamba2 { fields.limits("time_step_limit")? } else { (0.0, f64::INFINITY) },
        tied: fields.flag("tie_word_embeddings", kind != Kind::Mamba2)?,
        eos: fields.tokens("eos_token_id")?,
        embedding: EMBEDDING,
    })
}

/// The configuration of a model of `mamba_ssm`, all of whose norms are RMSNorm.
fn mamba_ssm(fields: &Fields<'_>) -> Result<Config> {
    let none = Map::new();
    let block = match fields.get("ssm_cfg") {
        None => &none,
        Some(value) => value.as_object().ok_or_else(|| fields.bad("ssm_cfg", "an object"))?,
    };
    let block = Fields::new(fields.path, block);
    fields.only("rms_norm", true)?;
    if fields.get("d_intermediate").is_some_and(|size| size != 0) {
        return Err(fields.bad("d_intermediate", "0, for blocks have no feed-forward layer here"));
    }
    if fields.get("attn_layer_idx").and_then(Value::as_array).is_some_and(|list| !list.is_empty()) {
        return Err(fields.bad("attn_layer_idx", "empty, for there is no attention here"));
    }
    let word = block.word("layer", "Mamba1", &["Mamba1", "Mamba2"], "Mamba1 or Mamba2")?;
    let kind = if word == "Mamba2" { Kind::Mamba2 } else { Kind::Mamba };
    let dim = fields.size("d_model")?;
    let inner = block.size_or("expand", 2)?.saturating_mul(dim);
    let (dt_rank, headdim, ngroups) = match kind {
        Kind::Mamba2 => (0, block.size_or("headdim", 64)?, block.size_or("ngroups", 1)?),
        _ => (block.rank("dt_rank", dim)?, 1, 1),
    };
    if !inner.is_multiple_of(headdim) {
        return Err(block.bad("headdim", "a divisor of expand x d_model"));
    }
    if kind == Kind::Mamba2 {
        block.only("rmsnorm", true)?;
        block.only("norm_before_gate", false)?;
        block.only("D_has_hdim", false)?;
        if block.has("d_ssm") && block.size("d_ssm")? != inner {
            return Err(block.bad("d_ssm", "expand x d_model"));
        }
        check_groups(&block, "ngroups", inner / headdim, ngroups)?;
    }
    let multiple = fields.size_or("pad_vocab_size_multiple", 1)?;
    Ok(Config {
        kind,
        vocab: fields.size("vocab_size")?.next_multiple_of(multiple),
        dim,
        layers: fields.size("n_layer")?,
        inner,
        dstate: block.size_or("d_state", if kind == Kind::Mamba2 { 128 } else { 16 })?,
        width: if block.has("d_conv") { width(&block, "d_conv")? } else { 4 },
        dt_rank,
        nheads: inner / headdim,
        ngroups,
        bias: block.flag("bias", false)?,
        conv_bias: block.flag("conv_bias", true)?,
        eps: 1e-5,
        mixer_eps: 1e-5,
        dt_limit: block.limits("dt_limit")?,
        tied: fields.flag("tie_embeddings", true)?,
        eos: Vec::new(),
        embedding: "backbone.embedding.weight",
    })
}

fn width(fields: &Fields<'_>, key: &'static str) -> Result<usize> {
    let width = fields.size(key)?;
    if (2..=8).contains(&width) { Ok(width) } else { Err(fields.bad(key, "an integer from 2 to 8")) }
}

fn check_groups(fields: &Fields<'_>, key: &'static str, nheads: usize, ngroups: usize) -> Result<()> {
    if nheads.is_multiple_of(ngroups) { Ok(()) } else { Err(fields.bad(key, "a divisor of the number of heads")) }
}
