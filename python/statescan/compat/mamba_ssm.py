"""Drop-in for `mamba_ssm` 2.3.2.

Every result is differentiable, last and final states included. `context`, which the origin has not, is that of
`statescan.distributed`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import functions
from .._inner import mamba2_as_one
from .._types import Activation, Context
from ..nn._checks import check_groups
from ._shared import by_channels, scan
from .inner import bimamba_inner_fn, mamba_inner_fn, mamba_inner_fn_no_out_proj
from .norms import LayerNorm, RMSNorm, layernorm_fn, rmsnorm_fn

__all__ = [
    "LayerNorm",
    "RMSNorm",
    "bimamba_inner_fn",
    "layernorm_fn",
    "mamba_chunk_scan",
    "mamba_chunk_scan_combined",
    "mamba_inner_fn",
    "mamba_inner_fn_no_out_proj",
    "mamba_split_conv1d_scan_combined",
    "rmsnorm_fn",
    "selective_scan_fn",
    "selective_state_update",
    "ssd_selective_scan",
]


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    context: Context | None = None,
) -> Any:
    """The selective scan; shapes as in `statescan.selective_scan`.

    Where A is complex, B and C that vary with time are real, (.., dstate, 2 seqlen), real and imaginary parts in turn.
    """
    return scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state, context=context)


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> Tensor:
    """One step of a scan; shapes as in `statescan.selective_state_update`."""
    return functions.selective_state_update(
        state, x, dt, A, B, C, D, z=z, dt_bias=dt_bias, dt_softplus=dt_softplus, state_batch_indices=state_batch_indices
    )


def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    return_varlen_states: bool = False,
    state_dtype: torch.dtype | None = None,
    *,
    context: Context | None = None,
) -> Any:
    """Mamba-2's scan.

    Args:
        x, z: (batch, seqlen, nheads, headdim).
        dt: (batch, seqlen, nheads).
        A, dt_bias: (nheads,).
        B, C: (batch, seqlen, ngroups, dstate).
        D: (nheads,) or (nheads, headdim).
        initial_states: (batch, nheads, headdim, dstate).
        seq_idx: (batch, seqlen), the sequence that each step belongs to.
        cu_seqlens: (sequences + 1,), used in the place of `seq_idx` with `return_varlen_states`, and not otherwise. What is
            behind the last bound is padding.
        return_final_states: whether to return the state after the last step, (batch, nheads, headdim, dstate).
        return_varlen_states: whether to return the state at the end of each sequence, (sequences, nheads, headdim, dstate), last.
        state_dtype: type of the states returned; None is float32, or float64 where x is.

    Returns:
        y, shaped as x, or a tuple that starts with it.
    """
    sequences = {"seq_idx": seq_idx}
    if return_varlen_states:
        if cu_seqlens is None:
            raise ValueError("mamba_chunk_scan_combined: `cu_seqlens` must be given with `return_varlen_states`")
        # steps behind the last bound are padding, a sequence of its own; on a GPU nobody knows whether there are any
        sequences = {"cu_seqlens": pad(cu_seqlens, (0, 1), value=x.shape[1])}
        if initial_states is not None:
            # a single one is the first sequence's
            others = cu_seqlens.shape[0] - initial_states.shape[0]
            if others < 1:
                most, got = cu_seqlens.shape[0] - 1, initial_states.shape[0]
                raise ValueError(f"mamba_chunk_scan_combined: `initial_states` must be of {most} sequences at most, got {got}")
            initial_states = torch.cat([initial_states, initial_states.new_zeros(others, *initial_states.shape[1:])])
    options = {} if context is None else {"context": context}
    y, states = functions.ssd(
        x,
        dt,
        A,
        B,
        C,
        chunk_size,
        D,
        initial_states,
        z=z,
        dt_bias=dt_bias,
        dt_softplus=dt_softplus,
        dt_limit=dt_limit,
        **sequences,
        **options,
    )
    results = [y]
    if return_varlen_states:
        states = states[:-1]
    states = states.to(states.dtype if state_dtype is None else state_dtype)
    if return_final_states:
        results.append(states[-1:] if return_varlen_states else states)
    if return_varlen_states:
        results.append(states)
    return tuple(results) if len(results) > 1 else results[0]


def mamba_chunk_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    *,
    context: Context | None = None,
) -> Tensor:
    """`mamba_chunk_scan_combined` without states and limits of steps."""
    options = {"dt_bias": dt_bias, "dt_softplus": dt_softplus, "dt_limit": None, "context": context}
    return mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size, D, z, **options)


def ssd_selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    *,
    context: Context | None = None,
) -> Tensor:
    """Mamba-2's scan by Mamba's, which lets every channel have steps and decays of its own.

    Args:
        x, z: (batch, seqlen, nheads, headdim).
        dt: (batch, seqlen, nheads), or as x.
        A: (nheads,), or (nheads * headdim, dstate).
        B, C: (batch, seqlen, ngroups, dstate).
        D, dt_bias: (nheads,) or (nheads, headdim).
        dt_softplus, dt_limit: as in `statescan.selective_scan`; steps may be negative with the default limits.

    Returns:
        y, shaped as x.
    """
    dt_limit = None if tuple(dt_limit) == (0.0, float("inf")) else dt_limit
    options = {"dt_softplus": dt_softplus, "dt_limit": dt_limit, "context": context}
    return by_channels(functions.selective_scan, x, dt, A, B, C, D, z, dt_bias, **options)


def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    dt_bias: Tensor,
    A: Tensor,
    D: Tensor,
    chunk_size: int,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    activation: Activation = "silu",
    rmsnorm_weight: Tensor | None = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
    state_dtype: torch.dtype | None = None,
    *,
    context: Context | None = None,
) -> Any:
    """Computes a Mamba-2 layer after its first projection.

    Args:
        zxbcdt: (batch, seqlen, 2 mlp + 2 dim + 2 ngroups dstate + nheads), dim being nheads * headdim; the first 2 mlp channels,
            if there are any, are a gated unit beside the scan.
        conv1d_weight, conv1d_bias: (dim + 2 ngroups dstate, width) and (dim + 2 ngroups dstate,).
        dt_bias, A: (nheads,).
        D: (nheads, headdim), or (nheads,), with `headdim`.
        chunk_size, initial_states, seq_idx, dt_limit, return_final_states, state_dtype: as in `mamba_chunk_scan_combined`.
        activation: None, "silu" or "swish", after the convolution.
        rmsnorm_weight, rmsnorm_eps, norm_before_gate: of a norm with the gate, over each of ngroups; the gate alone without it.
        outproj_weight, outproj_bias: (out, mlp + dim) and (out,).

    Returns:
        (batch, seqlen, mlp + dim), or (batch, seqlen, out); with `return_final_states` also the final states.
    """
    if D.dim() == 2:
        headdim = D.shape[1]
    elif headdim is None:
        raise ValueError("mamba_split_conv1d_scan_combined: `headdim` must be given where `D` is (nheads,)")
    nheads, dim, convolved = D.shape[0], D.shape[0] * headdim, conv1d_weight.shape[0]
    check_groups("mamba_split_conv1d_scan_combined", "ngroups", ngroups, nheads, "heads")
    if outproj_bias is not None and outproj_weight is None:
        raise ValueError("mamba_split_conv1d_scan_combined: `outproj_bias` must be None without `outproj_weight`")
    width = zxbcdt.shape[-1] - dim - convolved - nheads
    if width < 0 or width % 2 or convolved < dim or (convolved - dim) % (2 * ngroups):
        sizes = f"nheads {nheads}, headdim {headdim}, ngroups {ngroups} and conv1d_weight {tuple(conv1d_weight.shape)}"
        shape = tuple(zxbcdt.shape)
        raise ValueError(f"mamba_split_conv1d_scan_combined: `zxbcdt`, {shape}, does not fit {sizes}")

    weights = (conv1d_weight, conv1d_bias, dt_bias, A, D, rmsnorm_weight)
    sizes = {"headdim": headdim, "ngroups": ngroups, "chunk_size": chunk_size}
    options = {"activation": activation, "eps": rmsnorm_eps, "norm_before_gate": norm_before_gate}
    scan = {"initial_states": initial_states, "seq_idx": seq_idx, "dt_limit": dt_limit}
    scan["context"] = context
    y, final_states = mamba2_as_one(zxbcdt, weights, (outproj_weight, outproj_bias), **sizes, **options, **scan)
    if not return_final_states:
        return y
    return y, final_states if state_dtype is None else final_states.to(state_dtype)
