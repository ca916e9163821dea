"""Sizes that the origins of drop-ins assert: what is not divided into equal parts, or would be stretched, is refused by name."""

import pytest
import torch

from statescan.compat import layer_norm, lrnnx, mamba_ssm, norms, references
from statescan.nn import Mamba2


def made(*shape):
    return torch.ones(shape)


def split(function, **more):
    """A call for 4 heads of 2 channels, with 2 groups of maps of 3 states, or others."""
    sizes = {"inputs": 2 * 8 + 2 * 2 * 3 + 4, "convolved": 8 + 2 * 2 * 3, "heads": 4, "ngroups": 2, **more}
    convolved, heads = sizes.pop("convolved"), sizes.pop("heads")
    tensors = (made(2, 5, sizes.pop("inputs")), made(convolved, 4), made(convolved), made(heads), -made(heads), made(4))
    return function(*tensors, 16, **{"headdim": 2, **sizes})


def conv_scan(channels, ngroups=2, heads=4, **more):
    tensors = (made(2, 5, channels), made(channels, 4), made(channels), made(2, 5, heads), -made(heads), 16)
    return references.mamba_conv1d_scan_ref(*tensors, ngroups=ngroups, **more)


def step(function, shape, groups):
    of_state = (*shape, 2)
    maps = made(3, groups, 2)
    return function(made(3, *of_state), made(3, *shape), made(3, *shape), -made(*of_state), maps, maps)


def scan(function, groups):
    maps = made(1, groups, 2, 5)
    return function(made(1, 6, 5), made(1, 6, 5), -made(6, 2), maps, maps)


def heads(function, nheads, groups, *more):
    maps = made(1, 5, groups, 2)
    return function(made(1, 5, nheads, 3), made(1, 5, nheads), -made(nheads), maps, maps, *more)


def packed(states):
    maps, bounds = made(1, 5, 1, 2), torch.tensor([0, 2, 5])
    options = {"cu_seqlens": bounds, "return_varlen_states": True, "initial_states": made(states, 4, 3, 2)}
    return mamba_ssm.mamba_chunk_scan_combined(made(1, 5, 4, 3), made(1, 5, 4), -made(4), maps, maps, 16, **options)


def inner(function, channels):
    maps, out = made(2 + 2 * 3, 4), made(4, 4)
    return function(made(1, channels, 5), made(4, 1, 4), made(4), maps, made(4, 2), out, None, -made(4, 3))


def full_skip(function):
    D, A, B = made(1, 4), torch.complex(-made(2), made(2)), torch.complex(made(2, 4), made(2, 4))
    return function(torch.zeros(3, 2, dtype=torch.complex64), made(3, 4), made(2), A, B, B.T, D)


