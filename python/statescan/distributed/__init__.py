"""One sequence over the processes of a group of `torch.distributed`, each of which has a slice of its time.

    import statescan.distributed

    context = statescan.distributed.context()
    y, state = statescan.selective_scan(x, dt, A, B, C, context=context)

Every process makes the same calls in the same order, with its own slice of what has a seqlen: of any length, zero included, one
behind the other in the order of ranks. All else is alike on all of them: weights, options, `initial_state` (the state before the
first step of the whole) and `cu_seqlens` (the bounds of sequences in the whole). `seq_idx` goes with the slice.

- y is the slice's. The final state is that after the slice: on the last rank, the first one with `reverse`, that of the whole.
- Gradients are the slice's. Those of weights are this rank's part, to be added over the group, as in data-parallel training.
- The loss must depend on the results of every rank, or backward passes wait for each other until the group's timeout.
- Calls that do not fit together raise the same ValueError on every rank.
"""

import weakref
from typing import Any

from torch import distributed

from .. import torch as framework
from .._gradients import differentiable
from .._operations import OPERATIONS_OF_TIME
from . import _passes
from ._board import board_of, there
from ._slices import gather_rows

__all__ = ["Context", "context"]


class Context:
    """A group whose ranks share sequences; `context` makes it. It does not keep the group: `destroy_process_group` ends it."""

    def __init__(self, group: distributed.ProcessGroup, control: distributed.ProcessGroup) -> None:
        self.held: Any = weakref.ref(group)
        self._control = weakref.ref(control)
        # it tells of the ranks' calls
        self.board: Any = board_of(control, gather_rows)
        self.rank: int = distributed.get_rank(group)
        self.ranks: int = distributed.get_world_size(group)
        both = {op.name: _of_ranks(op, group.group_name) for op in OPERATIONS_OF_TIME}
        self.forward: dict[str, Any] = {name: forward for name, (forward, _) in both.items()}
        self.with_gradient: dict[str, Any] = {op.name: differentiable(op, *both[op.name]) for op in OPERATIONS_OF_TIME}

    @property
    def group(self) -> distributed.ProcessGroup:
        """The group that exchanges states."""
        return there(self.held)

    @property
    def control(self) -> distributed.ProcessGroup:
        """The group of the same ranks whose tensors are in the memory of the host."""
        return there(self._control)

    def __repr__(self) -> str:
        return f"<context of rank {self.rank} of {self.ranks}>"

    def call(self, op: Any, served: Any, tensors: Any, options: Any) -> Any:
        """Runs an operation, whose first tensor is of a framework."""
        if served is not framework:
            raise TypeError(f"{op.name}: `context` goes with PyTorch's tensors only")
        return framework.call(op, tensors, options, self)


def _of_ranks(op, name):
    """The passes over the ranks of a context with this name, as those of `torch.py`."""
    (forward, backward), inputs = _passes.PASSES[op.name], len(op.tensors) + len(op.options)

    def compute(save, arguments):
        return forward(name, save, *arguments)

    def differentiate(needed, arguments):
        return backward(name, needed, *arguments[:inputs], list(arguments[inputs:-2]), *arguments[-2:])

    return compute, differentiate


def _control(group):
    """A group of the same ranks that exchanges memory of the host."""
    if "cpu:" in distributed.get_backend_config(group):
        return group
    members = distributed.get_process_group_ranks(group)
    return distributed.new_group(members, backend="gloo", use_local_synchronization=True)


def context(group: distributed.ProcessGroup | None = None) -> Context:
    """Makes a call one of a group's: an argument of the scans and of the convolution. See this module.

    Every rank of the group calls this; a second call gives the same context. Groups of gloo and of NCCL will do. Beside NCCL this
    makes a group of gloo. Shapes of a call are compared through memory that the ranks of one host share, through gloo otherwise.

    Args:
        group: of `torch.distributed`, which must be initialised; None is the group of all processes.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        raise RuntimeError("statescan.distributed: torch.distributed is not initialised, call init_process_group first")
    group = distributed.group.WORLD if group is None else group
    if not isinstance(group, distributed.ProcessGroup):
        raise TypeError(f"statescan.distributed: `group` must be a process group that this process is in, got {group!r}")
    known = _passes.CONTEXTS.get(group.group_name)
    if known is None or known.held() is not group:
        known = _passes.CONTEXTS[group.group_name] = Context(group, _control(group))
    return known
