"""Tiny models with random weights and their logits, computed by `transformers`: one folder for each, beside this file.

Beside them are the settings of its configurations with what they begin with, `settings.json`.

python crates/statescan-models/tests/vectors/make.py
"""

import dataclasses
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 8, "use_bias": True}
MODELS = {
    "mamba_pickled": {"model_type": "mamba", "time_step_rank": 3},
    "falcon_mamba": {"model_type": "falcon_mamba", "time_step_rank": 3},
    "mamba2_groups": {
        "model_type": "mamba2",
        "num_heads": 8,
        "head_dim": 4,
        "n_groups": 2,
        "time_step_limit": (0.01, 0.2),
        "tie_word_embeddings": True,
    },
}
HYBRID_SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mamba_n_heads": 8,
    "mamba_d_head": 4,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "rms_norm_eps": 1e-5,
}
HYBRIDS = {
    "bamba": {
        "model_type": "bamba",
        "intermediate_size": 24,
        "attn_layer_indices": [1],
        "attention_bias": True,
        "mlp_bias": True,
    },
    "granite_hybrid": {
        "model_type": "granitemoehybrid",
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 24,
        "position_embedding_type": "rope",
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
        "attention_multiplier": 0.3,
        "tie_word_embeddings": True,
    },
}
DELTA_SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 6,
    "attention_bias": True,
    "rms_norm_eps": 1e-3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
DELTAS = {
    "qwen3_5": {
        "model_type": "qwen3_5_text",
        "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5},
    },
    "olmo_hybrid": {
        "model_type": "olmo_hybrid",
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    },
    # as published models are: no positions
    "olmo_hybrid_plain": {
        "model_type": "olmo_hybrid",
        "rope_parameters": {"rope_type": "default", "rope_theta": None},
        "linear_allow_neg_eigval": False,
        "tie_word_embeddings": True,
    },
}
# one of them is kept as its pickled weights alone
PICKLED = "mamba_pickled"


def class_settings():
    """The settings of each kind that all configurations do not have, and what they begin with."""
    common = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    found = {}
    for kind in ("mamba", "falcon_mamba", "mamba2", "bamba", "granitemoehybrid", "qwen3_5_text", "olmo_hybrid"):
        config = AutoConfig.for_model(kind)
        own = {field.name for field in dataclasses.fields(config)} - common
        own |= {"eos_token_id", "tie_word_embeddings", "intermediate_size"} & config.to_dict().keys()
        found[kind] = {name: getattr(config, name) for name in sorted(own)}
    # as `transformers` writes it into config.json
    return json.dumps(found, indent=1).replace("Infinity", '{"__float__": "Infinity"}')


def learned(model, ids):
    """The loss of the next token over rows, and its gradients, by torch's autograd."""
    loss = model(ids[:, :-1], use_cache=False).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(loss, ids[:, 1:].flatten())
    loss.backward()
    gradients = {f"grad.{name}": parameter.grad.contiguous() for name, parameter in model.named_parameters()}
    return {"loss": loss.detach().reshape(1), **gradients}


def main():
    (Path(__file__).parent / "settings.json").write_text(class_settings() + "\n")
    everything = {name: SIZES | settings for name, settings in MODELS.items()}
    everything |= {name: HYBRID_SIZES | settings for name, settings in HYBRIDS.items()}
    everything |= {name: DELTA_SIZES | settings for name, settings in DELTAS.items()}
    for name, settings in everything.items():
        torch.manual_seed(len(name))
        kind = settings["model_type"]
        config = AutoConfig.for_model(**settings)
        model = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for tensor, parameter in model.named_parameters():
                if not tensor.endswith(("A_log", "D")):
                    parameter.add_(0.3 * torch.randn_like(parameter))
            # the row of a token of padding has no gradient there
            ids = torch.randint(1 if name in HYBRIDS | DELTAS else 0, config.vocab_size, (1, 41))
            logits = model(ids, use_cache=False).logits
        folder = Path(__file__).parent / name
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        if name == PICKLED:
            torch.save(model.state_dict(), folder / "pytorch_model.bin")
            (folder / "model.safetensors").unlink()
        expected = {"input_ids": ids, "logits": logits.float().contiguous()}
        if name in HYBRIDS | DELTAS:
            expected |= learned(model, ids.reshape(1, -1)[:, :40].reshape(2, 20))
            expected["greedy"] = model.generate(ids[:, :9], max_new_tokens=40, do_sample=False, eos_token_id=None)
        save_file(expected, folder / "expected.safetensors")
        print(kind, sum(p.numel() for p in model.parameters()), logits.abs().max().item())


if __name__ == "__main__":
    main()
