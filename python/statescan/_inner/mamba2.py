"""Mamba-2: convolution, SSD, gated norm, the gated unit beside them, and the projection out."""

import torch
from torch.nn.functional import silu

from .._native import Rows
from .._operations import CAUSAL_CONV1D, NORM, SSD
from ..torch import _New
from .shared import (
    Inner,
    Parts,
    are_aligned,
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

MAMBA2 = Inner(
    "mamba2_inner",
    (
        "zxbcdt",
        "conv1d_weight",
        "conv1d_bias?",
        "dt_bias?",
        "A",
        "D?",
        "rmsnorm_weight?",
        "outproj_weight?",
        "outproj_bias?",
        "initial_states?",
        "seq_idx?",
    ),
    10,
    (
        ("str? activation", "silu"),
        ("float? dt_low", None),
        ("float? dt_high", None),
        ("float eps", 1e-6),
        ("int headdim", 64),
        ("int ngroups", 1),
        ("int chunk_size", 128),
        ("bool norm_before_gate", False),
        ("bool A_log", False),
    ),
    ("scanned", "decays", "states"),
)


Arguments = MAMBA2.named()


class Call:
    """A call, and how channels divide: the gated unit, the gate, the convolution's input, step sizes. `of` has parts of them."""

    __slots__ = ("A", "convolved", "dim", "dstate", "given", "nheads", "of", "place", "shape", "unit", "width")

    def __init__(self, arguments, of, A=None, place=None):
        self.given = given = Arguments._make(arguments)
        self.of, self.place = of, place
        self.A = decays(given.A, given.A_log) if A is None else A
        batch, seqlen, channels = given.zxbcdt.shape
        self.shape = batch, seqlen
        self.nheads = given.A.shape[0]
        self.dim = self.nheads * given.headdim
        self.convolved = given.conv1d_weight.shape[0]
        self.dstate = (self.convolved - self.dim) // (2 * given.ngroups)
        self.unit = channels - self.dim - self.convolved - self.nheads
        # channels of what is projected
        self.width = self.unit // 2 + self.dim

    def room(self, channels):
        """(batch, seqlen, channels)."""
        return self.given.zxbcdt.new_empty(*self.shape, channels)

    def matrix(self, channels):
        """(batch * seqlen, channels), as products take it."""
        batch, seqlen = self.shape
        return self.given.zxbcdt.new_empty(batch * seqlen, channels)

    def rows(self, matrix):
        """What takes parts of a matrix of rows, or of a tensor (batch, seqlen, channels)."""
        return Rows.made(matrix, self.shape)

    def heads(self, of, channels):
        """(batch, seqlen, nheads, headdim) of the last ones of so many channels."""
        return of.groups(channels - self.dim, self.nheads, self.given.headdim)

    def gate(self, of):
        """The gate as the scan takes it; none where a norm has it."""
        return of.groups(self.unit, self.nheads, self.given.headdim) if self.given.rmsnorm_weight is None else None

    def step_sizes(self, of):
        return of.rows(self.unit + self.dim + self.convolved, self.nheads)

    def scanned(self, of, first=0):
        """x, B and C of what the convolution gives."""
        ngroups, dstate, B = self.given.ngroups, self.dstate, first + self.dim
        x = of.groups(first, self.nheads, self.given.headdim)
        return x, of.groups(B, ngroups, dstate), of.groups(B + ngroups * dstate, ngroups, dstate)

    def input(self, of):
        """What is convolved."""
        return of.timed(self.unit + self.dim, self.convolved)

    def convolution(self, before=None):
        """Arguments of the convolution; `before` are the inputs in front of it."""
        given = self.given
        weight = self.of.filters(given.conv1d_weight, "conv1d_weight")
        return self.input(self.of), weight, given.conv1d_bias, before, None, given.seq_idx, given.activation, False

    def convolve(self, of, first=0, before=None):
        """x, B and C, which lie in `of` from its channel `first` on."""
        run(CAUSAL_CONV1D, self.convolution(before), (of.timed(first, self.convolved), None), self.place)
        return self.scanned(of, first)

    def ssd(self, scanned):
        """Arguments of the scan."""
        given, (x, B, C) = self.given, scanned
        tensors = (x, self.step_sizes(self.of), self.A, B, C, given.D, self.gate(self.of), given.dt_bias)
        sequences = (None, given.initial_states, None, given.seq_idx)
        return (*tensors, *sequences, True, given.dt_low, given.dt_high, given.chunk_size, False)

    def norm(self, y):
        """Arguments of the norm."""
        given = self.given
        z = self.of.rows(self.unit, self.dim)
        return y, given.rmsnorm_weight, None, z, None, "rms", given.eps, given.ngroups, given.norm_before_gate

    def finish(self, y, to):
        """What is projected, from the scan's result on; with a gate and no norm the last channels are there already."""
        beside = self.width - self.dim
        if self.given.rmsnorm_weight is not None:
            run(NORM, self.norm(y), (self.rows(to).rows(beside, self.dim), None), self.place)
        if beside:
            gate, value = self.gated(self.given.zxbcdt)
            torch.mul(silu(gate), value, out=to[..., :beside])
        return to

    def gated(self, channels):
        """Gate and value of the gated unit."""
        return channels[..., : self.unit].chunk(2, dim=-1)

    def projected(self, kept):
        """What was projected, from what is kept."""
        return kept if self.given.rmsnorm_weight is None else self.finish(kept, self.room(self.width))

    def keeps(self, y, states):
        """What is kept for gradients: tensors without elements for what is there anyway, or computed again."""
        given = self.given
        kept = y if given.rmsnorm_weight is not None or given.outproj_weight is not None else None
        found = kept, self.A if given.A_log else None, states
        return [given.zxbcdt.new_empty(0) if tensor is None else tensor for tensor in found]


def _forward(save, arguments, place):
    call = Call(arguments, Rows(arguments[0], "zxbcdt"), place=place)
    given, made = call.given, call.room(call.width)
    y = made if given.rmsnorm_weight is None else call.room(call.dim)
    keeps = save and not given.zxbcdt.is_cuda
    scanned = call.convolve(call.rows(call.matrix(call.convolved)))
    heads = call.heads(call.rows(y), y.shape[-1])
    final, *states = run(SSD, call.ssd(scanned), (heads, True, True if keeps else None), place)
    out = project(call.finish(y, made), given.outproj_weight, given.outproj_bias)
    return [out, final, *call.keeps(y, states[0] if keeps else None)] if save else [out, final]


def _allocate(save, arguments):
    call = Call(arguments, Parts(arguments[0]))
    given, weight = call.given, call.given.outproj_weight
    ssd = call.ssd(call.scanned(Parts(call.room(call.convolved))))
    _, final = SSD.results(_New, *ssd)
    out = call.room(call.width if weight is None else weight.shape[0])
    if not save:
        return [out, final]
    y = call.room(call.width if given.rmsnorm_weight is None else call.dim)
    return [out, final, *call.keeps(y, None if given.zxbcdt.is_cuda else SSD.saved(_New, *ssd))]


def unit_backward(call, by_unit, by_made):
    """Gradients by gate and value of the gated unit."""
    (gate, value), (by_gate, by_value) = call.gated(call.given.zxbcdt), call.gated(by_unit)
    by_out = by_made.view(*call.shape, call.width)[..., : call.unit // 2]
    torch.mul(silu(gate), by_out, out=by_value)
    by_gate.copy_(torch.ops.aten.silu_backward(by_out * value, gate))


def norm_backward(call, y, by_made, of, needed):
    """The gradients by the scan's result, a matrix, and by the norm's weight; that by the gate goes into `of`."""
    by_y, by_normed = call.matrix(call.dim), call.rows(by_made).rows(call.width - call.dim, call.dim)
    wanted = (call.rows(by_y).rows(0, call.dim), needed[6], None, of.rows(call.unit, call.dim), None)
    made = run_back(NORM, (*call.norm(y), by_normed, None), wanted, call.place)
    return by_y, made[0] if needed[6] else None


def _backward(needed, arguments, saved, gradients, place):
    (y, A, states), (by_out, by_state) = saved, gradients
    call = Call(arguments, Rows(arguments[0], "zxbcdt"), A if A.numel() > 0 else None, place)
    given, of = call.given, call.rows(torch.empty_like(arguments[0]))
    by_out, projection = matrix(by_out), (given.outproj_weight, given.outproj_bias)
    by_made = project_back(by_out, projection[0], lambda: call.matrix(call.width))
    if given.rmsnorm_weight is None:
        by_y, by_weight = by_made, None
    else:
        by_y, by_weight = norm_backward(call, y, by_made, of, needed)
    if call.unit:
        unit_backward(call, of.tensor, by_made)
    by_y = call.heads(call.rows(by_y), by_y.shape[-1])
    # nothing else of this size is needed while the scan's memory is
    del by_made
    by_projection = projection_gradients(by_out, lambda: call.projected(y), projection, needed[7:9])
    # computed again where the gradient by what is convolved is written in the end
    first = call.unit + call.dim
    at = (of, first) if are_aligned(of.tensor, first) else (call.rows(call.matrix(call.convolved)), 0)
    scanned, by_conv = call.convolve(*at), call.rows(call.matrix(call.convolved))
    by_x, by_B, by_C = call.scanned(by_conv)
    wanted = (by_x, call.step_sizes(of), needed[4], by_B, by_C, needed[5], call.gate(of), needed[3], None, needed[9])
    kept = (states if states.numel() > 0 else None,)
    made = run_back(SSD, (*call.ssd(scanned), *kept, by_y, by_state), wanted, place)
    by_A, by_D, by_dt_bias, by_initial = each(made, (needed[4], needed[5], needed[3], needed[9]))
    if by_A is not None and given.A_log:
        by_A = through_decays(by_A, call.A, given.A)
    by_convolved = by_conv.timed(0, call.convolved)
    by_filter = convolved_back(call.convolution(), by_convolved, call.input(of), given.conv1d_weight, needed[1:3], place)
    return of.tensor, *by_filter, by_dt_bias, by_A, by_D, by_weight, *by_projection, by_initial


_CALL = differentiable(MAMBA2, _forward, _backward, _allocate)
_DEFAULTS = tuple((name.split()[-1], default) for name, default in MAMBA2.options)


def mamba2_inner(zxbcdt, weights, initial_states=None, seq_idx=None, context=None, **options):
    """What a Mamba-2 layer does behind its first projection.

    Args:
        zxbcdt: (batch, seqlen, 2 unit + dim + convolved + nheads).
        weights: conv1d_weight (convolved, width) or (convolved, 1, width), conv1d_bias, dt_bias, A, D, rmsnorm_weight,
            outproj_weight (out, unit + dim) and outproj_bias; all but the first and A may be None. Without the norm's the scan
            is gated and not normed; without the projection's nothing is projected.
        initial_states: (batch, nheads, headdim, dstate).
        seq_idx: (batch, seqlen).
        context: of `statescan.distributed`, where zxbcdt and seq_idx are this rank's slices.
        options: activation, dt_low, dt_high, eps, headdim, ngroups, chunk_size, norm_before_gate; A_log says that A is the
            logarithm of what decays are the negative of.

    Returns:
        (batch, seqlen, out or unit + dim), and the final states, (batch, nheads, headdim, dstate).
    """
    values = tuple([options.get(name, default) for name, default in _DEFAULTS])
    tensors = (zxbcdt, *weights, initial_states, seq_idx)
    if context is None:
        return _CALL(tensors, values)
    from .mamba2_ranks import mamba2_inner_ranks

    return mamba2_inner_ranks(tensors, (*values, context.group.group_name))
