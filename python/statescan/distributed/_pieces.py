"""The pieces of a pass, each of some channels: how many there are, and where each keeps what it saves."""

import math

import torch

from .._operations import LINEAR_SCAN, SSD
from ..torch import _New
from ._exchange import Forms, form_of
from ._slices import Remembered

# the most pieces of a pass, and the fewest channels of one
_PIECES, _CHANNELS = 8, 64
# channels times steps of a piece on a GPU that outweigh its launches and its exchange
_WORK = 48 << 20
# devices on which a pass of one piece tells its summary before it computes, and operations that go in one piece there: SSD's
# summary is a fraction of its pass, and pieces of few heads leave multiprocessors idle; launching pieces of a linear scan takes
# the host longer than computing them takes the GPU
_SUMMARY_FIRST, _WHOLE = ("cuda",), (SSD, LINEAR_SCAN)
# rooms of pieces in one tensor begin at multiples of so many numbers
_ALIGNED = 64


def _most_pieces(context, link, call):
    """How many pieces a pass may have: a power of two, the same on all ranks, and a divisor of the groups of maps."""
    letter = call.letter if link.pieces and context.ranks > 1 else None
    if letter is None:
        return 1
    first = call.op.arguments[0].layout(call.tensors[0])
    sizes = dict(zip(first, call.tensors[0].shape))
    most = max(1, min(_PIECES, sizes[letter], sizes[letter] * sizes.get("P", 1) // _CHANNELS))
    count = 1 << (int(most).bit_length() - 1)
    for argument, tensor in zip(call.op.arguments, call.tensors):
        groups = 1 if tensor is None or "G" not in (layout := argument.layout(tensor)) else tensor.shape[layout.index("G")]
        count = math.gcd(count, groups) if groups > 1 else count
    return count


def _count(context, link, call, slices):
    """How many pieces a pass has: on a GPU as many as have enough work, of the longest slice. One in two phases needs none."""
    if slices.two_phase:
        return 1
    count, x = _most_pieces(context, link, call), call.tensors[0]
    if call.op in _WHOLE and x.device.type in _SUMMARY_FIRST:
        return 1
    if x.device.type != "cpu" and count > 1:
        channels = x.numel() // max(1, slices.lengths[context.rank])
        while count > 1 and channels * max(slices.lengths) < count * _WORK:
            count //= 2
    return count


class _Plan:
    """How passes of these forms are divided, and what each piece tells and saves; the same from call to call."""

    def __init__(self, context, link, call, slices, state):
        self.count = _count(context, link, call, slices)
        first = self.count == 1 and call.tensors[0].device.type in _SUMMARY_FIRST
        # whether the rank that nothing enters tells what its own pass gives, and not a summary in front of it
        self.tells_own = link.whole_pass and not first
        pieces = self.pieces(call)
        states = [form_of(piece.state(state)) for piece in pieces]
        links = [link.form(piece, piece.state(state)) for piece in pieces]
        self.forward = [Forms(own, through) for own, through in zip(states, links)]
        self.backward = [Forms(own) for own in states]
        self.links = [Forms(through) for through in links]
        self.rooms = None if call.op.saves is None else _rooms(pieces)[0]

    def pieces(self, call):
        return [call.piece(number, self.count) for number in range(self.count)]

    def kept(self, room):
        """The parts of the room for saved states by pieces."""
        if room is None:
            return [None] * self.count
        return [room[start:end] for start, end in self.rooms]


_PLANS = Remembered()


def plan_of(context, link, call, slices, state):
    key = context.rank, slices.lengths, slices.two_phase, _PIECES, _WORK, _SUMMARY_FIRST, call.key
    return _PLANS.get(key, lambda: _Plan(context, link, call, slices, state))


def ends_of(call, slices, is_backward):
    """Memory for what the first phase of a pass keeps; None where the pass is not in two phases."""
    count = call.ends_len()[is_backward] if slices.two_phase else 0
    return torch.empty(count, dtype=torch.float32, device=call.tensors[0].device) if count else None


class _Count(_New):
    """Tells how many numbers would be saved."""

    @staticmethod
    def state(shape, tensor, is_complex):
        return shape[0]


def _rooms(pieces):
    """The places where pieces keep what they save: bounds in one tensor, and its length."""
    bounds, end = [], 0
    for piece in pieces:
        numbers = piece.saved(_Count)
        bounds.append((end, end + numbers))
        end += (numbers + _ALIGNED - 1) // _ALIGNED * _ALIGNED
    return bounds, end


_ROOMS = Remembered()


def room_of(context, link, call):
    """Room for what any number of pieces saves: as many of them as there may be need no less than fewer."""
    if call.op.saves is None:
        return None

    def numbers():
        most = _most_pieces(context, link, call)
        return _rooms([call.piece(number, most) for number in range(most)])[1]

    return _New.state((_ROOMS.get((context.ranks, _PIECES, call.key), numbers),), call.tensors[0], False)
