"""Mamba: convolution, projections to step sizes and maps, selective scan with its gate, and the projection out."""

from typing import Any, NamedTuple

import torch

from ..operations import CAUSAL_CONV1D, SELECTIVE_SCAN
from ..torch import _New
from .shared import (
    Inner,
    Parts,
    decays,
    differentiable,
    matrix,
    project,
    project_back,
    projection_gradients,
    room_in,
    run,
    run_back,
    through_decays,
)

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
    ),
    10,
    (("bool dt_softplus", True), ("bool A_log", False)),
    ("scanned", "decays", "states"),
)


class _Arguments(NamedTuple):
    """The arguments of a call by their names."""

    xz: Any
    conv1d_weight: Any
    conv1d_bias: Any
    x_proj_weight: Any
    dt_proj_weight: Any
    dt_bias: Any
    A: Any
    D: Any
    outproj_weight: Any
    outproj_bias: Any
    dt_softplus: Any
    A_log: Any


class _Call:
    """A call, and how channels divide: input and gate; step sizes of a low rank, B and C."""

    __slots__ = ("A", "dim", "dstate", "given", "of", "place", "rank")

    def __init__(self, arguments, A=None, place=None):
        self.given = given = _Arguments._make(arguments)
        self.place = place
        self.A = decays(given.A, given.A_log) if A is None else A
        self.of = Parts(given.xz)
        self.dim, self.dstate = given.A.shape
        self.rank = given.dt_proj_weight.shape[1]

    def room(self, channels):
        return self.given.xz.new_empty(self.of.batch, self.of.seqlen, channels)

    def convolution(self):
        """Arguments of the convolution."""
        filters = self.given.conv1d_weight
        if filters.dim() == 3:
            filters = filters.squeeze(1)
        return self.of.timed(0, self.dim), filters, self.given.conv1d_bias, None, None, None, "silu", False

    def prepare(self, of, first=0):
        """What the scan reads: x, which lies in `of` from its channel `first` on, what the maps are parts of, and the steps."""
        x = of.timed(first, self.dim)
        run(CAUSAL_CONV1D, self.convolution(), (x, None), self.place)
        projected = project(of.rows(first, self.dim), self.given.x_proj_weight, None)
        return x, projected, project(projected[..., : self.rank], self.given.dt_proj_weight, None)

    def maps(self, projected):
        """B and C of what the projection gives, (batch, seqlen, rank + 2 dstate)."""
        of = Parts(projected)
        return of.timed(self.rank, self.dstate), of.timed(self.rank + self.dstate, self.dstate)

    def scan(self, x, dt, projected):
        """Arguments of the scan."""
        given = self.given
        tensors = (x, dt.transpose(1, 2), self.A, *self.maps(projected), given.D, self.of.timed(self.dim, self.dim))
        return (*tensors, given.dt_bias, None, None, None, None, given.dt_softplus, None, None, "mamba", False)


def _forward(save, arguments, place):
    call = _Call(arguments, place=place)
    given = call.given
    x, projected, dt = call.prepare(Parts(call.room(call.dim)))
    y = call.room(call.dim)
    outputs = (Parts(y).timed(0, call.dim), True, True if save else None)
    final, *states = run(SELECTIVE_SCAN, call.scan(x, dt, projected), outputs, place)
    out = project(y, given.outproj_weight, given.outproj_bias)
    if not save:
        return [out, final]
    nothing = given.xz.new_empty(0)
    return [out, final, nothing if out is y else y, call.A if given.A_log else nothing, *states]


def _allocate(save, arguments):
    call = _Call(arguments)
    given, weight = call.given, call.given.outproj_weight
    y, projected = call.room(call.dim), call.room(given.x_proj_weight.shape[0])
    scan = call.scan(call.of.timed(0, call.dim), y, projected)
    _, state = SELECTIVE_SCAN.results(_New, *scan)
    results = [call.room(call.dim if weight is None else weight.shape[0]), state]
    if not save:
        return results
    nothing = given.xz.new_empty(0)
    kept = [nothing if weight is None else y, call.A if given.A_log else nothing]
    return [*results, *kept, SELECTIVE_SCAN.saved(_New, *scan)]