CASES = {
    "group_size of rmsnorm_fn": (lambda: norms.rmsnorm_fn(made(2, 8), made(8), None, group_size=3), "`group_size`.*8"),
    "group_size of layernorm_fn": (lambda: norms.layernorm_fn(made(2, 8), made(8), None, group_size=0), "`group_size`.*8"),
    "group_size above the size": (lambda: norms.rmsnorm_fn(made(2, 8), made(8), None, group_size=16), "`group_size`.*8"),
    "group_size in five axes": (lambda: norms.rmsnorm_fn(made(1, 1, 1, 2, 8), made(8), None, group_size=3), "`group_size`.*8"),
    "group_size of the class": (lambda: norms.RMSNorm(8, group_size=5)(made(2, 8)), "`group_size`.*8"),
    "group_size of rms_norm_ref": (lambda: norms.rms_norm_ref(made(2, 8), made(8), None, group_size=3), "`group_size`.*8"),
    "weight in five axes": (lambda: norms.rmsnorm_fn(made(1, 1, 1, 2, 8), made(1), None), "`weight`.*8"),
    "z in five axes": (lambda: norms.rmsnorm_fn(made(1, 1, 1, 2, 8), made(8), None, made(8)), "`z`.*8"),
    "weight with x1": (lambda: layer_norm.rms_norm_fn(made(2, 8), made(1), None, x1=made(2, 8)), "`weight`.*8"),
    "x1": (lambda: layer_norm.layer_norm_fn(made(2, 8), made(8), None, x1=made(8)), "`x1`.*2, 8"),
    "residual with x1": (lambda: layer_norm.layer_norm_fn(made(2, 8), made(8), None, made(8), made(2, 8)), "`residual`.*2, 8"),
    "rowscale": (lambda: layer_norm.layer_norm_fn(made(2, 8), made(8), None, rowscale=made(1)), "`rowscale`.*2"),
    "ngroups of heads": (lambda: split(mamba_ssm.mamba_split_conv1d_scan_combined, ngroups=3), "`ngroups`.*4 heads"),
    "ngroups of maps": (lambda: split(mamba_ssm.mamba_split_conv1d_scan_combined, convolved=22), "`zxbcdt`"),
    "inputs": (lambda: split(mamba_ssm.mamba_split_conv1d_scan_combined, inputs=33), "`zxbcdt`"),
    "A of other heads": (lambda: split(mamba_ssm.mamba_split_conv1d_scan_combined, heads=2), "`(A|D|dt_bias)`"),
    "norm's weight": (lambda: split(mamba_ssm.mamba_split_conv1d_scan_combined, rmsnorm_weight=made(4)), "`.*weight`"),
    "a bias alone": (lambda: split(mamba_ssm.mamba_split_conv1d_scan_combined, outproj_bias=made(4)), "`outproj_bias`"),
    "ngroups of the reference": (lambda: split(references.mamba_split_conv1d_scan_ref, ngroups=3), "`.*` must give equal parts"),
    "channels of z": (lambda: conv_scan(20, z=made(2, 5, 9)), "`dt`.*9 channels of z"),
    "channels of maps": (lambda: conv_scan(22, z=made(2, 5, 8)), "`xBC`.*14"),
    "heads of maps": (lambda: conv_scan(2 + 12, heads=1, headdim=2, D=made(1, 2)), "`B`.*1 heads"),
    "B of selective_scan_fn": (lambda: scan(mamba_ssm.selective_scan_fn, 4), "`B`"),
    "B of lrnnx": (lambda: scan(lrnnx.selective_scan_fn, 4), "`B`"),
    "B of selective_scan_ref": (lambda: scan(references.selective_scan_ref, 4), "`B`.*6 channels of u"),
    "B of mamba_chunk_scan_combined": (lambda: heads(mamba_ssm.mamba_chunk_scan_combined, 1, 2, 16), "`B`"),
    "B of its reference": (lambda: heads(references.ssd_chunk_scan_combined_ref, 1, 2, 16), "`B`.*1 heads"),
    "B of ssd_selective_scan": (lambda: heads(mamba_ssm.ssd_selective_scan, 1, 2), "`B`"),
    "B of selective_state_update": (lambda: step(mamba_ssm.selective_state_update, (4, 5), 3), "`B`"),
    "B of lrnnx's step": (lambda: step(lrnnx.selective_state_update, (4, 5), 3), "`B`"),
    "B of the step's reference": (lambda: step(references.selective_state_update_ref, (1, 5), 3), "`B`.*1 heads"),
    "states of packed sequences": (lambda: packed(3), "`initial_states`.*2 sequences"),
    "xz": (lambda: inner(mamba_ssm.mamba_inner_fn, 9), "`xz`.*8 channels"),
    "xz of more": (lambda: inner(mamba_ssm.mamba_inner_fn, 12), "`xz`.*8 channels"),
    "xz of the reference": (lambda: inner(references.mamba_inner_ref, 9), "`xz`.*9"),
    "xz of a small reference": (lambda: inner(references.mamba_inner_ref, 5), "`xz`.*5"),
    "D of simplified_state_update": (lambda: full_skip(lrnnx.simplified_state_update), "`D`.*4, 4"),
    "D of its reference": (lambda: full_skip(references.simplified_state_update_ref), "`D`.*4, 4"),
    "headdim of Mamba2": (lambda: Mamba2(8, headdim=3), "Mamba2: `(d_ssm|headdim)`"),
    "ngroups of Mamba2": (lambda: Mamba2(8, headdim=4, ngroups=3), "Mamba2: `ngroups`"),
    "expand of Mamba2": (lambda: Mamba2(8, headdim=4, expand=1.5), "Mamba2: `expand`"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case):
    call, words = CASES[case]
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_what_fits_is_taken():
    assert (
        split(mamba_ssm.mamba_split_conv1d_scan_combined).shape
        == split(references.mamba_split_conv1d_scan_ref).shape
        == (2, 5, 8)
    )
    assert conv_scan(20, z=made(2, 5, 8)).shape == (2, 5, 8) and packed(2)[1].shape == (2, 4, 3, 2)
    for function in (mamba_ssm.selective_scan_fn, references.selective_scan_ref):
        assert scan(function, 3).shape == (1, 6, 5)
    for function in (mamba_ssm.mamba_inner_fn, references.mamba_inner_ref):
        assert inner(function, 8).shape == (1, 5, 4)
