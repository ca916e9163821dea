"""One step of `ssd`, in its own shapes, by that of the selective scan."""

from typing import overload

from . import functions
from ._operations import SELECTIVE_STATE_UPDATE
from ._types import Array, J, Limits, T

# the shapes of the arguments of `ssd_update`, by the names of sizes
_SHAPES = {
    "x": [("batch", "nheads", "headdim")],
    "dt": [("batch", "nheads")],
    "A": [("nheads",)],
    "B": [("batch", "dstate"), ("batch", "ngroups", "dstate")],
    "C": [("batch", "dstate"), ("batch", "ngroups", "dstate")],
    "D": [("nheads",), ("nheads", "headdim")],
    "z": [("batch", "nheads", "headdim")],
    "dt_bias": [("nheads",)],
    "dt_a": [("batch", "nheads")],
}


def _check(given):
    """Refuses shapes that would be stretched, and those that the step would call by other names."""
    sizes = dict(zip(("nheads", "headdim", "dstate"), given.pop("state").shape[1:]))
    for name, tensor in given.items():
        if tensor is None:
            continue
        shape, possible = tuple(tensor.shape), _SHAPES[name]
        fits = [axes for axes in possible if len(axes) == len(shape)]
        if fits and name == "x":
            sizes["batch"] = shape[0]
        if not fits or any(sizes.get(axis, size) != size for axis, size in zip(fits[0], shape)):
            words = " or ".join(f"({', '.join(axes)}{',' if len(axes) == 1 else ''})" for axes in possible)
            beside = ", ".join(f"{axis} {size}" for axis, size in sizes.items() if any(axis in axes for axes in possible))
            raise ValueError(f"ssd_update: `{name}` must have shape {words}, got {shape}; here are {beside}")


def _spread(tensor, shape):
    """A tensor with an axis behind its others for each that a shape has more, without a copy where arrays can be views."""
    if tensor is None or tensor.ndim == len(shape):
        return tensor
    tensor = tensor[(..., *(None,) * (len(shape) - tensor.ndim))]
    if hasattr(tensor, "expand"):
        return tensor.expand(shape)
    library = tensor.__array_namespace__()
    spread = library.broadcast_to(tensor, shape)
    if hasattr(spread, "strides") and library.__name__ == "numpy":
        # as a view that NumPy does not mark as one that must not be written
        return library.lib.stride_tricks.as_strided(tensor, shape, spread.strides)
    return spread


# fmt: off
@overload
def ssd_update(
    state: Array, x: J, dt: Array, A: Array, B: Array, C: Array, D: Array | None = None, *, z: Array | None = None,
    dt_bias: Array | None = None, dt_softplus: bool = False, dt_limit: Limits = None, dt_a: Array | None = None,
    state_batch_indices: Array | None = None
) -> tuple[J, J]: ...
@overload
def ssd_update(
    state: Array, x: T, dt: Array, A: Array, B: Array, C: Array, D: Array | None = None, *, z: Array | None = None,
    dt_bias: Array | None = None, dt_softplus: bool = False, dt_limit: Limits = None, dt_a: Array | None = None,
    state_batch_indices: Array | None = None
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
        state_batch_indices: as in `selective_state_update`.

    Returns:
        y, of x's shape and type. For JAX arrays, which do not change, y and the new state, a copy.

    Examples:
        >>> state, x, dt = torch.zeros(2, 4, 16, 8), torch.randn(2, 4, 16), torch.rand(2, 4)
        >>> ssd_update(state, x, dt, -torch.rand(4), torch.randn(2, 8), torch.randn(2, 8)).shape
        torch.Size([2, 4, 16])
    """
    framework = functions._framework("ssd_update", "state", state)
    for name, tensor in (("x", x), ("dt", dt), ("A", A), ("B", B), ("C", C)):
        other = functions._framework("ssd_update", name, tensor)
        if not (other is framework or functions._mix(other, framework)):
            raise TypeError(f"ssd_update: `{name}` must be of the same kind as `state`, got {type(tensor).__qualname__}")
    if len(state.shape) != 4:
        raise ValueError(f"ssd_update: `state` must have shape (batch, nheads, headdim, dstate), got {tuple(state.shape)}")
    _check({"state": state, "x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias, "dt_a": dt_a})
    heads, rows = state.shape[1:3], x.shape
    low, high = (None, None) if dt_limit is None else functions._limits("ssd_update", dt_limit)
    steps, decay_steps = _spread(dt, rows), _spread(dt_a, rows)
    tensors = (x, steps, _spread(A, state.shape[1:]), B, C, _spread(D, heads), z, _spread(dt_bias, heads), decay_steps)
    return functions._step(SELECTIVE_STATE_UPDATE, state, (*tensors, state_batch_indices), (dt_softplus, low, high, "mamba"))
