//! Hybrids, whose layers are pairs of a mixer and a feed-forward layer, and the mixer Mamba-2 or attention: settings of `BambaConfig`, and of
//! `GraniteMoeHybridConfig` without experts.
//!
//! A setting that is missing has the value that its class begins with. Those that say how a model begins, how it is trained or how it is computed have no
//! effect.

use super::transformers::{end, eos, shortest};
use super::{Config, Family, Kind, Package, check_groups, expressible, width};
use crate::error::Result;
use crate::fields::Fields;
use serde_json::{Map, Value, json};

/// Sizes and options of layers of attention.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Attention {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, each of which several heads of queries share.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub headdim: usize,
    /// The first numbers of a head that are rotated by its position, an even number of them; 0 where positions are not known.
    pub rotary: usize,
    /// Positions until the slowest pair of numbers has turned by one radian, about.
    pub theta: f64,
    /// Multiplies scores.
    pub scale: f32,
    /// Whether its projections have a bias.
    pub bias: bool,
    /// Norms of queries and keys, before they are rotated.
    pub norms: HeadNorms,
    /// Whether what a head attends to is multiplied by the sigmoid of gates, which the projection to queries has behind each head.
    pub gate: bool,
}

/// Norms of queries and of keys.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeadNorms {
    /// There are none.
    #[default]
    None,
    /// Each head by itself, all by one weight.
    Each,
    /// All heads of a row together.
    All,
}

/// Sizes and options of gated feed-forward layers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FeedForward {
    /// Numbers between the two projections.
    pub hidden: usize,
    /// Whether its projections have a bias.
    pub bias: bool,
}

/// Factors of the stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scales {
    /// Multiplies rows of the embedding.
    pub embedding: f32,
    /// Multiplies what a layer adds to the stream.
    pub residual: f32,
    /// Divides logits.
    pub logits: f32,
}

impl Default for Scales {
    fn default() -> Self {
        Scales { embedding: 1.0, residual: 1.0, logits: 1.0 }
    }
}

impl Config {
    /// A hybrid in the form of Bamba: so many pairs of a mixer and a feed-forward layer, the mixers Mamba-2 or, at some places, attention, all with heads
    /// of so many channels; everything else as its class has it, in proportion to the width.
    pub fn bamba(vocab: usize, dim: usize, pairs: usize, attention: &[usize], headdim: usize) -> Self {
        let like = Self::mamba2(vocab, dim, 0, headdim);
        let heads = dim.checked_div(headdim).unwrap_or(0);
        let attends = Attention {
            heads,
            kv_heads: if heads.is_multiple_of(4) { heads / 4 } else { heads },
            headdim,
            rotary: headdim / 2,
            theta: 10_000.0,
            scale: (headdim as f32).sqrt().recip(),
            ..Attention::default()
        };
        let feed_forward = FeedForward { hidden: dim.saturating_mul(7) / 2, bias: false };
        let layers = in_pairs(Kind::Mamba2, (0..pairs).map(|pair| attention.contains(&pair)));
        Config { family: Family::Bamba, layers, attention: attends, feed_forward, dstate: 256, tied: false, ..like }
    }
}

/// Layers of a model whose pairs have attention or not.
pub(super) fn in_pairs(scan: Kind, attention: impl Iterator<Item = bool>) -> Vec<Kind> {
    attention.flat_map(|attends| [if attends { Kind::Attention } else { scan }, Kind::Mlp]).collect()
}

/// Returns the defaults of the classes.
fn defaults(family: Family) -> Config {
    let like = Config { eos: vec![2], ..Config::bamba(128_000, 4096, 0, &[], 128) };
    match family {
        Family::GraniteHybrid => {
            let (eps, feed_forward) = (1e-6, FeedForward { hidden: 1024, bias: false });
            Config { family, vocab: 32_000, eps, feed_forward, ..like }
        }
        _ => like,
    }
}

