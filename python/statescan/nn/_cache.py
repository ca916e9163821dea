"""States that layers keep between calls, and the directions in which they go."""

import torch
from torch import Tensor


class Cache:
    """States of sequences that go on: `layer.cache(batch)` makes it, and ``layer(x, cache)`` goes on from it, by a prompt or by a
    step, and leaves its states there. They are changed in place: for use without gradients.

    Attributes:
        states: those that the layer's `allocate_inference_cache` describes.
        steps: how many steps they have seen.
    """

    def __init__(self, states: tuple[Tensor, ...]) -> None:
        self.states = states
        self.steps: int = 0

    def __repr__(self) -> str:
        return f"<cache of {self.states[0].shape[0]} sequences behind {self.steps} steps>"

    @torch.no_grad()
    def reset(self) -> None:
        """Starts again with states of zeros."""
        for state in self.states:
            state.zero_()
        self.steps = 0


def states_of(layer, cache, batch):
    """The states of a `Cache`, or of the origin's `inference_params`, and whether they have seen steps."""
    only_forwards(layer, "a cache")
    if not isinstance(cache, Cache):
        return layer._get_states_from_cache(cache, batch), cache.seqlen_offset > 0
    if cache.states[0].shape[0] != batch:
        got = cache.states[0].shape[0]
        raise ValueError(f"{type(layer).__name__}: `cache` must have states of {batch} sequences, got {got}")
    return cache.states, cache.steps > 0


def count_steps(cache, steps):
    """Tells a cache, or S5's dictionary, of steps that its states have seen. Who has made `inference_params` counts them."""
    if isinstance(cache, Cache):
        cache.steps += steps
    elif isinstance(cache, dict):
        cache["seqlen_offset"] += steps


def only_forwards(layer, what):
    """Refuses what goes on from states beside a direction in which the last step comes first."""
    if layer.reverse or layer.bidirectional:
        word = "bidirectional" if layer.bidirectional else "reverse"
        raise ValueError(f"{type(layer).__name__}: {what} does not go with `{word}`, which sees later steps first")


def in_directions(layer, scan, x, seq_idx=None, cu_seqlens=None, context=None):
    """The result of `scan` in the direction of a layer, or the sum of both directions: x is (batch, seqlen, ..)."""
    if not (layer.reverse or layer.bidirectional):
        return scan(x, seq_idx, cu_seqlens, context)
    if context is not None:
        raise ValueError(f"{type(layer).__name__}: `context` does not go with `reverse` and `bidirectional`")
    index = None if seq_idx is None else seq_idx.flip(1)
    bounds = None if cu_seqlens is None else x.shape[1] - cu_seqlens.flip(0)
    y = scan(x.flip(1), index, bounds, None).flip(1)
    return scan(x, seq_idx, cu_seqlens, None) + y if layer.bidirectional else y
