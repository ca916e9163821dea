"""The scans that carry a state along a sequence, but S5's."""

from typing import NoReturn

from . import _dispatch, _exact
from ._operations import GATED_DELTA_RULE, LINEAR_SCAN, SELECTIVE_SCAN, SSD
from ._pool import State, StatePool
from ._ssd_update import ssd_update
from ._steps import gated_delta_rule_update, selective_state_update
from ._types import Array, Context, Discretization, Limits, Out, T


def selective_scan(
    x: T,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None = None,
    initial_state: State | None = None,
    *,
    z: Array | None = None,
    dt_bias: Array | None = None,
    dt_softplus: bool = False,
    dt_limit: Limits = None,
    deltaA: Array | None = None,
    discretization: Discretization = "mamba",
    reverse: bool = False,
    cu_seqlens: Array | None = None,
    seq_idx: Array | None = None,
    context: Context | None = None,
    exact: bool = False,
    out: Out = None,
    **renamed: NoReturn,
) -> tuple[T, T]:
    """Mamba's selective scan: ``h[t] = exp(dt[t] A) h[t-1] + dt[t] B[t] x[t]``, ``y[t] = <C[t], h[t]> + D x[t]``.

    Args:
        x, dt: (batch, dim, seqlen), real.
        A: (dim, dstate), real, or complex: then ``y = 2 Re(sum_n C h)``.
        B, C: (batch, dstate, seqlen), (batch, ngroups, dstate, seqlen), or constant (dim, dstate); complex only where A is.
        D: (dim,), skip.
        initial_state: (batch, dim, dstate), the state before the first step; zero if it is None. Or a `StatePool`.
        z: (batch, dim, seqlen), gate: ``y * silu(z)``, after the skip.
        dt_bias, dt_softplus, dt_limit: what happens to dt, in this order: a (dim,) tensor is added, softplus, clamp to
            (low, high).
        deltaA: (batch, dim, seqlen), a step of its own for the decay, used as it is.
        discretization: "mamba", "zoh", "bilinear" or "dirac".
        reverse: scan from the last step to the first.
        cu_seqlens: (sequences + 1,), int32 or int64, bounds of sequences packed into a batch of 1: from 0 to seqlen, none below
            the one before it. Initial and final states are (sequences, dim, dstate) then. Excludes seq_idx.
        seq_idx: (batch, seqlen), int32 or int64; a change of value starts a sequence. With states of (batch, dim, dstate) the
            first sequence of a row that is scanned starts from its state, the last one leaves the final state, and all others
            start from zero. With an initial state of (batch, sequences, dim, dstate) values are the numbers of sequences, from
            0, rising along a row, and each has a state.
        context: one of `statescan.distributed`, over whose ranks the steps are cut.
        exact: compute it as `selective_state_update` does, token after token, with its bits, however a text is cut and whatever
            lies beside it. It excludes reverse, seq_idx, context, out, and B and C that are constant.
        out: what the results are written to, in the place of new arrays: an array for y, or one each for y and the state, of
            which one may be None. Any strides and any floating type, complex where the result is; apart from the arguments. It
            excludes gradients, a context and JAX's arrays.

    On a GPU the values of cu_seqlens and seq_idx are not checked: wrong ones give wrong results.

    Returns:
        y, of x's shape and type, and the state after the last step, of the initial state's shape and of float32, or
        complex64 where A is complex (float64 or complex128 where x is float64).

    Examples:
        >>> x, dt = torch.randn(2, 8, 20), torch.rand(2, 8, 20)
        >>> B, C = torch.randn(2, 2, 4, 20)
        >>> y, state = selective_scan(x, dt, -torch.rand(8, 4), B, C, dt_softplus=True)
        >>> y.shape, state.shape
        (torch.Size([2, 8, 20]), torch.Size([2, 8, 4]))
    """
    if renamed:
        _dispatch.refuse_keyword(SELECTIVE_SCAN, renamed)
    if (
        not (initial_state is None or isinstance(initial_state, StatePool))
        and _dispatch.is_complex(A)
        and not _dispatch.is_complex(initial_state)
    ):
        # the native gradient by the state of a complex scan is complex; this conversion's own gradient makes it real
        initial_state = initial_state + 0j
    tensors = (x, dt, A, B, C, D, z, dt_bias, deltaA, initial_state, cu_seqlens, seq_idx)
    low, high = (None, None) if dt_limit is None else _dispatch.limits("selective_scan", dt_limit)
    options = (dt_softplus, low, high, discretization, reverse)
    if exact:
        own = {"dt_softplus": dt_softplus, "dt_limit": dt_limit, "discretization": discretization}
        excluded = {"reverse": reverse, "context": context, "out": out}
        return _exact.scan(SELECTIVE_SCAN, selective_state_update, tensors, options, own, excluded)
    return _dispatch.call(SELECTIVE_SCAN, tensors, options, context, out)


