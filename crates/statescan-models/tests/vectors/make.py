"""Tiny models with random weights and their logits, computed by `transformers`: one folder for each, beside this file.

python crates/statescan-models/tests/vectors/make.py
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 8, "use_bias": True}
MODELS = {
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


def main():
    for name, settings in MODELS.items():
        torch.manual_seed(len(name))
        kind = settings["model_type"]
        config = AutoConfig.for_model(**SIZES, **settings)
        model = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for tensor, parameter in model.named_parameters():
                if not tensor.endswith(("A_log", "D")):
                    parameter.add_(0.3 * torch.randn_like(parameter))
            ids = torch.randint(config.vocab_size, (1, 41))
            logits = model(ids, use_cache=False).logits
        folder = Path(__file__).parent / name
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        save_file({"input_ids": ids, "logits": logits.float().contiguous()}, folder / "expected.safetensors")
        print(kind, sum(p.numel() for p in model.parameters()), logits.abs().max().item())


if __name__ == "__main__":
    main()
