"""The scans."""

from typing import Any

from torch import Tensor

from ..._types import Discretization, Limits
from ...nn._checks import check_groups
from .._shared import by_channels, of_complex
from . import loops
from ._shared import state_type, wide


def selective_scan_ref(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    deltaA: Tensor | None = None,
    rule: Discretization = "mamba",
) -> Any:
    """`mamba_ssm.selective_scan_fn`; `deltaA` and `rule`, the discretization, are those of `lrnnx`."""
    x, delta, A, B, C, D, z, bias, deltaA = wide(u, delta, A, B, C, D, z, delta_bias, deltaA)
    for name, map in (("B", B), ("C", C)):
        check_groups("selective_scan_ref", name, map.shape[1] if map.dim() == 4 else 1, u.shape[1], "channels of u")
    if A.is_complex():
        B, C = of_complex(B), of_complex(C)
    options = {"dt_softplus": delta_softplus, "deltaA": deltaA, "discretization": rule}
    y, state = loops.selective_scan(x, delta, A, B, C, D, z=z, dt_bias=bias, **options)
    y = y.to(u.dtype)
    return (y, state.to(state_type(u, A.is_complex()))) if return_last_state else y


def head_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    dt_limit: Limits = None,
) -> Tensor:
    """Mamba-2's scan of wide tensors, with time before heads; A is (nheads,) or (nheads * headdim, dstate)."""
    for name, map in (("B", B), ("C", C)):
        check_groups("ssd_chunk_scan_combined_ref", name, map.shape[2], x.shape[2], "heads")
    return by_channels(loops.selective_scan, x, dt, A, B, C, D, z, dt_bias, dt_softplus=dt_softplus, dt_limit=dt_limit)


def ssd_chunk_scan_combined_ref(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
) -> Tensor:
    """`mamba_ssm.ops.triton.ssd_combined.mamba_chunk_scan`."""
    return head_scan(*wide(x, dt, A, B, C, D, z, dt_bias), dt_softplus).to(x.dtype)


def simplified_scan_ref(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    deltaA: Tensor | None = None,
    return_last_state: bool = False,
    discretization: Discretization = "bilinear",
) -> Any:
    """`statescan.simplified_scan_fn` from a state of zeros."""
    tensors, kind = wide(u, delta, A, B, C, deltaA), state_type(u, True)
    y, state = loops.simplified_scan_fn(*tensors, return_last_state=True, discretization=discretization)
    return (y.to(kind), state.to(kind)) if return_last_state else y.to(kind)


def s5_inner_ref(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    deltaA: Tensor | None = None,
    discretization: Discretization = "bilinear",
    conj_sym: bool = True,
) -> Tensor:
    """`statescan.s5_inner_fn` from a state of zeros."""
    y = loops.s5_inner_fn(*wide(u, delta, A, B, C, D, deltaA), discretization=discretization, conj_sym=conj_sym)
    return y.to(state_type(u, False) if u.is_complex() else u.dtype)
