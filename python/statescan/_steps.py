"""Public functions of one step, or of several tokens, whose states are changed in place."""

from typing import NoReturn, overload

from . import _dispatch
from ._operations import CAUSAL_CONV1D_UPDATE, GATED_DELTA_RULE_UPDATE, SELECTIVE_STATE_UPDATE, SIMPLIFIED_STATE_UPDATE
from ._types import Activation, Array, Discretization, J, Limits, T


# fmt: off
@overload
def gated_delta_rule_update(
    state: Array, q: Array, k: Array, v: J, g: Array | None = None, beta: Array | None = None, *, A_log: Array | None = None,
    dt_bias: Array | None = None, state_batch_indices: Array | None = None, dst_state_batch_indices: Array | None = None,
    cu_seqlens: Array | None = None, scale: float | None = None, qk_l2norm: bool = False,
    lower_bound: float | None = None, beta_sigmoid: bool = False, allow_neg_eigval: bool = False,
    out: Array | None = None
) -> tuple[J, J]: ...
@overload
def gated_delta_rule_update(
    state: Array, q: Array, k: Array, v: T, g: Array | None = None, beta: Array | None = None, *, A_log: Array | None = None,
    dt_bias: Array | None = None, state_batch_indices: Array | None = None, dst_state_batch_indices: Array | None = None,
    cu_seqlens: Array | None = None, scale: float | None = None, qk_l2norm: bool = False,
    lower_bound: float | None = None, beta_sigmoid: bool = False, allow_neg_eigval: bool = False,
    out: Array | None = None
) -> T: ...
# fmt: on
def gated_delta_rule_update(
    state: Array,
    q: Array,
    k: Array,
    v: T,
    g: Array | None = None,
    beta: Array | None = None,
    *,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    state_batch_indices: Array | None = None,
    dst_state_batch_indices: Array | None = None,
    cu_seqlens: Array | None = None,
    scale: float | None = None,
    qk_l2norm: bool = False,
    lower_bound: float | None = None,
    beta_sigmoid: bool = False,
    allow_neg_eigval: bool = False,
    out: Array | None = None,
    **renamed: NoReturn,
) -> T | tuple[T, T]:
    """One step of `gated_delta_rule`, on CPUs with the same bits; `state` is changed in place.

    It has no gradient: `gated_delta_rule` of one step has.

    Args:
        state: (batch, value_heads, key_width, value_width). Its type is kept.
        q, k: (batch, heads, key_width).
        v: (batch, value_heads, value_width).
        g: (batch, value_heads) or (batch, value_heads, key_width).
        beta: (batch, value_heads).
        state_batch_indices, dst_state_batch_indices, cu_seqlens, out: as in `selective_state_update`.
        (the others): as in `gated_delta_rule`.

    Returns:
        y, of v's shape and type. For JAX arrays, which do not change: y and the new state, a copy.

    Examples:
        >>> q, k, v = torch.randn(3, 2, 4, 8)
        >>> state = torch.zeros(2, 4, 8, 8)
        >>> y = gated_delta_rule_update(state, q, k, v, -torch.rand(2, 4), torch.rand(2, 4))
        >>> y.shape
        torch.Size([2, 4, 8])
    """
    if renamed:
        _dispatch.refuse_keyword(GATED_DELTA_RULE_UPDATE, renamed)
    tensors = (q, k, v, g, beta, A_log, dt_bias, state_batch_indices)
    options = (_dispatch.number(scale), qk_l2norm, _dispatch.number(lower_bound), beta_sigmoid, allow_neg_eigval)
    return _dispatch.between(GATED_DELTA_RULE_UPDATE, state, tensors, options, dst_state_batch_indices, cu_seqlens, out)


