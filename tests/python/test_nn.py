"""Layers: the results of other implementations, gradients, packed sequences, and decoding with a cache."""

import json

import pytest
import torch
from torch.nn.functional import linear, rms_norm

from layers import BATCH, LAYERS, SEQLEN, WIDTH, cache
from statescan import nn


@pytest.fixture(params=LAYERS)
def make(request):
    torch.manual_seed(1)
    return LAYERS[request.param]


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_layers_make_the_models_of_the_vectors(kind, vectors):
    from safetensors.torch import load_file

    folder = vectors / f"hf_{kind}"
    config = json.loads((folder / "config.json").read_text())
    weights, expected = load_file(folder / "model.safetensors"), load_file(folder / "expected.safetensors")
    width, dstate = config["hidden_size"], config["state_size"]
    embedding = weights["backbone.embeddings.weight"]
    x = embedding[expected["input_ids"]]
    for i in range(config["num_hidden_layers"]):
        prefix = f"backbone.layers.{i}."
        layer = nn.Mamba(width, dstate) if kind == "mamba" else nn.Mamba2(width, dstate, headdim=config["head_dim"])
        own = {name.removeprefix(f"{prefix}mixer."): t for name, t in weights.items() if name.startswith(f"{prefix}mixer.")}
        layer.load_state_dict(own)
        assert layer.state_dict().keys() == own.keys()
        x = x + layer(rms_norm(x, (width,), weights[f"{prefix}norm.weight"], 1e-5))
    x = rms_norm(x, (width,), weights["backbone.norm_f.weight"], 1e-5)
    logits = linear(x, weights.get("lm_head.weight", embedding))
    assert torch.allclose(logits, expected["logits"], atol=1e-4 * expected["logits"].abs().max().item())


def test_gradients_are_those_of_central_differences(make):
    layer = make(dtype=torch.float64)
    for parameter in layer.parameters():
        parameter.data = parameter.data.double()
    u = torch.randn(1, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*layer.named_parameters())

    def call(u, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters)), (u,))

    assert torch.autograd.gradcheck(call, (u, *parameters), fast_mode=True)


def test_a_cache_goes_on_from_any_prompt(make):
    layer = make(layer_idx=3)
    u = torch.randn(BATCH, SEQLEN, WIDTH)
    with torch.no_grad():
        expected = layer(u)
        for cuts in ([SEQLEN], [1] * SEQLEN, [2, 1, 5, 1, 1, 13], [17, 1, 1, 4]):
            params, parts = cache(), []
            for part in u.split(cuts, dim=1):
                parts.append(layer(part, inference_params=params))
                params.seqlen_offset += part.shape[1]
            assert torch.allclose(torch.cat(parts, dim=1), expected, atol=1e-5), cuts
        conv_state, ssm_state = layer.allocate_inference_cache(BATCH, SEQLEN)
        steps = [layer.step(u[:, t : t + 1], conv_state, ssm_state)[0] for t in range(SEQLEN)]
        assert torch.allclose(torch.cat(steps, dim=1), expected, atol=1e-5)
        for state, other in zip((conv_state, ssm_state), params.key_value_memory_dict[3]):
            assert torch.allclose(state, other, atol=1e-5)
        assert layer._get_states_from_cache(params, BATCH, initialize_states=True)[1].eq(0).all()


@pytest.mark.parametrize("name", [name for name in LAYERS if name.startswith("mamba2")])
def test_packed_sequences_know_nothing_of_each_other(name):
    layer = LAYERS[name](layer_idx=0)
    u, bounds = torch.randn(1, SEQLEN, WIDTH), [0, 2, 3, 17, SEQLEN]
    cu_seqlens = torch.tensor(bounds, dtype=torch.int32)
    seq_idx = torch.tensor([[0] * 2 + [1] + [2] * 14 + [3] * 6], dtype=torch.int32)
    parts = [u[:, start:end] for start, end in zip(bounds, bounds[1:])]
    with torch.no_grad():
        expected = torch.cat([layer(part) for part in parts], dim=1)
        assert torch.allclose(layer(u, seq_idx=seq_idx), expected, atol=1e-5)
        assert torch.allclose(layer(u, cu_seqlens=cu_seqlens), expected, atol=1e-5)
        assert torch.allclose(layer(u[0], seqlen=SEQLEN), layer(u)[0], atol=1e-5)
        params = cache()
        assert torch.allclose(layer(u, cu_seqlens=cu_seqlens, inference_params=params), expected, atol=1e-5)
        params.seqlen_offset = 1
        step = torch.randn(4, 1, WIDTH)
        got = layer(step, inference_params=params)
        for i, part in enumerate(parts):
            whole = layer(torch.cat([part, step[i : i + 1]], dim=1))
            assert torch.allclose(got[i], whole[0, -1:], atol=1e-5)


def test_sizes_at_the_edge_compute():
    for layer in (
        nn.Mamba(1, d_state=1, d_conv=2, expand=1, dt_rank=1),
        nn.Mamba(8, d_state=300, d_conv=8, expand=1.5, dt_min=0.1, dt_max=0.1),
        nn.Mamba2(1, d_state=1, d_conv=2, expand=1, headdim=1, chunk_size=1),
        nn.Mamba2(8, d_state=300, d_conv=8, expand=3, headdim=24, A_init_range=(2, 2), dt_limit=(0.1, 0.1)),
        nn.S5(1, 1, dt_min=0.1, dt_max=0.1),
    ):
        y = layer(torch.randn(1, 5, layer.d_model))
        y.sum().backward()
        assert y.isfinite().all() and all(p.grad.isfinite().all() for p in layer.parameters())
