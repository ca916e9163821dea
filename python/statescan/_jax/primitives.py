"""The passes of all operations as primitives of JAX's: their types, their derivatives, and what they are compiled to.

`FORWARD` has a derivative: `TANGENT`, which is linear, is never computed, and is transposed to `BACKWARD`. Operands are the
tensors that are given, in the order of the signature; which ones these are is `given`.
"""

import functools

import jax
import numpy
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .. import _arrays
from .._operations import Operation
from . import custom_calls, mapped


class _Abstract:
    """A tensor by its type and shape, where operations ask for the device, too."""

    def __init__(self, aval, device):
        self.shape, self.dtype, self.device = aval.shape, aval.dtype, device


class _Device:
    """The kind of device that functions are compiled for as long as nothing is said."""

    def __init__(self):
        self.type = "cuda" if jax.default_backend() == "gpu" else "cpu"


class _New(_arrays.New):
    """Describes outputs."""

    def _like(self, array, dtype):
        return jax.ShapeDtypeStruct(array.shape, numpy.dtype(dtype))

    def like(self, array, is_complex=None, promoted_with=None, typed_as=None):
        if promoted_with is not None:
            return self._like(array, jax.numpy.promote_types(array.dtype, promoted_with.dtype))
        return super().like(array, is_complex, typed_as=typed_as)

    def state(self, shape, array, is_complex):
        return jax.ShapeDtypeStruct(shape, numpy.dtype(self._float(array, is_complex)))

    def empty(self, shape, array):
        return jax.ShapeDtypeStruct(shape, array.dtype)


NEW = _New(numpy)


def _spread(operands, given):
    """The tensors of a signature, None where there is none."""
    operands = iter(operands)
    return tuple(next(operands) if is_given else None for is_given in given)


def _like(described, beside):
    """The type of a result, which varies over the axes of a mesh over which the arguments vary."""
    mesh = beside.sharding.mesh
    if mesh.empty:
        return jax.core.ShapedArray(described.shape, described.dtype)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*(None,) * len(described.shape)))
    return beside.update(shape=described.shape, dtype=described.dtype, weak_type=False, sharding=sharding)


def _aligned(operands):
    """Arrays that all vary over the same axes of a mesh, as those of one call must within `shard_map`. The gradient by one that
    did not is summed over them.
    """
    varying = [getattr(getattr(jax.typeof(array), "mat", None), "varying", frozenset()) for array in operands]
    together = frozenset().union(*varying)
    return [
        array if own == together else jax.lax.pcast(array, tuple(together - own), to="varying")
        for array, own in zip(operands, varying)
    ]


def _primitive(name, abstract, static):
    primitive = Primitive(f"statescan_{name}")
    primitive.multiple_results = True
    primitive.def_abstract_eval(abstract)

    @functools.partial(jax.jit, static_argnames=static)
    def compiled(*operands, **options):
        return primitive.bind(*operands, **options)

    def computed(*operands, **options):
        if not jax.config.jax_disable_jit:
            return compiled(*operands, **options)
        # there is no other way to compute a pass than to compile it
        with jax.disable_jit(False):
            return compiled(*operands, **options)

    primitive.def_impl(computed)
    return primitive


def _forward_types(*avals, op: Operation, given, options, saves):
    tensors = _spread(avals, given)
    custom_calls.values(op, tensors, options)
    device = _Device()
    abstract = [None if t is None else _Abstract(t, device) for t in tensors]
    results = list(op.results(NEW, *abstract, *options))
    if saves and op.saves is not None:
        results.append(op.saved(NEW, *abstract, *options))
    return [_like(result, avals[0]) for result in results]


def _tangent_types(*avals, op, given, options, wanted, kept):
    return _forward_types(*avals[: sum(given)], op=op, given=given, options=options, saves=False)


def _backward_types(*avals, op, given, options, wanted, kept, cotangents):
    tensors = _spread(avals, given)
    return [_like(tensors[at], avals[0]) for at in wanted]


def _update_types(*avals, op, given, options):
    *tensors, state = avals
    tensors = _spread(tensors, given)
    custom_calls.values(op, tensors, options, state)
    device = _Device()
    result = op.result(NEW, *(None if t is None else _Abstract(t, device) for t in tensors), *options)
    return [_like(state, avals[0]), _like(result, avals[0])]


_CALL = ("op", "given", "options")
FORWARD = _primitive("forward", _forward_types, (*_CALL, "saves"))
TANGENT = _primitive("tangent", _tangent_types, (*_CALL, "wanted", "kept"))
BACKWARD = _primitive("backward", _backward_types, (*_CALL, "wanted", "kept", "cotangents"))
UPDATE = _primitive("update", _update_types, _CALL)


def forward(operands, op, given, options):
    """The results of an operation that are made."""
    return FORWARD.bind(*_aligned(operands), op=op, given=given, options=options, saves=False)


def update(operands, op, given, options):
    """The new state and the result of a step, whose last operand is its state."""
    return UPDATE.bind(*_aligned(operands), op=op, given=given, options=options)


