"""How the state that enters a slice of time comes out of it: a state from zero, and a link."""

import torch

from .. import _native
from .._operations import Operation
from ..torch import _New, _place


class Decays:
    """The link of a scan: the total decay of the slice, by which the state is multiplied."""

    # channels know nothing of each other
    pieces = True
    # a state takes a pass over the whole slice
    whole_pass = True

    def __init__(self, op: Operation):
        self.op = op
        # axes of a state along which the decay is the same
        self.dropped = len(op.outputs[1].layouts[0]) - len(op.decay.layouts[0])

    def form(self, call, state):
        """The shape and the type of the link beside a state."""
        is_complex = self.op.is_complex(self.op.decay.complex, _New, call.tensors)
        return state.shape[: state.dim() - self.dropped], state.dtype if is_complex else state.dtype.to_real()

    def summarize(self, call, state, link):
        _native.summary(self.op.number, call.inputs(call.form(state)), (state, link), _place(state))

    def apply(self, link, state):
        # nothing that came before reaches a sequence that starts in the slice, not even NaN
        link = link[(...,) + (None,) * self.dropped]
        return torch.where(link == 0, 0, link * state)

    def transpose(self, link, cotangent):
        return self.apply(link.conj(), cotangent)

    def flowing(self, call, entering, saved, cotangents, target):
        """The gradient of the state that enters, without what comes from the slices behind."""
        call.backward(entering, saved, cotangents, {call.initial: target})


class Operators(Decays):
    """The link of the gated delta rule: a matrix for each head, by which the columns of the state are multiplied. It is the state
    that the slice makes of the identity without values."""

    # heads of values share keys
    pieces = False

    def __init__(self, op: Operation):
        self.op = op

    def form(self, call, state):
        return (*state.shape[:-1], state.shape[-2]), state.dtype

    def summarize(self, call, state, link):
        call.forward(call.form(state), (None, state), None)
        v, keys = call.named("v"), link.shape[-1]
        zeros = v.new_zeros(()).expand(*v.shape[:-1], keys)
        identity = torch.eye(keys, dtype=link.dtype, device=link.device).expand(link.shape)
        call.replaced({call.place["v"]: zeros}).forward(identity, (None, link), None)

    def apply(self, link, state):
        # nothing that came before reaches a sequence that starts in the slice, not even NaN
        return torch.where((link == 0).all(-1, keepdim=True), 0, link @ state)

    def transpose(self, link, cotangent):
        return self.apply(link.mT, cotangent)


class Halo:
    """The link of a convolution, whose state is its last inputs: the number, from 1, that each of them had before the slice, or 0
    for an input of the slice. It is the same for all channels."""

    # it is so short that nobody waits for it
    pieces = whole_pass = False

    def __init__(self, op: Operation):
        self.op = op

    def form(self, call, state):
        return (*state.shape[:-2], 1, state.shape[-1]), state.dtype

    def summarize(self, call, state, link):
        call.forward(call.form(state), (None, state), None)
        x, weight, *_ = call.tensors
        marks = torch.arange(1, link.shape[-1] + 1, dtype=link.dtype, device=link.device).expand(link.shape)
        one = call.replaced({0: x.new_zeros(()).expand(x.shape[0], 1, x.shape[2]), 1: weight[:1], 2: None})
        one.forward(marks, (None, link), None)

    def _index(self, link, state):
        return (link.long() - 1).clamp(min=0).expand(state.shape)

    def apply(self, link, state):
        return torch.where(link > 0, state.gather(-1, self._index(link, state)), 0)

    def transpose(self, link, cotangent):
        return torch.zeros_like(cotangent).scatter_add(-1, self._index(link, cotangent), torch.where(link > 0, cotangent, 0))

    def flowing(self, call, entering, saved, cotangents, target):
        """As that of decays. Where a row has one state, only the steps that still see it are looked at."""
        steps, remembered = call.tensors[0].shape[2], entering.shape[-1]
        if entering.dim() == 3 and call.named("cu_seqlens") is None and steps > remembered:
            start = steps - remembered if call.reverse else 0
            index = call.named("seq_idx")
            shorter = {0: call.tensors[0].narrow(2, start, remembered)}
            if index is not None:
                shorter[call.place["seq_idx"]] = index.narrow(1, start, remembered)
            grad_y = None if cotangents[0] is None else cotangents[0].narrow(2, start, remembered)
            # the state does not get through the slice, so nothing comes from the final one
            call, cotangents = call.replaced(shorter), (grad_y, None)
        call.backward(entering, saved, cotangents, {call.initial: target})
