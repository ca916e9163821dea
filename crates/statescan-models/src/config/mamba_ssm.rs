//! Settings of `mamba_ssm`: its own `MambaConfig`, and in `ssm_cfg` the arguments of its layers, all of whose norms are RMSNorm.
//!
//! `residual_in_fp32`, `fused_add_norm` and `attn_cfg` have no effect: everything here is computed in f32, and there is no attention.

use super::transformers::shortest;
use super::{Config, Family, Package, check_groups, expressible, width};
use crate::error::{Error, Result};
use crate::fields::Fields;
use serde_json::{Map, Value, json};

/// Arguments of layers that are read.
const READ: [(Family, &[&str]); 2] = [
    (Family::Mamba, &["layer", "d_model", "d_state", "d_conv", "expand", "dt_rank", "conv_bias", "bias"]),
    (
        Family::Mamba2,
        &[
            "layer",
            "d_model",
            "d_state",
            "d_conv",
            "expand",
            "headdim",
            "d_ssm",
            "ngroups",
            "D_has_hdim",
            "rmsnorm",
            "norm_before_gate",
            "dt_limit",
            "bias",
            "conv_bias",
        ],
    ),
];
/// Settings of a layer's initial weights or of the way it is computed, which have no effect here.
const NO_EFFECT: [(Family, &[&str]); 2] = [
    (
        Family::Mamba,
        &["dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "use_fast_path", "layer_idx", "device", "dtype"],
    ),
    (
        Family::Mamba2,
        &[
            "conv_init",
            "A_init_range",
            "dt_min",
            "dt_max",
            "dt_init_floor",
            "chunk_size",
            "use_mem_eff_path",
            "layer_idx",
            "process_group",
            "sequence_parallel",
            "device",
            "dtype",
        ],
    ),
];

/// The configuration of a model.
pub(super) fn read(fields: &Fields<'_>) -> Result<Config> {
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
    let second = word == "Mamba2";
    let family = if second { Family::Mamba2 } else { Family::Mamba };
    check_names(family, &block)?;
    let dim = fields.size("d_model")?;
    if block.has("d_model") && block.size("d_model")? != dim {
        return Err(block.bad("d_model", "that of the model"));
    }
    let inner = block.expanded("expand", dim)?;
    let (dt_rank, nheads, ngroups) = if second { heads(&block, inner)? } else { (block.rank("dt_rank", dim)?, inner, 1) };
    let multiple = fields.size_or("pad_vocab_size_multiple", 8)?;
    let layers = vec![family.scan(); fields.size_or("n_layer", 64)?];
    Ok(Config {
        family,
        vocab: fields.size_or("vocab_size", 50277)?.next_multiple_of(multiple),
        layers,
        inner,
        dstate: block.size_or("d_state", if second { 128 } else { 16 })?,
        width: width(&block, "d_conv")?,
        dt_rank,
        nheads,
        ngroups,
        bias: block.flag("bias", false)?,
        conv_bias: block.flag("conv_bias", true)?,
        dt_limit: block.limits("dt_limit")?,
        tied: fields.flag("tie_embeddings", true)?,
        package: Package::MambaSsm,
        ..Config::mamba(0, dim, 0)
    })
}

/// Mamba-2's rank of step sizes, heads and groups.
fn heads(block: &Fields<'_>, inner: usize) -> Result<(usize, usize, usize)> {
    let (headdim, ngroups) = (block.size_or("headdim", 64)?, block.size_or("ngroups", 1)?);
    if !inner.is_multiple_of(headdim) {
        return Err(block.bad("headdim", "a divisor of expand x d_model"));
    }
    block.only("rmsnorm", true)?;
    block.only("norm_before_gate", false)?;
    block.only("D_has_hdim", false)?;
    if block.has("d_ssm") && block.size("d_ssm")? != inner {
        return Err(block.bad("d_ssm", "expand x d_model"));
    }
    check_groups(block, "ngroups", inner / headdim, ngroups)?;
    Ok((0, inner / headdim, ngroups))
}

/// Refuses arguments that the layer does not have, as the layer would.
fn check_names(family: Family, block: &Fields<'_>) -> Result<()> {
    let known = READ.iter().chain(&NO_EFFECT).filter(|(of, _)| *of == family).flat_map(|(_, names)| *names);
    let known: Vec<&str> = known.copied().collect();
    match block.names().find(|name| !known.contains(name)) {
        None => Ok(()),
        Some(name) => {
            let layer = if family == Family::Mamba2 { "the arguments of Mamba2 alone" } else { "the arguments of Mamba alone" };
            Err(Error::Config { path: block.path.to_owned(), key: "ssm_cfg", expected: layer, got: format!("`{name}`") })
        }
    }
}

/// The settings of a configuration.
pub(super) fn write(config: &Config) -> Result<Map<String, Value>> {
    let second = config.family == Family::Mamba2;
    let known = matches!(config.family, Family::Mamba | Family::Mamba2);
    expressible(config, known, "family", "mamba or mamba2", config.family.name())?;
    expressible(config, config.inner.is_multiple_of(config.dim), "inner", "a multiple of the width", config.inner)?;
    expressible(config, config.eps == 1e-5, "eps", "1e-5", shortest(config.eps))?;
    expressible(config, config.mixer_eps == 1e-5, "mixer_eps", "1e-5", shortest(config.mixer_eps))?;
    let unlimited = config.dt_limit == (0.0, f64::INFINITY);
    let finite = config.dt_limit.0.is_finite() && config.dt_limit.1.is_finite();
    let limits = format!("{:?}", config.dt_limit);
    expressible(config, unlimited || second && finite, "dt_limit", "0 to infinity, or finite in Mamba-2", limits)?;
    let mut block = json!({
        "layer": if second { "Mamba2" } else { "Mamba1" },
        "d_state": config.dstate,
        "d_conv": config.width,
        "expand": config.inner / config.dim,
        "bias": config.bias,
        "conv_bias": config.conv_bias,
    });
    if second {
        block["headdim"] = json!(config.headdim());
        block["ngroups"] = json!(config.ngroups);
        if !unlimited {
            block["dt_limit"] = json!([config.dt_limit.0, config.dt_limit.1]);
        }
    } else {
        block["dt_rank"] = json!(config.dt_rank);
    }
    let settings = json!({
        "d_model": config.dim,
        "d_intermediate": 0,
        "n_layer": config.layers.len(),
        "vocab_size": config.vocab,
        "ssm_cfg": block,
        "attn_layer_idx": [],
        "attn_cfg": {},
        "rms_norm": true,
        "residual_in_fp32": true,
        "fused_add_norm": true,
        "pad_vocab_size_multiple": 1,
        "tie_embeddings": config.tied,
    });
    Ok(settings.as_object().cloned().unwrap_or_default())
}
