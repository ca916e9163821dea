"""Layers: parameters and their first values are those of the origins."""

import pytest
import torch
from torch.nn.functional import softplus

from layers import LAYERS, MAMBA2, WIDTH
from statescan import nn
from statescan.compat import layer_norm as norms


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
            # the distribution is the same: all alike, or as large on the whole
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
