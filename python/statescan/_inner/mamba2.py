"""Mamba-2: convolution, SSD, gated norm, the gated unit beside them, and the projection out."""

from torch.nn.functional import linear

from .. import _dispatch
from .._operations import SSD
from .products import as_products
from .shared import Described, Inner, differentiable


def _describe(given, room):
    nheads, headdim, ngroups = given.A.shape[0], given.headdim, given.ngroups
    dim, convolved, normed = nheads * headdim, given.conv1d_weight.shape[0], given.rmsnorm_weight is not None
    unit = given.zxbcdt.shape[-1] - dim - convolved - nheads
    xBC = given.zxbcdt[..., unit + dim : unit + dim + convolved].transpose(1, 2)
    weight = given.conv1d_weight.view(convolved, -1)
    convolution = (xBC, weight, given.conv1d_bias, None, None, given.seq_idx, given.activation, False)
    dstate = (convolved - dim) // (2 * ngroups)
    x, B, C = room(nheads, headdim), room(ngroups, dstate), room(ngroups, dstate)
    z = None if normed else room(nheads, headdim)
    tensors = (x, room(nheads), given.A, B, C, given.D, z, given.dt_bias, None, given.initial_states, None, given.seq_idx)
    scan = (*tensors, True, given.dt_low, given.dt_high, given.chunk_size, False)
    width = unit // 2 + dim
    kept = dim if normed else width if given.outproj_weight is not None else None
    return Described(convolution, scan, width, kept)


MAMBA2 = Inner(
    "mamba2_inner",
    (
        "zxbcdt",
        "conv1d_weight",
        "conv1d_bias?",
        "dt_bias?",
        "A",
        "D?",
        "rmsnorm_weight?",
        "outproj_weight?",
        "outproj_bias?",
        "initial_states?",
        "seq_idx?",
    ),
    10,
    (
        ("str? activation", "silu"),
        ("float? dt_low", None),
        ("float? dt_high", None),
        ("float eps", 1e-6),
        ("int headdim", 64),
        ("int ngroups", 1),
        ("int chunk_size", 128),
        ("bool norm_before_gate", False),
        ("bool A_log", False),
    ),
    SSD,
    _describe,
)
_CALL = differentiable(MAMBA2)
_DEFAULTS = tuple((name.split()[-1], default) for name, default in MAMBA2.options)


def mamba2_inner(zxbcdt, weights, initial_states=None, seq_idx=None, context=None, **options):
    """Computes a Mamba-2 layer behind its first projection.

    Args:
        zxbcdt: (batch, seqlen, 2 unit + dim + convolved + nheads).
        weights: conv1d_weight (convolved, width) or (convolved, 1, width), conv1d_bias, dt_bias, A, D, rmsnorm_weight,
            outproj_weight (out, unit + dim) and outproj_bias; all but the first and A may be None. Without the norm's the scan
            is gated and not normed; without the projection's nothing is projected.
        initial_states: (batch, nheads, headdim, dstate).
        seq_idx: (batch, seqlen).
        context: of `statescan.distributed`, where zxbcdt and seq_idx are this rank's slices.
        options: activation, dt_low, dt_high, eps, headdim, ngroups, chunk_size, norm_before_gate; A_log says that A is the
            logarithm of what decays are the negative of.

    Returns:
        (batch, seqlen, out or unit + dim), and the final states, (batch, nheads, headdim, dstate).
    """
    values = tuple([options.get(name, default) for name, default in _DEFAULTS])
    tensors = (zxbcdt, *weights, initial_states, seq_idx)
    if context is None:
        return _CALL(tensors, values)
    from .ranks import mamba2_inner_ranks

    return mamba2_inner_ranks(tensors, (*values, context.group.group_name))


def mamba2_as_one(zxbcdt, weights, out_proj, dt_limit=(0.0, float("inf")), **options):
    """`mamba2_inner` of these weights and those of the last projection, which is a call of its own if it is of another type."""
    weight, bias = out_proj
    products = as_products(zxbcdt, weight, bias)
    low, high = _dispatch.limits("mamba_split_conv1d_scan_combined", dt_limit)
    y, states = mamba2_inner(zxbcdt, (*weights, *(products or (None, None))), dt_low=low, dt_high=high, **options)
    return (y if products or weight is None else linear(y, weight, bias)), states
