"""The import paths of other packages, and where here their names come from."""

# the version that a package reports is the one whose interface is followed here
VERSIONS = {
    "mamba_ssm": "2.3.2+statescan",
    "causal_conv1d": "1.7.0+statescan",
    "lrnnx": "1.0.0+statescan",
    "nkilib": "1.0.0+statescan",
    "fla": "0.6.0+statescan",
}
# the package to install for names that are not provided here
PACKAGES = {"mamba_ssm": "mamba-ssm", "causal_conv1d": "causal-conv1d", "lrnnx": "lrnnx", "nkilib": "nkilib"}
PACKAGES["fla"] = "flash-linear-attention"
# compiled modules, which have no version
PACKAGES |= {"selective_scan_cuda": "mamba-ssm", "causal_conv1d_cuda": "causal-conv1d"}
PACKAGES |= {f"selective_scan_cuda_{kind}": "VMamba's kernels" for kind in ("core", "oflex")}

_SCANS = {".mamba_ssm": ("mamba_inner_fn", "selective_scan_fn")}
_LAYERS = {"..nn": ("Mamba", "Mamba2", "Mamba3")}
_CONVOLUTIONS = {".causal_conv1d": ("causal_conv1d_fn", "causal_conv1d_update")}
_S5 = {"..nn": ("S5",)}
_MODEL = {".models": ("MambaLMHeadModel",)}
_GATED_DELTA_RULE = ("chunk_gated_delta_rule", "chunk_gdn", "fused_recurrent_gated_delta_rule", "fused_recurrent_gdn")
_KDA = ("chunk_kda", "fused_recurrent_kda")
# names of one decay a head by the modules that have them
_BY_HEADS = {
    f"fla.ops.{name}": {".simple_gla": (f"chunk_{name}", f"fused_recurrent_{name}")}
    for name in ("simple_gla", "retention", "lightning_attn")
}
_FLA = {
    ".fla": (*_GATED_DELTA_RULE, *_KDA),
    ".simple_gla": tuple(name for of in _BY_HEADS.values() for name in of[".simple_gla"]),
}

