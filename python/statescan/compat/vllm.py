"""The functions of vLLM 0.33 for layers with a state, by their names and signatures, on states that lie in its pools.

There they are in `vllm.model_executor.layers.mamba.ops` (`mamba_ssm`, `ssd_combined`, `causal_conv1d`) and in
`vllm.third_party.flash_linear_attention.ops`. States are changed in place, where they lie; `out` is filled where it is given,
and returned. Other tensors are left as they are, `delta`, `z` and `x` too, which vLLM writes its results over. A slot that is
`null_block_id`, or negative, is padding: nothing is read or written there, and what comes out, open in vLLM, means nothing.
There are no gradients. Options that say how vLLM computes, and not what, are taken and change nothing.
"""

from typing import Any

import torch
from torch import Tensor

from .. import functions
from .._pool import StatePool
from . import _serving as serving
from ._vllm_delta import (
    chunk_gated_delta_rule,
    chunk_kda,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_gated_delta_rule_packed_decode,
    fused_recurrent_kda,
    fused_sigmoid_gating_delta_rule_update,
)

__all__ = [
    "NULL_BLOCK_ID",
    "PAD_SLOT_ID",
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "chunk_gated_delta_rule",
    "chunk_kda",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gated_delta_rule_packed_decode",
    "fused_recurrent_kda",
    "fused_sigmoid_gating_delta_rule_update",
    "mamba_chunk_scan_combined_varlen",
    "selective_scan_fn",
    "selective_state_update",
]

PAD_SLOT_ID = -1
NULL_BLOCK_ID = 0


def _pool(states, indices, has_initial_state, null, rows):
    """The pool of sequences that start from their slots where they have a state, and from zeros elsewhere."""
    if indices is None:
        write = torch.arange(rows, device=states.device)
    else:
        write = torch.where(indices == null, -1, indices)
    if has_initial_state is None:
        return StatePool(states, torch.full_like(write, -1), write)
    return StatePool(states, torch.where(has_initial_state.bool(), write, -1), write)


def selective_scan_fn(
    u: Tensor,
    ssm_states: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    query_start_loc: Tensor | None = None,
    cache_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    null_block_id: int = NULL_BLOCK_ID,
    block_size: int = 1024,
    block_idx_first_scheduled_token: None = None,
    block_idx_last_scheduled_token: None = None,
    initial_state_idx: None = None,
    cu_chunk_seqlen: None = None,
    last_chunk_indices: None = None,
) -> Tensor:
    """Mamba's scan of sequences of a batch, or of packed ones, from and into slots.

    Args:
        u, delta, z: (dim, tokens) with `query_start_loc`, or (batch, dim, seqlen).
        ssm_states: (slots, dim, dstate).
        A: (dim, dstate).
        B, C: (ngroups, dstate, tokens) or (dstate, tokens); (batch, ngroups, dstate, seqlen) or (batch, dstate, seqlen).
        D, delta_bias: (dim,).
        query_start_loc: (sequences + 1,), the bounds of packed sequences.
        cache_indices: (sequences,), the slot of each; its own number if it is None.
        has_initial_state: (sequences,), whether each starts from its slot; none does if it is None.
        block_idx_first_scheduled_token, block_idx_last_scheduled_token, initial_state_idx, cu_chunk_seqlen, last_chunk_indices:
            are refused: states are left at the ends of sequences.

    Returns:
        y, shaped as u.
    """
    serving.refuse(
        "selective_scan_fn",
        block_idx_first_scheduled_token=block_idx_first_scheduled_token,
        block_idx_last_scheduled_token=block_idx_last_scheduled_token,
        initial_state_idx=initial_state_idx,
        cu_chunk_seqlen=cu_chunk_seqlen,
        last_chunk_indices=last_chunk_indices,
    )
    alone = query_start_loc is not None
    rows = u.shape[0] if query_start_loc is None else query_start_loc.shape[0] - 1

    def of_batch(tensor):
        return tensor[None] if alone and tensor is not None else tensor

    y, _ = functions.selective_scan(
        of_batch(u),
        of_batch(delta),
        A,
        of_batch(B),
        of_batch(C),
        D,
        _pool(ssm_states, cache_indices, has_initial_state, null_block_id, rows),
        z=of_batch(z),
        dt_bias=delta_bias,
        dt_softplus=delta_softplus,
        cu_seqlens=query_start_loc,
    )
    return y[0] if alone else y


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    dt_bias: Tensor,
    z: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
    dst_state_batch_indices: Tensor | None = None,
    null_block_id: int = NULL_BLOCK_ID,
    out: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    is_blackwell: bool = False,
    enable_stochastic_rounding: bool = False,
    cache_philox_rounds: int = 0,
) -> Tensor:
    """One step of a scan, or a few.

    Args:
        state: (slots, dim, dstate) or (slots, nheads, dim, dstate).
        x, dt, z: (batch, dim) or (batch, nheads, dim); with `cu_seqlens` tokens stand in the place of the batch.
        A: (dim, dstate) or (nheads, dim, dstate).
        B, C: (batch, dstate) or (batch, ngroups, dstate).
        D, dt_bias: (dim,) or (nheads, dim).
        state_batch_indices: (rows,) or (rows, tokens), the slot that a row reads, the first of several.
        dst_state_batch_indices: the slots that are written in the place of those.
        num_accepted_tokens: (rows,), how many tokens of the last call are kept: a row reads the slot that this call left its
            last kept token's state in, and the state after each token is written to the token's slot.
        cu_seqlens: (rows + 1,), the bounds of rows of several tokens.
        enable_stochastic_rounding: is refused.

    Returns:
        y, shaped as x; vLLM returns nothing.
    """
    name = "selective_state_update"
    serving.refuse(name, enable_stochastic_rounding=enable_stochastic_rounding)
    rows = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    read, write = serving.slots_of_rows(
        name, state_batch_indices, dst_state_batch_indices, num_accepted_tokens, null_block_id, rows
    )
    if cu_seqlens is None and dst_state_batch_indices is None and num_accepted_tokens is None:
        options = {"z": z, "dt_bias": dt_bias, "dt_softplus": dt_softplus, "state_batch_indices": read}
        return serving.filled(out, functions.selective_state_update(state, x, dt, A, B, C, D, **options))
    if read is None:
        read = write = torch.arange(rows, device=x.device)
    write = write[:, :1] if cu_seqlens is None and write.dim() == 2 else write
    step = serving.state_step(x, dt, A, B, C, D, z, dt_bias, dt_softplus)
    return serving.filled(out, step(state, read, serving.without_padding(read, write), cu_seqlens))


