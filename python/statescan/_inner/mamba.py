"""Mamba: convolution, projections to step sizes and maps, selective scan with its gate, and the projection out."""

import torch

from .._native import Rows
from .._operations import CAUSAL_CONV1D, SELECTIVE_SCAN
from ..torch import _New
from .maps import maps_of, normalized, normalized_back
from .shared import (
    Inner,
    Parts,
    are_aligned,
    columns,
    convolved_back,
    decays,
    differentiable,
    each,
    matrix,
    project,
    project_back,
    projection_gradients,
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
    ("scanned", "decays", "states"),
)


Arguments = MAMBA.named()


class Call:
    """A call, and how channels divide: input and gate; step sizes of a low rank, B and C. `of` takes parts of xz."""

    __slots__ = ("A", "dim", "given", "maps", "of", "place", "rank", "shape")

    def __init__(self, arguments, of, A=None, place=None):
        self.given = given = Arguments._make(arguments)
        self.of, self.place = of, place
        self.A = decays(given.A, given.A_log) if A is None else A
        batch, seqlen, _ = given.xz.shape
        self.shape = batch, seqlen
        self.dim, dstate = given.A.shape
        self.rank = given.dt_proj_weight.shape[1]
        self.maps = maps_of(given, self.rank, dstate)

    def room(self, channels):
        """(batch, seqlen, channels)."""
        return self.given.xz.new_empty(*self.shape, channels)

    def matrix(self, channels):
        """(batch * seqlen, channels), as products take it."""
        batch, seqlen = self.shape
        return self.given.xz.new_empty(batch * seqlen, channels)

    def rows(self, matrix):
        """What takes parts of a matrix of rows."""
        return Rows.made(matrix, self.shape)

    def timed(self, matrix):
        """(batch, dim, seqlen) of a matrix of as many channels."""
        return self.rows(matrix).timed(0, self.dim)

    def input(self, of):
        """What is convolved."""
        return of.timed(0, self.dim)

    def convolution(self, before=None):
        """Arguments of the convolution; `before` are the inputs in front of it."""
        weight, bias = self.of.filters(self.given.conv1d_weight, "conv1d_weight"), self.given.conv1d_bias
        return self.input(self.of), weight, bias, before, None, None, "silu", False

    def convolve(self, x, before=None):
        """Writes x, (batch, dim, seqlen)."""
        run(CAUSAL_CONV1D, self.convolution(before), (x, None), self.place)

    def projected(self, rows):
        """What is projected for the maps and the steps, of x by rows, and what the steps are projected from. Norms need data, and
        so a place."""
        projected = project(rows, self.given.x_proj_weight, None)
        low = projected[..., : self.rank]
        if self.given.dt_norm is not None and self.place is not None:
            low = normalized(low, self.given.dt_norm, self.given.eps, self.place)
        return projected, low

    def steps(self, low):
        return project(low, self.given.dt_proj_weight, None)

    def scan(self, x, dt, maps):
        """Arguments of the scan, time last."""
        given = self.given
        tensors = (x, dt, self.A, *maps, given.D, self.of.timed(self.dim, self.dim))
        return (*tensors, given.dt_bias, None, None, None, None, given.dt_softplus, None, None, "mamba", False)


def _forward(save, arguments, place):
    call = Call(arguments, Rows(arguments[0], "xz"), place=place)
    given, x = call.given, call.matrix(call.dim)
    timed = call.timed(x)
    call.convolve(timed)
    projected, low = call.projected(x)
    of = call.rows(projected)
    maps = [part.of(of, place) for part in call.maps]
    y = call.room(call.dim)
    outputs = (call.timed(y), True, True if save else None)
    final, *states = run(SELECTIVE_SCAN, call.scan(timed, call.timed(call.steps(low)), maps), outputs, place)
    out = project(y, given.outproj_weight, given.outproj_bias)
    return [out, final, *_kept(call, y, out), *states] if save else [out, final]


def _kept(call, y, out):
    """What is kept for gradients beside the states: tensors without elements for what is there anyway."""
    given = call.given
    return given.xz.new_empty(0) if out is y else y, call.A if given.A_log else given.xz.new_empty(0)


def _allocate(save, arguments):
    call = Call(arguments, Parts(arguments[0]))
    given, weight = call.given, call.given.outproj_weight
    y, projected = call.room(call.dim), call.room(given.x_proj_weight.shape[0])
    scan = call.scan(call.input(call.of), y.transpose(1, 2), [part.like(projected) for part in call.maps])
    _, state = SELECTIVE_SCAN.results(_New, *scan)
    out = y if weight is None else call.room(weight.shape[0])
    if not save:
        return [out, state]
    return [out, state, *_kept(call, y, out), SELECTIVE_SCAN.saved(_New, *scan)]


