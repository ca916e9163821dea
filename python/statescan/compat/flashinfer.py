"""The functions of flashinfer 0.7.4 for layers with a state, by their names and signatures, on states that lie in its pools.

There they are in `flashinfer.mamba`, `flashinfer.gdn_prefill` and `flashinfer.gdn_decode`. States of the gated delta rule are
(.., value_heads, value_width, key_width) but for `gated_delta_rule_decode`, and are used where they lie. They are changed in
place; `out` and `output` are filled where they are given, and returned. There are no gradients. Any widths and types of
`statescan.gated_delta_rule` are taken. Options that choose between kernels are taken and change nothing.
"""

import torch
from torch import Tensor

from .. import functions
from . import _serving as serving
from ._flashinfer_delta import (
    chunk_gated_delta_rule,
    gated_delta_rule_decode,
    gated_delta_rule_decode_pretranspose,
    gated_delta_rule_mtp,
)
from ._flashinfer_replay import gated_delta_rule_replayssm_commit

__all__ = [
    "chunk_gated_delta_rule",
    "gated_delta_rule_decode",
    "gated_delta_rule_decode_pretranspose",
    "gated_delta_rule_mtp",
    "gated_delta_rule_replayssm_commit",
    "selective_state_update",
]


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
    pad_slot_id: int = -1,
    state_scale: None = None,
    out: Tensor | None = None,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    intermediate_state_scales: None = None,
    rand_seed: None = None,
    philox_rounds: int = 10,
    cache_steps: int = 0,
    algorithm: str = "auto",
    dst_state_batch_indices: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """One step of a scan, or a few.

    Args:
        state: (slots, dim, dstate) or (slots, nheads, dim, dstate).
        x, dt, z: (batch, dim), (batch, nheads, dim), or of several tokens (batch, tokens, nheads, dim);
            (tokens, nheads, dim) with `cu_seqlens`.
        A: (dim, dstate) or (nheads, dim, dstate).
        B, C: as x, with ngroups and dstate in the place of nheads and dim; (batch, dstate) is one group.
        D, dt_bias: (dim,) or (nheads, dim).
        state_batch_indices, dst_state_batch_indices, num_accepted_tokens, cu_seqlens: as in `statescan.compat.vllm`; a slot that
            is `pad_slot_id`, or negative, is padding.
        state_scale, intermediate_state_scales, rand_seed: are refused: states are numbers of f32, bf16 or f16.
        disable_state_update: whether the pool stays as it is.
        intermediate_states_buffer: (batch, cache_steps, nheads, dim, dstate), receives the state after each token, by way of
            as many states that are made for it.
        intermediate_state_indices: (batch,), the row of the buffer that each row has.

    Returns:
        y, shaped as x, or out.
    """
    name = "selective_state_update"
    scales = {"state_scale": state_scale, "intermediate_state_scales": intermediate_state_scales, "rand_seed": rand_seed}
    serving.refuse(name, **scales)
    if intermediate_states_buffer is not None and dst_state_batch_indices is not None:
        raise ValueError(f"{name}: `intermediate_states_buffer` excludes `dst_state_batch_indices`")
    tokens = x.shape[1] if x.dim() == 4 else 1
    rows = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    read, write = serving.slots_of_rows(
        name, state_batch_indices, dst_state_batch_indices, num_accepted_tokens, pad_slot_id, rows
    )
    flat = (x, dt, B, C, z)
    if x.dim() == 4:
        flat = [None if tensor is None else tensor.flatten(0, 1) for tensor in flat]
    others = (dst_state_batch_indices, num_accepted_tokens, cu_seqlens, intermediate_states_buffer)
    if tokens == 1 and not disable_state_update and all(tensor is None for tensor in others):
        options = {"z": flat[4], "dt_bias": dt_bias, "dt_softplus": dt_softplus, "state_batch_indices": read}
        y = functions.selective_state_update(state, flat[0], flat[1], A, flat[2], flat[3], D, **options)
        return serving.filled(out, y.reshape(x.shape))
    step = serving.state_step(flat[0], flat[1], A, flat[2], flat[3], D, flat[4], dt_bias, dt_softplus)
    if read is None:
        read = write = torch.arange(rows, device=x.device)
    if intermediate_states_buffer is not None:
        buffer = intermediate_states_buffer.view(*intermediate_states_buffer.shape[:2], *state.shape[1:])
        buffer = buffer[:, :tokens] if cu_seqlens is None else buffer
        serving.fill_each(step, state, cu_seqlens, read, buffer, intermediate_state_indices)
    if disable_state_update:
        write = torch.full_like(read, -1)
    write = write[:, :tokens] if cu_seqlens is None and write.dim() == 2 else write
    y = step(state, read, serving.without_padding(read, write), cu_seqlens)
    return serving.filled(out, y.reshape(x.shape))