def _map_gradients(call, scanned, gradients, needed):
    """Adds to the gradient by x what comes through step sizes, B and C, and gives those by the weights that made these."""
    (x, projected), (by_x, by_dt, by_projected) = scanned, gradients
    given, by_dt, flat = call.given, matrix(by_dt), matrix(by_projected)
    torch.mm(by_dt, given.dt_proj_weight, out=flat[:, : call.rank])
    by_dt_proj = by_dt.t() @ matrix(projected)[:, : call.rank] if needed[4] else None
    by_x_proj = flat.t() @ matrix(x) if needed[3] else None
    matrix(by_x).addmm_(flat, given.x_proj_weight)
    return by_x_proj, by_dt_proj


def _backward(needed, arguments, saved, gradients, place):
    (y, A, states), (by_out, by_state) = saved, gradients
    call = _Call(arguments, A if A.numel() > 0 else None, place)
    given, of = call.given, Parts(torch.empty_like(arguments[0]))
    projection = (given.outproj_weight, given.outproj_bias)
    by_y = project_back(by_out, projection[0], lambda: call.room(call.dim))
    by_projection = projection_gradients(by_out, lambda: y, projection, needed[8:10])
    at, first = room_in(of, 0, call.dim)
    x, projected, dt = call.prepare(at, first)
    by_x, by_dt, by_projected = call.room(call.dim), call.room(call.dim), torch.empty_like(projected)
    scan = (*call.scan(x, dt, projected), states, Parts(by_y).timed(0, call.dim), by_state)
    timed = [Parts(tensor).timed(0, call.dim) for tensor in (by_x, by_dt)]
    wanted = (*timed, needed[6], *call.maps(by_projected), needed[7], of.timed(call.dim, call.dim), needed[5])
    made = iter(run_back(SELECTIVE_SCAN, scan, wanted, place))
    by_A, by_D, by_dt_bias = (next(made) if needed[at] else None for at in (6, 7, 5))
    if by_A is not None and given.A_log:
        by_A = through_decays(by_A, call.A, given.A)
    by_maps = _map_gradients(call, (at.rows(first, call.dim), projected), (by_x, by_dt, by_projected), needed)
    convolution = (*call.convolution(), timed[0], None)
    wanted = (of.timed(0, call.dim), needed[1], needed[2], None)
    made = iter(run_back(CAUSAL_CONV1D, convolution, wanted, place))
    by_filter, by_bias = (next(made) if needed[at] else None for at in (1, 2))
    if by_filter is not None:
        by_filter = by_filter.view_as(given.conv1d_weight)
    return of.tensor, by_filter, by_bias, *by_maps, by_dt_bias, by_A, by_D, *by_projection


_CALL = differentiable(MAMBA, _forward, _backward, _allocate)


def mamba_inner(xz, weights, dt_softplus=True, A_log=False):
    """What a Mamba layer does behind its first projection.

    Args:
        xz: (batch, seqlen, 2 dim), the input and the gate; of the type of all projections' weights.
        weights: conv1d_weight (dim, width) or (dim, 1, width), conv1d_bias, x_proj_weight (rank + 2 dstate, dim), dt_proj_weight
            (dim, rank), dt_bias, A (dim, dstate), real, D, outproj_weight (out, dim) and outproj_bias; biases, D and the last
            weight may be None.
        dt_softplus: whether step sizes are the softplus of what is projected.
        A_log: whether A is the logarithm of what decays are the negative of.

    Returns:
        (batch, seqlen, out or dim), and the state after the last step, (batch, dim, dstate).
    """
    return _CALL((xz, *weights), (dt_softplus, A_log))
