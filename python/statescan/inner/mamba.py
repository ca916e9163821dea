"""Mamba: convolution, projections to step sizes and maps, selective scan and its gate."""

from dataclasses import dataclass

import torch

from ..operations import CAUSAL_CONV1D, SELECTIVE_SCAN
from ..torch import _New
from .shared import Inner, differentiable, run, run_back

MAMBA = Inner(
    "mamba_inner",
    ("xz", "conv1d_weight", "conv1d_bias?", "x_proj_weight", "dt_proj_weight", "dt_bias?", "A", "D?"),
    8,
    (("bool dt_softplus", True),),
    ("states",),
)


@dataclass(frozen=True)
class _Call:
    """The arguments of a call by their names, and how channels divide."""

    xz: torch.Tensor
    conv1d_weight: torch.Tensor
    conv1d_bias: torch.Tensor | None
    x_proj_weight: torch.Tensor
    dt_proj_weight: torch.Tensor
    dt_bias: torch.Tensor | None
    A: torch.Tensor
    D: torch.Tensor | None
    dt_softplus: bool

    def room(self, channels):
        return self.xz.new_empty(*self.xz.shape[:2], channels)

    def convolution(self, x):
        """Arguments of the convolution."""
        return (x.transpose(1, 2), self.conv1d_weight, self.conv1d_bias, None, None, None, "silu", False)

    def maps(self, projected):
        """The low-rank step, B and C of what the projection gives, (batch, seqlen, rank + 2 dstate)."""
        rank, dstate = self.dt_proj_weight.shape[1], self.A.shape[1]
        return projected.split([rank, dstate, dstate], dim=-1)

    def scan(self, x, dt, B, C, z):
        """Arguments of the scan."""
        x, dt, B, C, z = (tensor.transpose(1, 2) for tensor in (x, dt, B, C, z))
        tensors = (x, dt, self.A, B, C, self.D, z, self.dt_bias, None, None, None, None)
        return (*tensors, self.dt_softplus, None, None, "mamba", False)

    def prepared(self, x, place):
        """What the scan reads, from the convolution's input on: x, what the maps are parts of, and the steps."""
        to = self.room(x.shape[-1])
        run(CAUSAL_CONV1D, self.convolution(x), (to.transpose(1, 2), None), place)
        projected = to @ self.x_proj_weight.T
        return to, projected, self.maps(projected)[0] @ self.dt_proj_weight.T


def _forward(save, arguments, place):
    call = _Call(*arguments)
    x, z = call.xz.chunk(2, dim=-1)
    convolved, projected, dt = call.prepared(x, place)
    _, B, C = call.maps(projected)
    y = call.room(x.shape[-1])
    made = run(SELECTIVE_SCAN, call.scan(convolved, dt, B, C, z), (y.transpose(1, 2), True, True if save else None), place)
    return [y, *made]


def _allocate(save, arguments):
    call = _Call(*arguments)
    x, z = call.xz.chunk(2, dim=-1)
    _, B, C = call.maps(call.room(call.x_proj_weight.shape[0]))
    scan = call.scan(x, x, B, C, z)
    _, state = SELECTIVE_SCAN.results(_New, *scan)
    results = [call.room(x.shape[-1]), state]
    return [*results, SELECTIVE_SCAN.saved(_New, *scan)] if save else results


def _backward(needed, arguments, saved, gradients, place):
    call, (by_y, by_state) = _Call(*arguments), gradients
    x, z = call.xz.chunk(2, dim=-1)
    by_xz = torch.empty_like(call.xz)
    by_x, by_z = by_xz.chunk(2, dim=-1)
    convolved, projected, dt = call.prepared(x, place)
    low_rank, B, C = call.maps(projected)
    by_convolved, by_dt, by_projected = torch.empty_like(convolved), torch.empty_like(dt), torch.empty_like(projected)
    by_low_rank, by_B, by_C = call.maps(by_projected)
    of_time = [tensor.transpose(1, 2) for tensor in (by_convolved, by_dt, by_B, by_C, by_z)]
    wanted = (of_time[0], of_time[1], needed[6], of_time[2], of_time[3], needed[7], of_time[4], needed[5])
    by_y = None if by_y is None else by_y.transpose(1, 2)
    made = iter(run_back(SELECTIVE_SCAN, (*call.scan(convolved, dt, B, C, z), *saved, by_y, by_state), wanted, place))
    by_A, by_D, by_dt_bias = (next(made) if needed[at] else None for at in (6, 7, 5))
    rows = [tensor.flatten(0, 1) for tensor in (by_dt, low_rank, by_projected, convolved, by_convolved)]
    by_low_rank.copy_(by_dt @ call.dt_proj_weight)
    by_dt_proj = rows[0].T @ rows[1] if needed[4] else None
    by_x_proj = rows[2].T @ rows[3] if needed[3] else None
    rows[4].addmm_(rows[2], call.x_proj_weight)
    wanted = (by_x.transpose(1, 2), needed[1], needed[2], None)
    made = iter(run_back(CAUSAL_CONV1D, (*call.convolution(x), by_convolved.transpose(1, 2), None), wanted, place))
    by_filter, by_bias = (next(made) if needed[at] else None for at in (1, 2))
    return by_xz, by_filter, by_bias, by_x_proj, by_dt_proj, by_dt_bias, by_A, by_D


_CALL = differentiable(MAMBA, _forward, _backward, _allocate)


def mamba_inner(xz, conv1d_weight, conv1d_bias, x_proj_weight, dt_proj_weight, dt_bias, A, D, dt_softplus=True):
    """What a Mamba layer does between its projections in and out.

    Args:
        xz: (batch, seqlen, 2 dim), the input and the gate; of the type of both projections' weights.
        conv1d_weight, conv1d_bias: (dim, width) and (dim,), or None.
        x_proj_weight: (rank + 2 dstate, dim).
        dt_proj_weight, dt_bias: (dim, rank) and (dim,), or None.
        A, D: (dim, dstate), real, and (dim,), or None.
        dt_softplus: whether step sizes are the softplus of what is projected.

    Returns:
        (batch, seqlen, dim), and the state after the last step, (batch, dim, dstate).
    """
    tensors = (xz, conv1d_weight, conv1d_bias, x_proj_weight, dt_proj_weight, dt_bias, A, D)
    return _CALL(tensors, (dt_softplus,))
