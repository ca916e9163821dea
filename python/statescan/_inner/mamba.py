"""Mamba: convolution, projections to step sizes and maps, selective scan with its gate, and the projection out."""

import torch

from .._operations import SELECTIVE_SCAN
from .products import as_products, has_kernel
from .shared import Described, Inner, differentiable


def _describe(given, room):
    dim, dstate = given.A.shape
    x, z = (given.xz[..., part : part + dim].transpose(1, 2) for part in (0, dim))
    kind = torch.promote_types(given.xz.dtype, torch.complex64) if given.A.is_complex() else given.xz.dtype
    B, C = (room(dstate).to(kind).transpose(1, 2) if projected is None else projected for projected in (given.B, given.C))
    weight = given.conv1d_weight.view(dim, -1)
    convolution = (x, weight, given.conv1d_bias, None, None, None, "silu", False)
    x, dt = (room(dim).transpose(1, 2) for _ in range(2))
    tensors = (x, dt, given.A, B, C, given.D, z, given.dt_bias)
    scan = (*tensors, None, None, None, None, given.dt_softplus, None, None, "mamba", False)
    return Described(convolution, scan, dim, None if given.outproj_weight is None else dim)


MAMBA = Inner(
    "mamba_inner",
    (
        "xz",
        "conv1d_weight",
        "conv1d_bias?",
        "x_proj_weight",
        "dt_proj_weight",
        "dt_bias?",
        "A",
        "D?",
        "outproj_weight?",
        "outproj_bias?",
        "B?",
        "C?",
        "B_bias?",
        "C_bias?",
        "B_norm?",
        "C_norm?",
        "dt_norm?",
    ),
    17,
    (("bool dt_softplus", True), ("bool A_log", False), ("float eps", 1e-6)),
    SELECTIVE_SCAN,
    _describe,
)
_CALL = differentiable(MAMBA)


def mamba_inner(xz, weights, maps=(None,) * 7, dt_softplus=True, A_log=False, eps=1e-6, context=None):
    """Computes a Mamba layer behind its first projection.

    Args:
        xz: (batch, seqlen, 2 dim), the input and the gate; of the type of all projections' weights.
        weights: conv1d_weight (dim, width) or (dim, 1, width), conv1d_bias, x_proj_weight (rank + 2 dstate, dim), dt_proj_weight
            (dim, rank), dt_bias, A (dim, dstate), D, outproj_weight (out, dim) and outproj_bias; biases, D and the last weight
            may be None. Where A is complex, B and C have 2 dstate rows each: real and imaginary parts in turn.
        maps: B and C, which may be given as `selective_scan` takes them, and then have no rows in x_proj_weight; biases of those
            that are projected; weights of their RMS norms, behind the biases, and of that of the steps' low rank. Any may be
            None.
        dt_softplus: whether step sizes are the softplus of what is projected.
        A_log: whether A is the logarithm of what decays are the negative of.
        eps: of the norms.
        context: of `statescan.distributed`, where xz is this rank's slice.

    Returns:
        (batch, seqlen, out or dim), and the state after the last step, (batch, dim, dstate).
    """
    _, _, x_proj_weight, dt_proj_weight, _, A, *_ = weights
    if xz.shape[-1] != 2 * A.shape[0]:
        channels = f"{2 * A.shape[0]} channels, those of the input and of the gate"
        raise ValueError(f"{MAMBA.name}: `xz` must have {channels}, got {xz.shape[-1]}")
    dstate = A.shape[1] * (2 if A.is_complex() else 1)
    rows = dt_proj_weight.shape[1] + sum(dstate for given in maps[:2] if given is None)
    if x_proj_weight.shape[0] != rows:
        words = f"for a rank of {dt_proj_weight.shape[1]} and the maps that are not given, got {x_proj_weight.shape[0]}"
        raise ValueError(f"{MAMBA.name}: `x_proj_weight` must have {rows} rows {words}")
    tensors, options = (xz, *weights, *maps), (dt_softplus, A_log, eps)
    if context is None:
        return _CALL(tensors, options)
    from .ranks import mamba_inner_ranks

    return mamba_inner_ranks(tensors, (*options, context.group.group_name))


def mamba_as_one(xz, convolution, projections, scan, out_proj, maps=((None,) * 2, (None,) * 2, (None,) * 3), *options, **more):
    """`mamba_inner`'s first result; None where that has no kernel, or its products would be of another type than xz. `maps` are
    B and C, biases and norms, of which those of maps that are given do not count."""
    products = as_products(xz, *projections, *out_proj) if has_kernel(SELECTIVE_SCAN, xz) else None
    if products is None:
        return None
    *projections, weight, bias = products
    given, biases, (*of_maps, of_step) = maps
    biases, of_maps = ([None if map is not None else own for map, own in zip(given, each)] for each in (biases, of_maps))
    weights = (*convolution, *projections, *scan, weight, bias)
    return mamba_inner(xz, weights, (*given, *biases, *of_maps, of_step), *options, **more)[0]