def ssd(
    x: T,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    chunk_size: int = 128,
    D: Array | None = None,
    initial_state: State | None = None,
    *,
    z: Array | None = None,
    dt_bias: Array | None = None,
    dt_softplus: bool = False,
    dt_limit: Limits = None,
    dt_a: Array | None = None,
    reverse: bool = False,
    cu_seqlens: Array | None = None,
    seq_idx: Array | None = None,
    context: Context | None = None,
    exact: bool = False,
    out: Out = None,
    **renamed: NoReturn,
) -> tuple[T, T]:
    """Mamba-2's scan (SSD): the recurrence of the selective scan with one decay for each head, as matrix products.

    Args:
        x: (batch, seqlen, nheads, headdim).
        dt: (batch, seqlen, nheads).
        A: (nheads,).
        B, C: (batch, seqlen, dstate) or (batch, seqlen, ngroups, dstate).
        chunk_size: a hint, at least 1; any sequence length goes with any chunk size.
        D: (nheads,) or (nheads, headdim), skip.
        initial_state: (batch, nheads, headdim, dstate).
        z: as x, gate.
        dt_a: as dt, a step of its own for the decay ``exp(dt_a A)``, used as it is. With A = 1 it is the decay's logarithm: gated
            linear attention is ``ssd(v, ones, ones, k, q, dt_a=log_decay)``.
        dt_bias, dt_softplus, dt_limit, reverse, cu_seqlens, seq_idx, context, exact, out: as in `selective_scan`; dt_bias is
            (nheads,), and states of packed sequences are (sequences, nheads, headdim, dstate) or
            (batch, sequences, nheads, headdim, dstate). `exact` has the bits of `ssd_update`.

    Returns:
        y, of x's shape and type, and the final state, shaped as the initial state, float32 (float64 where x is).
        `ssd_update` goes on from it.

    Examples:
        >>> x, dt = torch.randn(2, 20, 4, 16), torch.rand(2, 20, 4)
        >>> B, C = torch.randn(2, 2, 20, 8)
        >>> y, state = ssd(x, dt, -torch.rand(4), B, C)
        >>> y.shape, state.shape
        (torch.Size([2, 20, 4, 16]), torch.Size([2, 4, 16, 8]))
    """
    if renamed:
        _dispatch.refuse_keyword(SSD, renamed)
    tensors = (x, dt, A, B, C, D, z, dt_bias, dt_a, initial_state, cu_seqlens, seq_idx)
    low, high = (None, None) if dt_limit is None else _dispatch.limits("ssd", dt_limit)
    options = (dt_softplus, low, high, chunk_size, reverse)
    if exact:
        own, excluded = {"dt_softplus": dt_softplus, "dt_limit": dt_limit}, {"reverse": reverse, "context": context, "out": out}
        return _exact.scan(SSD, ssd_update, tensors, options, own, excluded)
    return _dispatch.call(SSD, tensors, options, context, out)


def linear_scan(
    a: Array,
    b: T,
    initial_state: State | None = None,
    *,
    reverse: bool = False,
    context: Context | None = None,
    exact: bool = False,
    out: Out = None,
    **renamed: NoReturn,
) -> tuple[T, T]:
    """The recurrence ``h[t] = a[t] h[t-1] + b[t]``, the primitive under S5, LRU, RG-LRU, HGRN and S7.

    Args:
        a, b: (.., seqlen), up to four leading axes, real or complex, each on its own.
        initial_state: (..), the state before the first step; or a `StatePool` of states (slots, ..), without the first axis.
        reverse: scan from the last step to the first.
        context, out: as in `selective_scan`.
        exact: take one step after another, with the bits of `linear_scan_update`, however a text is cut, as CPUs always do. It
            excludes `context`, and pools of less than 32 bits.

    Returns:
        h, shaped as b and of the type that a and b promote to, and the state after the last step, (..), of float32 or
        complex64, float64 or complex128 where h is.

    Examples:
        >>> h, state = linear_scan(torch.full((4,), 0.5), torch.ones(4))
        >>> h
        tensor([1.0000, 1.5000, 1.7500, 1.8750])
    """
    if renamed:
        _dispatch.refuse_keyword(LINEAR_SCAN, renamed)
    if exact:
        _exact.check_linear_scan(a, b, initial_state, context)
    return _dispatch.call(LINEAR_SCAN, (a, b, initial_state), (reverse, exact), context, out)


