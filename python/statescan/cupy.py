"""CuPy arrays, on CuPy's current stream."""

import cupy

from . import _nvrtc, arrays
from .operations import Operation

_NEW = arrays.New(cupy)


def _scratch(array, length):
    """Memory until the kernels of a call are done: the pool gives it to the same stream only."""
    return cupy.empty(length, cupy.float32)


def _place(array):
    _nvrtc.load()
    return array.device.id, cupy.cuda.get_current_stream(array.device.id).ptr, _scratch, False


def call(op: Operation, tensors, options):
    """Runs an operation."""
    with tensors[0].device:
        return arrays.forward(op, _NEW, tensors, options, _place(tensors[0]))


def step(op: Operation, state, tensors, options):
    """Runs a step."""
    with state.device:
        return arrays.update(op, _NEW, state, tensors, options, _place(state))
