"""S5's scan, and with it the maps of its inputs and outputs."""

from typing import Literal, NoReturn, overload

from . import _dispatch, _exact
from ._operations import S5_INNER, SIMPLIFIED_SCAN
from ._pool import State
from ._steps import simplified_state_update
from ._types import Array, Context, Discretization, Out, T


# fmt: off
@overload
def simplified_scan(
    u: T, delta: Array, A: Array, B: Array, C: Array, deltaA: Array | None = None, return_last_state: Literal[False] = False,
    discretization: Discretization = "bilinear", *, initial_state: State | None = None, reverse: bool = False,
    cu_seqlens: Array | None = None, seq_idx: Array | None = None, context: Context | None = None,
    exact: bool = False, out: Out = None
) -> T: ...
@overload
def simplified_scan(
    u: T, delta: Array, A: Array, B: Array, C: Array, deltaA: Array | None = None, *, return_last_state: Literal[True],
    discretization: Discretization = "bilinear", initial_state: State | None = None, reverse: bool = False,
    cu_seqlens: Array | None = None, seq_idx: Array | None = None, context: Context | None = None,
    exact: bool = False, out: Out = None
) -> tuple[T, T]: ...
@overload
def simplified_scan(
    u: T, delta: Array, A: Array, B: Array, C: Array, deltaA: Array | None = None, return_last_state: bool = False,
    discretization: Discretization = "bilinear", *, initial_state: State | None = None, reverse: bool = False,
    cu_seqlens: Array | None = None, seq_idx: Array | None = None, context: Context | None = None,
    exact: bool = False, out: Out = None
) -> T | tuple[T, T]: ...
# fmt: on
def simplified_scan(
    u: T,
    delta: Array,
    A: Array,
    B: Array,
    C: Array,
    deltaA: Array | None = None,
    return_last_state: bool = False,
    discretization: Discretization = "bilinear",
    *,
    initial_state: State | None = None,
    reverse: bool = False,
    cu_seqlens: Array | None = None,
    seq_idx: Array | None = None,
    context: Context | None = None,
    exact: bool = False,
    out: Out = None,
    **renamed: NoReturn,
) -> T | tuple[T, T]:
    """S5's scan: ``x[t] = Abar[t] x[t-1] + Bbar[t] (B u[t])``, ``y[t] = C x[t]``, with a diagonal complex state.

    Args:
        u: (batch, dim, seqlen), complex or real; a real one costs half.
        delta: (batch, dstate, seqlen), or (dstate,) where steps do not depend on time.
        A: (dstate,) or (dstate, 1), complex or real.
        B, C: (dstate, dim) and (dim, dstate), complex or real.
        deltaA: as delta, a step of its own for the decay (asynchronous input).
        return_last_state: whether to return the state after the last step, too.
        discretization: "bilinear", "zoh", "dirac" or "mamba".
        initial_state: (batch, dstate).
        reverse, cu_seqlens, seq_idx, context, exact, out: as in `selective_scan`; states of packed sequences are
            (sequences, dstate) or (batch, sequences, dstate).

    Returns:
        y, (batch, dim, seqlen), complex; with `return_last_state` also the last state, shaped as the initial state, complex.
        Both are complex128 where u is float64 or complex128. Otherwise the state is complex64, and so is y.

    Examples:
        >>> A, B, C = -torch.rand(4) + 1j, torch.randn(4, 3), torch.randn(3, 4)
        >>> y = simplified_scan(torch.randn(2, 3, 20), torch.rand(4), A, B, C)
        >>> y.shape, y.dtype
        (torch.Size([2, 3, 20]), torch.complex64)
    """
    if renamed:
        _dispatch.refuse_keyword(SIMPLIFIED_SCAN, renamed)
    tensors = (u, delta, A, B, C, None, deltaA, initial_state, cu_seqlens, seq_idx)
    options = (discretization, reverse)
    if exact:
        own, excluded = {"discretization": discretization}, {"reverse": reverse, "context": context, "out": out}
        y, last_state = _exact.scan(SIMPLIFIED_SCAN, simplified_state_update, tensors, options, own, excluded)
    else:
        y, last_state = _dispatch.call(SIMPLIFIED_SCAN, tensors, options, context, out)
    return (y, last_state) if return_last_state else y


# fmt: off
@overload
def s5_inner(
    u: T, delta: Array, A: Array, B: Array, C: Array, D: Array, deltaA: Array | None = None,
    discretization: Discretization = "bilinear", conj_sym: bool = True, *, initial_state: State | None = None,
    return_last_state: Literal[False] = False, reverse: bool = False, cu_seqlens: Array | None = None,
    seq_idx: Array | None = None, context: Context | None = None,
    exact: bool = False, out: Out = None
) -> T: ...
@overload
def s5_inner(
    u: T, delta: Array, A: Array, B: Array, C: Array, D: Array, deltaA: Array | None = None,
    discretization: Discretization = "bilinear", conj_sym: bool = True, *, initial_state: State | None = None,
    return_last_state: Literal[True], reverse: bool = False, cu_seqlens: Array | None = None, seq_idx: Array | None = None,
    context: Context | None = None,
    exact: bool = False, out: Out = None
) -> tuple[T, T]: ...
@overload
def s5_inner(
    u: T, delta: Array, A: Array, B: Array, C: Array, D: Array, deltaA: Array | None = None,
    discretization: Discretization = "bilinear", conj_sym: bool = True, *, initial_state: State | None = None,
    return_last_state: bool = False, reverse: bool = False, cu_seqlens: Array | None = None, seq_idx: Array | None = None,
    context: Context | None = None,
    exact: bool = False, out: Out = None
) -> T | tuple[T, T]: ...
# fmt: on
def s5_inner(
    u: T,
    delta: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array,
    deltaA: Array | None = None,
    discretization: Discretization = "bilinear",
    conj_sym: bool = True,
    *,
    initial_state: State | None = None,
    return_last_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Array | None = None,
    seq_idx: Array | None = None,
    context: Context | None = None,
    exact: bool = False,
    out: Out = None,
    **renamed: NoReturn,
) -> T | tuple[T, T]:
    """S5's layer: ``(2 if conj_sym else 1) * Re(C x) + D * Re(u)`` with the states of `simplified_scan`, in one pass.

    Args:
        D: (dim,), skip.
        conj_sym: whether the states stand for conjugate pairs, of which one each is kept.
        (the others): as in `simplified_scan`.

    Returns:
        y, (batch, dim, seqlen), of u's type if that is real, else float32 (float64 where u is complex128). With
        `return_last_state` also the last state, as in `simplified_scan`.

    Examples:
        >>> A, B, C = -torch.rand(4) + 1j, torch.randn(4, 3), torch.randn(3, 4)
        >>> y = s5_inner(torch.randn(2, 3, 20), torch.rand(4), A, B, C, torch.ones(3))
        >>> y.shape, y.dtype
        (torch.Size([2, 3, 20]), torch.float32)
    """
    if renamed:
        _dispatch.refuse_keyword(S5_INNER, renamed)
    tensors = (u, delta, A, B, C, D, deltaA, initial_state, cu_seqlens, seq_idx)
    options = (discretization, reverse, conj_sym)
    if exact:
        own, excluded = (
            {"discretization": discretization, "conj_sym": conj_sym},
            {"reverse": reverse, "context": context, "out": out},
        )
        y, last_state = _exact.scan(S5_INNER, simplified_state_update, tensors, options, own, excluded)
    else:
        y, last_state = _dispatch.call(S5_INNER, tensors, options, context, out)
    return (y, last_state) if return_last_state else y