# fmt: off
@overload
def selective_state_update(
    state: Array, x: J, dt: Array, A: Array, B: Array, C: Array, D: Array | None = None, *, z: Array | None = None,
    dt_bias: Array | None = None, dt_softplus: bool = False, dt_limit: Limits = None, deltaA: Array | None = None,
    state_batch_indices: Array | None = None, dst_state_batch_indices: Array | None = None, cu_seqlens: Array | None = None,
    discretization: Discretization = "mamba",
    out: Array | None = None
) -> tuple[J, J]: ...
@overload
def selective_state_update(
    state: Array, x: T, dt: Array, A: Array, B: Array, C: Array, D: Array | None = None, *, z: Array | None = None,
    dt_bias: Array | None = None, dt_softplus: bool = False, dt_limit: Limits = None, deltaA: Array | None = None,
    state_batch_indices: Array | None = None, dst_state_batch_indices: Array | None = None, cu_seqlens: Array | None = None,
    discretization: Discretization = "mamba",
    out: Array | None = None
) -> T: ...
# fmt: on
def selective_state_update(
    state: Array,
    x: T,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None = None,
    *,
    z: Array | None = None,
    dt_bias: Array | None = None,
    dt_softplus: bool = False,
    dt_limit: Limits = None,
    deltaA: Array | None = None,
    state_batch_indices: Array | None = None,
    dst_state_batch_indices: Array | None = None,
    cu_seqlens: Array | None = None,
    discretization: Discretization = "mamba",
    out: Array | None = None,
    **renamed: NoReturn,
) -> T | tuple[T, T]:
    """One step of `selective_scan` or of `ssd`; `state` is changed in place.

    After `ssd` the state is its final state, and what `ssd` has once for a head must be expanded here, without a copy;
    `ssd_update` takes it as it is.

    Args:
        state: (batch, dim, dstate) or (batch, nheads, headdim, dstate); complex where A is. Its type is kept.
        x, dt, z, deltaA: (batch, dim) or (batch, nheads, headdim).
        A: (dim, dstate) or (nheads, headdim, dstate).
        B, C: (batch, dstate) or (batch, ngroups, dstate); complex only where A is.
        D, dt_bias: (dim,) or (nheads, headdim).
        state_batch_indices: (batch,), int32 or int64, the state that a row uses; negative for none, where y is zero. There may
            be more or fewer states than rows then, and no two rows may use the same one. On a GPU values are not checked: one
            that is too large counts as negative, one that is used twice gives wrong results.
        dst_state_batch_indices: (sequences,) or (sequences, tokens), int32 or int64: rows are tokens of sequences then, one
            behind the other, as many for each sequence of `state_batch_indices`, (sequences,). A sequence reads its state once,
            from the slot that this names, or from zeros where it is negative. These are the slots of the state after its last
            token (or of what it read, if it has none), or of those after each token; where they are negative it writes nothing.
            A call gives the bits of one step after another. Several sequences may read one slot, no two tokens may write one,
            and no sequence may read what another one writes.
        cu_seqlens: (sequences + 1,), int32 or int64, the bounds of sequences that have not as many tokens each, from 0 to the
            number of rows; none may have more tokens than slots. Without dst_state_batch_indices the state after the last token
            goes to the slot that was read.
        out: what y is written to, in the place of a new array; as in `selective_scan`.
        dt_softplus, dt_limit, discretization: as in `selective_scan`.

    Returns:
        y, of x's shape and type. For JAX arrays, which do not change, y and the new state, a copy.

    Examples:
        >>> state, x, dt = torch.zeros(2, 8, 4), torch.randn(2, 8), torch.rand(2, 8)
        >>> y = selective_state_update(state, x, dt, -torch.rand(8, 4), torch.randn(2, 4), torch.randn(2, 4))
        >>> y.shape, bool(state.any())
        (torch.Size([2, 8]), True)
    """
    if renamed:
        _dispatch.refuse_keyword(SELECTIVE_STATE_UPDATE, renamed)
    tensors = (x, dt, A, B, C, D, z, dt_bias, deltaA, state_batch_indices)
    low, high = (None, None) if dt_limit is None else _dispatch.limits("selective_state_update", dt_limit)
    options = (dt_softplus, low, high, discretization)
    return _dispatch.between(SELECTIVE_STATE_UPDATE, state, tensors, options, dst_state_batch_indices, cu_seqlens, out)


