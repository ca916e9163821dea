"""NumPy arrays."""

import numpy

from . import arrays
from ._threads import get_num_threads
from .operations import Operation

# results are plain arrays, whatever class the arguments are of
_NEW = arrays.New(numpy, subok=False)


def call(op: Operation, tensors, options):
    """Runs an operation."""
    return arrays.forward(op, _NEW, tensors, options, (-1, get_num_threads(), None, False))


def step(op: Operation, state, tensors, options):
    """Runs a step."""
    return arrays.update(op, _NEW, state, tensors, options, (-1, get_num_threads(), None, False))
