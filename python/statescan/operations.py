"""What each operation takes and gives, whatever the framework: the order of its arguments, and the outputs to allocate.

The order is that of the native functions. `new` makes outputs: it is the one thing that differs from framework to framework.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# the native kernels save one state for each so many steps, and pad channels to the widest vector
_CHECKPOINT = 64
_LANES = 16


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation with gradients."""

    name: str
    # names of the tensors; those that may be None end in "?"
    tensors: tuple[str, ...]
    # types and names of the rest, and their defaults
    options: tuple[tuple[str, Any], ...]
    # how many of the tensors, from the first, have gradients
    differentiable: int
    # (new, *tensors, *options) -> the results, two tensors
    results: Callable[..., tuple[Any, Any]]
    # (new, *tensors) -> a buffer for saved states; None if there are none
    saved: Callable[..., Any] | None = None
    # whether the backward pass uses the first result
    keeps_result: bool = False
    # whether there is a kernel for CUDA
    cuda: bool = True


@dataclass(frozen=True, eq=False)
class Step:
    """One operation that updates a state in place."""

    name: str
    # as above, without the state
    tensors: tuple[str, ...]
    options: tuple[tuple[str, Any], ...]
    # (new, *tensors, *options) -> y
    result: Callable[..., Any]
    state: str = "state"


def _sizes(op, name, tensor, layout, *ranks):
    """The shape of a tensor that has one of so many axes."""
    shape = tensor.shape
    if len(shape) not in ranks:
        _wrong(op, name, shape, layout)
    return shape


def _wrong(op, name, shape, layout):
    raise ValueError(f"{op}: `{name}` must have shape {layout}, got {tuple(shape)}")


def _state_shape(op, batch, own, initial_state, cu_seqlens, seq_idx):
    """The shape of a state tensor, `own` being its trailing axes."""
    if cu_seqlens is None and seq_idx is None:
        return (batch, *own)
    if cu_seqlens is not None:
        (bounds,) = _sizes(op, "cu_seqlens", cu_seqlens, "(sequences + 1,)", 1)
        return (bounds - 1, *own)
    if initial_state is not None and len(initial_state.shape) == len(own) + 2:
        return (batch, initial_state.shape[1], *own)
    return (batch, *own)


