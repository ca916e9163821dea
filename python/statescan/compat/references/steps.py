"""One step of a scan."""

import torch
from torch import Tensor

from ..._types import Discretization
from ...nn._checks import check_groups, check_shape
from . import loops
from ._shared import wide


def selective_state_update_ref(
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
    discretization: Discretization = "mamba",
) -> Tensor:
    """`statescan.selective_state_update`; the state is changed in place."""
    heads = state.dim() == 4
    size = state.shape[1]
    for name, map in (("B", B), ("C", C)):
        groups = map.shape[1] if map.dim() == 3 else 1
        check_groups("selective_state_update_ref", name, groups, size, "heads" if heads else "channels of x")
    tensors = wide(state, x, dt, z, deltaA, A, D, dt_bias)
    if heads:
        before, *streams = (None if t is None else t.flatten(1, 2) for t in tensors[:5])
        A, D, dt_bias = (None if t is None else t.flatten(0, 1) for t in tensors[5:])
    else:
        before, *streams, A, D, dt_bias = tensors
    inputs, dt, z, deltaA, B, C = (None if t is None else t[..., None] for t in (*streams, *wide(B, C)))
    options = {"z": z, "dt_bias": dt_bias, "dt_softplus": dt_softplus, "deltaA": deltaA, "discretization": discretization}
    y, after = loops.selective_scan(inputs, dt, A, B, C, D, before, **options)
    with torch.no_grad():
        state.copy_(after.view_as(state))
    return y.view_as(x).to(x.dtype)


def simplified_state_update_ref(
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
    """`lrnnx.ops.triton.simplified_state_update`; the state is changed in place."""
    full = D is not None and D.dim() == 2
    if full:
        check_shape("simplified_state_update_ref", "D", D, (x.shape[1], x.shape[1]))
    before, inputs, dt, A, B, C, D, deltaA = wide(state, x, dt, A, B, C, D, deltaA)
    streams = (t if t is None or t.dim() == 1 else t[..., None] for t in (inputs, dt, deltaA))
    inputs, dt, deltaA = streams
    skips = inputs.new_zeros(inputs.shape[1]) if D is None or full else D
    options = {"initial_state": before, "return_last_state": True}
    y, after = loops.s5_inner_fn(inputs, dt, A, B, C, skips, deltaA, discretization, conj_sym, **options)
    with torch.no_grad():
        state.copy_(after)
    y = y + D @ inputs if full else y
    return y.squeeze(-1).to(x.dtype)