# the names of each module, by the modules here that have them
MODULES = {
    "mamba_ssm": {**_SCANS, **_LAYERS, **_MODEL},
    "mamba_ssm.models": {},
    "mamba_ssm.models.config_mamba": {".models": ("MambaConfig",)},
    "mamba_ssm.models.mixer_seq_simple": {".models": ("MambaConfig", "MambaLMHeadModel", "MixerModel", "create_block")},
    "mamba_ssm.modules": {},
    "mamba_ssm.modules.block": {".blocks": ("Block",)},
    "mamba_ssm.modules.mamba2": {"..nn": ("Mamba2",)},
    "mamba_ssm.modules.mamba3": {"..nn": ("Mamba3",)},
    "mamba_ssm.modules.mamba2_simple": {".mamba2_simple": ("Mamba2Simple",)},
    # versions before 2.0 have the block beside the layer
    "mamba_ssm.modules.mamba_simple": {"..nn": ("Mamba",), ".blocks": ("Block",)},
    "mamba_ssm.modules.mlp": {".blocks": ("GatedMLP",)},
    "mamba_ssm.modules.ssd_minimal": {".ssd_parts": ("segsum", "ssd_minimal_discrete")},
    "mamba_ssm.ops": {},
    "mamba_ssm.ops.selective_scan_interface": {
        ".mamba_ssm": ("bimamba_inner_fn", "mamba_inner_fn", "mamba_inner_fn_no_out_proj", "selective_scan_fn"),
        ".references": ("mamba_inner_ref", "selective_scan_ref"),
    },
    "mamba_ssm.ops.triton": {},
    "mamba_ssm.ops.triton.layer_norm": {
        ".layer_norm": ("RMSNorm", "layer_norm_fn", "layer_norm_linear_fn", "rms_norm_fn"),
        ".references": ("layer_norm_ref", "rms_norm_ref"),
    },
    "mamba_ssm.ops.triton.layernorm_gated": {
        ".norms": ("LayerNorm", "RMSNorm", "layernorm_fn", "rms_norm_ref", "rmsnorm_fn"),
    },
    "mamba_ssm.ops.triton.mamba3": {},
    "mamba_ssm.ops.triton.mamba3.mamba3_siso_combined": {"..derived": ("mamba3_siso_combined",)},
    "mamba_ssm.ops.triton.mamba3.mamba3_siso_step": {"..derived": ("mamba3_siso_step",)},
    "mamba_ssm.ops.triton.selective_state_update": {
        ".mamba_ssm": ("selective_state_update",),
        ".references": ("selective_state_update_ref",),
    },
    "mamba_ssm.ops.triton.ssd_chunk_state": {".ssd_parts": ("chunk_state", "chunk_state_ref")},
    "mamba_ssm.ops.triton.ssd_combined": {
        ".mamba_ssm": (
            "mamba_chunk_scan",
            "mamba_chunk_scan_combined",
            "mamba_split_conv1d_scan_combined",
            "ssd_selective_scan",
        ),
        ".references": ("mamba_conv1d_scan_ref", "mamba_split_conv1d_scan_ref", "ssd_chunk_scan_combined_ref"),
    },
    "mamba_ssm.utils": {},
    "mamba_ssm.utils.generation": {".generation": ("GenerationMixin", "InferenceParams", "decode", "sample")},
    "mamba_ssm.utils.hf": {".models": ("load_config_hf", "load_state_dict_hf")},
    "causal_conv1d": _CONVOLUTIONS,
    "causal_conv1d.causal_conv1d_interface": {
        **_CONVOLUTIONS,
        ".references": ("causal_conv1d_ref", "causal_conv1d_update_ref"),
    },
    "causal_conv1d.causal_conv1d_varlen": {
        ".causal_conv1d": ("causal_conv1d_varlen_states",),
        ".references": ("causal_conv1d_varlen_states_ref",),
    },
    "lrnnx": {},
    "lrnnx.models": {},
    "lrnnx.models.ltv": _S5,
    "lrnnx.models.ltv.s5": _S5,
    "lrnnx.ops": {
        ".lrnnx": ("selective_scan_fn", "selective_scan_ref"),
        ".lrnnx_rules": ("rglru_inner_fn", "rglru_scan_fn", "s7_scan_fn"),
        ".mamba_ssm": ("mamba_inner_fn",),
    },
    "lrnnx.ops.rglru_scan": {".lrnnx_rules": ("rglru_inner_fn", "rglru_scan_fn")},
    "lrnnx.ops.s7_scan": {".lrnnx_rules": ("s7_inner_fn", "s7_scan_fn")},
    "lrnnx.ops.selective_scan": {
        ".lrnnx": ("selective_scan_fn", "selective_scan_ref"),
        ".mamba_ssm": ("mamba_inner_fn",),
        ".references": ("mamba_inner_ref",),
    },
    "lrnnx.ops.simplified_scan": {
        ".lrnnx": ("s5_inner_fn", "simplified_scan_fn"),
        ".references": ("s5_inner_ref", "simplified_scan_ref"),
    },
    "lrnnx.ops.triton": {},
    "lrnnx.ops.triton.selective_state_update": {
        ".lrnnx": ("selective_state_update",),
        ".references": ("selective_state_update_ref",),
    },
    "lrnnx.ops.triton.simplified_state_update": {
        ".lrnnx": ("simplified_state_update",),
        ".references": ("simplified_state_update_ref",),
    },
    "fla": _FLA,
    "fla.ops": _FLA,
    "fla.ops.gated_delta_rule": {".fla": _GATED_DELTA_RULE},
    "fla.ops.kda": {".fla": _KDA},
    **_BY_HEADS,
    "nkilib": {},
    "nkilib.experimental": {},
    "nkilib.experimental.scan": {".nkilib": ("selective_scan", "ssd")},
    "selective_scan_cuda": {".selective_scan_cuda": ("bwd", "fwd")},
    "selective_scan_cuda_core": {".selective_scan_cuda_core": ("bwd", "fwd")},
    "selective_scan_cuda_oflex": {".selective_scan_cuda_core": ("bwd", "fwd")},
    "causal_conv1d_cuda": {".causal_conv1d_cuda": ("causal_conv1d_bwd", "causal_conv1d_fwd", "causal_conv1d_update")},
}


def sources(module):
    """The names of a module, each with the module here that has it."""
    return {name: source for source, names in MODULES[module].items() for name in names}