def gated_delta_rule(
    q: Array,
    k: Array,
    v: T,
    g: Array | None = None,
    beta: Array | None = None,
    initial_state: State | None = None,
    *,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    scale: float | None = None,
    qk_l2norm: bool = False,
    lower_bound: float | None = None,
    beta_sigmoid: bool = False,
    allow_neg_eigval: bool = False,
    reverse: bool = False,
    cu_seqlens: Array | None = None,
    seq_idx: Array | None = None,
    context: Context | None = None,
    exact: bool = False,
    out: Out = None,
    **renamed: NoReturn,
) -> tuple[T, T]:
    """The gated delta rule: ``S' = exp(g[t]) S``, ``S = S' + k[t] (beta[t] (v[t] - S'^T k[t]))^T``, ``y[t] = scale S^T q[t]``.

    Tensors may have any strides: parts of a tensor whose channels come before time, and states with their last two axes
    exchanged (``state.transpose(-1, -2)``), go in as they are.

    Args:
        q, k: (batch, seqlen, heads, key_width), widths at most 256.
        v: (batch, seqlen, value_heads, value_width); value_heads / heads neighbouring heads share a key.
        g: (batch, seqlen, value_heads), or (batch, seqlen, value_heads, key_width) for a decay of each key channel (Kimi Delta
            Attention): the decay's logarithm, or a raw gate beside A_log; nothing decays if it is None.
        beta: (batch, seqlen, value_heads), how much of a value is written; all of it if it is None.
        initial_state: (batch, value_heads, key_width, value_width), the state before the first step; zero if it is None.
        A_log, dt_bias: (value_heads,), and as g without batch and seqlen: g is ``-exp(A_log) softplus(g + dt_bias)`` then.
        scale: the factor of the output; ``key_width ** -0.5`` if it is None.
        qk_l2norm: whether q and k are divided by ``sqrt(sum x^2 + 1e-6)`` first.
        lower_bound: below 0, with A_log: g is ``lower_bound sigmoid(exp(A_log) (g + dt_bias))`` instead.
        beta_sigmoid, allow_neg_eigval: whether beta goes through a sigmoid, and is doubled then.
        reverse, cu_seqlens, seq_idx, context, exact, out: as in `selective_scan`; states of packed sequences are
            (sequences, value_heads, key_width, value_width), or (batch, sequences, ..).

    Returns:
        y, of v's shape and type, and the final state, shaped as the initial state, float32 (float64 where v is).
        `gated_delta_rule_update` goes on from it.

    Examples:
        >>> q, k, v = torch.randn(3, 2, 20, 4, 8)
        >>> g, beta = -torch.rand(2, 20, 4), torch.rand(2, 20, 4)
        >>> y, state = gated_delta_rule(q, k, v, g, beta, qk_l2norm=True)
        >>> y.shape, state.shape
        (torch.Size([2, 20, 4, 8]), torch.Size([2, 4, 8, 8]))
    """
    if renamed:
        _dispatch.refuse_keyword(GATED_DELTA_RULE, renamed)
    tensors = (q, k, v, g, beta, A_log, dt_bias, initial_state, cu_seqlens, seq_idx)
    options = (_dispatch.number(scale), qk_l2norm, _dispatch.number(lower_bound), beta_sigmoid, allow_neg_eigval, reverse)
    if exact:
        own = {"scale": scale, "qk_l2norm": qk_l2norm, "lower_bound": lower_bound}
        own |= {"beta_sigmoid": beta_sigmoid, "allow_neg_eigval": allow_neg_eigval}
        excluded = {"reverse": reverse, "context": context, "out": out}
        return _exact.scan(GATED_DELTA_RULE, gated_delta_rule_update, tensors, options, own, excluded)
    return _dispatch.call(GATED_DELTA_RULE, tensors, options, context, out)
