"""A program as users write it, for type checkers: each annotation is what its expression must be found to be."""

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

import statescan
from statescan import compat, distributed, nn


def scans(x: Tensor, dt: Tensor, A: Tensor, B: Tensor) -> Tensor:
    y, state = statescan.selective_scan(x, dt, A, B, B, dt_softplus=True, dt_limit=(0.0, 1.0), discretization="zoh")
    step: Tensor = statescan.selective_state_update(state, x[..., 0], dt[..., 0], A, B[..., 0], B[..., 0])
    h, last = statescan.linear_scan(y, y, reverse=True)
    return h + step[..., None] + last[..., None]


def convolutions(x: Tensor, weight: Tensor, keep: bool) -> Tensor:
    y: Tensor = statescan.causal_conv1d(x, weight, activation="silu")
    z, states = statescan.causal_conv1d(x, weight, return_final_states=True)
    some: Tensor | tuple[Tensor, Tensor] = statescan.causal_conv1d(x, weight, return_final_states=keep)
    return y + z + states.sum() + (some[0] if isinstance(some, tuple) else some)


def norms(x: Tensor) -> Tensor:
    y: Tensor = statescan.norm(x, kind="layer")
    z, total = statescan.norm(x, residual=y)
    return z + total


def arrays(a: NDArray[numpy.float32]) -> NDArray[numpy.float32]:
    h, _ = statescan.linear_scan(a, a)
    return h


def layers(x: Tensor) -> Tensor:
    block = nn.S5Block(x.shape[-1], 8, dropout=0.1, bidirectional=True)
    layer = nn.Mamba2(x.shape[-1], d_state=16, headdim=8, device="cpu", dtype=torch.float32)
    cache: nn.Cache = layer.cache(x.shape[0])
    with torch.no_grad():
        y: Tensor = layer(x, cache)
        z: Tensor = layer.forward(block(x)[:, :1], inference_params=cache)
    optimizer = torch.optim.AdamW(nn.parameter_groups(layer, lr=1e-3))
    optimizer.zero_grad()
    return y + z


def everything() -> dict[str, str]:
    with compat.install(replace=False):
        found = compat.report()
    context: distributed.Context | None = distributed.context() if torch.distributed.is_initialized() else None
    return {**found, "ranks": str(1 if context is None else context.ranks)}
