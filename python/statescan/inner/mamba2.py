"""Mamba-2: convolution, SSD, gated norm, and the gated unit beside them."""

from dataclasses import dataclass

import torch
from torch.nn.functional import silu

from ..operations import CAUSAL_CONV1D, NORM, SSD
from ..torch import _New
from .shared import Inner, differentiable, run, run_back

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
        "initial_states?",
        "seq_idx?",
    ),
    8,
    (
        ("str? activation", "silu"),
        ("float? dt_low", None),
        ("float? dt_high", None),
        ("float eps", 1e-6),
        ("int headdim", 64),
        ("int ngroups", 1),
        ("int chunk_size", 128),
        ("bool norm_before_gate", False),
    ),
    ("normed", "states"),
)


@dataclass(frozen=True)
class _Call:
    """The arguments of a call by their names, and how channels divide."""

    zxbcdt: torch.Tensor
    conv1d_weight: torch.Tensor
    conv1d_bias: torch.Tensor | None
    dt_bias: torch.Tensor | None
    A: torch.Tensor
    D: torch.Tensor | None
    rmsnorm_weight: torch.Tensor | None
    initial_states: torch.Tensor | None
    seq_idx: torch.Tensor | None
    activation: str | None
    dt_low: float | None
    dt_high: float | None
    eps: float
    headdim: int
    ngroups: int
    chunk_size: int
    norm_before_gate: bool

    @property
    def dim(self):
        return self.A.shape[0] * self.headdim

    @property
    def convolved(self):
        return self.conv1d_weight.shape[0]

    @property
    def unit(self):
        """Channels of the gated unit beside the scan, gate and value."""
        return self.zxbcdt.shape[-1] - self.dim - self.convolved - self.A.shape[0]

    def split(self, tensor):
        """The gated unit, the gate, the convolution's input and the step sizes of a tensor like `zxbcdt`."""
        return tensor.split([self.unit, self.dim, self.convolved, self.A.shape[0]], dim=-1)

    def heads(self, tensor):
        """(batch, nheads, seqlen, headdim) of (batch, seqlen, dim)."""
        return tensor.unflatten(-1, (-1, self.headdim)).transpose(1, 2)

    def scanned(self, tensor):
        """x, B and C of what the convolution gives."""
        maps = (self.convolved - self.dim) // 2
        x, B, C = tensor.split([self.dim, maps, maps], dim=-1)
        return self.heads(x), *(m.unflatten(-1, (self.ngroups, -1)) for m in (B, C))

    def room(self, channels):
        return self.zxbcdt.new_empty(*self.zxbcdt.shape[:2], channels)

    def convolution(self, xBC):
        """Arguments of the convolution."""
        return (xBC.transpose(1, 2), self.conv1d_weight, self.conv1d_bias, None, None, self.seq_idx, self.activation, False)

    def ssd(self, scanned, z, dt):
        """Arguments of the scan; the gate goes with it where no norm follows."""
        x, B, C = scanned
        z = self.heads(z) if self.rmsnorm_weight is None else None
        tensors = (
            x,
            dt.transpose(1, 2),
            self.A,
            B,
            C,
            self.D,
            z,
            self.dt_bias,
            None,
            self.initial_states,
            None,
            self.seq_idx,
            None,
        )
        return (*tensors, True, self.dt_low, self.dt_high, self.chunk_size, False)

    def norm(self, y, z):
        """Arguments of the norm."""
        return (y, self.rmsnorm_weight, None, z, None, "rms", self.eps, self.ngroups, self.norm_before_gate)

    def convolve(self, xBC, place):
        to = self.room(self.convolved)
        run(CAUSAL_CONV1D, self.convolution(xBC), (to.transpose(1, 2), None), place)
        return self.scanned(to)


