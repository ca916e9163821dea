"""Mamba: convolution, projections to step sizes and maps, selective scan with its gate, and the projection out."""

import torch

from ..operations import CAUSAL_CONV1D, SELECTIVE_SCAN
from ..torch import _New
from .maps import Map, normalized, normalized_back
from .shared import (
    Inner,
    Parts,
    convolved_back,
    decays,
    differentiable,
    each,
    filters,
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
    """A call, and how channels divide: input and gate; step sizes of a low rank, B and C."""

    __slots__ = ("A", "dim", "given", "maps", "of", "place", "rank")

    def __init__(self, arguments, A=None, place=None):
        self.given = given = Arguments._make(arguments)
        self.place = place
        self.A = decays(given.A, given.A_log) if A is None else A
        self.of = Parts(given.xz)
        self.dim, dstate = given.A.shape
        self.rank = first = given.dt_proj_weight.shape[1]
        beside = given.eps, given.A.is_complex()
        self.maps = Map(given.B, given.B_bias, given.B_norm, *beside), Map(given.C, given.C_bias, given.C_norm, *beside)
        for part in self.maps:
            first = part.place(first, dstate)

    def room(self, channels):
        return self.given.xz.new_empty(self.of.batch, self.of.seqlen, channels)

    def input(self, of):
        """What is convolved."""
        return of.timed(0, self.dim)

    def convolution(self, before=None):
        """Arguments of the convolution; `before` are the inputs in front of it."""
        weight, bias = filters(self.given.conv1d_weight), self.given.conv1d_bias
        return self.input(self.of), weight, bias, before, None, None, "silu", False

    def convolve(self, of, first=0, before=None):
        """x, which lies in `of` from its channel `first` on."""
        x = of.timed(first, self.dim)
        run(CAUSAL_CONV1D, self.convolution(before), (x, None), self.place)
        return x

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
        """Arguments of the scan."""
        given = self.given
        tensors = (x, dt.transpose(1, 2), self.A, *maps, given.D, self.of.timed(self.dim, self.dim))
        return (*tensors, given.dt_bias, None, None, None, None, given.dt_softplus, None, None, "mamba", False)


def _forward(save, arguments, place):
    call = Call(arguments, place=place)
    given = call.given
    convolved = Parts(call.room(call.dim))
    x = call.convolve(convolved)
    projected, low = call.projected(convolved.tensor)
    maps = [part.of(projected, place) for part in call.maps]
    y = call.room(call.dim)
    outputs = (Parts(y).timed(0, call.dim), True, True if save else None)
    final, *states = run(SELECTIVE_SCAN, call.scan(x, call.steps(low), maps), outputs, place)
    out = project(y, given.outproj_weight, given.outproj_bias)
    if not save:
        return [out, final]
    nothing = given.xz.new_empty(0)
    return [out, final, nothing if out is y else y, call.A if given.A_log else nothing, *states]


def _allocate(save, arguments):
    call = Call(arguments)
    given, weight = call.given, call.given.outproj_weight
    y, projected = call.room(call.dim), call.room(given.x_proj_weight.shape[0])
    scan = call.scan(call.of.timed(0, call.dim), y, [part.like(projected) for part in call.maps])
    _, state = SELECTIVE_SCAN.results(_New, *scan)
    results = [call.room(call.dim if weight is None else weight.shape[0]), state]
    if not save:
        return results
    nothing = given.xz.new_empty(0)
    kept = [nothing if weight is None else y, call.A if given.A_log else nothing]
    return [*results, *kept, SELECTIVE_SCAN.saved(_New, *scan)]


def step_gradients(call, scanned, gradients, needed):
    """Adds to the gradient by x what comes through step sizes, B and C, and gives those by the weights that made these: of the
    projections, and of the steps' norm."""
    (x, projected, low), (by_x, by_dt, by_projected) = scanned, gradients
    given, by_dt, flat, by_norm = call.given, matrix(by_dt), matrix(by_projected), None
    if given.dt_norm is None:
        torch.mm(by_dt, given.dt_proj_weight, out=flat[:, : call.rank])
    else:
        by_low = (by_dt @ given.dt_proj_weight).view(low.shape)
        to = by_projected[..., : call.rank]
        by_norm = normalized_back(projected[..., : call.rank], given.dt_norm, given.eps, by_low, to, needed[16], call.place)
    by_dt_proj = by_dt.t() @ matrix(low) if needed[4] else None
    by_x_proj = flat.t() @ matrix(x) if needed[3] else None
    matrix(by_x).addmm_(flat, given.x_proj_weight)
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
    call = Call(arguments, A if A.numel() > 0 else None, place)
    given, of = call.given, Parts(torch.empty_like(arguments[0]))
    projection = (given.outproj_weight, given.outproj_bias)
    by_y = project_back(by_out, projection[0], lambda: call.room(call.dim))
    by_projection = projection_gradients(by_out, lambda: y, projection, needed[8:10])
    at, first = room_in(of, 0, call.dim)
    x = call.convolve(at, first)
    projected, low = call.projected(at.rows(first, call.dim))
    maps = [part.of(projected, place) for part in call.maps]
    by_x, by_dt, by_projected = call.room(call.dim), call.room(call.dim), torch.empty_like(projected)
    scan = (*call.scan(x, call.steps(low), maps), states, Parts(by_y).timed(0, call.dim), by_state)
    timed = [Parts(tensor).timed(0, call.dim) for tensor in (by_x, by_dt)]
    targets = [part.wanted(by_projected, is_needed) for part, is_needed in zip(call.maps, needed[10:12])]
    wanted = (*timed, needed[6], *targets, needed[7], of.timed(call.dim, call.dim), needed[5])
    by_A, *by_maps, by_D, by_dt_bias = _scan_gradients(call, scan, wanted, needed)
    by_maps = [
        part.back(by_map, projected, by_projected, needed[number : number + 3 : 2], place)
        for number, part, by_map in zip((12, 13), call.maps, by_maps)
    ]
    scanned = (at.rows(first, call.dim), projected, low)
    *by_weights, by_dt_norm = step_gradients(call, scanned, (by_x, by_dt, by_projected), needed)
    by_conv = convolved_back(call.convolution(), timed[0], call.input(of), given.conv1d_weight, needed[1:3], place)
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