def mamba_chunk_scan_combined_varlen(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    cu_seqlens: Tensor,
    cu_chunk_seqlens: Tensor,
    last_chunk_indices: Tensor,
    seq_idx: Tensor,
    out: Tensor | None,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_intermediate_states: bool = False,
    state_dtype: torch.dtype | None = None,
    final_states_out: Tensor | None = None,
    final_state_indices: Tensor | None = None,
) -> Tensor | None:
    """Mamba-2's scan of packed sequences.

    Args:
        x, z: (tokens, nheads, headdim).
        dt: (tokens, nheads).
        A, dt_bias: (nheads,).
        B, C: (tokens, ngroups, dstate).
        cu_seqlens: (sequences + 1,), the bounds of sequences.
        cu_chunk_seqlens, last_chunk_indices, seq_idx: (chunks + 1,), (sequences,) and (chunks,), how sequences are cut. Their
            shapes are looked at, and their values where states within are asked for.
        out: shaped as x, is filled with y.
        D: (nheads, headdim) or (nheads,).
        initial_states: (sequences, nheads, headdim, dstate).
        return_intermediate_states: whether to return the state after each chunk.
        state_dtype: type of the states returned; C's if it is None.
        final_states_out, final_state_indices: a pool, (slots, nheads, headdim, dstate), and the slot of each sequence that its
            final state is left in.

    Returns:
        The states after sequences, or after chunks, (.., nheads, headdim, dstate), or None where they are left in a pool.
    """
    name = "mamba_chunk_scan_combined_varlen"
    sequences, chunks = cu_seqlens.shape[0] - 1, cu_chunk_seqlens.shape[0] - 1
    for argument, tensor, length in (
        ("last_chunk_indices", last_chunk_indices, sequences),
        ("seq_idx", seq_idx, chunks),
        ("final_state_indices", final_state_indices, sequences),
    ):
        if tensor is not None and tensor.shape != (length,):
            raise ValueError(f"{name}: `{argument}` must have shape {(length,)}, got {tuple(tensor.shape)}")
    if (final_states_out is None) != (final_state_indices is None) or (
        final_states_out is not None and return_intermediate_states
    ):
        raise ValueError(f"{name}: `final_states_out` goes with `final_state_indices`, and without `return_intermediate_states`")

    def scan(initial, bounds):
        at = [tensor if tensor is None else tensor[None] for tensor in (x, dt, B, C, z)]
        options = {"D": D, "z": at[4], "dt_bias": dt_bias, "dt_softplus": dt_softplus, "dt_limit": dt_limit}
        return functions.ssd(at[0], at[1], A, at[2], at[3], chunk_size, initial_state=initial, cu_seqlens=bounds, **options)

    if return_intermediate_states:
        bounds = cu_chunk_seqlens.tolist()
        pieces, shape = list(zip(bounds, bounds[1:], seq_idx.tolist())), (*x.shape[1:], B.shape[2])
        y, states = serving.in_pieces(lambda *own: scan(*own)[0], pieces, initial_states, x, shape)
    else:
        y, states = scan(initial_states, cu_seqlens)
    serving.filled(out, y)
    if final_states_out is not None:
        serving.put(final_states_out, final_state_indices, states)
        return None
    return states.to(C.dtype if state_dtype is None else state_dtype)


