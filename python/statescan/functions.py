"""The public functions. Each puts its arguments in order and hands them to the framework of its first tensor."""

import math
from typing import Any, Literal, NoReturn, overload

from ._operations import (
    CAUSAL_CONV1D,
    CAUSAL_CONV1D_UPDATE,
    GATED_DELTA_RULE,
    GATED_DELTA_RULE_UPDATE,
    LINEAR_SCAN,
    NORM,
    S5_INNER,
    SELECTIVE_SCAN,
    SELECTIVE_STATE_UPDATE,
    SIMPLIFIED_SCAN,
    SIMPLIFIED_STATE_UPDATE,
    SSD,
    Operation,
)
from ._pool import State, StatePool, moved
from ._types import Activation, Array, Context, Discretization, J, Kind, Limits, Out, T

# the file here that serves arrays of a module
_FRAMEWORKS = {"torch": "torch", "numpy": "numpy", "cupy": "cupy", "jax": "jax", "jaxlib": "jax"}
_served: dict[type, Any] = {}


def _framework(op: str, name: str, tensor):
    """The module that serves a kind of tensor; it is imported when the first such tensor comes."""
    kind = type(tensor)
    if kind not in _served:
        origins = (base.__module__.partition(".")[0] for base in kind.__mro__)
        file = next((_FRAMEWORKS[origin] for origin in origins if origin in _FRAMEWORKS), None)
        got = f"got {kind.__module__}.{kind.__qualname__}"
        if file is None or not hasattr(tensor, "__dlpack__"):
            raise TypeError(f"{op}: `{name}` must be a PyTorch tensor or a NumPy, CuPy or JAX array, {got}")
        if any(base.__name__ == "MaskedArray" for base in kind.__mro__):
            raise TypeError(f"{op}: `{name}` must be an array without a mask, {got}; call filled() first")
        _served[kind] = _import(file)
    return _served[kind]


def _import(file):
    """A file here that serves arrays. PyTorch's compiler, which may be looking, follows such imports."""
    if file == "torch":
        from . import torch as found
    elif file == "numpy":
        from . import numpy as found
    elif file == "cupy":
        from . import cupy as found
    else:
        from . import _jax as found
    return found


def _mix(one, other):
    """Whether a call may have arrays of two frameworks: JAX takes NumPy's."""
    return {one.__name__, other.__name__} == {f"{__package__}._jax", f"{__package__}.numpy"}


def _explain(op, tensors, first):
    """Names a tensor that is missing, or is of another kind than the first one, if that is why a call failed."""
    own = _framework(op.name, op.tensors[0], first)
    for name, tensor in zip(op.tensors, tensors):
        name, optional = name.rstrip("?"), name.endswith("?")
        if tensor is None and optional:
            continue
        if tensor is None or not ((other := _framework(op.name, name, tensor)) is own or _mix(own, other)):
            expected = f"of the same kind as the others, {type(first).__module__}.{type(first).__qualname__}"
            raise TypeError(f"{op.name}: `{name}` must be {expected}, got {type(tensor).__qualname__}")


def _rooms(op: Operation, out, tensors, first):
    """The tensors of `out`, one for each result; None for one that is made."""
    rooms = out if isinstance(out, tuple) else (out,)
    names = [result.name for result in op.outputs]
    if len(rooms) > len(names):
        raise TypeError(f"{op.name}: `out` has room for {' and '.join(f'`{name}`' for name in names)}, got {len(rooms)} of them")
    rooms += (None,) * (len(names) - len(rooms))
    for result, room, is_made in zip(op.outputs, rooms, op.made(tensors)):
        if room is None:
            continue
        if not is_made:
            raise ValueError(f"{op.name}: `out` has room for `{result.name}`, which goes with `{result.beside}`")
        if _framework(op.name, "out", room) is not _framework(op.name, op.tensors[0], first):
            expected = f"of the same kind as the others, {type(first).__module__}.{type(first).__qualname__}"
            raise TypeError(f"{op.name}: `out` must be {expected}, got {type(room).__qualname__}")
    return rooms


