"""One step of `ssd`, in its own shapes, by that of the selective scan."""

import sys
from typing import overload

from . import _dispatch
from ._operations import SELECTIVE_STATE_UPDATE
from ._types import Array, J, Limits, T

# the shapes of arguments that are expanded, and of those that they are expanded to, by the names of sizes
_SHAPES = {
    "state": ("(batch, nheads, headdim, dstate)",),
    "x": ("(batch, nheads, headdim)",),
    "dt": ("(batch, nheads)",),
    "A": ("(nheads,)",),
    "D": ("(nheads,)", "(nheads, headdim)"),
    "dt_bias": ("(nheads,)",),
    "dt_a": ("(batch, nheads)",),
}


def _refuse(name, tensor, state):
    """Refuses a shape that would be stretched to another one."""
    of_state = "" if name == "state" else f"; the state has shape {tuple(state.shape)}"
    raise ValueError(f"ssd_update: `{name}` must have shape {' or '.join(_SHAPES[name])}, got {tuple(tensor.shape)}{of_state}")


def _check(state, x, dt, A, D, dt_bias, dt_a):
    """Refuses what does not fit together; the step of the selective scan looks at the rest."""
    rows, heads = x.shape, state.shape[1:3]
    own = rows[1:2]
    for name, tensor, fits in (
        ("state", state, len(state.shape) == 4),
        ("x", x, len(rows) == 3 and rows[1:] == heads),
        ("dt", dt, dt.shape == rows[:2]),
        ("A", A, A.shape == own),
        ("D", D, D is None or D.shape in (own, heads)),
        ("dt_bias", dt_bias, dt_bias is None or dt_bias.shape == own),
        ("dt_a", dt_a, dt_a is None or dt_a.shape == rows[:2]),
    ):
        if not fits:
            _refuse(name, tensor, state)


def _spread(tensor, shape):
    """A tensor with an axis behind its others for each that a shape has more, without a copy where arrays can be views."""
    if tensor is None or tensor.ndim == len(shape):
        return tensor
    tensor = tensor[(..., *(None,) * (len(shape) - tensor.ndim))]
    if hasattr(tensor, "expand"):
        return tensor.expand(shape)
    if not hasattr(tensor, "strides"):
        return tensor.__array_namespace__().broadcast_to(tensor, shape)
    # NumPy's own way marks it as a view that must not be written, which is not shared
    library = _dispatch.framework_of("ssd_update", "state", tensor).__name__.rpartition(".")[2]
    own = zip(tensor.shape, shape, tensor.strides)
    strides = [stride if size == wanted else 0 for size, wanted, stride in own]
    return sys.modules[f"{library}.lib.stride_tricks"].as_strided(tensor, shape, strides)


# fmt: off
@overload
def ssd_update(
    state: Array, x: J, dt: Array, A: Array, B: Array, C: Array, D: Array | None = None, *, z: Array | None = None,
    dt_bias: Array | None = None, dt_softplus: bool = False, dt_limit: Limits = None, dt_a: Array | None = None,
    state_batch_indices: Array | None = None, dst_state_batch_indices: Array | None = None, cu_seqlens: Array | None = None,
    out: Array | None = None
) -> tuple[J, J]: ...
@overload
def ssd_update(
    state: Array, x: T, dt: Array, A: Array, B: Array, C: Array, D: Array | None = None, *, z: Array | None = None,
    dt_bias: Array | None = None, dt_softplus: bool = False, dt_limit: Limits = None, dt_a: Array | None = None,
    state_batch_indices: Array | None = None, dst_state_batch_indices: Array | None = None, cu_seqlens: Array | None = None,
    out: Array | None = None
) -> T: ...
# fmt: on
def ssd_update(
    state: Array,
    x: T,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None = None,
    *,
    z: Array | None = None,
    dt_bias: Array | None = None,
    dt_softplus: bool = False,
    dt_limit: Limits = None,
    dt_a: Array | None = None,
    state_batch_indices: Array | None = None,
    dst_state_batch_indices: Array | None = None,
    cu_seqlens: Array | None = None,
    out: Array | None = None,
) -> T | tuple[T, T]:
    """One step of `ssd`, in its shapes without seqlen; `state` is changed in place.

    It has no gradient: `ssd` of one step has.

    Args:
        state: (batch, nheads, headdim, dstate), as the final state of `ssd`. Its type is kept.
        x, z: (batch, nheads, headdim).
        dt, dt_a: (batch, nheads).
        A, dt_bias: (nheads,).
        B, C: (batch, dstate) or (batch, ngroups, dstate).
        D: (nheads,) or (nheads, headdim).
        dt_softplus, dt_limit: as in `ssd`.
        state_batch_indices, dst_state_batch_indices, cu_seqlens, out: as in `selective_state_update`.

    Returns:
        y, of x's shape and type. For JAX arrays, which do not change, y and the new state, a copy.

    Examples:
        >>> state, x, dt = torch.zeros(2, 4, 16, 8), torch.randn(2, 4, 16), torch.rand(2, 4)
        >>> ssd_update(state, x, dt, -torch.rand(4), torch.randn(2, 8), torch.randn(2, 8)).shape
        torch.Size([2, 4, 16])
    """
    framework = _dispatch.framework_of("ssd_update", "state", state)
    for name, tensor in (("x", x), ("dt", dt), ("A", A), ("B", B), ("C", C)):
        other = _dispatch.framework_of("ssd_update", name, tensor)
        if not (other is framework or _dispatch.mix(other, framework)):
            raise TypeError(f"ssd_update: `{name}` must be of the same kind as `state`, got {type(tensor).__qualname__}")
    _check(state, x, dt, A, D, dt_bias, dt_a)
    heads, rows = state.shape[1:3], x.shape
    low, high = (None, None) if dt_limit is None else _dispatch.limits("ssd_update", dt_limit)
    steps, decay_steps = _spread(dt, rows), _spread(dt_a, rows)
    tensors = (x, steps, _spread(A, state.shape[1:]), B, C, _spread(D, heads), z, _spread(dt_bias, heads), decay_steps)
    tensors, options = (*tensors, state_batch_indices), (dt_softplus, low, high, "mamba")
    return _dispatch.between(SELECTIVE_STATE_UPDATE, state, tensors, options, dst_state_batch_indices, cu_seqlens, out)