/// The configuration of a model.
pub(super) fn read(family: Family, fields: &Fields<'_>) -> Result<Config> {
    fields.word("hidden_act", "silu", &["silu", "swish"], "silu")?;
    fields.absent("quantization_config", "absent, as quantised weights are not read")?;
    let (like, granite) = (defaults(family), family == Family::GraniteHybrid);
    if granite && fields.get("num_local_experts").and_then(Value::as_u64) != Some(0) {
        return Err(fields.bad("num_local_experts", "0, for layers of experts are not read"));
    }
    let dim = fields.size_or("hidden_size", like.dim)?;
    let inner = fields.size_or("mamba_expand", 2)?.saturating_mul(dim);
    let (nheads, ngroups) = (fields.size_or("mamba_n_heads", 128)?, fields.size_or("mamba_n_groups", 1)?);
    let auto = fields.get("mamba_d_head").is_none_or(|value| value == "auto");
    let headdim = if auto { inner / nheads } else { fields.size("mamba_d_head")? };
    if nheads.checked_mul(headdim) != Some(inner) {
        return Err(fields.bad("mamba_n_heads", "such that mamba_n_heads x mamba_d_head is mamba_expand x hidden_size"));
    }
    check_groups(fields, "mamba_n_groups", nheads, ngroups)?;
    let pairs = fields.size_or("num_hidden_layers", 32)?;
    let hidden = if granite { "shared_intermediate_size" } else { "intermediate_size" };
    let eps = fields.epsilon("rms_norm_eps", like.eps)?;
    Ok(Config {
        vocab: fields.size_or("vocab_size", like.vocab)?,
        dim,
        layers: if granite { in_pairs(Kind::Mamba2, layer_types(fields, pairs)?.into_iter()) } else { indices(fields, pairs)? },
        inner,
        dstate: fields.size_or("mamba_d_state", like.dstate)?,
        width: width(fields, "mamba_d_conv")?,
        nheads,
        ngroups,
        bias: fields.flag("mamba_proj_bias", false)?,
        conv_bias: fields.flag("mamba_conv_bias", true)?,
        attention: attention(family, fields, dim)?,
        feed_forward: FeedForward {
            hidden: fields.size_or(hidden, like.feed_forward.hidden)?,
            bias: !granite && fields.flag("mlp_bias", false)?,
        },
        scales: if granite { scales(fields)? } else { Scales::default() },
        eps,
        mixer_eps: eps,
        dt_limit: fields.limits("time_step_limit")?,
        allow_neg_eigval: false,
        tied: fields.flag("tie_word_embeddings", false)?,
        eos: if fields.says("eos_token_id") { fields.tokens("eos_token_id")? } else { like.eos },
        package: Package::Transformers,
        family,
        dt_rank: 0,
    })
}

/// Bamba's layers, by the numbers of those with attention.
fn indices(fields: &Fields<'_>, pairs: usize) -> Result<Vec<Kind>> {
    const KEY: &str = "attn_layer_indices";
    let number = |value: &Value| value.as_u64().filter(|&number| number < pairs as u64);
    let chosen: Option<Vec<u64>> = match fields.get(KEY) {
        None => Some(Vec::new()),
        Some(value) => value.as_array().and_then(|list| list.iter().map(number).collect()),
    };
    let chosen = chosen.ok_or_else(|| fields.bad(KEY, "a list of numbers below num_hidden_layers"))?;
    Ok(in_pairs(Kind::Mamba2, (0..pairs as u64).map(|pair| chosen.contains(&pair))))
}