def _call(op: Operation, tensors, options, context=None, out=None):
    if op.initial is not None and type(tensors[op.initial]) is StatePool:
        if context is not None:
            raise TypeError(f"{op.name}: `context` excludes a StatePool: ranks have slices of one sequence")
        return moved(op, tensors[op.initial], tensors, lambda pool, state, others: _step(pool, state, others, options, out))
    framework = _served.get(type(tensors[0])) or _framework(op.name, op.tensors[0], tensors[0])
    try:
        if context is not None:
            if not hasattr(context, "with_gradient"):
                raise TypeError(f"{op.name}: `context` must be one of statescan.distributed, got {type(context).__qualname__}")
            if out is not None:
                raise TypeError(f"{op.name}: `context` excludes `out`")
            return context.call(op, framework, tensors, options)
        if out is not None:
            return framework.call(op, tensors, options, out=_rooms(op, out, tensors, tensors[0]))
        return framework.call(op, tensors, options)
    except (AttributeError, RuntimeError, TypeError):
        _explain(op, tensors, tensors[0])
        raise


def _step(op: Operation, state, tensors, options, out=None):
    framework = _served.get(type(state)) or _framework(op.name, op.state, state)
    try:
        if out is not None:
            return framework.step(op, state, tensors, options, out=_rooms(op, out, tensors, state))
        return framework.step(op, state, tensors, options)
    except (AttributeError, RuntimeError, TypeError):
        _explain(op, tensors, state)
        raise


def _between(op: Operation, state, tensors, options, written, bounds, out):
    """A step, between slots where they are given: the last of the tensors are those that are read."""
    if written is None and bounds is None:
        return _step(op, state, tensors, options, out)
    return _step(op.slotted, state, (*tensors, tensors[-1] if written is None else written, bounds), options, out)


# what says whether a function returns its second result
_FLAGS = {"simplified_scan": "return_last_state", "s5_inner": "return_last_state", "causal_conv1d": "return_final_states"}


def _answer(op: Operation, renamed):
    """Refuses keywords that a function has not, and says what it calls them."""
    name = next(iter(renamed))
    is_flag = name.startswith("return_") and op.state is None and op is not NORM
    own = _FLAGS.get(op.name) if is_flag else op.called(name)
    if own is not None:
        raise TypeError(f"{op.name}: `{name}` is called `{own}` here")
    if is_flag:
        raise TypeError(f"{op.name}: there is no `{name}`: the state after the last step always comes behind y")
    raise TypeError(f"{op.name}() got an unexpected keyword argument {name!r}")


def _is_complex(tensor):
    dtype = getattr(tensor, "dtype", None)
    is_complex = getattr(dtype, "is_complex", None)
    return getattr(dtype, "kind", None) == "c" if is_complex is None else is_complex


def _limits(op: str, dt_limit):
    """The lowest and the highest step, None where there is none: formats for compiled models have no infinity."""
    try:
        low, high = (float(limit) for limit in dt_limit)
    except (TypeError, ValueError):
        raise TypeError(f"{op}: `dt_limit` must be None or two numbers, low and high, got {dt_limit!r}") from None
    return None if low == -math.inf else low, None if high == math.inf else high


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
        _answer(SELECTIVE_SCAN, renamed)
    if not (initial_state is None or isinstance(initial_state, StatePool)) and _is_complex(A) and not _is_complex(initial_state):
        # the native gradient by the state of a complex scan is complex; this conversion's own gradient makes it real
        initial_state = initial_state + 0j
    tensors = (x, dt, A, B, C, D, z, dt_bias, deltaA, initial_state, cu_seqlens, seq_idx)
    low, high = (None, None) if dt_limit is None else _limits("selective_scan", dt_limit)
    return _call(SELECTIVE_SCAN, tensors, (dt_softplus, low, high, discretization, reverse), context, out)


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
        dt_bias, dt_softplus, dt_limit, reverse, cu_seqlens, seq_idx, context, out: as in `selective_scan`; dt_bias is (nheads,),
            and states of packed sequences (sequences, nheads, headdim, dstate) or (batch, sequences, nheads, headdim, dstate).

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
        _answer(SSD, renamed)
    tensors = (x, dt, A, B, C, D, z, dt_bias, dt_a, initial_state, cu_seqlens, seq_idx)
    low, high = (None, None) if dt_limit is None else _limits("ssd", dt_limit)
    return _call(SSD, tensors, (dt_softplus, low, high, chunk_size, reverse), context, out)


