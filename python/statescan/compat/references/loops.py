"""The operations as plain loops over time in PyTorch, with the signatures of `statescan` and PyTorch's own gradients, of any
order. They compute in the type of their tensors."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from ..._types import Activation, Discretization, Limits


def recurrence(discretization: Any, delta: Any, deltaA: Any, A: Any) -> Any:
    """Abar and Bbar for steps that already have the axes of A."""
    decay, own = deltaA * A, delta * A
    if discretization == "bilinear":
        return (1 + decay / 2) / (1 - decay / 2), delta / (1 - own / 2)
    gains = {
        "mamba": lambda: delta,
        "dirac": lambda: torch.ones_like(delta),
        "zoh": lambda: delta * torch.where(own == 0, 1, torch.expm1(own) / torch.where(own == 0, 1, own)),
    }
    if discretization not in gains:
        raise ValueError(f'`discretization` must be "mamba", "zoh", "bilinear" or "dirac", got {discretization!r}')
    return torch.exp(decay), gains[discretization]()


def pieces(batch: Any, seqlen: Any, cu_seqlens: Any, seq_idx: Any) -> Any:
    """(row, start, end, state before, state after) of each sequence; a state is the number of a row of states, or None."""
    if cu_seqlens is not None:
        bounds = cu_seqlens.tolist()
        return [(0, start, end, i, i) for i, (start, end) in enumerate(zip(bounds, bounds[1:]))]
    found = []
    for row, values in enumerate(seq_idx.tolist()):
        starts = [t for t in range(seqlen) if t == 0 or values[t] != values[t - 1]] + [seqlen]
        for start, end in zip(starts, starts[1:]):
            found.append((row, start, end, row if start == 0 else None, row if end == seqlen else None))
    return found


def by_pieces(
    scan: Any,
    batch: Any,
    seqlen: Any,
    states: Any,
    zero: Any,
    *,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
    seq_idx: Tensor | None = None,
) -> Any:
    """Puts results of `scan(row, start, end, state)` together: y along time (the last axis), and the states. A row may be all."""
    if cu_seqlens is None and seq_idx is None:
        return scan(slice(None), 0, seqlen, zero.expand(batch, *zero.shape) if states is None else states)
    rows, last = {}, {}
    for row, start, end, before, after in pieces(batch, seqlen, cu_seqlens, seq_idx):
        if reverse:
            before, after = after, before
        state = zero if before is None or states is None else states[before]
        if start < end:
            y, state = scan(row, start, end, state)
            rows.setdefault(row, []).append(y)
        if after is not None:
            last[after] = state
    return torch.stack([torch.cat(rows[row], -1) for row in range(batch)]), torch.stack([last[i] for i in sorted(last)])


def steps(start: Any, end: Any, reverse: Any) -> Any:
    """The times of a sequence in the order of the scan."""
    return range(end - 1, start - 1, -1) if reverse else range(start, end)


def in_time(values: Any, reverse: Any, empty: Any) -> Any:
    """Values of steps along time; `empty` where there are none."""
    return torch.stack(values[::-1] if reverse else values, -1) if values else empty


def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: Limits = None,
    deltaA: Tensor | None = None,
    discretization: Discretization = "mamba",
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
    seq_idx: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    batch, dim, seqlen = x.shape
    if dt_bias is not None:
        dt = dt + dt_bias[:, None]
    if dt_softplus:
        # float64 tells softplus from its argument up to 37
        dt = softplus(dt, threshold=40)
    if dt_limit is not None:
        dt = dt.clamp(*dt_limit)
    deltaA = dt if deltaA is None else deltaA

    def of_channels(M):
        """(batch, dim, dstate, seqlen)"""
        if M.dim() == 2:
            return M[None, :, :, None].expand(batch, *M.shape, seqlen)
        groups = M[:, None] if M.dim() == 3 else M
        return groups.repeat_interleave(dim // groups.shape[1], 1)

    B, C = of_channels(B), of_channels(C)

    def scan(row, start, end, h):
        y = []
        for t in steps(start, end, reverse):
            decay, gain = recurrence(discretization, dt[row, :, t, None], deltaA[row, :, t, None], A)
            h = decay * h + gain * B[row, :, :, t] * x[row, :, t, None]
            out = (C[row, :, :, t] * h).sum(-1)
            y.append(2 * out.real if A.is_complex() else out)
        return in_time(y, reverse, x[row]), h

    zero = torch.zeros_like(A)
    y, state = by_pieces(scan, batch, seqlen, initial_state, zero, reverse=reverse, cu_seqlens=cu_seqlens, seq_idx=seq_idx)
    if D is not None:
        y = y + D[:, None] * x
    return y if z is None else y * silu(z), state


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int = 128,
    D: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_a: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    *_, nheads, headdim = x.shape

    def channels(v):
        """(batch, seqlen, nheads, headdim) as (batch, nheads * headdim, seqlen)"""
        return v.flatten(2).transpose(1, 2)

    def steps(v):
        """(batch, seqlen, nheads) as (batch, nheads * headdim, seqlen)"""
        return v.repeat_interleave(headdim, 2).transpose(1, 2)

    def expanded(v):
        """(nheads, ..) as (nheads * headdim, ..)"""
        return v.repeat_interleave(headdim, 0)

    def groups(M):
        return (M[:, :, None] if M.dim() == 3 else M).permute(0, 2, 3, 1)

    if initial_state is not None:
        initial_state = initial_state.flatten(-3, -2)
    y, state = selective_scan(
        channels(x),
        steps(dt),
        expanded(A)[:, None].expand(-1, B.shape[-1]),
        groups(B),
        groups(C),
        None if D is None else D.flatten() if D.dim() == 2 else expanded(D),
        initial_state,
        z=None if z is None else channels(z),
        dt_bias=None if dt_bias is None else expanded(dt_bias),
        deltaA=None if dt_a is None else steps(dt_a),
        **options,
    )
    return y.transpose(1, 2).unflatten(2, (nheads, headdim)), state.unflatten(-2, (nheads, headdim))


def simplified(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    deltaA: Tensor | None = None,
    discretization: Discretization = "bilinear",
    conj_sym: bool = True,
    *,
    real: bool,
    initial_state: Tensor | None = None,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
    seq_idx: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    batch, _, seqlen = u.shape
    A, B, C = A.flatten() + 0j, B + 0j, C + 0j

    def varying(steps):
        return steps[None, :, None].expand(batch, -1, seqlen) if steps.dim() == 1 else steps

    delta = varying(delta)
    deltaA = delta if deltaA is None else varying(deltaA)

    def scan(row, start, end, state):
        y = []
        for t in steps(start, end, reverse):
            decay, gain = recurrence(discretization, delta[row, :, t], deltaA[row, :, t], A)
            state = decay * state + gain * ((u[row, :, t] + 0j) @ B.T)
            y.append(state @ C.T)
        return in_time(y, reverse, u[row] + 0j), state

    zero = torch.zeros_like(A)
    y, state = by_pieces(scan, batch, seqlen, initial_state, zero, reverse=reverse, cu_seqlens=cu_seqlens, seq_idx=seq_idx)
    if real:
        y = (2 if conj_sym else 1) * y.real + D[:, None] * (u.real if u.is_complex() else u)
    return y, state


def simplified_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    deltaA: Tensor | None = None,
    return_last_state: bool = False,
    discretization: Discretization = "bilinear",
    **options: Any,
) -> Any:
    y, state = simplified(u, delta, A, B, C, None, deltaA, discretization, real=False, **options)
    return (y, state) if return_last_state else y


def s5_inner_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    deltaA: Tensor | None = None,
    discretization: Discretization = "bilinear",
    conj_sym: bool = True,
    *,
    return_last_state: bool = False,
    **options: Any,
) -> Any:
    y, state = simplified(u, delta, A, B, C, D, deltaA, discretization, conj_sym, real=True, **options)
    return (y, state) if return_last_state else y


def linear_scan(a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, reverse: bool = False) -> tuple[Tensor, Tensor]:
    h = torch.zeros_like(b[..., 0] * a[..., 0]) if initial_state is None else initial_state + 0 * a[..., 0]
    states = []
    for t in steps(0, b.shape[-1], reverse):
        h = a[..., t] * h + b[..., t]
        states.append(h)
    return in_time(states, reverse, b), h


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    return_final_states: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Any:
    batch, dim, seqlen = x.shape
    width = weight.shape[1]

    def scan(row, start, end, before):
        past = x[row, :, start:end]
        padded = torch.cat([before, past.flip(-1) if reverse else past], -1)
        taps = [weight[:, k, None] * padded[..., k : k + end - start] for k in range(width)]
        y = sum(taps) + (0 if bias is None else bias[:, None])
        return y.flip(-1) if reverse else y, padded[..., padded.shape[-1] - width + 1 :]

    zero = x.new_zeros(dim, width - 1)
    y, last = by_pieces(scan, batch, seqlen, initial_states, zero, reverse=reverse, cu_seqlens=cu_seqlens, seq_idx=seq_idx)
    if activation is not None:
        y = silu(y)
    if seq_idx is not None:
        # padding
        y = y.masked_fill((seq_idx < 0)[:, None], 0)
    return (y, last) if return_final_states else y


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    qk_l2norm: bool = False,
    lower_bound: float | None = None,
    beta_sigmoid: bool = False,
    allow_neg_eigval: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
    seq_idx: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    if qk_l2norm:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    group = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(group, 2) for x in (q, k))
    if g is not None and A_log is not None:
        g = g if dt_bias is None else g + dt_bias
        rate = A_log.exp().reshape(-1, *[1] * (g.dim() - 3))
        g = -rate * softplus(g, threshold=40) if lower_bound is None else lower_bound * torch.sigmoid(rate * g)
    decay = torch.ones_like(k) if g is None else (g if g.dim() == 4 else g[..., None]).exp().expand_as(k)
    if beta is None:
        beta = torch.ones_like(v[..., 0])
    elif beta_sigmoid:
        beta = torch.sigmoid(beta) * (2 if allow_neg_eigval else 1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale

    def scan(row, start, end, state):
        found = []
        for t in steps(start, end, reverse):
            state = state * decay[row, t, :, :, None]
            written = beta[row, t, :, None] * (v[row, t] - torch.einsum("...np,...n->...p", state, k[row, t]))
            state = state + k[row, t, :, :, None] * written[..., None, :]
            found.append(scale * torch.einsum("...np,...n->...p", state, q[row, t]))
        return in_time(found, reverse, v[row].movedim(-3, -1)), state

    zero = v.new_zeros(v.shape[2], q.shape[-1], v.shape[-1])
    packed = {"reverse": reverse, "cu_seqlens": cu_seqlens, "seq_idx": seq_idx}
    y, state = by_pieces(scan, *v.shape[:2], initial_state, zero, **packed)
    return y.movedim(-1, 1), state


def turned_maps(maps: Tensor, bias: Tensor, rate: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """As `statescan.turned_maps`."""
    of_heads = maps.repeat_interleave(bias.shape[1] // maps.shape[3], 3) + bias
    angles = (torch.pi * rate.tanh() * dt[..., None]).cumsum(1)[:, :, None]
    cos, sin = angles.cos(), angles.sin()
    turned, others = of_heads[..., : 2 * rate.shape[3]], of_heads[..., 2 * rate.shape[3] :]
    first, second = turned[..., ::2], turned[..., 1::2]
    pairs = torch.stack((first * cos - second * sin, first * sin + second * cos), -1).flatten(-2)
    return torch.cat((pairs, others), -1), of_heads.prod(2).sum(-1)
