"""Drop-in for the gated delta rule of `fla` 0.6 (flash-linear-attention), with one decay a head or, as KDA, a key channel.

Besides what the origin's functions take they name `cu_seq_lens_q` and `seq_idx`: models of `transformers` hand on what a
signature names, and packed rows need one of them.
"""

import warnings
from typing import Any

import torch
from torch import Tensor

from .. import functions

__all__ = [
    "chunk_gated_delta_rule",
    "chunk_gdn",
    "chunk_kda",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gdn",
    "fused_recurrent_kda",
]

# options of the origin that say how it computes, and none what
_HINTS = ("chunk_size", "chunk_indices", "cu_seqlens_cpu", "safe_gate", "disable_recompute", "use_graph", "max_num_seqs")
# the older name of `state_v_first`
_OLDER = "transpose_state_layout"


def _refused(others):
    """The first option that is asked for and is not here, if there is one."""
    asked = (option for option, value in others.items() if value is not None and value is not False)
    return next((option for option in asked if option not in _HINTS), None)


def _refuse(name, others):
    if option := _refused(others):
        raise NotImplementedError(f"{name} of statescan has no `{option}`")


def _rule(name, q, k, v, g, beta, scale, initial_state, output_final_state, *, raw, by_channel, options, packed, others):
    """The operation by arguments of the origin: what its gate is made from, its options, and what packs its rows."""
    use_gate, A_log, dt_bias = raw
    state_v_first = others.pop("state_v_first", False)
    if _OLDER in others:
        if state_v_first:
            raise ValueError(f"{name}: `state_v_first` and the deprecated `{_OLDER}` are both given")
        warnings.warn(f"{name}: `{_OLDER}` is now `state_v_first`", DeprecationWarning, stacklevel=3)
        state_v_first = others.pop(_OLDER)
    _refuse(name, others)
    if beta is not None and beta.dim() == v.dim():
        raise NotImplementedError(f"{name} of statescan has a `beta` of (batch, seqlen, value_heads), got {tuple(beta.shape)}")
    if use_gate:
        heads = v.shape[2]
        if A_log is None and options.get("lower_bound") is not None:
            A_log = torch.zeros(heads, device=v.device)
        A_log = None if A_log is None else A_log.reshape(heads)
        dt_bias = None if dt_bias is None else dt_bias.reshape((heads, -1) if by_channel else heads)
        if A_log is None:
            raise TypeError(f"{name}: `A_log` must be given with `use_gate_in_kernel`")
    else:
        A_log = dt_bias = None
        options.pop("lower_bound", None)
    if initial_state is not None and state_v_first:
        initial_state = initial_state.transpose(-1, -2)
    cu_seqlens, cu_seq_lens_q, seq_idx = packed
    cu_seqlens = cu_seq_lens_q if cu_seqlens is None else cu_seqlens
    if cu_seqlens is not None:
        # both say the same of a row, and bounds say it without a look at every step
        seq_idx = None
    y, state = functions.gated_delta_rule(
        q,
        k,
        v,
        g,
        beta,
        initial_state,
        A_log=A_log,
        dt_bias=dt_bias,
        scale=scale,
        cu_seqlens=cu_seqlens,
        seq_idx=seq_idx,
        **options,
    )
    if not output_final_state:
        return y, None
    return y, state.transpose(-1, -2) if state_v_first else state


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: None = None,
    *,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    seq_idx: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule; shapes as in `statescan.gated_delta_rule`.

    Returns:
        o, of v's shape and type, and the final state, float32, or None without `output_final_state`.
    """
    others = kwargs | {"state_v_first": state_v_first, "cp_context": cp_context}
    others |= {"cu_seqlens_cpu": cu_seqlens_cpu, "chunk_indices": chunk_indices}
    return _rule(
        "chunk_gated_delta_rule",
        *(q, k, v, g, beta, scale, initial_state, output_final_state),
        raw=(use_gate_in_kernel, A_log, dt_bias),
        by_channel=False,
        options=_options(use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval),
        packed=(cu_seqlens, cu_seq_lens_q, seq_idx),
        others=others,
    )


chunk_gdn = chunk_gated_delta_rule


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    cu_seq_lens_q: Tensor | None = None,
    seq_idx: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Computes what `chunk_gated_delta_rule` does, with gradients too; `gk` is a logarithm for every key channel."""
    if gk is not None and use_gate_in_kernel:
        raise NotImplementedError("fused_recurrent_gated_delta_rule of statescan has no `gk` beside a raw gate")
    if gk is not None:
        g = gk if g is None else g[..., None] + gk
    return _rule(
        "fused_recurrent_gated_delta_rule",
        *(q, k, v, g, beta, scale, initial_state, output_final_state),
        raw=(use_gate_in_kernel, A_log, dt_bias),
        by_channel=False,
        options=_options(use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval),
        packed=(cu_seqlens, cu_seq_lens_q, seq_idx),
        others={**kwargs, "gv": gv, "state_v_first": state_v_first},
    )


fused_recurrent_gdn = fused_recurrent_gated_delta_rule


def _options(qk_l2norm, beta_sigmoid, allow_neg_eigval):
    # the origin has eigenvalues below 0 by what its caller makes of beta, where beta is not raw
    doubled = bool(allow_neg_eigval and beta_sigmoid)
    return {"qk_l2norm": qk_l2norm, "beta_sigmoid": beta_sigmoid, "allow_neg_eigval": doubled}


def _kda(name, *arguments, raw, flags, lower_bound, packed, others):
    """Both functions of KDA; `arguments` are the first ones of `_rule`, `flags` those of `_options`."""
    options = {**_options(*flags), "lower_bound": lower_bound}
    return _rule(name, *arguments, raw=raw, by_channel=True, options=options, packed=packed, others=others)


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
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    cp_context: None = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    seq_idx: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Kimi Delta Attention; shapes as in `statescan.gated_delta_rule`, `g` with key channels.

    Returns:
        o, of v's shape and type, and the final state, float32, or None without `output_final_state`.
    """
    others = kwargs | {"safe_gate": safe_gate, "disable_recompute": disable_recompute, "cu_seqlens_cpu": cu_seqlens_cpu}
    others |= {"return_intermediate_states": return_intermediate_states, "cp_context": cp_context}
    others |= {"state_v_first": state_v_first, "use_graph": use_graph, "max_num_seqs": max_num_seqs}
    return _kda(
        "chunk_kda",
        *(q, k, v, g, beta, scale, initial_state, output_final_state),
        raw=(use_gate_in_kernel, A_log, dt_bias),
        flags=(use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval),
        lower_bound=lower_bound,
        packed=(cu_seqlens, cu_seq_lens_q, seq_idx),
        others=others,
    )


def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    cu_seq_lens_q: Tensor | None = None,
    seq_idx: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Kimi Delta Attention as `chunk_kda` has it, with gradients too."""
    return _kda(
        "fused_recurrent_kda",
        *(q, k, v, g, beta, scale, initial_state, output_final_state),
        raw=(use_gate_in_kernel, A_log, dt_bias),
        flags=(use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval),
        lower_bound=lower_bound,
        packed=(cu_seqlens, cu_seq_lens_q, seq_idx),
        others={**kwargs, "state_v_first": state_v_first},
    )
