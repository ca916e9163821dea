"""`vmap` of the passes. A mapped axis becomes part of the batch where every weight is the same along it: one call for all. Else,
and for gradients, which would be sums over it, the calls are made one after another.
"""

import jax
from jax import numpy

from .._operations import Operation


def _in_front(operands, dims):
    return [array if dim is None else numpy.moveaxis(array, dim, 0) for array, dim in zip(operands, dims)]


def one_by_one(primitive, operands, dims, **options):
    """A call for each index of the mapped axis."""
    operands = _in_front(operands, dims)
    mapped = [array for array, dim in zip(operands, dims) if dim is not None]

    def one(parts):
        parts = iter(parts)
        return primitive.bind(*(array if dim is None else next(parts) for array, dim in zip(operands, dims)), **options)

    results = jax.lax.map(one, mapped)
    return results, [0] * len(results)


def _size(operands, dims):
    return next(array.shape[dim] for array, dim in zip(operands, dims) if dim is not None)


class _Axis:
    """How a mapped axis goes into the axes of a tensor."""

    def __init__(self, layouts, layout, size):
        # a tensor with layouts of so many ranks has any axes in front of those that are meant
        self.is_new = len(layouts) > 3 and len(layout) < max(map(len, layouts))
        self.fits = self.is_new or layout.startswith("B")
        self.size = size

    def join(self, array, is_mapped):
        """The array, whose mapped axis is in front, with as many axes as it is to have."""
        if not is_mapped:
            array = numpy.broadcast_to(array, (self.size, *array.shape))
        return array if self.is_new else array.reshape(self.size * array.shape[1], *array.shape[2:])

    def part(self, array):
        return array if self.is_new else array.reshape(self.size, array.shape[0] // max(self.size, 1), *array.shape[1:])


def _folded(op: Operation, operands, dims, given, size):
    """The operands with the mapped axis in their batch, and the axis of the first; None if one has no place for it."""
    named = [argument for argument, is_given in zip(op.arguments, given) if is_given]
    joined, first = [], None
    for argument, array, dim in zip(named, operands, dims):
        rank = array.ndim - (dim is not None)
        layout = next((layout for layout in argument.layouts if len(layout) == rank), None)
        # bounds of packed sequences, and indices of states, are those of one batch
        if layout is None or layout == "K" or argument.name.endswith("_indices"):
            return None, None
        axis = _Axis(argument.layouts, layout, size)
        if axis.fits:
            array = axis.join(array, dim is not None)
        elif dim is not None:
            return None, None
        joined.append(array)
        first = first or axis
    return joined, first


def forward(primitive, operands, dims, *, op, given, options, saves):
    """Results for all indices of the mapped axis. States that are saved for a gradient have no axes that could be told apart."""
    call = {"op": op, "given": given, "options": options, "saves": saves}
    size = _size(operands, dims)
    joined, axis = (None, None) if saves or size == 0 else _folded(op, _in_front(operands, dims), _moved(dims), given, size)
    if joined is None:
        return one_by_one(primitive, operands, dims, **call)
    results = [axis.part(result) for result in primitive.bind(*joined, **call)]
    return results, [0] * len(results)


def update(primitive, operands, dims, *, op, given, options):
    """New states and results of a step for all indices of the mapped axis."""
    call = {"op": op, "given": given, "options": options}
    size = _size(operands, dims)
    *arrays, state = _in_front(operands, dims)
    joined, axis = _folded(op, arrays, _moved(dims[:-1]), given, size) if size else (None, None)
    if joined is None:
        return one_by_one(primitive, operands, dims, **call)
    joined.append(_Axis((), "B", size).join(state, dims[-1] is not None))
    results = [axis.part(result) for result in primitive.bind(*joined, **call)]
    return results, [0] * len(results)


def _moved(dims):
    return [None if dim is None else 0 for dim in dims]