def _activation(activation):
    """An activation as it is called here; vLLM also has True for silu and False for none."""
    if isinstance(activation, bool):
        return "silu" if activation else None
    return activation


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    query_start_loc: Tensor,
    cache_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    activation: str | bool | None = "silu",
    pad_slot_id: int = PAD_SLOT_ID,
    null_block_id: int = NULL_BLOCK_ID,
    metadata: Any = None,
    validate_data: bool = False,
) -> Tensor:
    """The convolution of packed sequences, from and into slots.

    Args:
        x: (dim, tokens), of any strides.
        weight, bias: (dim, width) and (dim,).
        conv_states: (slots, dim, state_len), of any strides, of which the first width - 1 inputs are used.
        query_start_loc: (sequences + 1,), the bounds of sequences.
        cache_indices, has_initial_state: as in `selective_scan_fn`.

    Returns:
        y, shaped as x.
    """
    states = conv_states[..., : weight.shape[1] - 1]
    pool = _pool(states, cache_indices, has_initial_state, null_block_id, query_start_loc.shape[0] - 1)
    options = {"activation": _activation(activation), "initial_states": pool, "cu_seqlens": query_start_loc}
    return functions.causal_conv1d(x[None], weight, bias, **options)[0]


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | bool | None = None,
    conv_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    max_query_len: int = -1,
    null_block_id: int = NULL_BLOCK_ID,
    validate_data: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """One step of the convolution, or a few.

    Args:
        x: (batch, dim) or (batch, dim, tokens), or (tokens, dim) with `query_start_loc`.
        conv_state: (slots, dim, state_len), of any strides.
        conv_state_indices: (rows,), the slot of each row.
        num_accepted_tokens: (rows,), how many tokens of the last call are kept. A slot has the width - 2 inputs before the
            first token of a call and the call's tokens then, and the next call starts after those that are kept.
        query_start_loc: (rows + 1,), the bounds of rows of several tokens.

    Returns:
        y, shaped as x.
    """
    width, activation = weight.shape[1], _activation(activation)
    slots = None if conv_state_indices is None else torch.where(conv_state_indices == null_block_id, -1, conv_state_indices)
    states = conv_state[..., : width - 1]
    if num_accepted_tokens is None and query_start_loc is None:
        options = {"activation": activation, "conv_state_indices": slots}
        return serving.filled(out, functions.causal_conv1d_update(x, states, weight, bias, **options))
    rows = x.shape[0] if query_start_loc is None else query_start_loc.shape[0] - 1
    slots = torch.arange(rows, device=x.device) if slots is None else slots[:rows]
    tokens, bounds = x, query_start_loc
    if bounds is None:
        tokens = x if x.dim() == 2 else x.transpose(1, 2).flatten(0, 1)
        bounds = serving.even_bounds(rows, x.shape[-1] if x.dim() == 3 else 1, x.device)

    def convolve(initial):
        y = functions.causal_conv1d(
            tokens.t()[None], weight, bias, activation=activation, initial_states=initial, cu_seqlens=bounds
        )
        return y[0].t()

    if num_accepted_tokens is None:
        y = convolve(StatePool(states, slots))
    else:
        window = serving.Window(conv_state, slots, num_accepted_tokens, width)
        y = convolve(window.before)
        window.move(tokens, bounds)
    if query_start_loc is None and x.dim() == 3:
        y = y.unflatten(0, (rows, -1)).transpose(1, 2)
    return serving.filled(out, y)
