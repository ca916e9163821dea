"""The gated delta rule of vLLM 0.33, `vllm.third_party.flash_linear_attention.ops`, as `vllm` here has it.

States are (.., value_heads, value_width, key_width) there. They are used where they lie.
"""

from typing import Any

import torch
from torch import Tensor

from .. import functions
from . import _serving as serving


def _decode(name, pool, tensors, indices, accepted, cu_seqlens, inplace, **options):
    """Rows of a token or a few from and into slots; the state after each token is left in the token's slot."""
    if not inplace:
        raise NotImplementedError(f"{name} of statescan has no `inplace_final_state` that is False: states stay in their pool")
    for argument, tensor in (("initial_state", pool), ("ssm_state_indices", indices)):
        if tensor is None:
            raise TypeError(f"{name}: `{argument}` must be given with `inplace_final_state`")
    q, k, v, g, beta = tensors
    rows = v.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    slots, states = torch.where(indices > 0, indices, -1)[:rows], pool.transpose(-1, -2)
    if beta is not None and beta.dim() == v.dim():
        raise NotImplementedError(f"{name} of statescan has a `beta` of (batch, tokens, value_heads), got {tuple(beta.shape)}")
    if accepted is None and (slots.dim() == 1 or slots.shape[1] == 1) and rows == v.shape[0] * v.shape[1]:
        # a token a row
        q, k, v, g, beta = (None if tensor is None else tensor.flatten(0, 1) for tensor in tensors)
        options["state_batch_indices"] = slots.reshape(rows)
        y = functions.gated_delta_rule_update(states, q, k, v, g, beta, **options)
        return y.reshape(tensors[2].shape), pool
    write = slots[:, None] if slots.dim() == 1 else slots
    first = torch.zeros_like(write[:, 0]) if accepted is None else (accepted - 1).clamp(min=0)
    read = write.gather(1, first[:, None].long())[:, 0]
    write = write[:, : v.shape[1]] if cu_seqlens is None else write
    step = serving.delta_step(*tensors, **options)
    return step(states, read, serving.without_padding(read, write), cu_seqlens).reshape(v.shape), pool


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    inplace_final_state: bool = True,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor]:
    """A token or a few of each row, from and into slots.

    Args:
        q, k: (batch, tokens, heads, key_width).
        v: (batch, tokens, value_heads, value_width).
        g, beta: (batch, tokens, value_heads), the logarithm of the decay, and how much of a value is written.
        initial_state: (slots, value_heads, value_width, key_width).
        inplace_final_state: must be True.
        cu_seqlens: (rows + 1,), the bounds of rows, in a batch of 1. With as many tokens as rows each row has one.
        ssm_state_indices: (rows,) where a row has one token, or (rows, tokens), the slots that the states after tokens are left
            in; those that are not positive are padding.
        num_accepted_tokens: (rows,), how many tokens of the last call are kept: a row reads the slot of the last of them.

    Returns:
        o, shaped as v, and `initial_state`.
    """
    return _decode(
        "fused_recurrent_gated_delta_rule",
        initial_state,
        (q, k, v, g, beta),
        ssm_state_indices,
        num_accepted_tokens,
        cu_seqlens,
        inplace_final_state,
        scale=scale,
        qk_l2norm=use_qk_l2norm_in_kernel,
    )


