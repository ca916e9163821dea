"""Models of `transformers` with the gated delta rule on our operation, against their own path: every family of the package."""

import importlib
import inspect
import pathlib
import re

import pytest
import torch

from models import HYBRID, SHARED, close, close_gradients, gradients_of, padded, tokens, transformers
from statescan.compat import fla

LAYERS = {"layer_types": ["linear_attention", "full_attention"]}
LINEAR = {
    **LAYERS,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
LATENT = {
    **LAYERS,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 4,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
KDA = {**LATENT, "linear_head_dim": 16, "linear_num_heads": 3}
INDEXED = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 12, "indexer_budget": 64, "indexer_compress_ratio": 2}
POOLED = {"index_topk": 64, "index_head_dim": 12, "index_n_heads": 2, "index_kpool": 2, "hc_mult": 2}

# settings that make a family's model a tiny one, by the name of its module
CONFIGS = {
    "qwen3_next": {**LINEAR, **EXPERTS, "head_dim": 12},
    "qwen3_5": {**LINEAR, "head_dim": 12},
    "qwen3_5_moe": {**LINEAR, **EXPERTS, "head_dim": 12},
    "qwen4_exp": {**LINEAR, **EXPERTS, **INDEXED, "head_dim": 12, "hc_count": 2, "hc_lowrank": 8},
    "olmo_hybrid": {**LINEAR, "eos_token_id": 1},
    "kimi_linear": {**KDA, "num_local_experts": 4},
    "glm5_next": {**KDA, **POOLED, "n_routed_experts": 4, "q_lora_rank": 16, "qk_rope_head_dim": 0},
    "lara_mini": {**LINEAR, **EXPERTS, "head_dim": 12, "eos_token_id": 1},
    "bailing_hybrid": {
        **KDA,
        "head_dim": 16,
        "num_local_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
}


def families():
    """The modules of the package whose source asks for a function of `fla`."""
    folder = pathlib.Path(transformers.__file__).parent / "models"
    asks = re.compile(r'use_kernel_func_from_hub_with_fallback\(\s*"(?:chunk_gated_delta_rule|chunk_kda)", "fla"')
    return sorted(path.parent.name for path in folder.glob("*/modeling_*.py") if asks.search(path.read_text()))


def test_every_family_is_here():
    assert families() == sorted(CONFIGS)


class Family:
    """A tiny model of a family, and its own path in place of ours."""

    def __init__(self, name, device):
        self.device = device
        self.module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        classes = vars(self.module)
        language = next((c for n, c in classes.items() if n.endswith("ForCausalLM")), None)
        text = next((c for n, c in classes.items() if n.endswith("TextModel")), None)
        kind = language or text
        torch.manual_seed(1)
        self.model = kind(kind.config_class(**{**SHARED, **HYBRID, **CONFIGS[name]})).eval().to(device)
        self.generates = language is not None

    def chosen(self):
        """The functions that the module has from `fla`, by their names there."""
        found = {}
        for name, function in vars(self.module).items():
            free = getattr(getattr(function, "__code__", None), "co_freevars", ())
            cells = dict(zip(free, getattr(function, "__closure__", None) or ()))
            if "implementation" in cells and cells["implementation"].cell_contents.__module__ == fla.__name__:
                found[name] = function
        return found

    def go_plain(self, monkeypatch):
        for name, function in self.chosen().items():
            monkeypatch.setattr(self.module, name, function.__wrapped__)

    def __call__(self, ids, **options):
        found = self.model(ids, **options)
        return found.logits if self.generates else found.last_hidden_state


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"))]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(params=CONFIGS)
def family(request, device):
    return Family(request.param, device)


def normal(shape, seed, device):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def near(got, expected, what):
    # other products of a GPU take their sums in another order for another number of rows
    bound = 3e-5 if got.is_cuda else 1e-5
    assert (got - expected).abs().max() <= bound * expected.abs().max(), what


@torch.no_grad()
def test_results(family, monkeypatch):
    ids, prompt = tokens(family.device, seqlen=70), padded(family.device)
    assert len(family.chosen()) == 2
    fast, fast_padded = family(ids), family(prompt["input_ids"], attention_mask=prompt["attention_mask"])
    family.go_plain(monkeypatch)
    near(fast, family(ids), "results")
    keep = prompt["attention_mask"].bool()
    own = family(prompt["input_ids"], attention_mask=prompt["attention_mask"])
    near(fast_padded[keep], own[keep], "results of a padded prompt")


def test_generation(family, monkeypatch):
    if not family.generates:
        pytest.skip("the family has no language model without images")
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": -1}
    fast = family.model.generate(**padded(family.device), **options)
    family.go_plain(monkeypatch)
    assert torch.equal(fast, family.model.generate(**padded(family.device), **options))


@torch.no_grad()
def test_a_prompt_behind_a_cache(family):
    ids = tokens(family.device, batch=1, seqlen=50)
    whole = family(ids)
    cache = transformers.DynamicCache(config=family.model.config)
    parts = [ids[:, :20], ids[:, 20:21], ids[:, 21:]]
    got = torch.cat([family(part, **{_cache_name(family): cache}, use_cache=True) for part in parts], 1)
    close(got, whole, "results of parts")


def _cache_name(family):
    names = inspect.signature(family.model.forward).parameters
    return "past_key_values" if "past_key_values" in names else "cache"


def test_gradients(family, monkeypatch):
    ids = tokens(family.device, seqlen=70)
    weights = None

    def gradients():
        nonlocal weights
        out = family(ids, use_cache=False)
        weights = normal(out.shape, 3, family.device) if weights is None else weights
        return gradients_of(family.model, (out * weights).sum())

    fast = gradients()
    family.go_plain(monkeypatch)
    close_gradients(fast, gradients())


@torch.no_grad()
def test_packed_rows(family):
    """A linear layer takes the bounds of sequences in one row: they are sequences in rows of their own."""
    layer = next(m for m in family.model.modules() if hasattr(m, "conv1d"))
    width = family.model.config.get_text_config().hidden_size
    rows = [normal((1, length, width), length, family.device) for length in (21, 1, 40)]
    bounds = torch.tensor([0, 21, 22, 62], dtype=torch.int32, device=family.device)
    numbers = torch.cat([torch.full(row.shape[:2], i, dtype=torch.int32, device=row.device) for i, row in enumerate(rows)], 1)
    first = lambda found: found[0] if isinstance(found, tuple) else found  # noqa: E731
    apart = torch.cat([first(layer(row)) for row in rows], 1)
    for packing in ({"cu_seq_lens_q": bounds}, {"cu_seq_lens_q": bounds, "seq_idx": numbers}, {"seq_idx": numbers}):
        near(first(layer(torch.cat(rows, 1), **packing)), apart, f"packed by {sorted(packing)}")
