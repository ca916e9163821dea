"""The convolution."""

from typing import Any

import torch
from torch import Tensor

from ..._types import Activation
from . import loops
from ._shared import wide


def _convolved(name, x, weight, bias, activation, before, **options):
    if activation not in (None, "silu", "swish"):
        raise ValueError(f'{name}: `activation` must be None, "silu" or "swish", got {activation!r}')
    options |= {"activation": activation, "initial_states": before, "return_final_states": True}
    return loops.causal_conv1d(x, weight, bias, **options)


def causal_conv1d_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: Activation = None,
    seq_idx: Tensor | None = None,
) -> Any:
    """`causal_conv1d.causal_conv1d_fn`, with its arguments in another order."""
    inputs, taps, bias, before = wide(x, weight, bias, initial_states)
    y, states = _convolved("causal_conv1d_ref", inputs, taps, bias, activation, before, seq_idx=seq_idx)
    if not return_final_states:
        return y.to(x.dtype)
    states = states.to(x.dtype)
    return y.to(x.dtype), states if final_states_out is None else final_states_out.copy_(states)


def causal_conv1d_update_ref(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Activation = None,
    cache_seqlens: Tensor | None = None,
) -> Tensor:
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
    y = _convolved("causal_conv1d_update_ref", inputs, taps, bias, activation, before)[0].to(x.dtype)
    with torch.no_grad():
        conv_state.copy_(after)
    return y[..., 0] if x.dim() == 2 else y


def causal_conv1d_varlen_states_ref(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """`causal_conv1d.causal_conv1d_varlen.causal_conv1d_varlen_states`."""
    bounds = cu_seqlens.tolist()
    states = x.new_zeros(len(bounds) - 1, x.shape[1], state_len)
    for state, start, end in zip(states, bounds, bounds[1:]):
        count = min(end - start, state_len)
        state[:, state_len - count :] = x[end - count : end].T
    return states