def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    inplace_final_state: bool = True,
    use_qk_l2norm_in_kernel: bool = True,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Computes what `fused_recurrent_gated_delta_rule` does, with g of (batch, tokens, value_heads, key_width)."""
    serving.refuse("fused_recurrent_kda", **kwargs)
    return _decode(
        "fused_recurrent_kda",
        initial_state,
        (q, k, v, g, beta),
        ssm_state_indices,
        None,
        cu_seqlens,
        inplace_final_state,
        scale=scale,
        qk_l2norm=use_qk_l2norm_in_kernel,
    )


def fused_sigmoid_gating_delta_rule_update(
    A_log: Tensor,
    a: Tensor,
    b: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    inplace_final_state: bool = True,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    is_kda: bool = False,
) -> tuple[Tensor, Tensor]:
    """`fused_recurrent_gated_delta_rule` from raw gates: g is ``-exp(A_log) softplus(a + dt_bias)``, and beta is sigmoid(b).

    Args:
        A_log, dt_bias: (value_heads,); dt_bias has value_heads * key_width elements with `is_kda`.
        a: (batch, tokens, value_heads), or with `is_kda` (batch, tokens, value_heads, key_width), in any shape of as many.
        b: (batch, tokens, value_heads).
        beta, threshold: of softplus; 1 and 20.
    """
    name = "fused_sigmoid_gating_delta_rule_update"
    if (beta, threshold) != (1.0, 20.0):
        raise NotImplementedError(f"{name} of statescan has 1 and 20 as `beta` and `threshold`, got {beta} and {threshold}")
    widths = v.shape[2:3] + k.shape[3:] if is_kda else v.shape[2:3]
    return _decode(
        name,
        initial_state,
        (q, k, v, a.reshape(v.shape[:2] + widths), b.reshape(v.shape[:3])),
        ssm_state_indices,
        num_accepted_tokens,
        cu_seqlens,
        inplace_final_state,
        A_log=A_log.reshape(-1),
        dt_bias=dt_bias.reshape(widths),
        beta_sigmoid=True,
        scale=scale,
        qk_l2norm=use_qk_l2norm_in_kernel,
    )


def fused_recurrent_gated_delta_rule_packed_decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    out: Tensor,
    ssm_state_indices: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor]:
    """A token a row, with q, k and v one behind the other in `mixed_qkv`, (rows, 2 heads key_width + value_heads value_width).

    Args:
        a, b: (rows, value_heads), raw gates, with A_log and dt_bias, (value_heads,).
        initial_state, ssm_state_indices: as in `fused_recurrent_gated_delta_rule`, (rows,).
        out: (rows, 1, value_heads, value_width).

    Returns:
        out, filled, and `initial_state`.
    """
    heads, value_width, key_width = initial_state.shape[1:]
    keys = (mixed_qkv.shape[1] - heads * value_width) // 2
    q, k, v = mixed_qkv.split([keys, keys, heads * value_width], dim=1)
    y, _ = fused_sigmoid_gating_delta_rule_update(
        A_log,
        a[:, None],
        b[:, None],
        dt_bias,
        q.unflatten(1, (-1, key_width))[:, None],
        k.unflatten(1, (-1, key_width))[:, None],
        v.unflatten(1, (heads, value_width))[:, None],
        scale=scale,
        initial_state=initial_state,
        ssm_state_indices=ssm_state_indices,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
    )
    return serving.filled(out, y), initial_state


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    chunk_offsets: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    core_attn_out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule of whole sequences; shapes as in `statescan.gated_delta_rule`, but for states.

    Args:
        initial_state: (sequences, value_heads, value_width, key_width).
        core_attn_out: (elements,), at least as many as v has: its first ones are filled with o.

    Returns:
        o, shaped as v, and the final state, or None without `output_final_state`.
    """
    initial = None if initial_state is None else initial_state.transpose(-1, -2)
    options = {"scale": scale, "qk_l2norm": use_qk_l2norm_in_kernel, "cu_seqlens": cu_seqlens}
    y, state = functions.gated_delta_rule(q, k, v, g, beta, initial, **options)
    if core_attn_out is not None:
        y = core_attn_out[: y.numel()].view(y.shape).copy_(y)
    return y, state.transpose(-1, -2) if output_final_state else None


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """`chunk_gated_delta_rule` with g of (batch, tokens, value_heads, key_width)."""
    serving.refuse("chunk_kda", **kwargs)
    options = {"cu_seqlens": cu_seqlens, "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel}
    return chunk_gated_delta_rule(q, k, v, g, beta, scale, initial_state, output_final_state, **options)
