"""Functions that compute a Mamba layer behind its first projection: those of `mamba_ssm`, and of its forks for two directions."""

from torch import Tensor
from torch.nn.functional import linear

from .. import functions
from .._inner import mamba_as_one
from .._types import Context
from ._shared import as_complex, of_complex, scan
from .norms import rmsnorm_fn


def mamba_inner_fn(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
    b_rms_weight: Tensor | None = None,
    c_rms_weight: Tensor | None = None,
    dt_rms_weight: Tensor | None = None,
    b_c_dt_rms_eps: float = 1e-6,
    *,
    context: Context | None = None,
) -> Tensor:
    """Computes a Mamba layer between its first projection and the residual stream.

    Args:
        xz: (batch, 2 dim, seqlen), the input and the gate.
        conv1d_weight, conv1d_bias: (dim, 1, width) and (dim,).
        x_proj_weight: (rank + dstate + dstate, dim), without rows of a B or C that is given; 2 dstate if A is complex.
        delta_proj_weight, delta_bias: (dim, rank) and (dim,).
        out_proj_weight, out_proj_bias: (out, dim) and (out,).
        A, B, C, D: as in `selective_scan_fn`; B and C come from the input where they are None.
        B_proj_bias, C_proj_bias: added to the B and C of the input.
        checkpoint_lvl: 0 or 1; the states are computed again for gradients in both cases.
        b_rms_weight, c_rms_weight, dt_rms_weight, b_c_dt_rms_eps: norms of the B, the C and the low-rank step of the input;
            (dstate,), (dstate,) and (rank,). The step is normalized before its projection, as models do that run without this
            function; the origin does so behind it, with a (dim,) weight, which multiplies the projected step here.

    Returns:
        (batch, seqlen, out).
    """
    if checkpoint_lvl not in (0, 1):
        raise ValueError(f"mamba_inner_fn: `checkpoint_lvl` must be 0 or 1, got {checkpoint_lvl!r}")
    biases, norms = (B_proj_bias, C_proj_bias), (b_rms_weight, c_rms_weight, dt_rms_weight)
    if dt_rms_weight is not None and dt_rms_weight.shape[0] != delta_proj_weight.shape[1]:
        # a weight behind the projection, of a step that is normalized in front of it
        delta_proj_weight = dt_rms_weight[:, None] * delta_proj_weight
        norms = (b_rms_weight, c_rms_weight, dt_rms_weight.new_ones(delta_proj_weight.shape[1]))
    projections = (x_proj_weight, delta_proj_weight)
    convolution, out_proj = (conv1d_weight, conv1d_bias), (out_proj_weight, out_proj_bias)
    given = [of_complex(map) if A.is_complex() else map for map in (B, C)]
    maps, rest = (given, biases, norms), (delta_softplus, False, b_c_dt_rms_eps, context)
    out = mamba_as_one(xz.transpose(1, 2), convolution, projections, (delta_bias, A, D), out_proj, maps, *rest)
    if out is not None:
        return out
    x, z = _convolved(xz, conv1d_weight, conv1d_bias, context)
    delta, B, C = _maps(x, *projections, (A, B, C), biases, (*norms, b_c_dt_rms_eps))
    y = scan(x, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state=False, context=context)
    return linear(y.transpose(1, 2), out_proj_weight, out_proj_bias)


def mamba_inner_fn_no_out_proj(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    A: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
    *,
    context: Context | None = None,
) -> Tensor:
    """`mamba_inner_fn` up to its last projection, as the forks of `mamba_ssm` for images have it: (batch, dim, seqlen)."""
    x, z = _convolved(xz, conv1d_weight, conv1d_bias, context)
    delta, B, C = _maps(x, x_proj_weight, delta_proj_weight, (A, B, C), (B_proj_bias, C_proj_bias))
    return scan(x, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state=False, context=context)


def bimamba_inner_fn(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,
    A_b: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
    *,
    context: Context | None = None,
) -> Tensor:
    """`mamba_inner_fn` in both directions, as the forks of `mamba_ssm` for images have it: what is scanned once with A is scanned
    from its end with A_b, too, and the sum is projected."""
    x, z = _convolved(xz, conv1d_weight, conv1d_bias, context)
    delta, B, C = _maps(x, x_proj_weight, delta_proj_weight, (A, B, C), (B_proj_bias, C_proj_bias))
    others = (B, C, D, z, delta_bias, delta_softplus)
    y = scan(x, delta, A, *others, return_last_state=False, context=context)
    y = y + scan(x, delta, A_b, *others, return_last_state=False, reverse=True, context=context)
    return linear(y.transpose(1, 2), out_proj_weight, out_proj_bias)


def _convolved(xz, conv1d_weight, conv1d_bias, context):
    """The input of the scan, and the gate."""
    x, z = xz.chunk(2, dim=1)
    return functions.causal_conv1d(x, conv1d_weight.squeeze(1), conv1d_bias, activation="silu", context=context), z


def _maps(x, x_proj_weight, delta_proj_weight, given, biases, norms=(None, None, None, None)):
    """Steps, and the input and the output map, which are those of the input where none are given."""
    A, *maps = given
    *of_maps, of_step, eps = norms
    rank, dstate = delta_proj_weight.shape[1], A.shape[1] * (2 if A.is_complex() else 1)
    sizes = [rank] + [dstate for map in maps if map is None]
    delta, *parts = linear(x.transpose(1, 2), x_proj_weight).split(sizes, dim=-1)

    def normalized(part, weight):
        return part if weight is None else rmsnorm_fn(part, weight, None, eps=eps)

    for at, (bias, weight) in enumerate(zip(biases, of_maps)):
        if maps[at] is None:
            part = parts.pop(0)
            part = normalized(part if bias is None else part + bias.to(part.dtype), weight)
            maps[at] = (as_complex(part) if A.is_complex() else part).transpose(1, 2)
    return linear(normalized(delta, of_step), delta_proj_weight).transpose(1, 2), *maps
