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

no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=no_gpu)])
def device(request):
    return request.param


@pytest.fixture(params=CONFIGS)
def model(request, device):
    config = getattr(transformers, f"{request.param}Config")(**CONFIGS[request.param])
    torch.manual_seed(1)
    return getattr(transformers, f"{request.param}ForCausalLM")(config).eval().to(device)


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


def tokens(device, seed=2, batch=2, seqlen=37):
    ids = torch.randint(2, SHARED["vocab_size"], (batch, seqlen), generator=torch.Generator().manual_seed(seed))
    return ids.to(device)


def whole(device):
    return {"input_ids": tokens(device, seqlen=9)}


def padded(device):
    """A prompt, and one that is shorter and starts with padding."""
    ids = tokens(device, seqlen=11)
    ids[1, :4] = 0
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def close(got, expected, what):
    assert (got - expected).abs().max() <= 1e-4 * expected.abs().max(), what


def test_chosen_functions_are_ours(model, fallback):
    chosen = fallback()
    # LFM2 has convolutions and no scans
    assert len(chosen) >= (2 if type(model).__name__.startswith("Lfm2") else 5)
    assert all(function.__module__.startswith("statescan.compat.") for function in chosen.values())


@torch.no_grad()
def test_logits(model, device, fallback):
    ids = tokens(device)
    fast = model(ids).logits
    without_cache = model(ids, use_cache=False).logits
    fallback()
    expected = model(ids).logits
    close(fast, expected, "logits")
    close(without_cache, expected, "logits without cache")


@pytest.mark.parametrize("prompt", [whole, padded], ids=["whole", "padded"])
def test_generate(model, device, fallback, prompt):
    prompt, options = prompt(device), {"max_new_tokens": 24, "do_sample": False, "eos_token_id": -1}
    fast = model.generate(**prompt, **options)
    assert fast.shape[1] == prompt["input_ids"].shape[1] + 24
    fallback()
    assert torch.equal(fast, model.generate(**prompt, **options))


def gradients_of(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def close_gradients(got, expected):
    assert got.keys() == expected.keys() and len(got) > 10
    for name, gradient in expected.items():
        close(got[name], gradient, f"gradient of {name}")


def test_training_step(model, device, fallback):
    model.train()
    ids = tokens(device)

    def step():
        loss = model(ids, labels=ids).loss
        return loss.detach(), gradients_of(model, loss)

    loss, gradients = step()
    fallback()
    expected_loss, expected = step()
    close(loss, expected_loss, "loss")
    close_gradients(gradients, expected)


@pytest.mark.parametrize("model", PACKED, indirect=True)
def test_packed_training(model, device):
    """Sequences in one row, told apart by `seq_idx`, and for attention by their positions, are sequences in rows of their own."""
    body = model.train().base_model
    parts = [tokens(device, seed, batch=1, seqlen=length) for seed, length in enumerate((21, 1, 40))]
    index = torch.cat([torch.full_like(part, i, dtype=torch.int32) for i, part in enumerate(parts)], 1)
    packing = {
        "seq_idx": index,
        "position_ids": torch.cat([torch.arange(part.shape[1], device=device)[None] for part in parts], 1),
    }
    if type(model).__name__.startswith("GraniteMoeHybrid"):
        # its attention does not look at positions
        same = torch.ones(62, 62, dtype=torch.bool, device=device).tril() & (index.T == index)
        packing["attention_mask"] = {"full_attention": same[None, None], "linear_attention": None}
    together = body(torch.cat(parts, 1), use_cache=False, **packing).last_hidden_state
    apart = torch.cat([body(part, use_cache=False).last_hidden_state for part in parts], 1)
    close(together, apart, "last hidden states")
    weights = torch.randn(apart.shape, generator=torch.Generator().manual_seed(3)).to(device)
    close_gradients(*(gradients_of(model, (hidden * weights).sum()) for hidden in (together, apart)))


@pytest.mark.parametrize("model", CHUNKED, indirect=True)
def test_without_a_kernel(model, device, monkeypatch):
    """As on a GPU that has no kernel of SSD: the drop-ins compute with PyTorch's operations."""

    def everything():
        model.eval()
        with torch.no_grad():
            logits = model(tokens(device)).logits
        generated = model.generate(**padded(device), max_new_tokens=9, do_sample=False, eos_token_id=-1)
        model.train()
        return logits, generated, gradients_of(model, model(tokens(device), labels=tokens(device)).loss)

    logits, generated, gradients = everything()
    calls = []
    own = without_kernel.ssd
    monkeypatch.setattr(without_kernel, "warn", lambda device: None)
    monkeypatch.setattr(without_kernel, "ssd", lambda *arguments, **options: calls.append("ssd") or own(*arguments, **options))
    monkeypatch.setattr(mamba_ssm, "has_kernel", lambda op, tensor: op is not SSD)
    again, generated_again, gradients_again = everything()
    assert len(calls) >= 3
    close(again, logits, "logits")
    assert torch.equal(generated_again, generated)
    close_gradients(gradients_again, gradients)


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
