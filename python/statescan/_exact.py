"""A scan by its steps, one token after another, whose bits do not depend on how a text is cut."""

from . import _dispatch
from ._operations import CAUSAL_CONV1D, LINEAR_SCAN
from ._pool import StatePool


def _moved(tensor, axis, to):
    """A tensor with an axis in another place."""
    order = [at for at in range(tensor.ndim) if at != axis]
    order.insert(to, axis)
    return tensor.permute(order) if hasattr(tensor, "permute") else tensor.transpose(order)


def _rows(op, argument, tensor):
    """A tensor of the scan as its steps have it: tokens are rows, those of a sequence one behind the other."""
    layout = argument.layout(tensor) or ""
    if "L" in layout:
        tensor = _moved(tensor, layout.index("L"), 1)
        return tensor.reshape((tensor.shape[0] * tensor.shape[1], *tensor.shape[2:]))
    if len(layout) > 1 and any("L" in other for other in argument.layouts):
        raise ValueError(f"{op.name}: `exact` takes `{argument.name}` of each step, got shape {tuple(tensor.shape)}")
    return tensor


def _by_steps(op, step, tensors, options, pool):
    """y of a scan from and into a pool, and the pool's states."""
    named = {argument.name: tensor for argument, tensor in zip(op.arguments, tensors)}
    x, axis = tensors[0], op.arguments[0].layouts[0].index("L")
    rows = {a.name: _rows(op, a, named[a.name]) for a in op.arguments if a.sized and named[a.name] is not None}
    state, read = ("conv_state", "conv_state_indices") if op is CAUSAL_CONV1D else ("state", "state_batch_indices")
    write = pool.read_indices if pool.write_indices is None else pool.write_indices
    places = {state: pool.states, read: pool.read_indices, f"dst_{read}": write, "cu_seqlens": named["cu_seqlens"]}
    made = step(**places, **rows, **options)
    # arrays that do not change come back changed
    y, states = made if isinstance(made, tuple) else (made, pool.states)
    return _moved(y.reshape((x.shape[0], x.shape[axis], *y.shape[1:])), 1, axis), states


def _refuse(op, excluded, initial):
    for name, value in excluded.items():
        if value is not None and value is not False:
            raise ValueError(f"{op.name}: `exact` excludes `{name}`")
    if isinstance(initial, StatePool) and initial.write_indices is not None and initial.write_indices.ndim > 1:
        raise ValueError(f"{op.name}: `exact` excludes states at positions; calls for one piece after another have the same bits")


def _scan(op, step, tensors, arguments, options):
    initial = tensors[op.initial]
    pool = initial if isinstance(initial, StatePool) else None
    before = initial if pool is None else pool.states
    if op is CAUSAL_CONV1D and (before is None or before.dtype == tensors[0].dtype):
        # an output is a sum over taps in their order, wherever it stands; a state has inputs as they are
        return _dispatch.call(op, tensors, arguments)
    if pool is not None:
        return _by_steps(op, step, tensors, options, pool)

    def scan(tensors, state, slots):
        return _by_steps(op, step, tensors, options, StatePool(state, slots))

    framework = _dispatch.framework_of(op.name, op.tensors[0], tensors[0])
    return framework.by_steps(op, scan, tensors, arguments)


def scan(op, step, tensors, arguments, options, excluded):
    """A scan by a step that takes these options. `arguments` are the options of the scan's own calls by position."""
    named = {argument.name: tensor for argument, tensor in zip(op.arguments, tensors)}
    _refuse(op, {**excluded, "seq_idx": named["seq_idx"]}, tensors[op.initial])
    try:
        return _scan(op, step, tensors, arguments, options)
    except (AttributeError, RuntimeError, TypeError):
        _dispatch.explain(op, (*tensors[: op.initial], None, *tensors[op.initial + 1 :]), tensors[0])
        raise


def _bytes(tensor):
    """The size of a real number of a tensor."""
    return tensor.dtype.itemsize // (2 if _dispatch.is_complex(tensor) else 1)


def check_linear_scan(a, b, initial, context):
    """Refuses what rounds between calls and not between steps: `linear_scan` has an option of its own."""
    _refuse(LINEAR_SCAN, {"context": context}, initial)
    if isinstance(initial, StatePool) and _bytes(initial.states) < max(4, _bytes(a), _bytes(b)):
        wide = "float64" if max(_bytes(a), _bytes(b)) > 4 else "float32"
        raise ValueError(f"linear_scan: `exact` takes a pool of {wide}, or complex of its size, got {initial.states.dtype}")
