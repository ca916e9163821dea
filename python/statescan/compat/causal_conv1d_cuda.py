"""The compiled module of `causal_conv1d` 1.7. Gradients are those of this package's convolution, computed anew."""

from typing import Any

import torch
from torch import Tensor

from .. import functions
from ._shared import gradients


def causal_conv1d_fwd(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    out: Tensor,
    final_states_out: Tensor | None,
    silu_activation: bool,
) -> None:
    """`causal_conv1d_cuda.causal_conv1d_fwd`, which writes `out` and `final_states_out`."""
    y, states = _convolved(x, weight, bias, seq_idx, initial_states, silu_activation)
    out.copy_(y)
    if final_states_out is not None:
        final_states_out.copy_(states)


def _convolved(x, weight, bias, seq_idx, initial_states, silu_activation):
    options: dict[str, Any] = {"seq_idx": seq_idx, "initial_states": initial_states, "return_final_states": True}
    return functions.causal_conv1d(x, weight, bias, activation="silu" if silu_activation else None, **options)


@torch.enable_grad()
def causal_conv1d_bwd(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dout: Tensor,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    dfinal_states: Tensor | None,
    dx: Tensor,
    dweight: Tensor,
    dbias: Tensor | None,
    dinitial_states: Tensor | None,
    silu_activation: bool,
) -> None:
    """`causal_conv1d_cuda.causal_conv1d_bwd`, which writes gradients."""
    tensors = [None if t is None else t.detach().requires_grad_() for t in (x, weight, bias, initial_states)]
    y, states = _convolved(*tensors[:3], seq_idx, tensors[3], silu_activation)
    results, cotangents = [y], [dout]
    if dfinal_states is not None:
        results, cotangents = [y, states], [dout, dfinal_states]
    found = gradients(results, tensors, cotangents)
    with torch.no_grad():
        for place, gradient in zip((dx, dweight, dbias, dinitial_states), found):
            if place is not None and gradient is not None:
                place.copy_(gradient)


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    silu_activation: bool,
    cache_seqlens: Tensor | None,
    conv_state_indices: Tensor | None,
) -> None:
    """`causal_conv1d_cuda.causal_conv1d_update`, which writes `out` and changes the states."""
    options: dict[str, Any] = {"cache_seqlens": cache_seqlens, "conv_state_indices": conv_state_indices}
    activation = "silu" if silu_activation else None
    out.copy_(functions.causal_conv1d_update(x, conv_state, weight, bias, activation=activation, **options))
