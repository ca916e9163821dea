"""CuPy arrays, on CuPy's current stream."""

from typing import Any

import cupy

from . import _arrays, _nvrtc

_NEW = _arrays.New(cupy)


def _scratch(array, length):
    """Memory until the kernels of a call are done: the pool gives it to the same stream only."""
    return cupy.empty(length, cupy.float32)


def _place(array):
    _nvrtc.load()
    return array.device.id, cupy.cuda.get_current_stream(array.device.id).ptr, _scratch, False


def call(op: Any, tensors: Any, options: Any, out: Any = (None, None)) -> Any:
    """Runs an operation."""
    with tensors[0].device:
        return _arrays.forward(op, _NEW, tensors, options, out, _place(tensors[0]))


def step(op: Any, state: Any, tensors: Any, options: Any, out: Any = (None,)) -> Any:
    """Runs a step."""
    with state.device:
        return _arrays.update(op, _NEW, state, tensors, options, out, _place(state))


def by_steps(op: Any, scan: Any, tensors: Any, options: Any) -> Any:
    """Runs a scan of one token after another."""
    with tensors[0].device:
        return _arrays.by_steps(op, _NEW, scan, tensors, options)
