"""Drop-in for `causal_conv1d` 1.7."""

from typing import Any

import torch
from torch import Tensor

from .. import functions
from .._types import Activation, Context

__all__ = ["causal_conv1d_fn", "causal_conv1d_update", "causal_conv1d_varlen_states"]


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: Activation = None,
    *,
    cu_seq_lens_q: Tensor | None = None,
    context: Context | None = None,
) -> Any:
    """The convolution; shapes as in `statescan.causal_conv1d`.

    `final_states_out`, a PyTorch tensor of (batch, dim, width - 1) and any real type, receives the final states and is returned
    in their place. It is left alone without `return_final_states`. The origin has neither
    `cu_seq_lens_q`, the bounds of packed rows, which models of `transformers` hand on where a signature names them, nor
    `context`, that of `statescan.distributed`.
    """
    if seq_idx is None and cu_seq_lens_q is not None:
        steps = torch.arange(x.shape[-1], device=x.device)
        seq_idx = torch.searchsorted(cu_seq_lens_q[1:].to(steps.dtype), steps, right=True).to(torch.int32)[None]
    if initial_states is not None and seq_idx is not None:
        # they are the inputs before the first step, and none of a sequence that starts behind padding
        initial_states = torch.where(seq_idx[:, :1, None] < 0, 0, initial_states)
    y, final_states = functions.causal_conv1d(
        x,
        weight,
        bias,
        activation=activation,
        initial_states=initial_states,
        seq_idx=seq_idx,
        return_final_states=True,
        context=context,
    )
    if not return_final_states:
        return y
    return y, final_states if final_states_out is None else final_states_out.copy_(final_states)


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Activation = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """One or a few steps; shapes as in `statescan.causal_conv1d_update`."""
    return functions.causal_conv1d_update(
        x,
        conv_state,
        weight,
        bias,
        activation=activation,
        cache_seqlens=cache_seqlens,
        conv_state_indices=conv_state_indices,
    )


def causal_conv1d_varlen_states(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """The last inputs of packed sequences, with which their convolutions go on.

    Args:
        x: (seqlen, dim), the sequences one behind the other.
        cu_seqlens: (sequences + 1,), their bounds.
        state_len: inputs that are kept of each.

    Returns:
        (sequences, dim, state_len), the latest last; zeros before the first step of a sequence.
    """
    bounds = cu_seqlens.long()
    steps = bounds[1:, None] + torch.arange(-state_len, 0, device=x.device)
    inside = (steps >= bounds[:-1, None])[..., None]
    return torch.where(inside, x[steps.clamp(min=0, max=max(x.shape[0] - 1, 0))], 0).transpose(1, 2)
