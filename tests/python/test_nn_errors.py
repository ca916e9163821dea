"""Layers: what cannot be is refused, with the names of layer and argument."""

from types import SimpleNamespace

import pytest
import torch

from layers import MAMBA2, WIDTH, cache
from statescan import nn
from statescan.compat import layer_norm as norms


def test_what_cannot_be_is_refused():
    for call, message in [
        (lambda: nn.Mamba(WIDTH, dt_init="zero"), "`dt_init` must be"),
        (lambda: nn.Mamba2(WIDTH, process_group=object()), "`process_group` must be None"),
        (
            lambda: nn.Mamba2(WIDTH, headdim=5),
            r"`d_ssm` must be a multiple of `headdim` \(5\) and at most 24, `expand` times `d_model`, got 24",
        ),
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


OTHER_TYPES = [
    ("Mamba", {"d_model": 8.0}),
    ("Mamba", {"dt_rank": "full"}),
    ("Mamba", {"expand": None}),
    ("Mamba2", {"expand": 1.5}),
    ("Mamba2", {"d_ssm": 4.0}),
    ("Mamba2", {"A_init_range": ("low", "high")}),
]


@pytest.mark.parametrize("value", [
    *OTHER_TYPES,
    ("Mamba", {"d_model": 0}),
    ("Mamba", {"d_state": 0}),
    ("Mamba", {"d_conv": 1}),
    ("Mamba", {"d_conv": 12}),
    ("Mamba", {"expand": 0.1}),
    ("Mamba", {"expand": float("nan")}),
    ("Mamba", {"dt_rank": 0}),
    ("Mamba", {"dt_min": 0}),
    ("Mamba", {"dt_max": 1e-4}),
    ("Mamba", {"dt_init_floor": -1.0}),
    ("Mamba", {"dt_scale": float("inf")}),
    ("Mamba2", {"d_model": -8}),
    ("Mamba2", {"d_state": 0}),
    ("Mamba2", {"d_conv": 12}),
    ("Mamba2", {"conv_init": -1}),
    ("Mamba2", {"headdim": 0}),
    ("Mamba2", {"d_ssm": 0}),
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
    error = TypeError if value in OTHER_TYPES else ValueError
    with pytest.raises(error, match=f"^{kind}: `{next(iter(options))}` must be"):
        getattr(nn, kind)(**{**sizes, **options})


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
        (lambda: second(x[0], seqlen=2), r"Mamba2: `u` must have shape \(batch \* seqlen 2, d_model\), got \(3, 12\)"),
        (lambda: second(x, seq_idx=index[:1]), r"Mamba2: `seq_idx` must have shape \(2, 3\), got \(1, 3\)"),
        (lambda: second(x, cu_seqlens=torch.tensor([0, 3])), "Mamba2: `cu_seqlens` must have .* a batch of 2"),
        (lambda: second.step(x[:, :1], states[0], others[1]), "Mamba2: `conv_state` must have shape"),
        (lambda: second.step(x[:, :1], others[0], states[1]), "Mamba2: `ssm_state` must have shape"),
        (lambda: s5(x[..., 1:]), "S5: `x` must have shape"),
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
    for call, message in [
        (lambda: first(x.bfloat16()), "Mamba: `hidden_states` must be float32, as weights are, got bfloat16"),
        (lambda: first(x.long()), "Mamba: `hidden_states` must be of a floating-point type, got int64"),
        (lambda: second(x.double()), "Mamba2: `u` must be float32"),
        (lambda: s5(x.long()), "S5: `x` must be of a floating-point type"),
    ]:
        with pytest.raises(TypeError, match=message):
            call()
    with torch.autocast("cpu", torch.bfloat16):
        assert second(x.bfloat16()).dtype == first(x).dtype == torch.bfloat16
