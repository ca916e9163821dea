"""One step of `linear_scan`, by a scan of one step."""

import sys
from contextlib import nullcontext
from typing import overload

from . import _dispatch
from ._operations import LINEAR_SCAN
from ._types import Array, J, T


@overload
def linear_scan_update(state: Array, a: Array, b: J) -> tuple[J, J]: ...
@overload
def linear_scan_update(state: Array, a: Array, b: T) -> T: ...
def linear_scan_update(state: Array, a: Array, b: T) -> T | tuple[T, T]:
    """One step of `linear_scan`, in its shapes without seqlen and with the bits of its `exact`; `state` is changed in place.

    It has no gradient: `linear_scan` of one step has.

    Args:
        state: (..), up to four axes, as the final state of `linear_scan`, complex where a or b is. Its type is kept.
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
    with sys.modules["torch"].no_grad() if library == "torch" else nullcontext():
        h, after = _dispatch.call(LINEAR_SCAN, (a[..., None], b[..., None], state), (False, True))
        if library == "_jax":
            return h[..., 0], after.astype(state.dtype)
        state[...] = after
        return h[..., 0]