# fmt: off
@overload
def simplified_scan(
    u: T, delta: Array, A: Array, B: Array, C: Array, deltaA: Array | None = None, return_last_state: Literal[False] = False,
    discretization: Discretization = "bilinear", *, initial_state: State | None = None, reverse: bool = False,
    cu_seqlens: Array | None = None, seq_idx: Array | None = None, context: Context | None = None,
    out: Out = None
) -> T: ...
@overload
def simplified_scan(
    u: T, delta: Array, A: Array, B: Array, C: Array, deltaA: Array | None = None, *, return_last_state: Literal[True],
    discretization: Discretization = "bilinear", initial_state: State | None = None, reverse: bool = False,
    cu_seqlens: Array | None = None, seq_idx: Array | None = None, context: Context | None = None,
    out: Out = None
) -> tuple[T, T]: ...
@overload
def simplified_scan(
    u: T, delta: Array, A: Array, B: Array, C: Array, deltaA: Array | None = None, return_last_state: bool = False,
    discretization: Discretization = "bilinear", *, initial_state: State | None = None, reverse: bool = False,
    cu_seqlens: Array | None = None, seq_idx: Array | None = None, context: Context | None = None,
    out: Out = None
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
        reverse, cu_seqlens, seq_idx, context, out: as in `selective_scan`; states of packed sequences are (sequences, dstate) or
            (batch, sequences, dstate).

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
        _answer(SIMPLIFIED_SCAN, renamed)
    tensors = (u, delta, A, B, C, None, deltaA, initial_state, cu_seqlens, seq_idx)
    y, last_state = _call(SIMPLIFIED_SCAN, tensors, (discretization, reverse), context, out)
    return (y, last_state) if return_last_state else y


# fmt: off
@overload
def s5_inner(
    u: T, delta: Array, A: Array, B: Array, C: Array, D: Array, deltaA: Array | None = None,
    discretization: Discretization = "bilinear", conj_sym: bool = True, *, initial_state: State | None = None,
    return_last_state: Literal[False] = False, reverse: bool = False, cu_seqlens: Array | None = None,
    seq_idx: Array | None = None, context: Context | None = None,
    out: Out = None
) -> T: ...
@overload
def s5_inner(
    u: T, delta: Array, A: Array, B: Array, C: Array, D: Array, deltaA: Array | None = None,
    discretization: Discretization = "bilinear", conj_sym: bool = True, *, initial_state: State | None = None,
    return_last_state: Literal[True], reverse: bool = False, cu_seqlens: Array | None = None, seq_idx: Array | None = None,
    context: Context | None = None,
    out: Out = None
) -> tuple[T, T]: ...
@overload
def s5_inner(
    u: T, delta: Array, A: Array, B: Array, C: Array, D: Array, deltaA: Array | None = None,
    discretization: Discretization = "bilinear", conj_sym: bool = True, *, initial_state: State | None = None,
    return_last_state: bool = False, reverse: bool = False, cu_seqlens: Array | None = None, seq_idx: Array | None = None,
    context: Context | None = None,
    out: Out = None
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
        _answer(S5_INNER, renamed)
    tensors = (u, delta, A, B, C, D, deltaA, initial_state, cu_seqlens, seq_idx)
    y, last_state = _call(S5_INNER, tensors, (discretization, reverse, conj_sym), context, out)
    return (y, last_state) if return_last_state else y


def linear_scan(
    a: Array,
    b: T,
    initial_state: State | None = None,
    *,
    reverse: bool = False,
    context: Context | None = None,
    out: Out = None,
    **renamed: NoReturn,
) -> tuple[T, T]:
    """The recurrence ``h[t] = a[t] h[t-1] + b[t]``, the primitive under S5, LRU, RG-LRU, HGRN and S7.

    Args:
        a, b: (.., seqlen), up to four leading axes, real or complex, each on its own.
        initial_state: (..), the state before the first step; or a `StatePool` of states (slots, ..), without the first axis.
        reverse: scan from the last step to the first.
        context, out: as in `selective_scan`.

    Returns:
        h, shaped as b and of the type that a and b promote to, and the state after the last step, (..), of float32 or
        complex64, float64 or complex128 where h is.

    Examples:
        >>> h, state = linear_scan(torch.full((4,), 0.5), torch.ones(4))
        >>> h
        tensor([1.0000, 1.5000, 1.7500, 1.8750])
    """
    if renamed:
        _answer(LINEAR_SCAN, renamed)
    return _call(LINEAR_SCAN, (a, b, initial_state), (reverse,), context, out)


# fmt: off
@overload
def causal_conv1d(
    x: T, weight: Array, bias: Array | None = None, *, activation: Activation = None, initial_states: State | None = None,
    seq_idx: Array | None = None, return_final_states: Literal[False] = False, reverse: bool = False,
    cu_seqlens: Array | None = None, context: Context | None = None,
    out: Out = None
) -> T: ...
@overload
def causal_conv1d(
    x: T, weight: Array, bias: Array | None = None, *, activation: Activation = None, initial_states: State | None = None,
    seq_idx: Array | None = None, return_final_states: Literal[True], reverse: bool = False, cu_seqlens: Array | None = None,
    context: Context | None = None,
    out: Out = None
) -> tuple[T, T]: ...
@overload
def causal_conv1d(
    x: T, weight: Array, bias: Array | None = None, *, activation: Activation = None, initial_states: State | None = None,
    seq_idx: Array | None = None, return_final_states: bool = False, reverse: bool = False, cu_seqlens: Array | None = None,
    context: Context | None = None,
    out: Out = None
) -> T | tuple[T, T]: ...
# fmt: on
def causal_conv1d(
    x: T,
    weight: Array,
    bias: Array | None = None,
    *,
    activation: Activation = None,
    initial_states: State | None = None,
    seq_idx: Array | None = None,
    return_final_states: bool = False,
    reverse: bool = False,
    cu_seqlens: Array | None = None,
    context: Context | None = None,
    out: Out = None,
    **renamed: NoReturn,
) -> T | tuple[T, T]:
    """Causal depthwise convolution over time: ``y[t] = bias + sum_k weight[k] x[t - (width - 1) + k]``, then the activation.

    Args:
        x: (batch, dim, seqlen).
        weight: (dim, width), width 2 to 8; the last tap is the present.
        bias: (dim,).
        activation: None, "silu" or "swish".
        initial_states: (batch, dim, width - 1), the inputs before the first step, the latest last.
        seq_idx: (batch, seqlen), as in `selective_scan`. Steps with a negative value are padding, where y is zero; there is none
            where initial states are (batch, sequences, dim, width - 1).
        return_final_states: whether to return the last width - 1 inputs, too.
        reverse: convolve from the last step to the first; states are then in the order in which it walks.
        cu_seqlens: (sequences + 1,), as in `selective_scan`; states are (sequences, dim, width - 1).
        context, out: as in `selective_scan`.

    Returns:
        y, of x's shape and type; with `return_final_states` also the final states, shaped as the initial states, of x's type.

    Examples:
        >>> y = causal_conv1d(torch.randn(2, 8, 20), torch.randn(8, 4), activation="silu")
        >>> y.shape
        torch.Size([2, 8, 20])
    """
    if renamed:
        _answer(CAUSAL_CONV1D, renamed)
    tensors = (x, weight, bias, initial_states, cu_seqlens, seq_idx)
    y, final_states = _call(CAUSAL_CONV1D, tensors, (activation, reverse), context, out)
    return (y, final_states) if return_final_states else y


# fmt: off
@overload
def norm(
    x: T, weight: Array | None = None, bias: Array | None = None, *, z: Array | None = None, residual: None = None,
    kind: Kind = "rms", eps: float = 1e-5, groups: int = 1, norm_before_gate: bool = False,
    out: Out = None
) -> T: ...
@overload
def norm(
    x: T, weight: Array | None = None, bias: Array | None = None, *, z: Array | None = None, residual: Array,
    kind: Kind = "rms", eps: float = 1e-5, groups: int = 1, norm_before_gate: bool = False,
    out: Out = None
) -> tuple[T, T]: ...
@overload
def norm(
    x: T, weight: Array | None = None, bias: Array | None = None, *, z: Array | None = None, residual: Array | None = None,
    kind: Kind = "rms", eps: float = 1e-5, groups: int = 1, norm_before_gate: bool = False,
    out: Out = None
) -> T | tuple[T, T]: ...
# fmt: on
def norm(
    x: T,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    z: Array | None = None,
    residual: Array | None = None,
    kind: Kind = "rms",
    eps: float = 1e-5,
    groups: int = 1,
    norm_before_gate: bool = False,
    out: Out = None,
    **renamed: NoReturn,
) -> T | tuple[T, T]:
    """RMS or layer norm of rows: ``weight norm(s silu(z)) + bias`` or ``silu(z) (weight norm(s) + bias)``, ``s = x + residual``.

    Args:
        x: (.., dim), with up to three leading axes.
        weight, bias: (dim,).
        z: as x, gate.
        residual: as x, added to it first.
        kind: "rms", or "layer", which subtracts the mean.
        eps: added to the mean square, 0 or more.
        groups: equal groups of neighbouring channels, each normed by itself.
        norm_before_gate: whether the gate multiplies the normed row, and not what is normed.
        out: an array for y, or one each for y and the sum, as in `selective_scan`.

    Returns:
        y, of x's shape and type; with a residual also the sum, of the residual's type.

    Examples:
        >>> norm(torch.tensor([3.0, 4.0]), eps=0.0)
        tensor([0.8485, 1.1314])
    """
    if renamed:
        _answer(NORM, renamed)
    results = _call(NORM, (x, weight, bias, z, residual), (kind, eps, groups, norm_before_gate), out=out)
    return results[0] if residual is None else tuple(results)


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
        reverse, cu_seqlens, seq_idx, context, out: as in `selective_scan`; states of packed sequences are
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
        _answer(GATED_DELTA_RULE, renamed)
    tensors = (q, k, v, g, beta, A_log, dt_bias, initial_state, cu_seqlens, seq_idx)
    options = (_number(scale), qk_l2norm, _number(lower_bound), beta_sigmoid, allow_neg_eigval, reverse)
    return _call(GATED_DELTA_RULE, tensors, options, context, out)


def _number(option):
    """An option that is a number, and 0 for what is made from other things."""
    return 0.0 if option is None else option


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
        _answer(GATED_DELTA_RULE_UPDATE, renamed)
    tensors = (q, k, v, g, beta, A_log, dt_bias, state_batch_indices)
    options = (_number(scale), qk_l2norm, _number(lower_bound), beta_sigmoid, allow_neg_eigval)
    return _between(GATED_DELTA_RULE_UPDATE, state, tensors, options, dst_state_batch_indices, cu_seqlens, out)


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
        _answer(SELECTIVE_STATE_UPDATE, renamed)
    tensors = (x, dt, A, B, C, D, z, dt_bias, deltaA, state_batch_indices)
    low, high = (None, None) if dt_limit is None else _limits("selective_state_update", dt_limit)
    options = (dt_softplus, low, high, discretization)
    return _between(SELECTIVE_STATE_UPDATE, state, tensors, options, dst_state_batch_indices, cu_seqlens, out)


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
        _answer(SIMPLIFIED_STATE_UPDATE, renamed)
    tensors = (u, delta, A, B, C, D, deltaA, state_batch_indices)
    return _between(SIMPLIFIED_STATE_UPDATE, state, tensors, (discretization, conj_sym), dst_state_batch_indices, cu_seqlens, out)


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
        _answer(CAUSAL_CONV1D_UPDATE, renamed)
    tensors = (x, weight, bias, cache_seqlens, conv_state_indices)
    return _between(CAUSAL_CONV1D_UPDATE, conv_state, tensors, (activation,), dst_conv_state_indices, cu_seqlens, out)


# as lrnnx calls them
simplified_scan_fn = simplified_scan
s5_inner_fn = s5_inner
