//! Models of the gated delta rule, whose layers are pairs of a mixer and a feed-forward layer, and the mixer the rule or attention: settings of
//! `Qwen3_5TextConfig` and of `OlmoHybridConfig`.
//!
//! A setting that is missing has the value that its class begins with. Those that say how a model begins, how it is trained or how it is computed have no
//! effect, and neither have those of positions in pictures.

use super::hybrid::{attends, check_rotary, in_pairs, rope, rotary_share};
use super::shapes::MOST_WIDTH;
use super::transformers::{eos, shortest};
use super::{Attention, Config, Family, FeedForward, HeadNorms, Kind, Scales, expressible, width};
use crate::error::Result;
use crate::fields::Fields;
use serde_json::{Map, Value, json};

/// The number that is added to the mean square of gated norms in OLMo Hybrid, whatever other norms have.
const OLMO_EPS: f32 = 1e-5;

/// The share of a head that is rotated in Qwen 3.5.
const SHARE: f64 = 0.25;

impl Config {
    /// A model in the form of Qwen 3.5: so many pairs of a mixer and a feed-forward layer, the mixers the gated delta rule or, at some places, attention, all
    /// with heads of so many channels; everything else as its class has it, in proportion to the width.
    pub fn qwen3_5(vocab: usize, dim: usize, pairs: usize, attention: &[usize], headdim: usize) -> Self {
        let like = Self::bamba(vocab, dim, 0, &[], headdim);
        let eps = 1e-6;
        Config {
            family: Family::Qwen35,
            layers: in_pairs(Kind::GatedDelta, (0..pairs).map(|pair| attention.contains(&pair))),
            inner: like.nheads.saturating_mul(headdim),
            dstate: headdim,
            ngroups: if like.nheads.is_multiple_of(2) { like.nheads / 2 } else { like.nheads },
            attention: Attention { rotary: headdim / 4 / 2 * 2, norms: HeadNorms::Each, gate: true, ..like.attention },
            feed_forward: FeedForward { hidden: dim.saturating_mul(3), bias: false },
            conv_bias: false,
            eps,
            mixer_eps: eps,
            ..like
        }
    }
}

/// The configuration of a model.
pub(super) fn read(family: Family, fields: &Fields<'_>) -> Result<Config> {
    fields.word("hidden_act", "silu", &["silu", "swish"], "silu")?;
    fields.absent("quantization_config", "absent, as quantised weights are not read")?;
    let olmo = family == Family::OlmoHybrid;
    let or = |qwen: usize, other: usize| if olmo { other } else { qwen };
    let dim = fields.size_or("hidden_size", or(4096, 3840))?;
    let attention = attention(family, fields, dim)?;
    let ngroups = fields.size_or("linear_num_key_heads", or(16, attention.heads))?;
    let nheads = fields.size_or("linear_num_value_heads", or(32, attention.heads))?;
    if !nheads.is_multiple_of(ngroups) {
        return Err(fields.bad("linear_num_value_heads", "a multiple of linear_num_key_heads"));
    }
    let dstate = head(fields, "linear_key_head_dim", or(128, (0.75 * dim as f64 / ngroups as f64) as usize))?;
    let headdim = head(fields, "linear_value_head_dim", or(128, 2 * dstate))?;
    let eps = fields.epsilon("rms_norm_eps", 1e-6)?;
    Ok(Config {
        family,
        vocab: fields.size_or("vocab_size", or(248_320, 100_352))?,
        dim,
        layers: layers(family, fields)?,
        inner: nheads * headdim,
        dstate,
        width: width(fields, "linear_conv_kernel_dim")?,
        dt_rank: 0,
        nheads,
        ngroups,
        bias: false,
        conv_bias: false,
        eps,
        mixer_eps: if olmo { OLMO_EPS } else { eps },
        attention,
        feed_forward: FeedForward { hidden: fields.size_or("intermediate_size", or(12_288, 11_008))?, bias: false },
        scales: Scales::default(),
        allow_neg_eigval: olmo && fields.flag("linear_allow_neg_eigval", true)?,
        tied: fields.flag("tie_word_embeddings", false)?,
        eos: if olmo && !fields.says("eos_token_id") { vec![100_257] } else { fields.tokens("eos_token_id")? },
        ..Config::mamba(1, 1, 0)
    })
}

/// The numbers of a head of keys or of values.
fn head(fields: &Fields<'_>, key: &'static str, default: usize) -> Result<usize> {
    let size = fields.size_or(key, default)?;
    if (1..=MOST_WIDTH).contains(&size) { Ok(size) } else { Err(fields.unfit(key, "an integer from 1 to 256", size)) }
}

/// Kinds of layers. Without words for them every fourth pair attends, or one of as many as a setting says; in OLMo Hybrid the last one if no other does.
fn layers(family: Family, fields: &Fields<'_>) -> Result<Vec<Kind>> {
    const KEY: &str = "layer_types";
    let pairs = fields.size_or("num_hidden_layers", 32)?;
    let olmo = family == Family::OlmoHybrid;
    let attends: Vec<bool> = match fields.get(KEY) {
        None => {
            let interval = if olmo { 4 } else { fields.size_or("full_attention_interval", 4)? };
            let last = olmo && pairs < interval;
            (1..=pairs).map(|pair| pair.is_multiple_of(interval) || last && pair == pairs).collect()
        }
        Some(value) => {
            let attends = |value: &Value| match value.as_str() {
                Some("full_attention") => Some(true),
                Some("linear_attention") => Some(false),
                _ => None,
            };
            let types: Option<Vec<bool>> = value.as_array().and_then(|list| list.iter().map(attends).collect());
            let types = types.filter(|types| types.len() == pairs);
            types.ok_or_else(|| fields.bad(KEY, "linear_attention or full_attention for each layer"))?
        }
    };
    Ok(in_pairs(Kind::GatedDelta, attends.into_iter()))
}

