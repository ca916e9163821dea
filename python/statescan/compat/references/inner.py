"""Layers behind their first projection."""

from torch import Tensor
from torch.nn.functional import linear

from ..._types import Activation
from ...nn._checks import check_groups
from .._shared import as_complex
from ._shared import wide
from .convolution import causal_conv1d_ref
from .norms import rms_norm_gated_ref
from .scans import head_scan, selective_scan_ref


def mamba_conv1d_scan_ref(
    xBC: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    dt: Tensor,
    A: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    activation: Activation = "silu",
    headdim: int | None = None,
    ngroups: int = 1,
) -> Tensor:
    """A convolution and Mamba-2's scan; z is (batch, seqlen, nheads * headdim), and so is the result."""
    nheads = dt.shape[2]
    if z is not None:
        check_groups("mamba_conv1d_scan_ref", "dt", nheads, z.shape[-1], "channels of z")
        headdim = z.shape[-1] // nheads
    elif D is not None and D.dim() == 2:
        headdim = D.shape[1]
    if headdim is None:
        raise ValueError("mamba_conv1d_scan_ref: `headdim` must be given where neither `z` nor `D` has it")
    tensors = wide(xBC, conv1d_weight, conv1d_bias, dt, A, D, z, dt_bias)
    sizes = nheads, headdim, ngroups
    return _convolved_scan(*tensors, dt_softplus, dt_limit, activation, sizes).to(xBC.dtype)


def _convolved_scan(xBC, weight, bias, dt, A, D, z, dt_bias, dt_softplus, dt_limit, activation, sizes):
    nheads, headdim, ngroups = sizes
    xBC = causal_conv1d_ref(xBC.transpose(1, 2), weight, bias, activation=activation).transpose(1, 2)
    dim = nheads * headdim
    check_groups("mamba_conv1d_scan_ref", "xBC", 2 * ngroups, xBC.shape[-1] - dim, "channels of B and C")
    x, B, C = xBC.tensor_split([dim, (dim + xBC.shape[-1]) // 2], dim=-1)
    x, z = (None if t is None else t.unflatten(-1, (nheads, headdim)) for t in (x, z))
    B, C = (map.unflatten(-1, (ngroups, -1)) for map in (B, C))
    return head_scan(x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit).flatten(2)


def mamba_split_conv1d_scan_ref(
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    dt_bias: Tensor,
    A: Tensor,
    D: Tensor,
    chunk_size: int,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    activation: Activation = "silu",
    rmsnorm_weight: Tensor | None = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
) -> Tensor:
    """`mamba_ssm.ops.triton.ssd_combined.mamba_split_conv1d_scan_combined`, without a unit beside the scan and without
    states. The norm is over all channels, as in the origin's reference."""
    tensors = wide(zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, rmsnorm_weight, outproj_weight, outproj_bias)
    mixed, weight, bias, dt_bias, A, D, norm_weight, out_weight, out_bias = tensors
    headdim = D.shape[1] if D.dim() == 2 else headdim
    if headdim is None:
        raise ValueError("mamba_split_conv1d_scan_ref: `headdim` must be given where `D` is (nheads,)")
    nheads, dim = D.shape[0], D.shape[0] * headdim
    z, xBC, dt = mixed.split([dim, weight.shape[0], nheads], dim=-1)
    gate = z if norm_weight is None else None
    y = _convolved_scan(xBC, weight, bias, dt, A, D, gate, dt_bias, True, dt_limit, activation, (nheads, headdim, ngroups))
    if norm_weight is not None:
        y = rms_norm_gated_ref(y, norm_weight, None, z, rmsnorm_eps, norm_before_gate=norm_before_gate)
    return (y if out_weight is None else linear(y, out_weight, out_bias)).to(zxbcdt.dtype)


def mamba_inner_ref(
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
) -> Tensor:
    """`mamba_ssm.mamba_inner_fn` without norms."""
    of_input = wide(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, B_proj_bias, C_proj_bias)
    mixed, weight, bias, x_proj_weight, delta_proj_weight, *biases = of_input
    check_groups("mamba_inner_ref", "xz", 2, xz.shape[1], "channels of the input and the gate")
    A, B, C, D, delta_bias, out_weight, out_bias = wide(A, B, C, D, delta_bias, out_proj_weight, out_proj_bias)
    x, z = mixed.chunk(2, dim=1)
    x = causal_conv1d_ref(x, weight.squeeze(1), bias, activation="silu")
    rank, dstate = delta_proj_weight.shape[1], A.shape[1] * (2 if A.is_complex() else 1)
    rows = linear(x.transpose(1, 2), x_proj_weight)
    parts = iter(rows[..., rank:].split(dstate, -1) if rows.shape[-1] > rank else ())

    def map_of_input(bias):
        part = next(parts) if bias is None else next(parts) + bias
        return (as_complex(part) if A.is_complex() else part).transpose(1, 2)

    B = map_of_input(biases[0]) if B is None else B
    C = map_of_input(biases[1]) if C is None else C
    delta = linear(rows[..., :rank], delta_proj_weight).transpose(1, 2)
    y = selective_scan_ref(x, delta, A, B, C, D, z, delta_bias, delta_softplus)
    return linear(y.transpose(1, 2), out_weight, out_bias).to(xz.dtype)
