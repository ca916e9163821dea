"""The convolution."""

import torch
from torch.nn.functional import pad, silu

from .shared import wide


def _taps(x, weight, bias, mask=None):
    """The convolution of x, (batch, dim, width - 1 + seqlen); `mask` says which inputs count, (batch, width, seqlen)."""
    width, seqlen = weight.shape[1], x.shape[-1] - weight.shape[1] + 1
    y = x.new_zeros(*x.shape[:2], seqlen) if bias is None else bias[:, None].expand(*x.shape[:2], seqlen)
    for tap in range(width):
        part = x[..., tap : tap + seqlen] * weight[:, tap, None]
        y = y + (part if mask is None else torch.where(mask[:, tap, None], part, 0))
    return y


def _activated(name, y, activation):
    if activation not in (None, "silu", "swish"):
        raise ValueError(f'{name}: `activation` must be None, "silu" or "swish", got {activation!r}')
    return y if activation is None else silu(y)


def causal_conv1d_ref(
    x,
    weight,
    bias=None,
    initial_states=None,
    return_final_states=False,
    final_states_out=None,
    activation=None,
    seq_idx=None,
):
    """`causal_conv1d.causal_conv1d_fn`, with its arguments in another order."""
    inputs, taps, bias, before = wide(x, weight, bias, initial_states)
    halo = weight.shape[1] - 1
    inputs = pad(inputs, (halo, 0)) if before is None else torch.cat([before, inputs], -1)
    mask = None
    if seq_idx is not None:
        # steps before the first belong to its sequence, or to none
        first = seq_idx[:, :1].expand(-1, halo)
        index = torch.cat([first if before is not None else torch.full_like(first, -1), seq_idx], -1)
        mask = torch.stack([index[:, tap : tap + x.shape[-1]] == seq_idx for tap in range(halo + 1)], 1)
    y = _activated("causal_conv1d_ref", _taps(inputs, taps, bias, mask), activation)
    if seq_idx is not None:
        y = y.masked_fill((seq_idx < 0)[:, None], 0)
    if not return_final_states:
        return y.to(x.dtype)
    states = inputs[..., inputs.shape[-1] - halo :].to(x.dtype)
    return y.to(x.dtype), states if final_states_out is None else final_states_out.copy_(states)


def causal_conv1d_update_ref(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None):
    """`causal_conv1d.causal_conv1d_update`; the state is changed in place."""
    new = x[..., None] if x.dim() == 2 else x
    inputs, taps, bias, state = wide(new, weight, bias, conv_state)
    halo, length, steps = weight.shape[1] - 1, conv_state.shape[-1], new.shape[-1]
    if cache_seqlens is None:
        read = slice(length - halo, None)
        before, after = state[..., read], torch.cat([state, inputs], -1)[..., steps:]
    else:
        now = cache_seqlens.long()[:, None]
        rows = torch.arange(len(new), device=x.device)[:, None]
        read = (now + torch.arange(-halo, 0, device=x.device)) % length
        written = (now + torch.arange(steps, device=x.device)) % length
        before, after = state[rows, :, read].transpose(1, 2), state.clone()
        after[rows, :, written] = inputs.transpose(1, 2)
    y = _activated("causal_conv1d_update_ref", _taps(torch.cat([before, inputs], -1), taps, bias), activation).to(x.dtype)
    with torch.no_grad():
        conv_state.copy_(after)
    return y[..., 0] if x.dim() == 2 else y


def causal_conv1d_varlen_states_ref(x, cu_seqlens, state_len):
    """`causal_conv1d.causal_conv1d_varlen.causal_conv1d_varlen_states`."""
    bounds = cu_seqlens.tolist()
    states = x.new_zeros(len(bounds) - 1, x.shape[1], state_len)
    for state, start, end in zip(states, bounds, bounds[1:]):
        count = min(end - start, state_len)
        state[:, state_len - count :] = x[end - count : end].T
    return states