def _checkpoints(batch, seqlen, state):
    """The size of a buffer for saved states of so many numbers: no fewer than are saved, however time divides into sequences.

    Two numbers more, since compilers take the sizes 0 and 1 for special cases.
    """
    return batch * (seqlen // _CHECKPOINT) * state + 2


def _padded(channels):
    return (channels + _LANES - 1) // _LANES * _LANES


def _selective_scan_sizes(x, A):
    return *_sizes("selective_scan", "x", x, "(batch, dim, seqlen)", 3), _sizes("selective_scan", "A", A, "(dim, dstate)", 2)[1]


def _selective_scan(new, x, dt, A, B, C, D, z, dt_bias, deltaA, initial_state, cu_seqlens, seq_idx, *options):
    batch, dim, _, dstate = _selective_scan_sizes(x, A)
    shape = _state_shape("selective_scan", batch, (dim, dstate), initial_state, cu_seqlens, seq_idx)
    return new.like(x), new.state(shape, x, new.is_complex(A))


def _selective_scan_saved(new, x, dt, A, *others):
    batch, dim, seqlen, dstate = _selective_scan_sizes(x, A)
    parts = 2 if new.is_complex(A) else 1
    return new.state((_checkpoints(batch, seqlen, _padded(dim) * dstate * parts),), x, False)


SELECTIVE_SCAN = Operation(
    "selective_scan",
    ("x", "dt", "A", "B", "C", "D?", "z?", "dt_bias?", "deltaA?", "initial_state?", "cu_seqlens?", "seq_idx?"),
    (
        ("bool dt_softplus", False),
        ("float? dt_low", None),
        ("float? dt_high", None),
        ("str discretization", "mamba"),
        ("bool reverse", False),
    ),
    differentiable=10,
    results=_selective_scan,
    saved=_selective_scan_saved,
)


def _ssd_sizes(x, B):
    dstate = _sizes("ssd", "B", B, "(batch, seqlen, dstate) or (batch, seqlen, ngroups, dstate)", 3, 4)[-1]
    return *_sizes("ssd", "x", x, "(batch, nheads, seqlen, headdim)", 4), dstate


def _ssd(new, x, dt, A, B, C, D, z, dt_bias, initial_state, causal_mask, cu_seqlens, seq_idx, *options):
    batch, nheads, _, headdim, dstate = _ssd_sizes(x, B)
    shape = _state_shape("ssd", batch, (nheads, dstate, headdim), initial_state, cu_seqlens, seq_idx)
    return new.like(x), new.state(shape, x, False)


def _ssd_saved(new, x, dt, A, B, *others):
    batch, nheads, seqlen, headdim, dstate = _ssd_sizes(x, B)
    return new.state((_checkpoints(batch, seqlen, nheads * dstate * headdim),), x, False)


SSD = Operation(
    "ssd",
    ("x", "dt", "A", "B", "C", "D?", "z?", "dt_bias?", "initial_state?", "causal_mask?", "cu_seqlens?", "seq_idx?"),
    (
        ("bool dt_softplus", False),
        ("float? dt_low", None),
        ("float? dt_high", None),
        ("int chunk_size", 128),
        ("bool reverse", False),
    ),
    differentiable=9,
    results=_ssd,
    saved=_ssd_saved,
    cuda=False,
)


def _simplified_scan_sizes(u, A):
    dstate = _sizes("simplified_scan", "A", A, "(dstate,) or (dstate, 1)", 1, 2)[0]
    return *_sizes("simplified_scan", "u", u, "(batch, dim, seqlen)", 3), dstate


def _simplified_scan(
    new, u, delta, A, B, C, D, deltaA, initial_state, cu_seqlens, seq_idx, discretization, reverse, real, *options
):
    batch, _, _, dstate = _simplified_scan_sizes(u, A)
    shape = _state_shape("simplified_scan", batch, (dstate,), initial_state, cu_seqlens, seq_idx)
    return new.like(u, not real), new.state(shape, u, True)


def _simplified_scan_saved(new, u, delta, A, *others):
    batch, _, seqlen, dstate = _simplified_scan_sizes(u, A)
    return new.state((_checkpoints(batch, seqlen, 2 * _padded(dstate)),), u, False)


SIMPLIFIED_SCAN = Operation(
    "simplified_scan",
    ("u", "delta", "A", "B", "C", "D?", "deltaA?", "initial_state?", "cu_seqlens?", "seq_idx?"),
    (("str discretization", "bilinear"), ("bool reverse", False), ("bool real", False), ("bool conj_sym", True)),
    differentiable=8,
    results=_simplified_scan,
    saved=_simplified_scan_saved,
    cuda=False,
)


def _linear_scan(new, a, b, initial_state, *options):
    shape = b.shape
    if len(shape) == 0:
        _wrong("linear_scan", "b", shape, "(.., seqlen)")
    h = new.like(b, promoted_with=a)
    return h, new.state(tuple(shape[:-1]), h, new.is_complex(h))


LINEAR_SCAN = Operation(
    "linear_scan",
    ("a", "b", "initial_state?"),
    (("bool reverse", False),),
    differentiable=3,
    results=_linear_scan,
    keeps_result=True,
)


def _causal_conv1d(new, x, weight, bias, initial_states, cu_seqlens, seq_idx, *options):
    batch, dim, _ = _sizes("causal_conv1d", "x", x, "(batch, dim, seqlen)", 3)
    _, width = shape = _sizes("causal_conv1d", "weight", weight, "(dim, width), width at least 2", 2)
    if width < 2:
        _wrong("causal_conv1d", "weight", shape, "(dim, width), width at least 2")
    shape = _state_shape("causal_conv1d", batch, (dim, width - 1), initial_states, cu_seqlens, seq_idx)
    return new.like(x), new.empty(shape, x)


CAUSAL_CONV1D = Operation(
    "causal_conv1d",
    ("x", "weight", "bias?", "initial_states?", "cu_seqlens?", "seq_idx?"),
    (("str? activation", None), ("bool reverse", False)),
    differentiable=4,
    results=_causal_conv1d,
)

SELECTIVE_STATE_UPDATE = Step(
    "selective_state_update",
    ("x", "dt", "A", "B", "C", "D?", "z?", "dt_bias?", "deltaA?", "state_batch_indices?"),
    (("bool dt_softplus", False), ("float? dt_low", None), ("float? dt_high", None), ("str discretization", "mamba")),
    result=lambda new, x, *others: new.like(x),
)


def _simplified_state_update(new, u, delta, A, B, C, D, deltaA, state_batch_indices, discretization, real, *options):
    return new.like(u, not real)


SIMPLIFIED_STATE_UPDATE = Step(
    "simplified_state_update",
    ("u", "delta", "A", "B", "C", "D?", "deltaA?", "state_batch_indices?"),
    (("str discretization", "bilinear"), ("bool real", False), ("bool conj_sym", True)),
    result=_simplified_state_update,
)

CAUSAL_CONV1D_UPDATE = Step(
    "causal_conv1d_update",
    ("x", "weight", "bias?", "cache_seqlens?", "conv_state_indices?"),
    (("str? activation", None),),
    result=lambda new, x, *others: new.like(x),
    state="conv_state",
)

OPERATIONS = (SELECTIVE_SCAN, SSD, SIMPLIFIED_SCAN, LINEAR_SCAN, CAUSAL_CONV1D)
STEPS = (SELECTIVE_STATE_UPDATE, SIMPLIFIED_STATE_UPDATE, CAUSAL_CONV1D_UPDATE)
