"""JAX arrays, on the CPU and on CUDA devices, also within `jit`, `grad`, `vmap`, `checkpoint`, `scan` and `shard_map`.

Every pass is a primitive of JAX's (`primitives.py`) that becomes a custom call of XLA's (`custom_calls.py`).
"""

import jax
import numpy

from .. import _dispatch
from .._operations import Operation
from . import custom_calls, primitives

custom_calls.register()


def _arrays(op: Operation, names, tensors):
    """The tensors that are given, as JAX's arrays."""
    found = []
    for name, tensor in zip(names, tensors):
        if tensor is None:
            continue
        _dispatch.framework_of(op.name, name, tensor)
        if not isinstance(tensor, (jax.Array, numpy.ndarray)):
            raise TypeError(f"{op.name}: `{name}` must be an array of JAX's, got {type(tensor).__qualname__}")
        found.append(jax.numpy.asarray(tensor))
    return found


def _static(op: Operation, options):
    """Options by value: they are compiled into the call."""
    for (schema, _), option in zip(op.options, options):
        if isinstance(option, jax.core.Tracer):
            name = schema.split()[-1]
            raise TypeError(
                f"{op.name}: `{name}` must be a plain value, got one that JAX traces: make it static (static_argnames)"
            )
    return tuple(option.item() if isinstance(option, (numpy.generic, jax.Array)) else option for option in options)


def _refuse_out(op: Operation, out):
    # room for each result, where arrays of NumPy's stand beside those of JAX's
    if any(room is not None for room in (out if isinstance(out, tuple) else (out,))):
        raise TypeError(f"{op.name}: `out` must be None where arrays are JAX's, which do not change")


def call(op: Operation, tensors, options, out=None):
    """Runs an operation."""
    _refuse_out(op, out)
    names = [argument.name for argument in op.arguments]
    given = tuple(tensor is not None for tensor in tensors)
    results = iter(primitives.forward(_arrays(op, names, tensors), op=op, given=given, options=_static(op, options)))
    return tuple(next(results) if made else None for made in op.made(tensors))


def step(op: Operation, state, tensors, options, out=None):
    """Runs a step: y and the new state. Where the old one is not used any more, it is changed in place."""
    _refuse_out(op, out)
    names = [argument.name for argument in op.arguments]
    given = tuple(tensor is not None for tensor in tensors)
    arrays = _arrays(op, (*names, op.state), (*tensors, state))
    state, y = primitives.update(arrays, op=op, given=given, options=_static(op, options))
    return y, state


def by_steps(op: Operation, scan, tensors, options):
    """Runs a scan of one token after another; its gradient is that of the operation."""

    @jax.custom_vjp
    def exact(*tensors):
        _, state = op.room(primitives.NEW, (*tensors, *options), (tensors[0], None))
        initial = tensors[op.initial]
        before = jax.numpy.zeros(state.shape, state.dtype) if initial is None else jax.numpy.asarray(initial, state.dtype)
        return scan(tensors, before, jax.numpy.arange(len(before)))

    def forward(*tensors):
        return exact(*tensors), jax.vjp(lambda *tensors: call(op, tensors, options), *tensors)[1]

    exact.defvjp(forward, lambda backward, cotangents: backward(cotangents))
    return exact(*tensors)