/// Sizes of attention, and how its heads are rotated.
fn attention(family: Family, fields: &Fields<'_>, dim: usize) -> Result<Attention> {
    let olmo = family == Family::OlmoHybrid;
    let heads = fields.size_or("num_attention_heads", if olmo { 30 } else { 16 })?;
    let kv_heads = fields.size_or("num_key_value_heads", if olmo { heads } else { 4 })?;
    if !heads.is_multiple_of(kv_heads) {
        return Err(fields.bad("num_key_value_heads", "a divisor of num_attention_heads"));
    }
    let headdim = fields.size_or("head_dim", if olmo { dim / heads } else { 256 })?;
    let rope = rope(fields)?;
    let theta = rope.positive("rope_theta", fields.positive("rope_theta", 10_000.0)?)?;
    let says_theta = if rope.says("rope_theta") { &rope } else { fields };
    let rotary = match olmo {
        // published models have a null there, and know no positions
        true if says_theta.says("rope_theta") && !says_theta.has("rope_theta") => 0,
        true => headdim,
        false => {
            let share = rope.positive("partial_rotary_factor", fields.positive("partial_rotary_factor", SHARE)?)?;
            (headdim as f64 * share) as usize
        }
    };
    check_rotary([fields, &rope], rotary, headdim)?;
    let (scale, bias) = ((headdim as f32).sqrt().recip(), fields.flag("attention_bias", false)?);
    let norms = if olmo { HeadNorms::All } else { HeadNorms::Each };
    Ok(Attention { heads, kv_heads, headdim, rotary, theta, scale, bias, norms, gate: !olmo })
}

/// The settings of a configuration.
pub(super) fn write(config: &Config) -> Result<Map<String, Value>> {
    let Attention { heads, kv_heads, headdim, rotary, theta, bias, .. } = config.attention;
    check_fixed(config)?;
    let olmo = config.family == Family::OlmoHybrid;
    let theta = if olmo && rotary == 0 { Value::Null } else { json!(theta) };
    let words = attends(config).map(|attends| if attends { "full_attention" } else { "linear_attention" });
    let mut settings = json!({
        "model_type": config.family.name(),
        "architectures": [if olmo { "OlmoHybridForCausalLM" } else { "Qwen3_5ForCausalLM" }],
        "vocab_size": config.vocab,
        "hidden_size": config.dim,
        "intermediate_size": config.feed_forward.hidden,
        "num_hidden_layers": config.layers.len() / 2,
        "layer_types": words.collect::<Vec<_>>(),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": headdim,
        "attention_bias": bias,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "rms_norm_eps": shortest(config.eps),
        "linear_conv_kernel_dim": config.width,
        "linear_key_head_dim": config.dstate,
        "linear_value_head_dim": config.headdim(),
        "linear_num_key_heads": config.ngroups,
        "linear_num_value_heads": config.nheads,
        "tie_word_embeddings": config.tied,
        "eos_token_id": eos(config),
    });
    if olmo {
        settings["linear_allow_neg_eigval"] = json!(config.allow_neg_eigval);
    } else {
        settings["rope_parameters"]["partial_rotary_factor"] = json!(rotary_share(rotary, headdim));
    }
    Ok(settings.as_object().cloned().unwrap_or_default())
}

/// Refuses what the classes have no setting for.
fn check_fixed(config: &Config) -> Result<()> {
    let Attention { headdim, rotary, scale, norms, gate, .. } = config.attention;
    let olmo = config.family == Family::OlmoHybrid;
    let whole = !olmo || rotary == 0 || rotary == headdim;
    expressible(config, whole, "attention.rotary", "all numbers of a head, or none", rotary)?;
    let usual = (headdim as f32).sqrt().recip();
    expressible(config, scale == usual, "attention.scale", "one over the root of a head's numbers", scale)?;
    let of_family = if olmo { HeadNorms::All } else { HeadNorms::Each };
    expressible(config, norms == of_family, "attention.norms", "those of its family", format!("{norms:?}"))?;
    expressible(config, gate != olmo, "attention.gate", "that of its family", gate)?;
    let eps = if olmo { OLMO_EPS } else { config.eps };
    expressible(config, config.mixer_eps == eps, "mixer_eps", "that of its family", config.mixer_eps)?;
    expressible(config, olmo || !config.allow_neg_eigval, "allow_neg_eigval", "false", config.allow_neg_eigval)?;
    let plain = !config.bias && !config.conv_bias && !config.feed_forward.bias;
    expressible(config, plain, "bias", "false, and so those of convolution and feed-forward layers", !plain)?;
    expressible(config, config.scales == Scales::default(), "scales", "1", format!("{:?}", config.scales))
}
