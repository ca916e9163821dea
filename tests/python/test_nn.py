"""Layers: the parameters of their origins, the results of other implementations, gradients, and decoding with a cache."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import layer_norm, linear, rms_norm, softplus

import statescan
from statescan import nn
from statescan.compat import layer_norm as norms

BATCH, SEQLEN, WIDTH = 2, 23, 12
MAMBA2 = {"d_model": WIDTH, "d_state": 8, "headdim": 4}
LAYERS = {
    "mamba": lambda **more: nn.Mamba(WIDTH, d_state=4, **more),
    "mamba_bias": lambda **more: nn.Mamba(WIDTH, d_state=4, d_conv=3, expand=1, dt_rank=2, bias=True, conv_bias=False, **more),
    "mamba2": lambda **more: nn.Mamba2(**MAMBA2, ngroups=2, **more),
    "mamba2_unit": lambda **more: nn.Mamba2(**MAMBA2, d_ssm=16, D_has_hdim=True, norm_before_gate=True, **more),
    "mamba2_gate": lambda **more: nn.Mamba2(**MAMBA2, rmsnorm=False, dt_limit=(0.01, 0.05), bias=True, conv_init=0.5, **more),
}

# of PyTorch's operations, views and allocations too, forwards without gradients and backwards
MOST_CALLS = {
    "mamba": (63, 137),
    "mamba_bias": (65, 143),
    "mamba2": (43, 81),
    "mamba2_unit": (58, 119),
    "mamba2_gate": (42, 80),
}


@pytest.fixture(params=LAYERS)
def make(request):
    torch.manual_seed(1)
    return LAYERS[request.param]


def cache():
    return SimpleNamespace(key_value_memory_dict={}, seqlen_offset=0)


def shapes(layer):
    return {name: tuple(p.shape) for name, p in layer.state_dict().items()}


def test_parameters_are_those_of_the_origins():
    assert shapes(nn.Mamba(32)) == {
        "A_log": (64, 16),
        "D": (64,),
        "in_proj.weight": (128, 32),
        "conv1d.weight": (64, 1, 4),
        "conv1d.bias": (64,),
        "x_proj.weight": (34, 64),
        "dt_proj.weight": (64, 2),
        "dt_proj.bias": (64,),
        "out_proj.weight": (32, 64),
    }
    assert shapes(nn.Mamba2(64)) == {
        "dt_bias": (2,),
        "A_log": (2,),
        "D": (2,),
        "in_proj.weight": (514, 64),
        "conv1d.weight": (384, 1, 4),
        "conv1d.bias": (384,),
        "norm.weight": (128,),
        "out_proj.weight": (64, 128),
    }
    assert shapes(nn.S5(6, 4)) == {"A": (4, 2), "B": (4, 6, 2), "C": (6, 4, 2), "D": (6,), "log_dt": (4,)}


def test_parameters_begin_as_those_of_the_origins():
    torch.manual_seed(0)
    layer = nn.Mamba(256, d_state=5)
    assert torch.equal(layer.A_log, torch.arange(1.0, 6).log().expand(512, 5)) and layer.D.eq(1).all()
    steps = softplus(layer.dt_proj.bias)
    assert 0.00099 < steps.min() < 0.0015 and 0.06 < steps.max() < 0.101
    assert layer.A_log._no_weight_decay and layer.D._no_weight_decay and layer.dt_proj.bias._no_reinit
    assert 0.24 < layer.dt_proj.weight.abs().max() <= 0.25
    assert nn.Mamba(256, dt_init="constant").dt_proj.weight.eq(0.25).all()
    layer = nn.Mamba2(256, A_init_range=(2, 3), dtype=torch.bfloat16, headdim=2)
    assert layer.A_log.dtype == layer.dt_bias.dtype == torch.bfloat16
    assert 1.98 < layer.A_log.exp().min() and layer.A_log.exp().max() < 3.02
    # the eigenvalues of the normal part of LegS: a half, and imaginary parts in pairs
    A = nn.S5(4, 8).A
    assert torch.allclose(A[:, 0], torch.tensor(-0.5)) and torch.allclose(A[:, 1], -A.flip(0)[:, 1], atol=1e-5)
    size = torch.arange(8.0, dtype=torch.float64)
    root = torch.sqrt(2 * size + 1)
    legs = -torch.tril(torch.outer(root, root), -1) - torch.diag(size + 1)
    low_rank = torch.outer(torch.sqrt(size + 0.5), torch.sqrt(size + 0.5))
    expected = torch.linalg.eigvals(legs + low_rank).imag.sort().values
    assert torch.allclose(A[:, 1].double(), expected, atol=1e-4)
    assert torch.allclose(nn.S5(4, 4, conj_sym=True).A[:, 1].double(), expected[:4], atol=1e-4)


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


@pytest.mark.parametrize("conj_sym", [False, True])
@pytest.mark.parametrize("discretization", ["bilinear", "zoh", "dirac"])
def test_s5_is_its_recurrence(discretization, conj_sym):
    torch.manual_seed(2)
    layer = nn.S5(6, 4, discretization, conj_sym, step_rescale=2.0)
    x, events = torch.randn(BATCH, SEQLEN, 6), torch.rand(BATCH, SEQLEN, 1) + 0.5
    A, B, C = (torch.view_as_complex(p.detach().double()) for p in (layer.A, layer.B, layer.C))
    dt = 2.0 * layer.log_dt.detach().double().exp()
    half = dt * A / 2
    gain = {"bilinear": dt / (1 - half), "zoh": torch.expm1(dt * A) / A, "dirac": torch.ones_like(A)}[discretization]
    with torch.no_grad():
        for times in (None, events):
            state, expected = torch.zeros(BATCH, 4, dtype=A.dtype), []
            for t in range(SEQLEN):
                z = dt * A if times is None else times[:, t].double() * dt * A
                decay = (1 + z / 2) / (1 - z / 2) if discretization == "bilinear" else torch.exp(z)
                state = decay * state + gain * (x[:, t].to(A.dtype) @ B.T)
                expected.append((2 if conj_sym else 1) * (state @ C.T).real + layer.D * x[:, t])
            expected = torch.stack(expected, dim=1).float()
            assert torch.allclose(layer(x, times), expected, atol=1e-4)
            memory = layer.allocate_inference_cache(BATCH, SEQLEN)
            first = layer(x[:, :9], None if times is None else times[:, :9], inference_cache=memory)
            more = layer(x[:, 9:13], None if times is None else times[:, 9:13], inference_cache=memory)
            steps = [layer.step(x[:, t], memory, None if times is None else times[:, t])[0] for t in range(13, SEQLEN)]
            assert memory["seqlen_offset"] == SEQLEN
            assert torch.allclose(torch.cat([first, more, *steps], dim=1), expected, atol=1e-4)


def test_s5_learns():
    layer = nn.S5(6, 4)
    layer(torch.randn(BATCH, SEQLEN, 6)).square().mean().backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in layer.parameters())


def test_what_cannot_be_is_refused():
    for call, message in [
        (lambda: nn.Mamba(WIDTH, dt_init="zero"), "`dt_init` must be"),
        (lambda: nn.Mamba2(WIDTH, process_group=object()), "`process_group` must be None"),
        (lambda: nn.Mamba2(WIDTH, headdim=5), "`d_ssm` must be a multiple of headdim, 5"),
        (lambda: nn.Mamba2(WIDTH, headdim=4, ngroups=4), "`ngroups` must divide the 6 heads"),
        (lambda: nn.Mamba2(WIDTH, headdim=4, A_init_range=(0, 1)), "`A_init_range` must be"),
        (lambda: nn.S5(4, 4, "mamba"), "`discretization` must be"),
        (lambda: nn.S5(4, 4)(torch.zeros(3, 4)), r"`x` must have shape \(batch, seqlen, d_model\)"),
        (lambda: nn.Mamba(WIDTH)(torch.zeros(1, 2, WIDTH), cache()), "`layer_idx` must be given"),
        (lambda: nn.Mamba(WIDTH).step(torch.zeros(1, 2, WIDTH), None, None), "a step takes `hidden_states`"),
        (lambda: norms.layer_norm_fn(torch.zeros(2), torch.ones(2), None, return_dropout_mask=True), "must be False"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("value", [
    ("Mamba", {"d_model": 0}),
    ("Mamba", {"d_model": 8.0}),
    ("Mamba", {"d_state": 0}),
    ("Mamba", {"d_conv": 1}),
    ("Mamba", {"d_conv": 12}),
    ("Mamba", {"expand": 0.1}),
    ("Mamba", {"expand": float("nan")}),
    ("Mamba", {"dt_rank": 0}),
    ("Mamba", {"dt_rank": "full"}),
    ("Mamba", {"dt_min": 0}),
    ("Mamba", {"dt_max": 1e-4}),
    ("Mamba", {"dt_init_floor": -1.0}),
    ("Mamba", {"dt_scale": float("inf")}),
    ("Mamba2", {"d_model": -8}),
    ("Mamba2", {"d_state": 0}),
    ("Mamba2", {"d_conv": 12}),
    ("Mamba2", {"conv_init": -1}),
    ("Mamba2", {"expand": 1.5}),
    ("Mamba2", {"headdim": 0}),
    ("Mamba2", {"d_ssm": 0}),
    ("Mamba2", {"d_ssm": 4.0}),
    ("Mamba2", {"ngroups": 0}),
    ("Mamba2", {"A_init_range": (1, float("inf"))}),
    ("Mamba2", {"dt_min": -0.1}),
    ("Mamba2", {"dt_max": float("nan")}),
    ("Mamba2", {"dt_limit": (0.2, 0.1)}),
    ("Mamba2", {"chunk_size": 0}),
    ("S5", {"d_model": 0}),
    ("S5", {"d_state": 0}),
    ("S5", {"dt_min": 0.0}),
    ("S5", {"dt_max": 1e-9}),
    ("S5", {"step_rescale": float("nan")}),
])  # fmt: skip
def test_constructors_refuse_what_cannot_be(value):
    kind, options = value
    sizes = {"Mamba": {"d_model": 8}, "Mamba2": {"d_model": 8, "headdim": 4}, "S5": {"d_model": 8, "d_state": 4}}[kind]
    with pytest.raises(ValueError, match=f"^{kind}: `{next(iter(options))}` must be"):
        getattr(nn, kind)(**{**sizes, **options})


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


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("default", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_types_of_parameters_are_those_of_the_origins(default, dtype):
    own = {
        "Mamba": {"A_log": torch.float32, "D": default},
        "Mamba2": {"A_log": dtype or torch.float32, "D": default},
        "S5": dict.fromkeys("ABC", torch.float32) | dict.fromkeys(["D", "log_dt"], default),
    }
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        for layer in (nn.Mamba(WIDTH, dtype=dtype), nn.Mamba2(**MAMBA2, dtype=dtype), nn.S5(WIDTH, 4, dtype=dtype)):
            found = {name: p.dtype for name, p in layer.named_parameters()}
            assert found == {name: own[type(layer).__name__].get(name, dtype or default) for name in found}
            layer.reset_parameters()
            assert all(p.isfinite().all() for p in layer.parameters())
            y = layer(torch.randn(1, 5, WIDTH, dtype=dtype or default))
            assert y.dtype == (dtype or default) and y.isfinite().all()
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("conj_sym", [False, True])
def test_s5_in_16_bits(conj_sym, dtype):
    """With parameters of 16 bits as with the same ones in float32, but for what the result loses."""
    layer = nn.S5(6, 4, conj_sym=conj_sym).to(dtype)
    wide = nn.S5(6, 4, conj_sym=conj_sym)
    wide.load_state_dict(layer.state_dict())
    x, times = torch.randn(BATCH, SEQLEN, 6).to(dtype), torch.rand(BATCH, SEQLEN).to(dtype)
    expected = wide(x.float(), times.float())
    got = layer(x, times)
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), expected, rtol=1e-2, atol=1e-2 * expected.abs().max().item())
    got.float().square().mean().backward()
    expected.square().mean().backward()
    for p, other in zip(layer.parameters(), wide.parameters()):
        assert p.grad.dtype == dtype
        torch.testing.assert_close(p.grad.float(), other.grad, rtol=2e-2, atol=2e-2 * other.grad.abs().max().item())
    with torch.no_grad():
        memory = layer.allocate_inference_cache(BATCH, SEQLEN)
        parts = [layer(x[:, :9], times[:, :9], inference_cache=memory)]
        parts += [layer.step(x[:, t], memory, times[:, t])[0] for t in range(9, SEQLEN)]
    torch.testing.assert_close(torch.cat(parts, 1).float(), expected, rtol=1e-2, atol=1e-2 * expected.abs().max().item())


def test_parameters_are_drawn_again():
    for make in (*LAYERS.values(), lambda **more: nn.S5(6, 4)):
        torch.manual_seed(3)
        layer = make()
        with torch.device("meta"):
            empty = make()
        empty.to_empty(device="cpu")
        for p in empty.parameters():
            torch.nn.init.constant_(p, torch.nan)
        empty.reset_parameters()
        for (name, p), other in zip(layer.named_parameters(), empty.parameters()):
            assert p.shape == other.shape and p.dtype == other.dtype and other.isfinite().all()
            # the same distribution: all alike, or as large on the whole
            assert torch.equal(p, other) or other.abs().max() < 3 * p.abs().max(), name
            for mark in ("_no_weight_decay", "_no_reinit"):
                assert getattr(p, mark, None) == getattr(other, mark, None)
        assert empty(torch.randn(1, 3, empty.d_model)).isfinite().all()


def test_layers_print_their_sizes():
    assert repr(nn.Mamba(WIDTH, d_state=4)).startswith(
        "Mamba(\n  12, d_state=4, d_conv=4, expand=2, dt_rank=1\n  (in_proj): Linear"
    )
    assert "12, d_state=8, d_conv=4, expand=2, headdim=4, d_ssm=16, ngroups=1, chunk_size=256" in repr(
        nn.Mamba2(**MAMBA2, d_ssm=16)
    )
    assert "(norm): RMSNorm(24, eps=1e-05, group_size=24, norm_before_gate=False)" in repr(nn.Mamba2(**MAMBA2))
    assert repr(nn.S5(6, 4)) == "S5(6, d_state=4, discretization='zoh', conj_sym=False)"
    assert repr(norms.RMSNorm(8)) == "RMSNorm(8, eps=1e-05, dropout_p=0.0)"


def test_errors_name_layer_and_argument():
    x = torch.zeros(2, 3, WIDTH)
    first, second = nn.Mamba(WIDTH, layer_idx=0), nn.Mamba2(**MAMBA2, layer_idx=0)
    states, others = first.allocate_inference_cache(2, 3), second.allocate_inference_cache(2, 3)
    s5 = nn.S5(WIDTH, 4)
    memory = SimpleNamespace(key_value_memory_dict={0: first.allocate_inference_cache(4, 3)}, seqlen_offset=0)
    index = torch.zeros(2, 3, dtype=torch.int32)
    for call, message in [
        (lambda: first(x[..., 1:]), r"Mamba: `hidden_states` must have shape .* being 12, got \(2, 3, 11\)"),
        (lambda: first(x[0]), "Mamba: `hidden_states` must have shape"),
        (lambda: first(x.bfloat16()), "Mamba: `hidden_states` must be torch.float32, as weights are, got torch.bfloat16"),
        (lambda: first(x.long()), "Mamba: `hidden_states` must be of a floating-point type, got torch.int64"),
        (lambda: first(x.to("meta")), "Mamba: `hidden_states` must be on cpu, as weights are, got one on meta"),
        (lambda: first(x, memory), "Mamba: `inference_params` must have states of 2 sequences for layer 0, got 4"),
        (lambda: first.step(x[:, :1, 1:], *states), "Mamba: `hidden_states` must have shape"),
        (
            lambda: first.step(x[:, :1], others[0], states[1]),
            r"Mamba: `conv_state` must have shape \(2, 24, 4\), got \(2, 40, 4\)",
        ),
        (lambda: first.step(x[:1, :1], *states), r"Mamba: `conv_state` must have shape \(1, 24, 4\)"),
        (lambda: first.step(x[:, :1], states[0], others[1]), r"Mamba: `ssm_state` must have shape \(2, 24, 16\)"),
        (lambda: second(x[..., 1:]), "Mamba2: `u` must have shape"),
        (lambda: second(x.double()), "Mamba2: `u` must be torch.float32"),
        (lambda: second(x[0], seqlen=2), r"Mamba2: `u` must have shape \(batch \* seqlen 2, d_model\), got \(3, 12\)"),
        (lambda: second(x, seq_idx=index[:1]), r"Mamba2: `seq_idx` must have shape \(2, 3\), got \(1, 3\)"),
        (lambda: second(x, cu_seqlens=torch.tensor([0, 3])), "Mamba2: `cu_seqlens` must have .* a batch of 2"),
        (lambda: second.step(x[:, :1], states[0], others[1]), "Mamba2: `conv_state` must have shape"),
        (lambda: second.step(x[:, :1], others[0], states[1]), "Mamba2: `ssm_state` must have shape"),
        (lambda: s5(x[..., 1:]), "S5: `x` must have shape"),
        (lambda: s5(x.long()), "S5: `x` must be of a floating-point type"),
        (lambda: s5(x, torch.ones(2, 4)), r"S5: `integration_timesteps` must have shape \(2, 3\) or \(2, 3, 1\), got \(2, 4\)"),
        (lambda: s5.step(x, s5.allocate_inference_cache(2, 3)), "S5: a step takes `x` of shape"),
        (lambda: s5.step(x[:, 0], s5.allocate_inference_cache(2, 3), torch.ones(3)), "S5: `integration_timesteps` must have"),
        (
            lambda: s5.step(x[:, 0], s5.allocate_inference_cache(3, 3)),
            "S5: `inference_cache` must have a state of 2 sequences, got 3",
        ),
        (lambda: s5(x, inference_cache=s5.allocate_inference_cache(3, 3)), "S5: `inference_cache` must have a state of 2 seq"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    with torch.autocast("cpu", torch.bfloat16):
        assert second(x.bfloat16()).dtype == first(x).dtype == torch.bfloat16


class TestNormsWithResiduals:
    @pytest.mark.parametrize("is_rms_norm", [False, True])
    def test_sums_and_norms(self, is_rms_norm):
        torch.manual_seed(3)
        x, x1, residual, weight, weight1, bias = torch.randn(6, 4, 8, dtype=torch.float64)
        weight, weight1, bias = weight[0], weight1[0], bias[0]
        rowscale = torch.rand(4, dtype=torch.float64)

        def plain(total, weight, bias):
            if is_rms_norm:
                y = rms_norm(total, (8,), weight, 1e-6)
                return y if bias is None else y + bias
            return layer_norm(total, (8,), weight, bias, 1e-6)

        options = {"is_rms_norm": is_rms_norm}
        assert torch.allclose(norms.layer_norm_fn(x, weight, bias, **options), plain(x, weight, bias))
        y, total = norms.layer_norm_fn(x, weight, None, residual, prenorm=True, rowscale=rowscale, **options)
        assert torch.allclose(total, rowscale[:, None] * x + residual) and torch.allclose(y, plain(total, weight, None))
        y, y1, total = norms.layer_norm_fn(x, weight, bias, residual, x1, weight1, prenorm=True, **options)
        assert torch.allclose(total, x + x1 + residual) and torch.allclose(y1, plain(total, weight1, None))
        y = norms.layer_norm_linear_fn(x, weight, bias, x1, residual[:, 0], **options)
        assert torch.allclose(y, linear(plain(x, weight, bias), x1, residual[:, 0]))

    def test_the_residual_keeps_its_type(self):
        x = torch.randn(4, 8).bfloat16()
        norm = norms.RMSNorm(8, dtype=torch.bfloat16)
        assert list(norm.state_dict()) == ["weight"] and norm.bias is None
        assert norm(x).dtype == torch.bfloat16
        assert norm(x, prenorm=True)[1].dtype == torch.bfloat16
        assert norm(x, prenorm=True, residual_in_fp32=True)[1].dtype == torch.float32
        y, total = norm(x, x.double(), prenorm=True)
        assert (y.dtype, total.dtype) == (torch.bfloat16, torch.float64)

    def test_dropout_is_for_training(self):
        norm = norms.RMSNorm(1000, dropout_p=0.5)
        x = torch.ones(1, 1000)
        assert 300 < norm(x).eq(0).sum() < 700
        assert norm.eval()(x).ne(0).all()


def test_a_layer_runs_the_operations(monkeypatch):
    """The forward pass of a layer is few kernels, and its step too."""
    calls, forward = [], statescan._native.forward
    names = {op.number: op.name for op in statescan.operations.OPERATIONS}

    def counted(name):
        function = getattr(statescan.functions, name)
        return lambda *args, **options: calls.append(name) or function(*args, **options)

    monkeypatch.setattr(statescan._native, "forward", lambda number, *rest: calls.append(names[number]) or forward(number, *rest))
    for name in ("causal_conv1d", "selective_scan", "ssd", "selective_state_update", "causal_conv1d_update"):
        monkeypatch.setattr(statescan.functions, name, counted(name))
    nn.Mamba(WIDTH)(torch.randn(1, 3, WIDTH))
    nn.Mamba2(**MAMBA2)(torch.randn(1, 3, WIDTH))
    layer = nn.Mamba(WIDTH)
    layer.step(torch.randn(1, 1, WIDTH), *layer.allocate_inference_cache(1, 1))
    mamba, mamba2 = ["causal_conv1d", "selective_scan"], ["causal_conv1d", "ssd", "norm"]
    assert calls == [*mamba, *mamba2, "causal_conv1d_update", "selective_state_update"]


def kept_rows(layer, x):
    """The numbers of channels of what is kept for gradients and has a row for each step."""
    kept = {}

    def keep(tensor):
        if tensor.shape[-2:-1] == (SEQLEN,) and not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.data_ptr()] = tensor.shape[-1]
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = layer(x)
    return sorted(kept.values()), y


@pytest.mark.parametrize(
    "name, expected",
    # the input, what is projected, and the scan's result: nothing of the convolution, the maps and the norm
    [
        ("mamba", lambda layer: [layer.d_inner, 2 * layer.d_inner]),
        ("mamba2", lambda layer: [layer.d_ssm, layer.in_proj.out_features]),
        ("mamba2_gate", lambda layer: [layer.d_ssm, layer.in_proj.out_features]),
    ],
)
def test_gradients_need_few_rows(name, expected):
    layer = LAYERS[name]()
    kept, _ = kept_rows(layer, torch.randn(BATCH, SEQLEN, WIDTH, requires_grad=True))
    assert [width for width in kept if width != WIDTH] == expected(layer)


@pytest.mark.parametrize("name", LAYERS)
def test_calls_of_pytorch_are_counted(name):
    """A small layer takes as long as its calls: their number says what that costs, and does not depend on the machine."""
    layer, x = LAYERS[name](), torch.randn(BATCH, SEQLEN, WIDTH, requires_grad=True)

    def count(call):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            call()
        return sum(event.name.startswith("aten::") for event in profiler.events())

    with torch.no_grad():
        layer(x)
        forward = count(lambda: layer(x))
    y = layer(x)
    backward = count(lambda: torch.autograd.grad(y, [x, *layer.parameters()], torch.ones_like(y)))
    assert forward <= MOST_CALLS[name][0] and backward <= MOST_CALLS[name][1], (forward, backward)
