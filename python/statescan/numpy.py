"""NumPy arrays. JAX takes them too, beside its own: one of those makes a call JAX's."""

import sys
from typing import Any

import numpy

from . import _arrays, _dispatch
from ._operations import Operation
from ._threads import get_num_threads

# results are plain arrays, whatever class the arguments are of
_NEW = _arrays.New(numpy, subok=False)


def _other(op: Operation, first, tensors):
    """The framework that takes the call in the place of this one; None if it stays here."""
    here, found = sys.modules[__name__], None
    for name, tensor in zip((op.state or op.tensors[0], *op.tensors), (first, *tensors)):
        if type(tensor) is numpy.ndarray or tensor is None:
            continue
        other = _dispatch.framework_of(op.name, name.rstrip("?"), tensor)
        if _dispatch.mix(other, here):
            found = other
        elif other is not here:
            _dispatch.explain(op, tensors, first)
    return found


def call(op: Any, tensors: Any, options: Any, out: Any = (None, None)) -> Any:
    """Runs an operation."""
    if other := _other(op, tensors[0], tensors):
        return other.call(op, tensors, options, out)
    return _arrays.forward(op, _NEW, tensors, options, out, (-1, get_num_threads(), None, False))


def step(op: Any, state: Any, tensors: Any, options: Any, out: Any = (None,)) -> Any:
    """Runs a step."""
    if other := _other(op, state, tensors):
        return other.step(op, state, tensors, options, out)
    return _arrays.update(op, _NEW, state, tensors, options, out, (-1, get_num_threads(), None, False))


def by_steps(op: Any, scan: Any, tensors: Any, options: Any) -> Any:
    """Runs a scan of one token after another."""
    if other := _other(op, tensors[0], tensors):
        return other.by_steps(op, scan, tensors, options)
    return _arrays.by_steps(op, _NEW, scan, tensors, options)
