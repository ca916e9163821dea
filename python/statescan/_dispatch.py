"""A call on its way to the framework of its first tensor."""

import math
from typing import Any

from ._operations import NORM, Operation
from ._pool import StatePool, moved

# the file here that serves arrays of a module
_FRAMEWORKS = {"torch": "torch", "numpy": "numpy", "cupy": "cupy", "jax": "jax", "jaxlib": "jax"}
served: dict[type, Any] = {}


def framework_of(op: str, name: str, tensor):
    """The module that serves a kind of tensor; it is imported when the first such tensor comes."""
    kind = type(tensor)
    if kind not in served:
        origins = (base.__module__.partition(".")[0] for base in kind.__mro__)
        file = next((_FRAMEWORKS[origin] for origin in origins if origin in _FRAMEWORKS), None)
        got = f"got {kind.__module__}.{kind.__qualname__}"
        if file is None or not hasattr(tensor, "__dlpack__"):
            raise TypeError(f"{op}: `{name}` must be a PyTorch tensor or a NumPy, CuPy or JAX array, {got}")
        if any(base.__name__ == "MaskedArray" for base in kind.__mro__):
            raise TypeError(f"{op}: `{name}` must be an array without a mask, {got}; call filled() first")
        served[kind] = _import(file)
    return served[kind]


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


def mix(one, other):
    """Whether a call may have arrays of two frameworks: JAX takes NumPy's."""
    return {one.__name__, other.__name__} == {f"{__package__}._jax", f"{__package__}.numpy"}


def explain(op, tensors, first):
    """Names a tensor that is missing, or is of another kind than the first one, if that is why a call failed."""
    own = framework_of(op.name, op.tensors[0], first)
    for name, tensor in zip(op.tensors, tensors):
        name, optional = name.rstrip("?"), name.endswith("?")
        if tensor is None and optional:
            continue
        if tensor is None or not ((other := framework_of(op.name, name, tensor)) is own or mix(own, other)):
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
        if framework_of(op.name, "out", room) is not framework_of(op.name, op.tensors[0], first):
            expected = f"of the same kind as the others, {type(first).__module__}.{type(first).__qualname__}"
            raise TypeError(f"{op.name}: `out` must be {expected}, got {type(room).__qualname__}")
    return rooms


def call(op: Operation, tensors, options, context=None, out=None):
    """Runs an operation."""
    if op.initial is not None and type(tensors[op.initial]) is StatePool:
        if context is not None:
            raise TypeError(f"{op.name}: `context` excludes a StatePool: ranks have slices of one sequence")
        return moved(op, tensors[op.initial], tensors, lambda pool, state, others: step(pool, state, others, options, out))
    framework = served.get(type(tensors[0])) or framework_of(op.name, op.tensors[0], tensors[0])
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
        explain(op, tensors, tensors[0])
        raise


def step(op: Operation, state, tensors, options, out=None):
    """Runs a step."""
    framework = served.get(type(state)) or framework_of(op.name, op.state, state)
    try:
        if out is not None:
            return framework.step(op, state, tensors, options, out=_rooms(op, out, tensors, state))
        return framework.step(op, state, tensors, options)
    except (AttributeError, RuntimeError, TypeError):
        explain(op, tensors, state)
        raise


def between(op: Operation, state, tensors, options, written, bounds, out):
    """A step, between slots where they are given: the last of the tensors are those that are read."""
    if written is None and bounds is None:
        return step(op, state, tensors, options, out)
    return step(op.slotted, state, (*tensors, tensors[-1] if written is None else written, bounds), options, out)


# an option by which a function returns its second result
_FLAGS = {"simplified_scan": "return_last_state", "s5_inner": "return_last_state", "causal_conv1d": "return_final_states"}


def refuse_keyword(op: Operation, renamed):
    """Refuses keywords that a function has not, and says what it calls them."""
    name = next(iter(renamed))
    is_flag = name.startswith("return_") and op.state is None and op is not NORM
    own = _FLAGS.get(op.name) if is_flag else op.called(name)
    if own is not None:
        raise TypeError(f"{op.name}: `{name}` is called `{own}` here")
    if is_flag:
        raise TypeError(f"{op.name}: there is no `{name}`: the state after the last step always comes behind y")
    raise TypeError(f"{op.name}() got an unexpected keyword argument {name!r}")


def is_complex(tensor):
    dtype = getattr(tensor, "dtype", None)
    is_complex = getattr(dtype, "is_complex", None)
    return getattr(dtype, "kind", None) == "c" if is_complex is None else is_complex


def limits(op: str, dt_limit):
    """The lowest and the highest step, None where there is none: formats for compiled models have no infinity."""
    try:
        low, high = (float(limit) for limit in dt_limit)
    except (TypeError, ValueError):
        raise TypeError(f"{op}: `dt_limit` must be None or two numbers, low and high, got {dt_limit!r}") from None
    return None if low == -math.inf else low, None if high == math.inf else high


def number(option):
    """An option that is a number, and 0 for what is made from other things."""
    return 0.0 if option is None else option
