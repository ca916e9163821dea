"""Drop-in for `nkilib.experimental.scan`, whose functions this package's own ones extend by keywords."""

from typing import Any

from .. import functions
from .._types import Array
from ..functions import selective_scan

__all__ = ["selective_scan", "ssd"]


def ssd(
    x: Array,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    chunk_size: int = 128,
    D: Array | None = None,
    initial_state: Array | None = None,
    causal_mask: Array | None = None,
    *,
    z: Array | None = None,
    dt_bias: Array | None = None,
    dt_a: Array | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """`statescan.ssd` for tensors whose heads come before time.

    Args:
        x, z: (batch, nheads, seqlen, headdim).
        dt, dt_a: (batch, nheads, seqlen).
        initial_state: (batch, nheads, dstate, headdim).
        causal_mask: (Q, Q), ones on and below the diagonal; checked, and not used. Its values come to the host.
        (the others): as in `statescan.ssd`.

    Returns:
        y, shaped as x, and the final state, shaped as the initial state.
    """
    _check_mask(causal_mask)
    x, dt, z, dt_a = (_exchanged(tensor, 1, 2, at_least=3) for tensor in (x, dt, z, dt_a))
    state = _exchanged(initial_state, -1, -2, at_least=2)
    y, state = functions.ssd(x, dt, A, B, C, chunk_size, D, state, z=z, dt_bias=dt_bias, dt_a=dt_a, **options)
    return y.swapaxes(1, 2), state.swapaxes(-1, -2)


def _exchanged(tensor, first, second, at_least):
    """A view with two axes exchanged; what has fewer axes is left to the checks of `statescan.ssd`."""
    has_them = hasattr(tensor, "swapaxes") and len(tensor.shape) >= at_least
    return tensor.swapaxes(first, second) if has_them else tensor


def _check_mask(mask):
    if mask is None:
        return
    size = mask.shape[0] if len(mask.shape) == 2 else None
    if size is None or mask.shape[1] != size:
        raise ValueError(f"ssd: `causal_mask` must have shape (chunk, chunk), got {tuple(mask.shape)}")
    if any(row != [1] * (at + 1) + [0] * (size - at - 1) for at, row in enumerate(mask.tolist())):
        raise ValueError("ssd: `causal_mask` must be ones on and below the diagonal and zeros above")
