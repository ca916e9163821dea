"""Models of Hugging Face `transformers` on our operations, against their own slow path; the user adds the line of `install()`."""

import sys

import pytest
import torch

import statescan.compat
from statescan.compat import fallback as without_kernel
from statescan.compat import mamba_ssm
from statescan.operations import SSD

statescan.compat.install()

transformers = pytest.importorskip("transformers", minversion="5.23", reason="transformers 5.23 or newer is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

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
}


@pytest.fixture(params=CONFIGS)
def model(request):
    config = getattr(transformers, f"{request.param}Config")(**CONFIGS[request.param])
    torch.manual_seed(1)
    return getattr(transformers, f"{request.param}ForCausalLM")(config).eval()


@pytest.fixture
def fallback(model, monkeypatch):
    """Undoes the choice that a model's module made when it was imported; gives the functions that it had chosen."""

    def undo():
        module = sys.modules[type(model).__module__]
        chosen = {}
        for name, function in list(vars(module).items()):
            if name in FUNCTIONS:
                slow = function.__wrapped__
                chosen[name] = dict(zip(function.__code__.co_freevars, function.__closure__))["implementation"].cell_contents
                monkeypatch.setattr(module, name, slow)
        return chosen

    return undo


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


def tokens(seed=2, batch=2, seqlen=37):
    return torch.randint(2, SHARED["vocab_size"], (batch, seqlen), generator=torch.Generator().manual_seed(seed))


def padded():
    """A prompt, and one that is shorter and starts with padding."""
    ids = tokens(seqlen=11)
    ids[1, :4] = 0
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def close(got, expected, what):
    assert (got - expected).abs().max() <= 1e-4 * expected.abs().max(), what


def test_chosen_functions_are_ours(fallback):
    chosen = fallback()
    assert len(chosen) >= 5
    assert all(function.__module__.startswith("statescan.compat.") for function in chosen.values())


@torch.no_grad()
def test_logits(model, fallback):
    ids = tokens()
    fast = model(ids).logits
    without_cache = model(ids, use_cache=False).logits
    fallback()
    expected = model(ids).logits
    close(fast, expected, "logits")
    close(without_cache, expected, "logits without cache")


@pytest.mark.parametrize("prompt", [lambda: {"input_ids": tokens(seqlen=9)}, padded], ids=["whole", "padded"])
def test_generate(model, fallback, prompt):
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": -1}
    fast = model.generate(**prompt(), **options)
    assert fast.shape[1] == prompt()["input_ids"].shape[1] + 24
    fallback()
    assert torch.equal(fast, model.generate(**prompt(), **options))


def test_training_step(model, fallback):
    model.train()
    ids = tokens()

    def step():
        loss = model(ids, labels=ids).loss
        model.zero_grad()
        loss.backward()
        return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    loss, gradients = step()
    fallback()
    expected_loss, expected = step()
    close(loss, expected_loss, "loss")
    assert gradients.keys() == expected.keys() and len(gradients) > 10
    for name, gradient in expected.items():
        close(gradients[name], gradient, f"gradient of {name}")


@pytest.mark.parametrize("model", ["Mamba2", "Bamba", "Zamba2"], indirect=True)
def test_without_a_kernel(model, monkeypatch):
    """As on a GPU that has no kernel of SSD: the drop-ins compute with PyTorch's operations."""

    def everything():
        model.eval()
        with torch.no_grad():
            logits = model(tokens()).logits
        generated = model.generate(**padded(), max_new_tokens=9, do_sample=False, eos_token_id=-1)
        model.train().zero_grad()
        model(tokens(), labels=tokens()).loss.backward()
        return logits, generated, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    logits, generated, gradients = everything()
    calls = []
    own = without_kernel.ssd
    monkeypatch.setattr(without_kernel, "warn", lambda device: None)
    monkeypatch.setattr(without_kernel, "ssd", lambda *arguments, **options: calls.append("ssd") or own(*arguments, **options))
    monkeypatch.setattr(mamba_ssm, "has_kernel", lambda op, tensor: op is not SSD)
    again, generated_again, gradients_again = everything()
    assert len(calls) >= 3
    close(again, logits, "logits")
    assert torch.equal(generated_again, generated) and gradients_again.keys() == gradients.keys()
    for name, gradient in gradients.items():
        close(gradients_again[name], gradient, f"gradient of {name}")


@pytest.mark.parametrize("name", ["hf_mamba", "hf_mamba2"])
def test_stored_models(vectors, name):
    model = transformers.AutoModelForCausalLM.from_pretrained(vectors / name).eval()
    expected = safetensors.load_file(vectors / name / "expected.safetensors")
    with torch.no_grad():
        logits = model(expected["input_ids"]).logits
    difference, wanted = (logits - expected["logits"]).abs(), expected["logits"].abs()
    assert (difference <= 1e-5 * wanted.max() + 1e-4 * wanted).all()
    greedy = expected["greedy"]
    assert torch.equal(model.generate(greedy[:, :9], max_new_tokens=24, do_sample=False, eos_token_id=-1), greedy)
