"""CuPy arrays, on CuPy's current stream."""

import cupy

from . import arrays
from .operations import Operation, Step

_NEW = arrays.New(cupy)


def _place(array):
    return array.device.id, cupy.cuda.get_current_stream(array.device.id).ptr


def call(op: Operation, tensors, options):
    """Runs an operation."""
    with tensors[0].device:
        return arrays.forward(op, _NEW, tensors, options, *_place(tensors[0]))


def step(op: Step, state, tensors, options):
    """Runs a step."""
    with state.device:
        return arrays.update(op, _NEW, state, tensors, options, *_place(state))
