"""Pools of states, as servers keep them."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from ._types import Array


@dataclass(frozen=True, eq=False)
class StatePool:
    """A pool of states in the place of an initial state: sequences start from its slots and leave their states in its slots.

    `selective_scan`, `ssd`, `gated_delta_rule`, `simplified_scan`, `s5_inner`, `linear_scan` and `causal_conv1d` take it as
    `initial_state` (or `initial_states`); the rows of `linear_scan` are those of its first axis. They change `states` in place,
    where their description has the state after the last step return `states` itself, and gather and copy nothing; `out` is for y
    alone. There are no gradients: a backward pass through such a call is an error. For JAX arrays, which do not change, they
    return a changed copy of the whole pool.

    Args:
        states: (slots, ..), the trailing axes those of an initial state; float32, float64, bfloat16 or float16, or complex
            where states are.
        read_indices: (sequences,), int32 or int64: the slot that each sequence of `cu_seqlens`, or else each row of the batch,
            starts from; a negative one starts from zeros. Several may start from one slot.
        write_indices: as read_indices, the slot that each sequence leaves its state in; a negative one leaves nothing. The slots
            that are read, if it is None. No two sequences may leave their states in one slot, and none may start from a slot
            that another one writes. On a GPU values are not checked: one that is too large counts as negative, one that is used
            twice gives wrong results.
            Of shape (sequences, pieces) it has states at positions: `cu_seqlens` has the bounds of pieces then, one more than
            sequences * pieces, and each piece goes on from the one before it in its sequence and leaves its state in a slot of
            its own. A piece may have no steps. Not for `linear_scan`.

    Examples:
        >>> pool = torch.zeros(8, 4, 16, 32)
        >>> x, dt, A = torch.randn(2, 20, 4, 16), torch.rand(2, 20, 4), -torch.rand(4)
        >>> B, C = torch.randn(2, 2, 20, 32)
        >>> slots = StatePool(pool, torch.tensor([-1, -1]), torch.tensor([5, 2]))
        >>> y, _ = ssd(x, dt, A, B, C, initial_state=slots)
        >>> pool.any(dim=(1, 2, 3)).nonzero().flatten()
        tensor([2, 5])
    """

    states: Array
    read_indices: Array
    write_indices: Any = None


# a call takes one of these as its initial state
State: TypeAlias = Array | StatePool


def moved(op, pool, tensors, step):
    """The results of a call whose initial state is a pool: `step` runs what changes it."""
    write = pool.read_indices if pool.write_indices is None else pool.write_indices
    before, behind = tensors[: op.initial], tensors[op.initial + 1 :]
    made = step(op.pooled, pool.states, (*before, None, *behind, pool.read_indices, write))
    # arrays that do not change come back changed
    return made if isinstance(made, tuple) else (made, pool.states)
