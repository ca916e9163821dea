//! Settings of `transformers`: `MambaConfig`, `FalconMambaConfig`, `Mamba2Config`.
//!
//! A setting that is missing has the value that its class begins with. Those that say how a model begins, how it is computed or what is printed have no
//! effect: everything here is computed in f32, and norms of Mamba-2 follow the gate, whatever `rms_norm` and `norm_before_gate` say, as they do there.

use super::{Config, Family, check_groups, expressible, width};
use crate::error::Result;
use crate::fields::Fields;
use serde_json::{Map, Value, json};

/// Returns the defaults of the classes.
fn defaults(family: Family) -> Config {
    let mut config = match family {
        Family::Mamba => Config::mamba(50280, 768, 32),
        Family::FalconMamba => Config::falcon_mamba(50280, 768, 32),
        _ => Config::mamba2(32768, 4096, 64, 64),
    };
    if family == Family::Mamba2 {
        (config.ngroups, config.tied) = (8, false);
    }
    config.eos = vec![if family == Family::Mamba2 { 2 } else { 0 }];
    config
}

/// The configuration of a model; `channels` are those of its weights.
pub(super) fn read(family: Family, fields: &Fields<'_>, channels: Option<usize>) -> Result<Config> {
    fields.word("hidden_act", "silu", &["silu", "swish"], "silu")?;
    fields.absent("quantization_config", "absent, as quantised weights are not read")?;
    let like = defaults(family);
    let dim = fields.size_or("hidden_size", like.dim)?;
    let inner = inner(family, fields, dim, channels)?;
    let eps = fields.epsilon("layer_norm_epsilon", like.eps)?;
    let (dt_rank, nheads, ngroups) = match family {
        Family::Mamba2 => (0, fields.size_or("num_heads", like.nheads)?, fields.size_or("n_groups", like.ngroups)?),
        _ => (fields.rank("time_step_rank", dim)?, inner, 1),
    };
    if family == Family::Mamba2 {
        if nheads.checked_mul(fields.size_or("head_dim", like.headdim())?) != Some(inner) {
            return Err(fields.bad("num_heads", "such that num_heads x head_dim is expand x hidden_size"));
        }
        check_groups(fields, "n_groups", nheads, ngroups)?;
    }
    Ok(Config {
        family,
        vocab: fields.size_or("vocab_size", like.vocab)?,
        dim,
        layers: vec![family.scan(); fields.size_or("num_hidden_layers", like.layers.len())?],
        inner,
        dstate: fields.size_or("state_size", like.dstate)?,
        width: width(fields, "conv_kernel")?,
        dt_rank,
        nheads,
        ngroups,
        bias: fields.flag("use_bias", like.bias)?,
        conv_bias: fields.flag("use_conv_bias", like.conv_bias)?,
        eps,
        mixer_eps: if family == Family::FalconMamba { fields.epsilon("mixer_rms_eps", like.mixer_eps)? } else { eps },
        dt_limit: if family == Family::Mamba2 { fields.limits("time_step_limit")? } else { like.dt_limit },
        tied: fields.flag("tie_word_embeddings", like.tied)?,
        eos: if fields.says("eos_token_id") { fields.tokens("eos_token_id")? } else { like.eos },
        ..like
    })
}

/// Channels of the scan. `intermediate_size` goes before `expand`, but in Mamba-2, where it says nothing; where the two contradict each other and the
/// weights are known, these decide.
fn inner(family: Family, fields: &Fields<'_>, dim: usize, channels: Option<usize>) -> Result<usize> {
    let expanded = fields.size_or("expand", 2)?.saturating_mul(dim);
    if family == Family::Mamba2 {
        return Ok(expanded);
    }
    let said = fields.size_or("intermediate_size", expanded)?;
    Ok(if channels == Some(expanded) { expanded } else { said })
}

/// The settings of a configuration.
pub(super) fn write(config: &Config) -> Result<Map<String, Value>> {
    let second = config.family == Family::Mamba2;
    let whole = config.inner.is_multiple_of(config.dim);
    expressible(config, whole || !second, "inner", "a multiple of the width in Mamba-2", config.inner)?;
    let unlimited = config.dt_limit == (0.0, f64::INFINITY);
    expressible(config, unlimited || second, "dt_limit", "0 to infinity, but in Mamba-2", format!("{:?}", config.dt_limit))?;
    let falcon = config.family == Family::FalconMamba;
    expressible(
        config,
        falcon || config.mixer_eps == config.eps,
        "mixer_eps",
        "that of the other norms, but in FalconMamba",
        config.mixer_eps,
    )?;
    let architecture = match config.family {
        Family::Mamba => "MambaForCausalLM",
        Family::FalconMamba => "FalconMambaForCausalLM",
        _ => "Mamba2ForCausalLM",
    };
    let mut settings = json!({
        "model_type": config.family.name(),
        "architectures": [architecture],
        "vocab_size": config.vocab,
        "hidden_size": config.dim,
        "num_hidden_layers": config.layers.len(),
        "state_size": config.dstate,
        "conv_kernel": config.width,
        "use_bias": config.bias,
        "use_conv_bias": config.conv_bias,
        "layer_norm_epsilon": shortest(config.eps),
        "tie_word_embeddings": config.tied,
        "eos_token_id": eos(config),
    });
    if whole {
        settings["expand"] = json!(config.inner / config.dim);
    }
    if second {
        settings["num_heads"] = json!(config.nheads);
        settings["head_dim"] = json!(config.headdim());
        settings["n_groups"] = json!(config.ngroups);
        settings["time_step_limit"] = json!([end(config.dt_limit.0), end(config.dt_limit.1)]);
    } else {
        settings["intermediate_size"] = json!(config.inner);
        settings["time_step_rank"] = json!(config.dt_rank);
    }
    if falcon {
        settings["mixer_rms_eps"] = shortest(config.mixer_eps);
    }
    Ok(settings.as_object().cloned().unwrap_or_default())
}

/// The tokens that end a text: none, one or a list.
pub(super) fn eos(config: &Config) -> Value {
    match &config.eos[..] {
        [] => Value::Null,
        [one] => json!(one),
        several => json!(several),
    }
}

/// A number of f32 with as few digits as tell it from others.
pub(super) fn shortest(x: f32) -> Value {
    json!(x.to_string().parse::<f64>().unwrap_or(f64::from(x)))
}

/// The end of an interval, as `transformers` writes infinity.
pub(super) fn end(x: f64) -> Value {
    match x {
        f64::INFINITY => json!({"__float__": "Infinity"}),
        f64::NEG_INFINITY => json!({"__float__": "-Infinity"}),
        _ => json!(x),
    }
}
