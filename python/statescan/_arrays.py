"""NumPy, CuPy and JAX, which share an interface: outputs are their arrays, and everything is shared by DLPack."""

from . import _native
from ._operations import Operation


class New:
    """Makes outputs with the functions of a module like numpy."""

    def __init__(self, module, **like):
        self.module = module
        # options of empty_like
        self.options = like

    def _float(self, array, is_complex):
        double = self.is_double(array)
        return ("complex128" if double else "complex64") if is_complex else ("float64" if double else "float32")

    def _like(self, array, dtype):
        return self.module.empty_like(array, dtype=dtype, **self.options)

    def like(self, array, is_complex=None, promoted_with=None, typed_as=None):
        """An array with the strides of another one, or the nearest that are dense. It may be made complex or real."""
        if typed_as is not None:
            return self._like(array, typed_as.dtype)
        if promoted_with is not None:
            return self._like(array, self.module.result_type(array, promoted_with))
        if is_complex is None or self.is_complex(array) == is_complex:
            return self._like(array, array.dtype)
        return self._like(array, self._float(array, is_complex))

    def state(self, shape, array, is_complex):
        return self.module.empty(shape, dtype=self._float(array, is_complex))

    def empty(self, shape, array):
        return self.module.empty(shape, dtype=array.dtype)

    def is_complex(self, array):
        return array.dtype.kind == "c"

    def is_double(self, array):
        return array.dtype.name in ("float64", "complex128")


def forward(op: Operation, new, tensors, options, out, place):
    """Runs an operation into `out`, or outputs that `new` makes; `place` is where, as the native functions have it."""
    arguments = (*tensors, *options)
    results = op.room(new, arguments, out)
    _native.forward(op.number, arguments, results, place)
    return results


def by_steps(op: Operation, new, scan, tensors, options):
    """Runs a scan of one token after another, which changes states."""
    _, state = op.room(new, (*tensors, *options), (tensors[0], None))
    state[...] = 0 if tensors[op.initial] is None else tensors[op.initial]
    return scan(tensors, state, new.module.arange(state.shape[0]))


def update(op: Operation, new, state, tensors, options, out, place):
    """Runs a step into `out`, or an output that `new` makes."""
    arguments = (*tensors, *options)
    (result,) = op.room(new, arguments, out)
    _native.update(op.number, arguments, (state, result), place)
    return result