def step_gradients(call, scanned, gradients, needed):
    """Adds to the gradient by x what comes through step sizes, B and C, and gives those by the weights that made these: of the
    projections, and of the steps' norm. All of them are matrices of rows."""
    (x, projected, low), (by_x, by_dt, by_projected) = scanned, gradients
    given, by_norm = call.given, None
    if given.dt_norm is None:
        torch.mm(by_dt, given.dt_proj_weight, out=by_projected[:, : call.rank])
    else:
        by_low, to = torch.mm(by_dt, given.dt_proj_weight), by_projected[:, : call.rank]
        by_norm = normalized_back(projected[:, : call.rank], given.dt_norm, given.eps, by_low, to, needed[16], call.place)
    by_dt_proj = torch.mm(by_dt.t(), low) if needed[4] else None
    by_x_proj = torch.mm(by_projected.t(), x) if needed[3] else None
    by_x.addmm_(by_projected, given.x_proj_weight)
    return by_x_proj, by_dt_proj, by_norm


def _scan_gradients(call, scan, wanted, needed):
    """Runs the scan backwards: the gradients by A, B, C, D and the bias of step sizes that it does not write."""
    asked = (needed[6], wanted[3] is True, wanted[4] is True, needed[7], needed[5])
    by_A, *others = each(run_back(SELECTIVE_SCAN, scan, wanted, call.place), asked)
    if by_A is not None and call.given.A_log:
        by_A = through_decays(by_A, call.A, call.given.A)
    return by_A, *others


def _backward(needed, arguments, saved, gradients, place):
    (y, A, states), (by_out, by_state) = saved, gradients
    call = Call(arguments, Rows(arguments[0], "xz"), A if A.numel() > 0 else None, place)
    given, of = call.given, call.rows(torch.empty_like(arguments[0]))
    by_out, projection = matrix(by_out), (given.outproj_weight, given.outproj_bias)
    by_projection = projection_gradients(by_out, lambda: y, projection, needed[8:10])
    by_y = project_back(by_out, projection[0], lambda: call.matrix(call.dim))
    # computed again where the gradient by what is convolved is written in the end
    x = columns(of.tensor, 0, call.dim) if are_aligned(of.tensor, 0) else call.matrix(call.dim)
    timed = call.timed(x)
    call.convolve(timed)
    projected, low = call.projected(x)
    by_x, by_dt, by_projected = call.matrix(call.dim), call.matrix(call.dim), call.matrix(projected.shape[1])
    channels, by_channels = call.rows(projected), call.rows(by_projected)
    maps = [part.of(channels, place) for part in call.maps]
    scan = (*call.scan(timed, call.timed(call.steps(low)), maps), states, call.timed(by_y), by_state)
    targets = [part.wanted(by_channels, is_needed) for part, is_needed in zip(call.maps, needed[10:12])]
    by_timed = call.timed(by_x)
    wanted = (by_timed, call.timed(by_dt), needed[6], *targets, needed[7], of.timed(call.dim, call.dim), needed[5])
    by_A, *by_maps, by_D, by_dt_bias = _scan_gradients(call, scan, wanted, needed)
    by_maps = [
        part.back(by_map, channels, by_channels, needed[number : number + 3 : 2], place)
        for number, part, by_map in zip((12, 13), call.maps, by_maps)
    ]
    *by_weights, by_dt_norm = step_gradients(call, (x, projected, low), (by_x, by_dt, by_projected), needed)
    by_conv = convolved_back(call.convolution(), by_timed, call.input(of), given.conv1d_weight, needed[1:3], place)
    by_others = (gradient for pair in zip(*by_maps) for gradient in pair)
    return of.tensor, *by_conv, *by_weights, by_dt_bias, by_A, by_D, *by_projection, *by_others, by_dt_norm


_CALL = differentiable(MAMBA, _forward, _backward, _allocate)


def mamba_inner(xz, weights, maps=(None,) * 7, dt_softplus=True, A_log=False, eps=1e-6, context=None):
    """What a Mamba layer does behind its first projection.

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
    from .mamba_ranks import mamba_inner_ranks

    return mamba_inner_ranks(tensors, (*options, context.group.group_name))
