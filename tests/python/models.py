"""Tiny models of `transformers` on our operations, and the undoing of that; the line of `install()` is the user's."""

import importlib
import inspect
import pathlib
import re
import sys
import types

import pytest
import torch

import statescan.compat
from statescan.compat import _names

statescan.compat.install()

transformers = pytest.importorskip("transformers", minversion="5.23", reason="transformers 5.23 or newer is not installed")

# plain models are what ours are compared with
torch.backends.cudnn.allow_tf32 = False

SHARED = {"vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 2, "initializer_range": 0.1, "pad_token_id": 0}
MAMBA = {**SHARED, "state_size": 16, "time_step_rank": 3}
HYBRID = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 128}

CONFIGS = {
    "Mamba": MAMBA,
    "FalconMamba": MAMBA,
    "Mamba2": {**SHARED, "state_size": 16, "num_heads": 6, "head_dim": 16, "n_groups": 2, "chunk_size": 16},
    "Bamba": {
        **SHARED,
        **HYBRID,
        "attn_layer_indices": [1],
        "mamba_n_heads": 6,
        "mamba_n_groups": 2,
        "mamba_d_state": 16,
        "mamba_chunk_size": 16,
    },
    "Zamba2": {
        **SHARED,
        **HYBRID,
        "num_key_value_heads": 4,
        "layers_block_type": ["mamba", "hybrid"],
        "n_mamba_heads": 6,
        "mamba_ngroups": 2,
        "mamba_d_state": 16,
        "chunk_size": 16,
        "adapter_rank": 8,
    },
    "FalconH1": {
        **SHARED,
        **HYBRID,
        "mamba_d_ssm": 96,
        "mamba_n_heads": 6,
        "mamba_n_groups": 2,
        "mamba_d_state": 16,
        "mamba_chunk_size": 16,
    },
    "GraniteMoeHybrid": {
        **SHARED,
        **HYBRID,
        "shared_intermediate_size": 64,
        "num_local_experts": 0,
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 6,
        "mamba_n_groups": 2,
        "mamba_d_state": 16,
        "mamba_chunk_size": 16,
    },
    "NemotronH": {
        **{name: value for name, value in SHARED.items() if name != "num_hidden_layers"},
        **HYBRID,
        "head_dim": 12,
        "layers_block_type": ["mamba", "attention", "mlp"],
        "mamba_num_heads": 6,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 16,
        "chunk_size": 16,
    },
    "Jamba": {
        **SHARED,
        **HYBRID,
        "mamba_d_state": 16,
        "mamba_dt_rank": 3,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 1,
        "num_experts_per_tok": 1,
    },
    "Zamba": {
        **SHARED,
        **HYBRID,
        "num_key_value_heads": 4,
        "attention_head_dim": 24,
        "attention_hidden_size": 96,
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid"] * 2,
        "mamba_dt_rank": 3,
    },
    "Lfm2": {**SHARED, **HYBRID, "block_multiple_of": 16, "layer_types": ["conv", "full_attention"]},
}
# the settings of the others are the ones that they start with, in small
SMALL = {
    **SHARED,
    **{name: 4 for name in ("num_attention_heads", "num_key_value_heads", "num_experts", "n_routed_experts")},
    **{name: 4 for name in ("linear_num_heads", "linear_num_key_heads", "linear_num_value_heads")},
    **{name: 4 for name in ("swa_num_attention_heads", "swa_num_key_value_heads", "num_heads", "index_n_heads")},
    **{name: 12 for name in ("head_dim", "linear_head_dim", "linear_key_head_dim", "linear_value_head_dim", "swa_head_dim")},
    **{name: 12 for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_head_dim")},
    **{name: 32 for name in ("moe_intermediate_size", "shared_expert_intermediate_size", "rel_extent", "out_hidden_size")},
    **{name: 16 for name in ("kv_lora_rank", "sliding_window", "sliding_window_size", "index_topk")},
    **{name: 2 for name in ("num_experts_per_tok", "num_experts_per_token", "num_hidden_layers", "depth")},
    **{name: 1 for name in ("n_group", "topk_group", "num_expert_group", "n_shared_experts", "num_dense_layers")},
    **{"intermediate_size": 64, "max_position_embeddings": 128, "unpadded_vocab_size": 96, "bos_token_id": 1, "eos_token_id": 1},
}
MORE = {
    "Glm5Next": {"q_lora_rank": 16, "qk_rope_head_dim": 0, "index_kpool": 4},
    "Lfm2Moe": {"layer_types": ["conv", "full_attention"]},
    "Qwen4Exp": {
        **{
            "indexer_budget": 16,
            "indexer_compress_ratio": 4,
            "indexer_head_dim": 12,
            "indexer_kv_heads": 1,
            "indexer_n_heads": 2,
        },
        **{"ngram_vocab_size_base": 64, "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 1, "heads_per_ngram": 2},
        **{"hc_lowrank": 8, "hc_count": 2, "ple_embed_dim": 16},
    },
}


def _served():
    """The functions that each module of `transformers` looks for in a package that we stand in for."""
    decorator = re.compile(r"@use_kernel_func_from_hub_with_fallback\(\s*\"(\w+)\",\s*\"(\w+)\"")
    known = {(module.partition(".")[0], name) for module in _names.MODULES for name in _names.sources(module)}
    found = {}
    for path in sorted(pathlib.Path(transformers.__file__).parent.glob("models/*/modeling_*.py")):
        wanted = [name for name, package in decorator.findall(path.read_text()) if (package, name) in known]
        if wanted:
            found[f"transformers.models.{path.parent.name}.{path.stem}"] = wanted
    return found


SERVED = _served()


def _language_model(module):
    """A module's model with a head for text."""
    models = [value for value in vars(importlib.import_module(module)).values() if inspect.isclass(value)]
    models = [model for model in models if model.__module__ == module]
    return min(models, key=lambda model: ("ForCausalLM" not in model.__name__, "ForConditional" not in model.__name__))


FAMILIES = {model.__name__.partition("For")[0]: model for model in map(_language_model, SERVED)}


def _small(config, more):
    """Settings of a configuration in small, with a layer of each kind that it has."""
    default = config()
    found = {name: value for name, value in SMALL.items() if hasattr(default, name)} | more
    kinds = found.get("layer_types") or getattr(default, "layer_types", None)
    if kinds is not None:
        kinds = list(dict.fromkeys(kinds))
        found |= {"layer_types": kinds, "num_hidden_layers": len(kinds)}
        for name in ("mlp_layer_types", "indexer_types"):
            if of_layers := getattr(default, name, None):
                of_layers = list(dict.fromkeys(of_layers))
                found[name] = [of_layers[at % len(of_layers)] for at in range(len(kinds))]
    return found


def _config(name):
    config = FAMILIES[name].config_class
    if name in CONFIGS:
        return config, CONFIGS[name]
    if parts := config.sub_configs:
        return config, {part: _small(of_part, MORE.get(name, {})) for part, of_part in parts.items()}
    return config, _small(config, MORE.get(name, {}))


# families with Mamba-2's scan
CHUNKED = [name for name, model in FAMILIES.items() if "mamba_chunk_scan_combined" in SERVED[model.__module__]]
# families with Mamba's
MIXING = [name for name, model in FAMILIES.items() if "selective_scan_fn" in SERVED[model.__module__]]
# families whose layers take `seq_idx`
PACKED = [*CHUNKED, "Lfm2"]


def made(name, device="cpu", **more):
    torch.manual_seed(1)
    config, settings = _config(name)
    return FAMILIES[name](config(**{**settings, **more})).eval().to(device)


def go_plain(model, monkeypatch):
    """Undoes the choice that a model's module made when it was imported; gives the functions that it had chosen."""
    module = sys.modules[type(model).__module__]
    chosen = {}
    for name, function in list(vars(module).items()):
        if isinstance(function, types.FunctionType) and "is_new_implementation" in function.__code__.co_freevars:
            cells = dict(zip(function.__code__.co_freevars, function.__closure__))
            if cells["is_new_implementation"].cell_contents:
                chosen[name] = cells["implementation"].cell_contents
                monkeypatch.setattr(module, name, function.__wrapped__)
    return chosen


def tokens(device, seed=2, batch=2, seqlen=37):
    ids = torch.randint(2, SHARED["vocab_size"], (batch, seqlen), generator=torch.Generator().manual_seed(seed))
    return ids.to(device)


def padded(device):
    """A prompt, and one that is shorter and starts with padding."""
    ids = tokens(device, seqlen=11)
    ids[1, :4] = 0
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def close(got, expected, what):
    assert (got - expected).abs().max() <= 1e-4 * expected.abs().max(), what


def gradients_of(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def close_gradients(got, expected):
    assert got.keys() == expected.keys() and len(got) > 10
    for name, gradient in expected.items():
        close(got[name], gradient, f"gradient of {name}")