/// Which of Granite's layers have attention.
fn layer_types(fields: &Fields<'_>, pairs: usize) -> Result<Vec<bool>> {
    const KEY: &str = "layer_types";
    let Some(value) = fields.get(KEY) else { return Ok(vec![false; pairs]) };
    let attends = |value: &Value| match value.as_str() {
        Some("attention" | "full_attention") => Some(true),
        Some("mamba" | "linear_attention") => Some(false),
        _ => None,
    };
    let types: Option<Vec<bool>> = value.as_array().and_then(|list| list.iter().map(attends).collect());
    types.filter(|types| types.len() == pairs).ok_or_else(|| fields.bad(KEY, "mamba or attention for each layer"))
}

/// Sizes of attention, and how its heads are rotated.
fn attention(family: Family, fields: &Fields<'_>, dim: usize) -> Result<Attention> {
    let granite = family == Family::GraniteHybrid;
    let heads = fields.size_or("num_attention_heads", 32)?;
    let kv_heads =
        fields.size_or("num_key_value_heads", if granite || fields.says("num_key_value_heads") { heads } else { 8 })?;
    if !heads.is_multiple_of(kv_heads) {
        return Err(fields.bad("num_key_value_heads", "a divisor of num_attention_heads"));
    }
    let headdim = fields.size_or("head_dim", dim / heads)?;
    let rope = rope(fields)?;
    let theta = rope.positive("rope_theta", fields.positive("rope_theta", 10_000.0)?)?;
    let rotary = match granite {
        true if fields.get("position_embedding_type").is_some_and(|kind| kind == "rope") => headdim,
        true => 0,
        false => (headdim as f64 * rope.positive("partial_rotary_factor", 0.5)?) as usize,
    };
    check_rotary([fields, &rope], rotary, headdim)?;
    let scale = if granite { fields.positive("attention_multiplier", 1.0)? as f32 } else { (headdim as f32).sqrt().recip() };
    let bias = fields.flag("attention_bias", false)?;
    Ok(Attention { heads, kv_heads, headdim, rotary, theta, scale, bias, ..Attention::default() })
}

/// The settings of rotations: `rope_scaling` goes before `rope_parameters`, as in `transformers`.
pub(super) fn rope<'f>(fields: &Fields<'f>) -> Result<Fields<'f>> {
    let rope = match fields.object("rope_scaling") {
        scaling if scaling.names().next().is_some() => scaling,
        _ => fields.object("rope_parameters"),
    };
    for key in ["rope_type", "type"] {
        rope.word(key, "default", &["default"], "default, for no other rotation is computed")?;
    }
    Ok(rope)
}

fn scales(fields: &Fields<'_>) -> Result<Scales> {
    let [embedding, residual, logits] = ["embedding_multiplier", "residual_multiplier", "logits_scaling"];
    let [embedding, residual, logits] = [embedding, residual, logits].map(|key| fields.positive(key, 1.0));
    Ok(Scales { embedding: embedding? as f32, residual: residual? as f32, logits: logits? as f32 })
}

