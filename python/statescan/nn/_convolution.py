"""The convolution of a layer: by the operation where its module is plain, by the module as it stands otherwise."""

import torch
from torch import nn
from torch.nn.functional import silu

from .. import functions
from ._plain import plain_filters


def convolve(layer, x, before=None, seq_idx=None, cu_seqlens=None, context=None):
    """The convolution with its activation; arguments and result as in `statescan.causal_conv1d`, `before` as `initial_states`."""
    plain = plain_filters(layer.conv1d, layer.d_conv)
    if plain is not None:
        (filters, bias), packing = plain, {"seq_idx": seq_idx, "cu_seqlens": cu_seqlens, "context": context}
        return functions.causal_conv1d(x, filters.squeeze(1), bias, activation="silu", initial_states=before, **packing)
    if context is not None:
        before = _halo(layer, x, seq_idx, context)
        if x.shape[-1] == 0:
            # no step sees the halo, and the other ranks wait for this one's part in the exchange of gradients
            x, before = x + before, None
    if seq_idx is None and cu_seqlens is None and before is None and x.shape[-1] > 0:
        return silu(_call(layer, x))
    return silu(_call_on_sequences(layer, x, before, seq_idx, cu_seqlens))


def convolve_step(layer, x, conv_state):
    """The convolution with its activation on one step, (batch, channels), whose inputs the state takes in."""
    plain = plain_filters(layer.conv1d, layer.d_conv)
    if plain is not None:
        filters, bias = plain
        return functions.causal_conv1d_update(x, conv_state, filters.squeeze(1), bias, activation="silu")
    seen = torch.cat([conv_state.to(x.dtype), x[..., None]], dim=-1)
    conv_state.copy_(seen[..., 1:])
    return silu(_call(layer, seen)[..., -1])


def _call(layer, x):
    """The module on (batch, channels, seqlen), without what it gives behind the last step."""
    module = layer.conv1d
    if isinstance(module, nn.Conv1d) and type(module).forward is nn.Conv1d.forward:
        reach = module.dilation[0] * (module.kernel_size[0] - 1)
        padded = module.padding == (reach,) and module.padding_mode == "zeros"
        if not padded or module.stride[0] != 1 or reach >= layer.d_conv:
            kind, steps = type(layer).__name__, f"`d_conv`, {layer.d_conv}, steps at most"
            raise ValueError(f"{kind}: `conv1d` must pad with the zeros before a row and see {steps}, got {module}")
    return module(x)[..., : x.shape[-1]]


def _call_on_sequences(layer, x, before, seq_idx, cu_seqlens):
    """The module on packed sequences: they are put apart by what came before each of them, or by as many zeros."""
    batch, channels, seqlen = x.shape
    gap, steps = layer.d_conv - 1, torch.arange(seqlen, device=x.device)
    if cu_seqlens is not None:
        # numbers of sequences, which may be empty
        number = torch.searchsorted(cu_seqlens[1:].to(steps.dtype).contiguous(), steps, right=True).expand(batch, seqlen)
        count = cu_seqlens.shape[0] - 1
    elif seq_idx is not None:
        number = nn.functional.pad((seq_idx[:, 1:] != seq_idx[:, :-1]).cumsum(1), (1, 0))[:, :seqlen]
        count = int(number.max()) + 1 if number.numel() > 0 else 1
    else:
        number, count = steps.new_zeros(batch, seqlen), 1
    place = (steps + gap * (number + 1))[:, None].expand(batch, channels, seqlen)
    apart = x.new_zeros(batch, channels, seqlen + gap * count).scatter(2, place, x)
    if before is not None:
        starts = x.new_zeros(1, dtype=steps.dtype) if cu_seqlens is None else cu_seqlens[:-1].to(steps.dtype)
        where = (starts + gap * torch.arange(len(starts), device=x.device))[:, None] + torch.arange(gap, device=x.device)
        # one row holds the sequences of `cu_seqlens`, and rows hold one first sequence each otherwise
        given = before.to(x.dtype) if cu_seqlens is None else before.to(x.dtype).transpose(0, 1).flatten(1)[None]
        apart = apart.scatter(2, where.flatten().expand(batch, channels, -1), given)
    y = _call(layer, apart).gather(2, place)
    return y if seq_idx is None else y.masked_fill((seq_idx < 0)[:, None], 0)


def _halo(layer, x, seq_idx, context):
    """The inputs of the ranks before this one that its first step sees, (batch, channels, d_conv - 1). Filters of a single one
    bring them here."""
    filters = torch.eye(layer.d_conv, dtype=x.dtype, device=x.device)[:-1]
    brought = [
        functions.causal_conv1d(x, one.expand(x.shape[1], -1), seq_idx=seq_idx, context=context)[..., :1] for one in filters
    ]
    return torch.cat(brought, dim=-1)
