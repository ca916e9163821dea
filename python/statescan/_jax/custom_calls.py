"""Passes as custom calls of XLA's, by its foreign function interface. One handler serves them all: attributes say what to run."""

import jax
import numpy
from jax import ffi

from .. import _native, _nvrtc

TARGET = "statescan"
# the passes by their numbers, and what a call takes or gives beside arguments and results, by positions, as the handler has them
FORWARD, BACKWARD, UPDATE = range(3)
SAVED = _native.MAX_ARGUMENTS
WORKSPACE = SAVED + 1
COTANGENTS = (SAVED + 1, SAVED + 2)
STATE = SAVED + 3


def register():
    """Makes the handler known to XLA."""
    try:
        for platform, address in zip(("cpu", "CUDA"), _native.handlers()):
            ffi.register_ffi_target(TARGET, ffi.pycapsule(address), platform=platform)
    except Exception as error:
        words = f"JAX {jax.__version__} has another interface for custom calls than those that statescan knows"
        raise RuntimeError(f"{words}: JAX 0.10, 0.11 and 0.12 work ({error})") from error


def described(tensors):
    """Tensors as the native functions take those that are not there yet."""
    return tuple(None if t is None else _native.Described(t.dtype.name, t.shape) for t in tensors)


def values(op, tensors, options, state=None):
    """Checks a call, and gives its options as the handler takes them."""
    try:
        inputs = described(tensors)
    except TypeError:
        if all(isinstance(size, int) for t in tensors if t is not None for size in t.shape):
            raise
        raise TypeError(f"{op.name}: sizes must be known when a function is traced, and not be symbols") from None
    return _native.plan(op.number, (*inputs, *options), None if state is None else described([state])[0])


def _scratch(op, tensors, options, kind, has_saved):
    """Elements of float32 that a pass needs on the CUDA device as scratch memory."""
    if kind == UPDATE:
        return 0
    _nvrtc.load()
    try:
        device = jax.local_devices(backend="cuda")[0].local_hardware_id
    except RuntimeError as error:
        words = "is compiled for CUDA only where there is a CUDA device, which says how much scratch memory it needs"
        raise RuntimeError(f"{op.name}: a call {words}") from error
    return _native.scratch(op.number, (*described(tensors), *options), kind == BACKWARD, has_saved, device)


def _refuse_double(op, first):
    """As a kernel would, but before anything is compiled."""
    if first.dtype in (numpy.float64, numpy.complex128):
        raise RuntimeError(f"{op.name} in float64 is not available: kernels for CUDA compute in float32")


def _bits(positions):
    return numpy.int64(sum(1 << position for position in positions))


def lower(ctx, operands, call, kind, takes, gives, on_cuda):
    """The results of a pass, in MLIR. `call` is the operation, its arguments, and its options."""
    op, tensors, options = call
    if on_cuda:
        _refuse_double(op, tensors[0])
    state = ctx.avals_in[-1] if kind == UPDATE else None
    avals = list(ctx.avals_out)
    # a list of no numbers has no attribute
    numbers = numpy.array([*values(op, tensors, options, state), 0.0])
    size = _scratch(op, tensors, options, kind, SAVED in takes) if on_cuda else 0
    if size:
        avals.append(jax.core.ShapedArray((size,), numpy.dtype("float32")))
        gives = (*gives, WORKSPACE)
    aliases = {len(operands) - 1: 0} if kind == UPDATE else None
    attributes = {"operation": numpy.int64(op.number), "pass": numpy.int64(kind), "values": numbers}
    attributes |= {"takes": _bits(takes), "gives": _bits(gives)}
    rule = ffi.ffi_lowering(TARGET, operand_output_aliases=aliases)
    return rule(ctx.replace(avals_out=avals), *operands, **attributes)[: len(ctx.avals_out)]
