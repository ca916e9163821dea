"""Models of Hugging Face `transformers` on our operations, against their own slow path; the user adds the line of `install()`."""

import inspect

import pytest
import torch

import statescan.compat
from models import (
    CHUNKED,
    FAMILIES,
    MIXING,
    PACKED,
    SERVED,
    close,
    close_gradients,
    go_plain,
    gradients_of,
    made,
    padded,
    tokens,
    transformers,
)

safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=no_gpu)])
def device(request):
    return request.param


@pytest.fixture(params=FAMILIES)
def model(request, device):
    return made(request.param, device)


@pytest.fixture
def fallback(model, monkeypatch):
    return lambda: go_plain(model, monkeypatch)


def whole(device):
    return {"input_ids": tokens(device, seqlen=9)}


def test_chosen_functions_are_ours(model, fallback):
    chosen = fallback()
    assert len(chosen) == len(SERVED[type(model).__module__])
    assert all(function.__module__.startswith("statescan.compat.") for function in chosen.values())


def test_report(model):
    assert statescan.compat.report()[type(model).__module__] == "statescan"


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
    prompt, options = prompt(device), {"max_new_tokens": 12, "do_sample": False, "eos_token_id": -1}
    fast = model.generate(**prompt, **options)
    assert fast.shape[1] == prompt["input_ids"].shape[1] + 12
    fallback()
    assert torch.equal(fast, model.generate(**prompt, **options))


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


@pytest.mark.parametrize("model", MIXING, indirect=True)
def test_rows_that_a_scan_would_mix(model, device):
    """Sequences in one row are refused, as without us, where a model tells the convolution of them and not the scan."""
    mixer = next(module for module in model.modules() if hasattr(module, "conv1d"))
    index = torch.zeros(2, 9, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="causal_conv1d_fn: `seq_idx` must be None: the scan of transformers.models"):
        mixer(torch.randn(2, 9, 48, device=device), seq_idx=index)
    mixer(torch.randn(2, 9, 48, device=device), seq_idx=None)


@pytest.mark.parametrize("model", CHUNKED, indirect=True)
def test_gradients_through_a_cache_that_goes_on(model, device, fallback):
    """A cache is written over by each call, which the gradients of the calls before it do not notice."""
    model.train()
    parts = tokens(device).split([20, 10, 7], 1)
    # by which name models take one differs between versions
    parameters = inspect.signature(model.forward).parameters
    name = next(name for name in ("cache", "past_key_values", "cache_params") if name in parameters)

    def run():
        cache, results = transformers.DynamicCache(config=model.config), []
        for part in parts:
            results.append(model(part, use_cache=True, **{name: cache}).logits)
        logits = torch.cat(results, 1)
        return logits.detach(), gradients_of(model, logits.square().mean())

    logits, gradients = run()
    fallback()
    expected_logits, expected = run()
    close(logits, expected_logits, "logits")
    close_gradients(gradients, expected)


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
