"""One step of `linear_scan`: a product and a sum, in the operations of the arrays' own package."""

import sys
from typing import overload

from . import _dispatch
from ._types import Array, J, T


@overload
def linear_scan_update(state: Array, a: Array, b: J) -> tuple[J, J]: ...
@overload
def linear_scan_update(state: Array, a: Array, b: T) -> T: ...
def linear_scan_update(state: Array, a: Array, b: T) -> T | tuple[T, T]:
    """One step of `linear_scan`, in its shapes without seqlen; `state` is changed in place.

    It has no gradient: `linear_scan` of one step has.

    Args:
        state: (..), as the final state of `linear_scan`, complex where a or b is. Its type is kept.
        a, b: (..), as the state.

    Returns:
        h, shaped as b and of the type that a and b promote to. For JAX arrays, which do not change, h and the new state, a copy.

    Examples:
        >>> state = torch.ones(3)
        >>> linear_scan_update(state, torch.full((3,), 0.5), torch.ones(3))
        tensor([1.5000, 1.5000, 1.5000])
        >>> state
        tensor([1.5000, 1.5000, 1.5000])
    """
    framework = _dispatch.framework_of("linear_scan_update", "state", state)
    for name, tensor in (("a", a), ("b", b)):
        other = _dispatch.framework_of("linear_scan_update", name, tensor)
        if not (other is framework or _dispatch.mix(other, framework)):
            raise TypeError(f"linear_scan_update: `{name}` must be of the same kind as `state`, got {type(tensor).__qualname__}")
        if tensor.shape != state.shape:
            expected, got = tuple(state.shape), tuple(tensor.shape)
            raise ValueError(f"linear_scan_update: `{name}` must have the shape of `state`, {expected}, got {got}")
        if _dispatch.is_complex(tensor) and not _dispatch.is_complex(state):
            raise TypeError(f"linear_scan_update: `state` must be complex, as `{name}` is, got {state.dtype}")
    library = framework.__name__.rpartition(".")[2]
    package = sys.modules["jax.numpy" if library == "_jax" else library]
    kind = package.promote_types(a.dtype, b.dtype)
    if library == "torch":
        with package.no_grad():
            h = a * state + b
            state.copy_(h)
            return h.to(kind)
    h = a * state + b
    if library == "_jax":
        return h.astype(kind), h.astype(state.dtype)
    state[...] = h
    return h.astype(kind)
