"""SSD in operations of PyTorch, where there is no kernel (float64 on CUDA, other devices): slower, with derivatives of any order.

Within a chunk a step's output is a sum over the steps before it, a product of matrices; a state goes from chunk to chunk.
"""

import functools
import warnings

import torch
from torch.nn.functional import pad, silu, softplus


@functools.cache
def warn(device):
    """Says once for each kind of device that a call has no kernel there."""
    warnings.warn(
        f"statescan: ssd has no kernel for this call on {device}; operations of PyTorch compute it, slower", stacklevel=4
    )


def ssd(
    x,
    dt,
    A,
    B,
    C,
    chunk_size,
    D=None,
    initial_state=None,
    *,
    z=None,
    dt_bias=None,
    dt_softplus=False,
    dt_limit=None,
    cu_seqlens=None,
    seq_idx=None,
):
    """`statescan.ssd`, for maps of (batch, seqlen, ngroups, dstate) and states of (sequences, nheads, dstate, headdim)."""
    if not torch.compiler.is_compiling():
        warn(x.device.type)
    wide = torch.promote_types(x.dtype, torch.float32)
    step = dt.to(wide)
    if dt_bias is not None:
        step = step + dt_bias[:, None]
    if dt_softplus:
        step = softplus(step)
    if dt_limit is not None:
        step = step.clamp(*dt_limit)
    if initial_state is None:
        sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        initial_state = x.new_zeros(sequences, x.shape[1], B.shape[-1], x.shape[-1], dtype=wide)
    inputs = x.to(wide) * step[..., None], (step * A[:, None]).to(wide), B.to(wide), C.to(wide)
    if cu_seqlens is None:
        y, state = _chunks(*inputs, initial_state.to(wide), seq_idx, chunk_size)
    else:
        y, state = _packed(*inputs, initial_state.to(wide), cu_seqlens, chunk_size)
    if D is not None:
        y = y + D.reshape(x.shape[1], 1, -1) * x
    if z is not None:
        y = y * silu(z.to(wide))
    return y.to(x.dtype), state


def _packed(u, decay, B, C, initial_state, cu_seqlens, chunk_size):
    """The sequences of one row, one after another."""
    lengths = cu_seqlens.diff().tolist()
    found = [
        _chunks(*parts, state[None], None, chunk_size)
        for *parts, state in zip(
            u.split(lengths, 2), decay.split(lengths, 2), B.split(lengths, 1), C.split(lengths, 1), initial_state
        )
    ]
    outputs, states = zip(*found)
    return torch.cat(outputs, 2), torch.cat(states)


def _chunks(u, decay, B, C, state, seq_idx, chunk_size):
    """y, with time before heads in memory, and the last state. `u` is the input times the step, `decay` the decay's logarithm."""
    if u.shape[2] == 0:
        return u, state
    heads = B.shape[2], u.shape[1] // B.shape[2]
    state, sequence = state.unflatten(1, heads), None
    chunks = [u.unflatten(1, heads).split(chunk_size, 3), decay.unflatten(1, heads).split(chunk_size, 3)]
    chunks += [B.transpose(1, 2).split(chunk_size, 2), C.transpose(1, 2).split(chunk_size, 2)]
    if seq_idx is not None:
        # sequences are numbered along each row
        sequence = pad((seq_idx[:, 1:] != seq_idx[:, :-1]).cumsum(1), (1, 0))
        before = sequence[:, :1]
        chunks.append(sequence.split(chunk_size, 1))
    outputs = []
    for u, decay, B, C, *number in zip(*chunks):
        steps = decay.shape[-1]
        lower = torch.ones(steps, steps, dtype=torch.bool, device=u.device).tril()
        # [t, s]: the sum of the logarithms over s + 1 .. t, by addition alone, which loses nothing where they are large
        between = decay[..., None].expand(*decay.shape, steps).masked_fill(~lower.tril(-1), 0).cumsum(-2)
        same = lower
        since, until = decay.cumsum(-1), between[..., -1:, :].squeeze(-2)
        if number:
            (sequence,) = number
            of_heads = (slice(None), None, None)
            same = lower & (sequence[:, :, None] == sequence[:, None, :])[of_heads]
            # weights of the state before in each step, of each step in the next state, and of the former state in the latter
            since = since.masked_fill((sequence != before)[of_heads], -torch.inf)
            until = until.masked_fill((sequence != sequence[:, -1:])[of_heads], -torch.inf)
            before = sequence[:, -1:]
        weights = (C @ B.transpose(-1, -2))[:, :, None] * between.masked_fill(~same, -torch.inf).exp()
        C, B = C[:, :, None], B[:, :, None]
        y = weights @ u + since.exp()[..., None] * (C @ state)
        outputs.append(y.permute(0, 3, 1, 2, 4))
        state = since[..., -1:, None].exp() * state + B.transpose(-1, -2) @ (until.exp()[..., None] * u)
    return torch.cat(outputs, 1).flatten(2, 3).transpose(1, 2), state.flatten(1, 2)