# fmt: off
@overload
def simplified_state_update(
    state: Array, u: J, delta: Array, A: Array, B: Array, C: Array, D: Array | None = None, deltaA: Array | None = None, *,
    state_batch_indices: Array | None = None, dst_state_batch_indices: Array | None = None, cu_seqlens: Array | None = None,
    discretization: Discretization = "bilinear", conj_sym: bool = True,
    out: Array | None = None
) -> tuple[J, J]: ...
@overload
def simplified_state_update(
    state: Array, u: T, delta: Array, A: Array, B: Array, C: Array, D: Array | None = None, deltaA: Array | None = None, *,
    state_batch_indices: Array | None = None, dst_state_batch_indices: Array | None = None, cu_seqlens: Array | None = None,
    discretization: Discretization = "bilinear", conj_sym: bool = True,
    out: Array | None = None
) -> T: ...
# fmt: on
def simplified_state_update(
    state: Array,
    u: T,
    delta: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None = None,
    deltaA: Array | None = None,
    *,
    state_batch_indices: Array | None = None,
    dst_state_batch_indices: Array | None = None,
    cu_seqlens: Array | None = None,
    discretization: Discretization = "bilinear",
    conj_sym: bool = True,
    out: Array | None = None,
    **renamed: NoReturn,
) -> T | tuple[T, T]:
    """One step of `simplified_scan`, or with D of `s5_inner`; `state` is changed in place.

    Args:
        state: (batch, dstate), complex. Its type is kept.
        u: (batch, dim), real or complex.
        delta, deltaA: (batch, dstate) or (dstate,).
        A, B, C: as in `simplified_scan`.
        D: (dim,); with it, y is real.
        state_batch_indices, dst_state_batch_indices, cu_seqlens, out: as in `selective_state_update`.
        conj_sym: as in `s5_inner`.

    Returns:
        y, (batch, dim), of the type that the scan's y has, complex, or with D real. For JAX arrays, which do not change, y and
        the new state, a copy.

    Examples:
        >>> A, B, C = -torch.rand(4) + 1j, torch.randn(4, 3), torch.randn(3, 4)
        >>> state = torch.zeros(2, 4, dtype=torch.complex64)
        >>> simplified_state_update(state, torch.randn(2, 3), torch.rand(4), A, B, C, torch.ones(3)).shape
        torch.Size([2, 3])
    """
    if renamed:
        _dispatch.refuse_keyword(SIMPLIFIED_STATE_UPDATE, renamed)
    tensors = (u, delta, A, B, C, D, deltaA, state_batch_indices)
    return _dispatch.between(
        SIMPLIFIED_STATE_UPDATE, state, tensors, (discretization, conj_sym), dst_state_batch_indices, cu_seqlens, out
    )


# fmt: off
@overload
def causal_conv1d_update(
    x: J, conv_state: Array, weight: Array, bias: Array | None = None, *, activation: Activation = None,
    cache_seqlens: Array | None = None, conv_state_indices: Array | None = None, dst_conv_state_indices: Array | None = None,
    cu_seqlens: Array | None = None,
    out: Array | None = None
) -> tuple[J, J]: ...
@overload
def causal_conv1d_update(
    x: T, conv_state: Array, weight: Array, bias: Array | None = None, *, activation: Activation = None,
    cache_seqlens: Array | None = None, conv_state_indices: Array | None = None, dst_conv_state_indices: Array | None = None,
    cu_seqlens: Array | None = None,
    out: Array | None = None
) -> T: ...
# fmt: on
def causal_conv1d_update(
    x: T,
    conv_state: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    activation: Activation = None,
    cache_seqlens: Array | None = None,
    conv_state_indices: Array | None = None,
    dst_conv_state_indices: Array | None = None,
    cu_seqlens: Array | None = None,
    out: Array | None = None,
    **renamed: NoReturn,
) -> T | tuple[T, T]:
    """One or a few steps of `causal_conv1d`; `conv_state` is changed in place.

    Args:
        x: (batch, dim), or (batch, dim, steps).
        conv_state: (batch, dim, state_len), state_len >= width - 1: the last inputs, the latest last. Its type is kept.
        weight, bias, activation: as in `causal_conv1d`.
        cache_seqlens: (batch,), int32 or int64, inputs that each row has seen, not negative; the state is then a circular
            buffer. On a GPU values are not checked: they count modulo state_len.
        conv_state_indices, dst_conv_state_indices, cu_seqlens: as `state_batch_indices`, `dst_state_batch_indices` and
            `cu_seqlens` in `selective_state_update`. A token has the steps of its row of x; the last two exclude cache_seqlens.
        out: as in `selective_state_update`.

    Returns:
        y, of x's shape and type. For JAX arrays, which do not change, y and the new state, a copy.

    Examples:
        >>> conv_state = torch.zeros(2, 8, 3)
        >>> causal_conv1d_update(torch.randn(2, 8), conv_state, torch.randn(8, 4)).shape
        torch.Size([2, 8])
    """
    if renamed:
        _dispatch.refuse_keyword(CAUSAL_CONV1D_UPDATE, renamed)
    tensors = (x, weight, bias, cache_seqlens, conv_state_indices)
    return _dispatch.between(CAUSAL_CONV1D_UPDATE, conv_state, tensors, (activation,), dst_conv_state_indices, cu_seqlens, out)