/// Refuses a head of which an odd number is turned, or more than it has. Its size is to blame where all of it is.
pub(super) fn check_rotary([fields, rope]: [&Fields<'_>; 2], rotary: usize, headdim: usize) -> Result<()> {
    const SHARE: &str = "partial_rotary_factor";
    match rotary <= headdim && rotary.is_multiple_of(2) {
        _ if headdim == 0 => Err(fields.unfit("head_dim", "at least 1", headdim)),
        true => Ok(()),
        false if rotary == headdim => Err(fields.unfit("head_dim", "even, as numbers of a head are turned in pairs", headdim)),
        false => {
            let says = if rope.has(SHARE) { rope } else { fields };
            Err(says.bad(SHARE, "a share that is an even number of a head's numbers"))
        }
    }
}

/// The share of a head's numbers that are turned, of which reading makes as many again: where a quotient would be rounded to fewer, or is zero, which no share
/// is, half a number more.
pub(super) fn rotary_share(rotary: usize, headdim: usize) -> f64 {
    let (rotary, headdim) = (rotary as f64, headdim as f64);
    let share = rotary / headdim;
    if share > 0.0 && (headdim * share).trunc() == rotary { share } else { (rotary + 0.5) / headdim }
}

/// The settings of a configuration.
pub(super) fn write(config: &Config) -> Result<Map<String, Value>> {
    let Attention { heads, kv_heads, headdim, theta, bias, .. } = config.attention;
    expressible(config, config.inner.is_multiple_of(config.dim), "inner", "a multiple of the width", config.inner)?;
    expressible(config, config.mixer_eps == config.eps, "mixer_eps", "that of the other norms", config.mixer_eps)?;
    let settings = json!({
        "model_type": config.family.name(),
        "vocab_size": config.vocab,
        "hidden_size": config.dim,
        "num_hidden_layers": config.layers.len() / 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "attention_bias": bias,
        "rms_norm_eps": shortest(config.eps),
        "mamba_expand": config.inner / config.dim,
        "mamba_n_heads": config.nheads,
        "mamba_d_head": config.headdim(),
        "mamba_n_groups": config.ngroups,
        "mamba_d_state": config.dstate,
        "mamba_d_conv": config.width,
        "mamba_conv_bias": config.conv_bias,
        "mamba_proj_bias": config.bias,
        "time_step_limit": [end(config.dt_limit.0), end(config.dt_limit.1)],
        "tie_word_embeddings": config.tied,
        "eos_token_id": eos(config),
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
    });
    let mut settings = settings.as_object().cloned().unwrap_or_default();
    if config.dim / heads.max(1) != headdim {
        settings.insert("head_dim".into(), json!(headdim));
    }
    let own = if config.family == Family::GraniteHybrid { write_granite(config)? } else { write_bamba(config, &mut settings)? };
    settings.extend(own.as_object().cloned().unwrap_or_default());
    Ok(settings)
}

/// Which pairs have attention.
pub(super) fn attends(config: &Config) -> impl Iterator<Item = bool> {
    config.layers.iter().step_by(2).map(|&kind| kind == Kind::Attention)
}

/// Writes the settings that only Granite's hybrids have.
fn write_granite(config: &Config) -> Result<Value> {
    let (Attention { headdim, rotary, scale, .. }, Scales { embedding, residual, logits }) = (config.attention, config.scales);
    let whole = rotary == 0 || rotary == headdim;
    expressible(config, whole, "attention.rotary", "all numbers of a head, or none", rotary)?;
    expressible(config, !config.feed_forward.bias, "feed_forward.bias", "false", true)?;
    let words: Vec<&str> = attends(config).map(|attends| if attends { "attention" } else { "mamba" }).collect();
    Ok(json!({
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "layer_types": words,
        "position_embedding_type": if rotary > 0 { json!("rope") } else { Value::Null },
        "num_local_experts": 0,
        "shared_intermediate_size": config.feed_forward.hidden,
        "attention_multiplier": shortest(scale),
        "embedding_multiplier": shortest(embedding),
        "residual_multiplier": shortest(residual),
        "logits_scaling": shortest(logits),
    }))
}

/// Writes the settings that only Bamba has.
fn write_bamba(config: &Config, settings: &mut Map<String, Value>) -> Result<Value> {
    let Attention { headdim, rotary, scale, .. } = config.attention;
    let usual = (headdim as f32).sqrt().recip();
    expressible(config, scale == usual, "attention.scale", "one over the root of a head's numbers", scale)?;
    expressible(config, config.scales == Scales::default(), "scales", "1", format!("{:?}", config.scales))?;
    settings["rope_parameters"]["partial_rotary_factor"] = json!(rotary_share(rotary, headdim));
    let chosen = attends(config).enumerate().filter_map(|(pair, attends)| attends.then_some(pair));
    Ok(json!({
        "architectures": ["BambaForCausalLM"],
        "attn_layer_indices": chosen.collect::<Vec<_>>(),
        "intermediate_size": config.feed_forward.hidden,
        "mlp_bias": config.feed_forward.bias,
    }))
}
