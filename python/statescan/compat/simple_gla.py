"""Drop-in for linear attention with one decay a head of `fla` 0.6: simple GLA, retention and lightning attention, all by `ssd`.

``S[t] = exp(g[t]) S[t-1] + k[t] v[t]'``, ``o[t] = scale S[t]' q[t]``: keys are B, queries C, values x, and steps are the scale.
Fewer heads of queries and keys than of values are shared by neighbours.
"""

from typing import Any

import torch
from torch import Tensor

from .. import functions
from .fla import _refuse

__all__ = [
    "chunk_lightning_attn",
    "chunk_retention",
    "chunk_simple_gla",
    "fused_recurrent_lightning_attn",
    "fused_recurrent_retention",
    "fused_recurrent_simple_gla",
]


def _wide(tensor):
    """The type of decays: float32, or float64 where the tensor is."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _attention(name, q, k, v, decays, scale, initial_state, output_final_state, *, cu_seqlens, reverse=False, others):
    """All of them; `decays` are logarithms of heads at each step and of heads alone, or None."""
    g, g_gamma = decays
    # the old name of `state_v_first` is in use still
    v_first = others.pop("transpose_state_layout", False) or others.pop("state_v_first", False)
    _refuse(name, others)
    if initial_state is not None and not v_first:
        initial_state = initial_state.transpose(-1, -2)
    wide, steps = _wide(v), v.shape[:3]
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    if scale == 0:
        # steps of 0 would leave nothing in the states
        q, scale = q * 0, 1.0
    gamma = v.new_zeros((), dtype=wide) if g_gamma is None else g_gamma.to(wide)
    if g is None:
        g = gamma.expand(steps)
    elif g_gamma is not None:
        g = g + gamma
    # states are scaled by the steps, which is less work than to scale queries
    o, state = functions.ssd(
        v,
        v.new_full((), scale, dtype=wide).expand(steps),
        v.new_ones(v.shape[2], dtype=wide),
        k,
        q,
        initial_state=None if initial_state is None else initial_state * scale,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        dt_a=g,
    )
    if not output_final_state:
        return o, None
    state = state / scale
    return o, state if v_first else state.transpose(-1, -2)


def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Simple GLA.

    Args:
        q, k: (batch, seqlen, heads, width).
        v: (batch, seqlen, value_heads, value_width).
        g: (batch, seqlen, value_heads), the logarithms of decays.
        g_gamma: (value_heads,), logarithms of decays that do not vary with time; they are added where both are given.
        scale: a factor of q, `width ** -0.5` for None.
        initial_state: (batch, value_heads, width, value_width), the last two exchanged with `state_v_first`.
        cu_seqlens: (sequences + 1,), bounds of packed sequences in a single row; there is a state of each.

    Returns:
        o, of v's shape and type, and the final state, float32, or None without `output_final_state`.
    """
    others = kwargs | {"state_v_first": state_v_first, "cu_seqlens_cpu": cu_seqlens_cpu}
    arguments = (q, k, v, (g, g_gamma), scale, initial_state, output_final_state)
    return _attention("chunk_simple_gla", *arguments, cu_seqlens=cu_seqlens, others=others)


def fused_recurrent_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """`chunk_simple_gla`, which with `reverse` walks from the last step to the first."""
    arguments = (q, k, v, (g, g_gamma), scale, initial_state, output_final_state)
    options = {"cu_seqlens": cu_seqlens, "reverse": reverse, "others": kwargs | {"state_v_first": state_v_first}}
    return _attention("fused_recurrent_simple_gla", *arguments, **options)


def _retention(v):
    """Decays by heads of Retentive Networks."""
    return (1 - 2.0 ** (-5.0 - torch.arange(v.shape[2], dtype=_wide(v), device=v.device))).log()


def chunk_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Retention: `chunk_simple_gla` with decays ``1 - 2 ** (-5 - head)``."""
    arguments = (q, k, v, (None, _retention(v)), scale, initial_state, output_final_state)
    return _attention("chunk_retention", *arguments, cu_seqlens=cu_seqlens, others=kwargs)


def fused_recurrent_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """`chunk_retention`, which with `reverse` walks from the last step to the first."""
    arguments = (q, k, v, (None, _retention(v)), scale, initial_state, output_final_state)
    options = {"cu_seqlens": cu_seqlens, "reverse": reverse, "others": kwargs | {"state_v_first": state_v_first}}
    return _attention("fused_recurrent_retention", *arguments, **options)


def _lightning(v, layer_idx, num_layers):
    """Decays by heads of lightning attention in a layer."""
    heads = v.shape[2]
    return -(8 / heads * (1 - layer_idx / num_layers)) * torch.arange(heads, dtype=_wide(v), device=v.device)


def chunk_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Lightning attention: `chunk_simple_gla` with decays of heads that the layer's place in the model scales."""
    arguments = (q, k, v, (None, _lightning(v, layer_idx, num_layers)), scale, initial_state, output_final_state)
    return _attention("chunk_lightning_attn", *arguments, cu_seqlens=cu_seqlens, others=kwargs)


def fused_recurrent_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`chunk_lightning_attn`, which with `reverse` walks from the last step to the first."""
    arguments = (q, k, v, (None, _lightning(v, layer_idx, num_layers)), scale, initial_state, output_final_state)
    return _attention("fused_recurrent_lightning_attn", *arguments, cu_seqlens=cu_seqlens, reverse=reverse, others={})