def _conjugate(array):
    """JAX's cotangents of complex numbers are the conjugates of those that the native functions have."""
    return jax.numpy.conj(array) if jax.numpy.iscomplexobj(array) else array


def _is_zero(tangent):
    return type(tangent) is ad.Zero


def _differentiate(operands, tangents, *, op: Operation, given, options, saves):
    """The results, and their tangents: a call of `TANGENT`."""
    call = {"op": op, "given": given, "options": options}
    numbers = [at for at, is_given in enumerate(given) if is_given]
    wanted = tuple(at for at, t in zip(numbers, tangents) if at < op.differentiable and not _is_zero(t))
    results = FORWARD.bind(*operands, **call, saves=bool(wanted) or saves)
    made = len(results) - (op.saves is not None and (bool(wanted) or saves))
    zeros = [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    if not wanted:
        return results, zeros
    kept = [results[0]] if op.keeps_result else results[made:]
    along = [ad.instantiate_zeros(t) for at, t in zip(numbers, tangents) if at in wanted]
    tangents = TANGENT.bind(*operands, *kept, *along, **call, wanted=wanted, kept=len(kept))
    results = results if saves else results[:made]
    return results, [*tangents, *zeros[made : len(results)]]


def _transpose(cotangents, *operands, op: Operation, given, options, wanted, kept):
    """The gradients for the cotangents of `TANGENT`."""
    known = operands[: sum(given) + kept]
    has = tuple(at for at, cotangent in enumerate(cotangents) if not _is_zero(cotangent))
    if not has:
        return [None] * len(operands)
    cotangents = [_conjugate(cotangents[at]) for at in has]
    call = {"op": op, "given": given, "options": options, "wanted": wanted, "kept": kept, "cotangents": has}
    found = BACKWARD.bind(*_aligned([*known, *cotangents]), **call)
    return [None] * len(known) + [_conjugate(gradient) for gradient in found]


def _refuse(words):
    def refuse(*operands, op, **options):
        raise TypeError(f"{op.name} {words}")

    return refuse


_NO_FORWARD_MODE = "has no derivatives in forward mode (jvp, jacfwd, hessian): use those in reverse mode"
_NO_SECOND = "has no second derivative: its gradient cannot be differentiated"
_NO_GRADIENT = "has no gradient: it changes its state in place; use the scan for training"

ad.primitive_jvps[FORWARD] = _differentiate
ad.primitive_transposes[TANGENT] = _transpose
ad.primitive_jvps[TANGENT] = _refuse(_NO_SECOND)
ad.primitive_jvps[BACKWARD] = _refuse(_NO_SECOND)
ad.primitive_jvps[UPDATE] = _refuse(_NO_GRADIENT)
TANGENT.def_impl(_refuse(_NO_FORWARD_MODE))

batching.primitive_batchers[FORWARD] = functools.partial(mapped.forward, FORWARD)
batching.primitive_batchers[UPDATE] = functools.partial(mapped.update, UPDATE)
for _primitive_of_gradients in (TANGENT, BACKWARD):
    batching.primitive_batchers[_primitive_of_gradients] = functools.partial(mapped.one_by_one, _primitive_of_gradients)


def _numbers(given):
    return tuple(at for at, is_given in enumerate(given) if is_given)


def _lower_forward(ctx, *operands, op, given, options, saves, on_cuda):
    tensors = _spread(ctx.avals_in, given)
    gives = tuple(at for at, made in enumerate(op.made(tensors)) if made)
    if saves and op.saves is not None:
        gives += (custom_calls.SAVED,)
    return custom_calls.lower(ctx, operands, (op, tensors, options), custom_calls.FORWARD, _numbers(given), gives, on_cuda)


def _lower_backward(ctx, *operands, op, given, options, wanted, kept, cotangents, on_cuda):
    takes = _numbers(given) + (custom_calls.SAVED,) * kept + tuple(custom_calls.COTANGENTS[at] for at in cotangents)
    call = op, _spread(ctx.avals_in, given), options
    return custom_calls.lower(ctx, operands, call, custom_calls.BACKWARD, takes, wanted, on_cuda)


def _lower_update(ctx, *operands, op, given, options, on_cuda):
    takes, gives = (*_numbers(given), custom_calls.STATE), (custom_calls.STATE, 0)
    call = op, _spread(ctx.avals_in, given), options
    return custom_calls.lower(ctx, operands, call, custom_calls.UPDATE, takes, gives, on_cuda)


for _platform in ("cpu", "cuda"):
    _where = {"on_cuda": _platform == "cuda"}
    mlir.register_lowering(FORWARD, functools.partial(_lower_forward, **_where), platform=_platform)
    mlir.register_lowering(BACKWARD, functools.partial(_lower_backward, **_where), platform=_platform)
    mlir.register_lowering(UPDATE, functools.partial(_lower_update, **_where), platform=_platform)
mlir.register_lowering(TANGENT, lambda ctx, *operands, **call: _refuse(_NO_FORWARD_MODE)(*operands, **call))
