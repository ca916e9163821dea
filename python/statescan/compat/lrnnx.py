"""Drop-in for `lrnnx` 1.0.

`simplified_scan_fn` and `s5_inner_fn` are this package's own, which extend the origin's by keywords.
"""

from typing import Any, Literal

from torch import Tensor

from .. import functions
from .._types import Context, Discretization
from ..functions import s5_inner_fn, simplified_scan_fn
from ..nn._checks import check_shape
from . import references
from ._shared import scan
from .lrnnx_rules import state_update

__all__ = [
    "s5_inner_fn",
    "selective_scan_fn",
    "selective_scan_ref",
    "selective_state_update",
    "simplified_scan_fn",
    "simplified_state_update",
]


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    deltaA: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    discretization: Discretization = "mamba",
    *,
    context: Context | None = None,
) -> Any:
    """The selective scan; shapes as in `mamba_ssm.selective_scan_fn`, deltaA and rules as in `statescan.selective_scan`."""
    return scan(
        u,
        delta,
        A,
        B,
        C,
        D,
        z,
        delta_bias,
        delta_softplus,
        return_last_state,
        deltaA=deltaA,
        discretization=discretization,
        context=context,
    )


def selective_scan_ref(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    deltaA: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    discretization: Discretization = "mamba",
) -> Any:
    """`selective_scan_fn` as a loop in float64."""
    options = {"deltaA": deltaA, "rule": discretization}
    return references.selective_scan_ref(u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state, **options)


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    deltaA: Tensor | None = None,
    state_batch_indices: Tensor | None = None,
    discretization: Discretization | Literal["rglru", "s7"] = "mamba",
) -> Tensor:
    """One step of the scan; shapes as in `statescan.selective_state_update`. The rules "rglru" and "s7" are those of RG-LRU and
    S7, for a state of (batch, dim, dstate) and nothing that they do not need."""
    if discretization in ("rglru", "s7"):
        more = {"D": D, "z": z, "dt_bias": dt_bias, "deltaA": deltaA, "state_batch_indices": state_batch_indices}
        for name, given in {**more, "dt_softplus": dt_softplus or None}.items():
            if given is not None:
                raise NotImplementedError(f"selective_state_update of statescan has no `{name}` with {discretization!r}")
        return state_update(state, x, dt, A, B, C, discretization)
    return functions.selective_state_update(
        state,
        x,
        dt,
        A,
        B,
        C,
        D,
        z=z,
        dt_bias=dt_bias,
        dt_softplus=dt_softplus,
        deltaA=deltaA,
        state_batch_indices=state_batch_indices,
        discretization=discretization,
    )


def simplified_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    deltaA: Tensor | None = None,
    discretization: Discretization = "bilinear",
    conj_sym: bool = True,
) -> Tensor:
    """One step of `s5_inner_fn` for a real x, (batch, dim). D is (dim,), a full (dim, dim), or None."""
    full = D is not None and D.dim() == 2
    if full:
        check_shape("simplified_state_update", "D", D, (x.shape[1], x.shape[1]))
    skip = x.new_zeros(x.shape[1]) if D is None or full else D
    y = functions.simplified_state_update(state, x, dt, A, B, C, skip, deltaA, discretization=discretization, conj_sym=conj_sym)
    return y + x @ D.T if full else y