def _forward(save, arguments, place):
    call = _Call(*arguments)
    unit, z, xBC, dt = call.split(call.zxbcdt)
    out = call.room(call.unit // 2 + call.dim)
    beside, normed = out.split([call.unit // 2, call.dim], dim=-1)
    y = normed if call.rmsnorm_weight is None else call.room(call.dim)
    keeps = save and not call.zxbcdt.is_cuda
    made = run(SSD, call.ssd(call.convolve(xBC, place), z, dt), (call.heads(y), True, True if keeps else None), place)
    if call.rmsnorm_weight is not None:
        run(NORM, call.norm(y, z), (normed, None), place)
    if call.unit:
        gate, value = unit.chunk(2, dim=-1)
        torch.mul(silu(gate), value, out=beside)
    if not save:
        return [out, made[0]]
    nothing = call.zxbcdt.new_empty(0)
    return [out, made[0], nothing if y is normed else y, made[1] if keeps else nothing]


def _allocate(save, arguments):
    call = _Call(*arguments)
    _, z, xBC, dt = call.split(call.zxbcdt)
    ssd = call.ssd(call.scanned(xBC), z, dt)
    _, states = SSD.results(_New, *ssd)
    results = [call.room(call.unit // 2 + call.dim), states]
    if not save:
        return results
    nothing = call.zxbcdt.new_empty(0)
    normed = nothing if call.rmsnorm_weight is None else call.room(call.dim)
    return [*results, normed, nothing if call.zxbcdt.is_cuda else SSD.saved(_New, *ssd)]


def _unit_backward(unit, by_unit, by_out):
    """Gradients by gate and value of the gated unit."""
    (gate, value), (by_gate, by_value) = unit.chunk(2, dim=-1), by_unit.chunk(2, dim=-1)
    torch.mul(silu(gate), by_out, out=by_value)
    by_gate.copy_(torch.ops.aten.silu_backward(by_out * value, gate))


def _backward(needed, arguments, saved, gradients, place):
    call, (y, states), (by_out, by_state) = _Call(*arguments), saved, gradients
    unit, z, xBC, dt = call.split(call.zxbcdt)
    by_zxbcdt, by_conv = torch.empty_like(call.zxbcdt), call.room(call.convolved)
    by_unit, by_z, by_xBC, by_dt = call.split(by_zxbcdt)
    if by_out is None:
        by_out = call.room(call.unit // 2 + call.dim).zero_()
    by_beside, by_y = by_out.split([call.unit // 2, call.dim], dim=-1)
    by_weight, of_gate = None, None
    if call.rmsnorm_weight is None:
        of_gate = call.heads(by_z)
    else:
        by_normed, by_y = by_y, call.room(call.dim)
        wanted = (by_y, needed[6] or None, None, by_z, None)
        made = run_back(NORM, (*call.norm(y, z), by_normed, None), wanted, place)
        by_weight = made[0] if needed[6] else None
    scanned = call.convolve(xBC, place)
    by_x, by_B, by_C = call.scanned(by_conv)
    wanted = (by_x, by_dt.transpose(1, 2), needed[4], by_B, by_C, needed[5], of_gate, needed[3], None, needed[7])
    kept = (states if states.numel() > 0 else None,)
    made = iter(run_back(SSD, (*call.ssd(scanned, z, dt), *kept, call.heads(by_y), by_state), wanted, place))
    by_A, by_D, by_dt_bias, by_initial = (next(made) if needed[at] else None for at in (4, 5, 3, 7))
    wanted = (by_xBC.transpose(1, 2), needed[1], needed[2], None)
    made = iter(run_back(CAUSAL_CONV1D, (*call.convolution(xBC), by_conv.transpose(1, 2), None), wanted, place))
    by_filter, by_bias = (next(made) if needed[at] else None for at in (1, 2))
    if call.unit:
        _unit_backward(unit, by_unit, by_beside)
    return by_zxbcdt, by_filter, by_bias, by_dt_bias, by_A, by_D, by_weight, by_initial


_CALL = differentiable(MAMBA2, _forward, _backward, _allocate)


def mamba2_inner(zxbcdt, weights, initial_states=None, seq_idx=None, **options):
    """What a Mamba-2 layer does between its projections.

    Args:
        zxbcdt: (batch, seqlen, 2 unit + dim + convolved + nheads).
        weights: conv1d_weight (convolved, width), conv1d_bias, dt_bias, A, D and rmsnorm_weight; all but the first and A may be
            None. Without the last one the scan is gated and not normed.
        initial_states: (batch, nheads, dstate, headdim).
        seq_idx: (batch, seqlen).
        options: activation, dt_low, dt_high, eps, headdim, ngroups, chunk_size, norm_before_gate.

    Returns:
        (batch, seqlen, unit + dim), and the final states, (batch, nheads, dstate, headdim).
    """
    values = tuple(options.get(name.split()[-1], default) for name, default in MAMBA2.options)
    return _CALL((zxbcdt, *weights, initial_states, seq_idx), values)
