"""Tiny models of `transformers` on our operations, and the undoing of that; the line of `install()` is the user's."""

import sys

import pytest
import torch

import statescan.compat

statescan.compat.install()

transformers = pytest.importorskip("transformers", minversion="5.23", reason="transformers 5.23 or newer is not installed")

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
    "Lfm2": {**SHARED, **HYBRID, "block_multiple_of": 16, "layer_types": ["conv", "full_attention"]},
}
# those with Mamba-2's scan
CHUNKED = [name for name in CONFIGS if name not in ("Mamba", "FalconMamba", "Jamba", "Lfm2")]
# those whose layers take `seq_idx`
PACKED = [*CHUNKED, "Lfm2"]


FUNCTIONS = (
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "mamba_inner_fn",
    "mamba_selective_scan",
    "mamba_selective_state_update",
    "mamba2_split_conv1d_scan_combined",
    "mamba2_selective_state_update",
    "mamba2_chunk_scan",
)


def made(name, device="cpu", **more):
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**{**CONFIGS[name], **more})
    return getattr(transformers, f"{name}ForCausalLM")(config).eval().to(device)


def go_plain(model, monkeypatch):
    """Undoes the choice that a model's module made when it was imported; gives the functions that it had chosen."""
    module = sys.modules[type(model).__module__]
    chosen = {}
    for name, function in list(vars(module).items()):
        if name in FUNCTIONS:
            slow = function.__wrapped__
            chosen[name] = dict(zip(function.__code__.co_freevars, function.__closure__))["implementation"].cell_contents
            monkeypatch.setattr(module, name, slow)
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
