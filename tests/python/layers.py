"""Layers for tests: small ones, whose options differ."""

from types import SimpleNamespace

from statescan import nn

BATCH, SEQLEN, WIDTH = 2, 23, 12
MAMBA2 = {"d_model": WIDTH, "d_state": 8, "headdim": 4}
LAYERS = {
    "mamba": lambda **more: nn.Mamba(WIDTH, d_state=4, **more),
    "mamba_bias": lambda **more: nn.Mamba(WIDTH, d_state=4, d_conv=3, expand=1, dt_rank=2, bias=True, conv_bias=False, **more),
    "mamba2": lambda **more: nn.Mamba2(**MAMBA2, ngroups=2, **more),
    "mamba2_unit": lambda **more: nn.Mamba2(**MAMBA2, d_ssm=16, D_has_hdim=True, norm_before_gate=True, **more),
    "mamba2_gate": lambda **more: nn.Mamba2(**MAMBA2, rmsnorm=False, dt_limit=(0.01, 0.05), bias=True, conv_init=0.5, **more),
}


def cache():
    """What a model keeps for decoding."""
    return SimpleNamespace(key_value_memory_dict={}, seqlen_offset=0)
