"""PyTorch: a scan by its steps, one token after another, whose bits do not depend on how a text is cut."""

import torch

from ._operations import CAUSAL_CONV1D
from ._pool import StatePool
from .torch import _New, _requires_grad, call


class _Replaced(torch.autograd.Function):
    """The values of the second tensor, with the gradient of the first one."""

    @staticmethod
    def forward(plain, exact):
        return exact.view_as(exact)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def _rows(op, argument, tensor):
    """A tensor of the scan as its steps have it: tokens are rows, those of a sequence one behind the other."""
    layout = argument.layout(tensor) or ""
    if "L" in layout:
        return tensor.movedim(layout.index("L"), 1).flatten(0, 1)
    if len(layout) > 1 and any("L" in other for other in argument.layouts):
        raise ValueError(f"{op.name}: `exact` takes `{argument.name}` of each step, got shape {tuple(tensor.shape)}")
    return tensor


def _by_steps(op, step, named, options, pool):
    """y of a scan from and into a pool."""
    first = op.arguments[0]
    x, axis = named[first.name], first.layouts[0].index("L")
    rows = {a.name: _rows(op, a, named[a.name]) for a in op.arguments if a.sized and named[a.name] is not None}
    state, read = ("conv_state", "conv_state_indices") if op is CAUSAL_CONV1D else ("state", "state_batch_indices")
    write = pool.read_indices if pool.write_indices is None else pool.write_indices
    places = {state: pool.states, read: pool.read_indices, f"dst_{read}": write, "cu_seqlens": named["cu_seqlens"]}
    y = step(**places, **rows, **options)
    return y.unflatten(0, (x.shape[0], x.shape[axis])).movedim(1, axis)


def _refuse(op, named, excluded, initial):
    for name, value in {**excluded, "seq_idx": named["seq_idx"]}.items():
        if value is not None and value is not False:
            raise ValueError(f"{op.name}: `exact` excludes `{name}`")
    if isinstance(initial, StatePool) and initial.write_indices is not None and initial.write_indices.ndim > 1:
        raise ValueError(f"{op.name}: `exact` excludes states at positions; calls for one piece after another have the same bits")


def scan(op, step, tensors, arguments, options, excluded):
    """A scan by a step that takes these options, or None where the scan itself has the bits of its steps.

    `arguments` are the options of the scan's own calls by position.
    """
    named = {argument.name: tensor for argument, tensor in zip(op.arguments, tensors)}
    initial = tensors[op.initial]
    _refuse(op, named, excluded, initial)
    pool = initial if isinstance(initial, StatePool) else None
    before = initial if pool is None else pool.states
    if op is CAUSAL_CONV1D and (before is None or before.dtype == tensors[0].dtype):
        # an output is a sum over taps in their order, wherever it stands; a state has inputs as they are
        return None
    if pool is not None:
        return _by_steps(op, step, named, options, pool), pool.states
    with torch.no_grad():
        _, state = op.room(_New, (*tensors, *arguments), (tensors[0], None))
        state.zero_() if initial is None else state.copy_(initial)
        slots = torch.arange(state.shape[0], device=state.device)
        y = _by_steps(op, step, named, options, StatePool(state, slots))
    if not _requires_grad(tensors):
        return y, state
    # a gradient is that of the scan as it is computed otherwise
    plain = call(op, tensors, arguments)
    return _Replaced.apply(plain[0], y), _Replaced.apply(plain[1], state)
