"""Mamba-3's recurrence, of single inputs and outputs (SISO), by `ssd`.

``h[t] = a h[t-1] + dt (1 - l) a v[t-1] k[t-1]' + dt l v[t] k[t]'``, ``y[t] = h[t] q[t]``, with ``a = exp(ADT)`` and
``l = sigmoid(Trap)``; q and k are turned by angles that add up over time, which is `turned_maps`. What step t + 1 adds of the
input of step t decays as if step t had added it. So the step size of t is ``dt[t] l[t] + dt[t+1] (1 - l[t+1])``, and the second
term is taken off y[t].
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import functions

# steps whose angles are summed at once
_SUMMED = 64


def _turned(x, angles):
    """Pairs of neighbours, turned by an angle each, if there is one."""
    a, b = x[..., : 2 * angles.shape[-1]].unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles.cos(), angles.sin()
    pairs = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([pairs, x[..., 2 * angles.shape[-1] :]], -1)


def _sums(rates, dt, bounds):
    """Sums of the angles of all steps before each of some, (batch, bounds, heads, angles)."""
    steps = pad(math.pi * rates.to(dt.dtype).tanh() * dt[..., None], (0, 0, 0, 0, 0, _SUMMED - dt.shape[1] % _SUMMED))
    steps = steps.unflatten(1, (-1, _SUMMED))
    sums = pad(steps.sum(2, dtype=torch.float64).cumsum(1), (0, 0, 0, 0, 1, 0))
    chunk, rest = bounds // _SUMMED, bounds % _SUMMED
    is_before = torch.arange(_SUMMED, device=bounds.device) < rest[:, None]
    return sums[:, chunk] + steps[:, chunk].where(is_before[..., None, None], 0).sum(2, dtype=torch.float64)


def _frames(rates, dt, angle, bounds):
    """Angles before the first step of each sequence less those that `turned_maps` has there, and angles after its last step."""
    if bounds is None:
        start, stop = _sums(rates, dt, torch.arange(2, device=dt.device) * dt.shape[1]).unbind(1)
    else:
        sums = _sums(rates, dt, bounds)[0]
        start, stop = sums[:-1], sums[1:]
    before = -start if angle is None else angle - start
    return [torch.remainder(t, 2 * math.pi).to(dt.dtype) for t in (before, before + stop)]


# axes by letters: batch, seqlen, heads, groups, width, values, angles, sequences
_SHAPES = {"V": "BLHP", "Q": "BLGN", "K": "BLGN", "ADT": "BHL", "DT": "BHL", "Trap": "BHL", "Q_bias": "HN", "K_bias": "HN"}
_SHAPES |= {"Angles": "BLHA", "D": "H", "Z": "BLHP"}
_STATES = {"Input_States[0]": "SHA", "Input_States[1]": "SHPN", "Input_States[2]": "SHN", "Input_States[3]": "SHP"}


def _check(given, states, sequences):
    """Refuses shapes that do not fit."""
    op, sizes = "mamba3_siso_combined", {"S": sequences}
    shapes = _SHAPES if states is None else _SHAPES | _STATES
    tensors = given if states is None else given | dict(zip(_STATES, states))
    for name, axes in shapes.items():
        tensor = tensors[name]
        if tensor is None:
            continue
        if tensor.dim() != len(axes):
            raise ValueError(f"{op}: `{name}` must have {len(axes)} axes, got {tuple(tensor.shape)}")
        expected = tuple(sizes.setdefault(axis, size) for axis, size in zip(axes, tensor.shape))
        if tensor.shape != expected:
            raise ValueError(f"{op}: `{name}` must have shape {expected}, got {tuple(tensor.shape)}")
    heads, groups, width, angles = (sizes[axis] for axis in "HGNA")
    if groups < 1 or heads % groups:
        raise ValueError(f"{op}: `Q` must have a number of groups that divides the {heads} heads of V, got {groups}")
    if 2 * angles > width:
        raise ValueError(f"{op}: `Angles` must have at most {width // 2} angles, half the width of Q, got {angles}")


def mamba3_siso_combined(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    ADT: Tensor,
    DT: Tensor,
    Trap: Tensor,
    Q_bias: Tensor,
    K_bias: Tensor,
    Angles: Tensor,
    D: Tensor | None = None,
    Z: Tensor | None = None,
    Input_States: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    chunk_size: int = 64,
    return_final_states: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Any:
    """Mamba-3's recurrence, with the name and the arguments of `mamba_ssm`.

    Args:
        Q, K: (batch, seqlen, groups, width).
        V: (batch, seqlen, heads, values). Its type is that of the products; `mamba_ssm` always takes bfloat16.
        ADT, DT: (batch, heads, seqlen): the logarithms of decays, and step sizes.
        Trap: (batch, heads, seqlen): how much of a step is this input's, and not the last one's, before the sigmoid.
        Q_bias, K_bias: (heads, width).
        Angles: (batch, seqlen, heads, angles), at most half as many as the width: rates, before the tanh.
        D: (heads,), skip.
        Z: as V, gate.
        Input_States: with an axis of sequences first the angles (heads, angles), the state (heads, values, width), and the last
            step's key (heads, width), which is turned, and value (heads, values).
        chunk_size: a hint; any sequence length goes with any.
        return_final_states: whether to return the states after the last step, too.
        cu_seqlens: (sequences + 1,), bounds of packed sequences in a single row.

    Returns:
        y, of V's shape and type; with `return_final_states` y and the four states.

    Examples:
        >>> q, k, v = torch.randn(2, 20, 1, 8), torch.randn(2, 20, 1, 8), torch.randn(2, 20, 4, 16)
        >>> steps, bias = torch.rand(2, 4, 20), torch.ones(4, 8)
        >>> y = mamba3_siso_combined(q, k, v, -steps, steps, torch.randn(2, 4, 20), bias, bias, torch.randn(2, 20, 4, 4))
        >>> y.shape
        torch.Size([2, 20, 4, 16])
    """
    seqlen, sequences = V.shape[1], V.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    maps = {"Q": Q, "K": K, "Q_bias": Q_bias, "K_bias": K_bias, "Angles": Angles}
    _check({"V": V, "ADT": ADT, "DT": DT, "Trap": Trap, "D": D, "Z": Z, **maps}, Input_States, sequences)
    if cu_seqlens is not None and V.shape[0] != 1:
        raise ValueError(f"mamba3_siso_combined: `cu_seqlens` must stand beside a batch of 1, got {V.shape[0]}")
    wide = torch.promote_types(V.dtype, torch.float32)
    dt, decay, own = (t.to(wide).transpose(1, 2) for t in (DT, ADT, Trap.to(wide).sigmoid()))
    angle, state, key, value = Input_States if Input_States is not None else (None,) * 4

    # a step adds a part of its input at once, `own`, and the next step adds the rest, `later`
    later = dt * (1 - own)
    after, entering, bounds = pad(later[:, 1:], (0, 0, 0, 1)), later[:, :1], None
    if cu_seqlens is not None:
        bounds = cu_seqlens.long()
        first, end, is_there = bounds[:-1], bounds[1:], bounds[1:] > bounds[:-1]
        after = after.masked_fill(torch.isin(torch.arange(1, seqlen + 1, device=V.device), end)[:, None], 0)
        entering = later[0, first.clamp(max=max(seqlen - 1, 0))][:, None] * is_there[:, None, None] if seqlen > 0 else entering
    turned, dots = functions.turned_maps(torch.stack([Q, K], 2).to(V.dtype), torch.stack([Q_bias, K_bias]), Angles, dt)
    q, k = turned.unbind(2)
    has_states = seqlen > 0 and (state is not None or return_final_states)
    if has_states:
        frame, angle_after = _frames(Angles, dt, angle, bounds)
    if has_states and state is not None:
        state = state + entering[:, 0, :, None, None] * value[..., None] * key[..., None, :]
        state = _turned(state, -frame[:, :, None])
    ones = torch.ones(V.shape[2], dtype=wide, device=V.device)
    steps = dt * own + after
    y, state = functions.ssd(V, steps, ones, k, q, chunk_size, initial_state=state, dt_a=decay, cu_seqlens=cu_seqlens)
    skip = -after * dots if D is None else torch.addcmul(D, after, dots, value=-1)
    y = functions.norm(y, z=Z, residual=V, residual_scale=skip[..., None], kind="none")
    if not return_final_states:
        return y
    kept = Input_States
    if kept is None:
        shapes = (Angles.shape[3:], (*V.shape[3:], *Q.shape[3:]), Q.shape[3:], V.shape[3:])
        kept = [V.new_zeros(sequences, V.shape[2], *shape) for shape in shapes]
    ends = kept
    if seqlen > 0:
        last = (slice(None), -1) if bounds is None else (0, (end - 1).clamp(min=0))
        ends = [angle_after, _turned(state, frame[:, :, None]), _turned(k[last], frame), V[last]]
        if bounds is not None:
            # a sequence without steps keeps what entered it
            ends = [torch.where(is_there.view(-1, *(1,) * (t.dim() - 1)), t, own) for t, own in zip(ends, kept)]
    return y, *(t.to(dtype) for t, dtype in zip(ends, (wide, wide, V.dtype, V.dtype)))


def mamba3_siso_step(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    ADT: Tensor,
    DT: Tensor,
    Trap: Tensor,
    Q_bias: Tensor,
    K_bias: Tensor,
    Angles: Tensor,
    D: Tensor | None = None,
    Z: Tensor | None = None,
    Input_States: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """`mamba3_siso_combined` of one step, without its axis of time; no state is changed.

    Returns:
        y, (batch, heads, values), and the four states after the step.

    Examples:
        >>> q, k, v, steps = torch.randn(2, 1, 8), torch.randn(2, 1, 8), torch.randn(2, 4, 16), torch.rand(2, 4)
        >>> bias, angles = torch.ones(4, 8), torch.randn(2, 4, 4)
        >>> states = tuple(torch.zeros(2, 4, *shape) for shape in ((4,), (16, 8), (8,), (16,)))
        >>> y, states = mamba3_siso_step(q, k, v, -steps, steps, steps, bias, bias, angles, Input_States=states)
        >>> y.shape, states[1].shape
        (torch.Size([2, 4, 16]), torch.Size([2, 4, 16, 8]))
    """
    steps = [t if t is None else t[:, None] for t in (Q, K, V, Angles, Z)]
    times = [t[..., None] for t in (ADT, DT, Trap)]
    arguments = (*steps[:3], *times, Q_bias, K_bias, steps[3], D, steps[4], Input_States)
    y, *states = mamba3_siso_combined(*arguments, return_final_states=True)
    return y[:, 0], states
