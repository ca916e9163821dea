"""JAX arrays as they are, without gradients and outside of what JAX traces (`jit`, `grad`, `vmap`).

JAX has no way to hand memory over before it is filled: results are arrays that JAX makes for a call, filled by DLPack before
anybody else sees them.
"""

import jax
from jax import numpy

from .. import _native, _nvrtc, arrays
from .._threads import get_num_threads
from ..operations import Operation

# JAX does not say which stream it uses. On the default one, a call waits for its inputs, and is waited for.
_STREAM = 0


class _New(arrays.New):
    """Makes outputs, and waits until JAX has made them."""

    def like(self, array, is_complex=None, promoted_with=None, typed_as=None):
        return jax.block_until_ready(super().like(array, is_complex, promoted_with, typed_as))

    def state(self, shape, array, is_complex):
        return jax.block_until_ready(super().state(shape, array, is_complex))

    def empty(self, shape, array):
        return jax.block_until_ready(super().empty(shape, array))


_NEW = _New(numpy)


class _Unseen:
    """An array that nobody has seen yet, as one that may be written. From version 0.12 on JAX marks its memory as read-only where
    it may: in the newer form of DLPack, which is not asked for here."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, *, stream=None, **newer):
        return self._array.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def _unseen(results):
    return tuple(None if array is None else _Unseen(array) for array in results)


def _place(op, tensors):
    """The device of the first tensor and where to run there."""
    if any(isinstance(tensor, jax.core.Tracer) for tensor in tensors):
        raise TypeError(
            f"{op.name}: with JAX {jax.__version__}, arrays are taken as they are, not inside of jit, grad or vmap; use "
            "jax.pure_callback there"
        )
    device = tensors[0].device
    if device.platform == "cpu":
        return device, (-1, get_num_threads(), None, False)
    _nvrtc.load()
    # without scratch memory: JAX would give it to others before kernels are done
    return device, (device.local_hardware_id, _STREAM, None, False)


def _wait(place):
    device, stream, *_ = place
    if device >= 0:
        _native.synchronize(device, stream)


def call(op: Operation, tensors, options):
    """Runs an operation."""
    device, place = _place(op, tensors)
    with jax.default_device(device):
        results = arrays.room(op, _NEW, tensors, options)
        _native.forward(op.number, (*tensors, *options), _unseen(results), place)
    _wait(place)
    return results


def step(op: Operation, state, tensors, options):
    """Runs a step on a copy of the state, for JAX's arrays do not change: it returns y and the new state."""
    device, place = _place(op, (state, *tensors))
    with jax.default_device(device):
        state = jax.block_until_ready(numpy.array(state, copy=True))
        result = op.result(_NEW, *tensors, *options)
        _native.update(op.number, (*tensors, *options), _unseen((state, result)), place)
    _wait(place)
    return result, state
