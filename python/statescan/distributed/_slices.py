"""A call on a slice of time, and whether those of all ranks are one call."""

import functools
from hashlib import blake2b

import torch
from torch import distributed

from .. import _native
from .._operations import Operation
from ..torch import _New, _place

# newer versions of PyTorch have another name for it
_gather = getattr(distributed, "all_gather_single", None) or getattr(distributed, "all_gather_into_tensor", None)


def gather_rows(rows, mine, group):
    """Begins to fill the rows of all ranks, one behind the other in `rows`; `mine` is that of this rank.

    Gives what waits for them; on a GPU the order of its stream does, and it is None."""
    return _gather(rows, mine, group=group, async_op=not mine.is_cuda)


class Remembered:
    """Values by the keys of calls, the same ones again and again in training. Sizes without values have none."""

    _MOST = 1024

    def __init__(self):
        self.found = {}

    def get(self, key, make):
        try:
            found = self.found.get(key)
        except TypeError:
            return make()
        if found is None:
            if len(self.found) == self._MOST:
                self.found.clear()
            found = self.found[key] = make()
        return found


class Slices:
    """The lengths of all slices, and the ranks in the order of the scan: all, before this one and after it; whether a rank's pass
    is in two phases."""

    def __init__(self, rank, lengths, reverse, two_phase):
        self.rank, self.lengths, self.two_phase = rank, lengths, two_phase
        self.order = list(reversed(range(len(lengths)))) if reverse else list(range(len(lengths)))
        place = self.order.index(rank)
        self.before, self.after = self.order[:place], self.order[place + 1 :]

    def clip(self, bounds):
        """Bounds of sequences of the whole as this slice has them."""
        start = sum(self.lengths[: self.rank])
        return bounds.clamp(start, start + self.lengths[self.rank]) - start


_slices = functools.lru_cache(maxsize=1024)(Slices)


@functools.cache
def _places(op: Operation):
    """The numbers of arguments by their names, and that of the initial state."""
    place = {argument.name: at for at, argument in enumerate(op.arguments)}
    return place, next(at for name, at in place.items() if name.startswith("initial_state"))


@functools.cache
def _letter(op: Operation, dim):
    """The axis of results and states along which nothing is shared, besides batch and time; None if there is none."""
    y, state = (result.layouts for result in op.outputs)
    at = next(at for at, layout in enumerate(y) if len(layout) == dim)
    return next((letter for letter in y[at] if letter in state[at] and letter not in "BL"), None)


class Call:
    """An operation with its arguments, on a slice of time, or on a piece of its channels."""

    def __init__(self, op: Operation, tensors, options, number=0, count=1):
        self.op, self.tensors, self.options = op, tuple(tensors), tuple(options)
        self.number, self.count = number, count
        self.place, self.initial = _places(op)
        self.reverse = self.options[op.option("reverse")]
        self._key = None

    @property
    def letter(self):
        return _letter(self.op, self.tensors[0].dim())

    @property
    def key(self):
        """Forms depend on this: the operation, options, shapes and types."""
        if self._key is None:
            forms = [None if tensor is None else (tensor.shape, tensor.dtype) for tensor in self.tensors]
            self._key = self.op.name, self.tensors[0].device.type, self.options, *forms
        return self._key

    def named(self, name):
        at = self.place.get(name)
        return None if at is None else self.tensors[at]

    def replaced(self, tensors):
        """The call with other tensors, by their numbers."""
        own = (tensors.get(at, tensor) for at, tensor in enumerate(self.tensors))
        return Call(self.op, own, self.options, self.number, self.count)

    def on_slice(self, slices):
        bounds = self.named("cu_seqlens")
        if bounds is None:
            return self
        call = self.replaced({self.place["cu_seqlens"]: slices.clip(bounds)})
        # the numbers of bounds are others, and the forms are not
        call._key = self.key
        return call

    def piece(self, number, count):
        """The call on a part of the channels."""
        if count == 1:
            return self
        piece = Call(self.op, self.tensors, self.options, number, count)
        piece.tensors = tuple(None if t is None else piece.argument(at, t) for at, t in enumerate(self.tensors))
        return piece

    def _part(self, layouts, tensor):
        """The part of a tensor that belongs to this piece: the tensor itself if all pieces share it."""
        if self.count == 1:
            return tensor
        layout = next(layout for layout in layouts if len(layout) == tensor.dim())
        for axis, letter in enumerate(layout):
            size = tensor.shape[axis]
            if letter == self.letter or (letter == "G" and size > 1):
                start, end = (size * at // self.count for at in (self.number, self.number + 1))
                return tensor.narrow(axis, start, end - start)
        return tensor

    def argument(self, at, tensor):
        return self._part(self.op.arguments[at].layouts, tensor)

    def result(self, tensor):
        return self._part(self.op.outputs[0].layouts, tensor)

    def state(self, tensor):
        return self._part(self.op.outputs[1].layouts, tensor)

    def carried(self, tensor):
        """Room for a part of a sum of a tensor's shape."""
        return tensor.new_empty(tensor.shape, dtype=tensor.dtype if tensor.element_size() >= 4 else torch.float32)

    def form(self, state):
        """An initial state that says which form states have, if there is need of one."""
        if self.named("seq_idx") is None or state.dim() < len(self.op.outputs[1].layouts[-1]):
            return None
        return state.new_zeros(()).expand_as(state)

    def inputs(self, entering):
        tensors = list(self.tensors)
        tensors[self.initial] = entering
        return (*tensors, *self.options)

    def results(self):
        return self.op.results(_New, *self.tensors, *self.options)

    def saved(self, new):
        """The room for saved states, which `new` makes."""
        return self.op.saved(new, *self.tensors, *self.options)

    def check(self, length):
        """Raises what is wrong with the arguments of this rank."""
        tensors = list(self.tensors)
        bounds = self.named("cu_seqlens")
        if bounds is not None and bounds.dim() == 1 and bounds.shape[0] > 0:
            # bounds of the whole are looked at when all lengths are known
            tensors[self.place["cu_seqlens"]] = torch.zeros_like(bounds)
            tensors[self.place["cu_seqlens"]][-1] = length
        _native.summary(self.op.number, (*tensors, *self.options), (None, None), _place(tensors[0]))

    def ends_len(self):
        """How many numbers the first phases of a forward and of a backward pass keep; 0 where a pass is not in two phases."""
        if not self.tensors[0].is_cuda:
            return 0, 0
        return _native.ends_len(self.op.number, (*self.tensors, *self.options), _place(self.tensors[0]))

    def forward_ends(self, entering, outputs):
        """The first phase of a forward pass: what it keeps, the state after the slice and its decay."""
        _native.forward_ends(self.op.number, self.inputs(entering), outputs, _place(self.tensors[0]))

    def forward(self, entering, results, saved, ends=None):
        """Results, and what is saved; with what the first phase has kept the second one."""
        outputs = results if saved is None else (*results, saved)
        if ends is None:
            _native.forward(self.op.number, self.inputs(entering), outputs, _place(self.tensors[0]))
        else:
            _native.forward_rest(self.op.number, (*self.inputs(entering), ends), outputs, _place(self.tensors[0]))

    def backward_ends(self, entering, cotangents, outputs):
        """The first phase of a backward pass: what it keeps, and the gradient by the state that enters."""
        _native.backward_ends(self.op.number, (*self.inputs(entering), *cotangents), outputs, _place(self.tensors[0]))

    def backward(self, entering, saved, cotangents, targets, ends=None):
        """Gradients, by the numbers of arguments, into targets; with what the first phase has kept by the second one."""
        kept = (saved,) if self.op.saves is not None or self.op.keeps_result else ()
        outputs = tuple(targets.get(at) for at in range(self.op.differentiable))
        inputs = (*self.inputs(entering), *kept, *cotangents)
        if ends is None:
            _native.backward(self.op.number, inputs, outputs, _place(self.tensors[0]))
        else:
            _native.backward_rest(self.op.number, (*inputs, ends), outputs, _place(self.tensors[0]))


def _described(argument, tensor):
    """Words about a tensor that must be alike on all ranks."""
    if tensor is None:
        return None
    layout = argument.layout(tensor) or "?" * tensor.dim()
    shape = ["seqlen" if letter == "L" else str(size) for letter, size in zip(layout, tensor.shape)]
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape ({', '.join(shape)})"


def _describe(call, save):
    """Words about the call of this rank that must be alike on all ranks."""
    op = call.op
    arguments = {a.name: _described(a, tensor) for a, tensor in zip(op.arguments, call.tensors)}
    arguments |= {name.split()[-1]: value for (name, _), value in zip(op.options, call.options)}
    return {"op": op.name, "gradients": save, "arguments": arguments}


# digests and lengths
_KNOWN = Remembered()
# a rank tells two more things of its call: that it is wrong, that a pass of it is in two phases
_WRONG, _TWO_PHASE = 1, 2


def _digest(described):
    """63 bits of a description: of those that differ, two in 10^19 are taken for the same."""
    return int.from_bytes(blake2b(repr(described).encode(), digest_size=8).digest(), "little") >> 1


def _numbers(call, save):
    """The digest of a call, and the length of its slice: 0 where what is wrong with it leaves none."""
    try:
        length = int(call.op.sizes_of(call.tensors).get("L", 0))
    except ValueError:
        length = 0
    return _digest(_describe(call, save)), length


def _differences(context, op, described, error):
    """Raises what is wrong with the calls of the ranks, in the same words on all of them."""
    everyone = [None] * context.ranks
    distributed.all_gather_object(everyone, (described, None if error is None else str(error)), group=context.control)
    if error is not None:
        raise error
    first, _ = everyone[0]
    for rank, (other, failed) in enumerate(everyone):
        if failed is not None:
            raise RuntimeError(f"{op.name}: rank {rank} failed: {failed}")
        if other["op"] != first["op"]:
            raise ValueError(
                f"{op.name}: rank 0 calls {first['op']}, rank {rank} calls {other['op']}: ranks make the same calls in order"
            )
        for name, value in first["arguments"].items():
            if other["arguments"][name] != value:
                got = f"{value} on rank 0, {other['arguments'][name]} on rank {rank}"
                raise ValueError(f"{op.name}: `{name}` must be alike on all ranks, got {got}")
        if other["gradients"] != first["gradients"]:
            raise ValueError(f"{op.name}: either all ranks record gradients or none, and rank {rank} differs from rank 0")
        if other["bounds"] != first["bounds"]:
            raise ValueError(
                f"{op.name}: `cu_seqlens` must be alike on all ranks: bounds of the whole, rank {rank} has others than rank 0"
            )


def _columns(numbers):
    """The digests of all ranks, their lengths and flags."""
    return numbers[::3], numbers[1::3], numbers[2::3]


def _slices_of(context, call, numbers):
    _, lengths, flags = _columns(numbers)
    return _slices(context.rank, tuple(lengths), call.reverse, any(flag & _TWO_PHASE for flag in flags))


def agree(context, call, save, prepare):
    """Compares the calls of all ranks. Raises, on every rank, what is wrong with any of them; gives their slices otherwise, the
    numbers of all ranks, and what `prepare` makes meanwhile.

    Three numbers of each rank go through the memory of hosts before anything is exchanged on devices, where messages of different
    sizes would never end. The words follow only if the numbers differ.
    """
    op, error, bounds, prepared = call.op, None, call.named("cu_seqlens"), None
    digest, length = _KNOWN.get((save, call.key), lambda: _numbers(call, save))
    flag = 0
    try:
        call.check(length)
        # how tensors lie has a part in it, so that nothing remembers it
        flag = _TWO_PHASE if any(call.ends_len()) else 0
    except Exception as wrong:
        error, flag = wrong, _WRONG
    if bounds is not None:
        bounds = bounds.tolist() if bounds.device.type == "cpu" else None
    context.board.tell([digest if bounds is None else _digest((digest, bounds)), length, flag])
    try:
        prepared = prepare() if error is None else None
    finally:
        everyone = context.board.everyone()
    digests, lengths, flags = _columns(everyone)
    if any(flag & _WRONG for flag in flags) or len(set(digests)) > 1:
        _differences(context, op, {**_describe(call, save), "bounds": bounds}, error)
    if bounds is not None and (bounds[0] != 0 or bounds[-1] != sum(lengths) or bounds != sorted(bounds)):
        raise ValueError(f"{op.name}: `cu_seqlens` must rise from 0 to the length of all slices, {sum(lengths)}, got {bounds}")
    return _slices_of(context, call, everyone), torch.tensor(everyone, device="cpu"), prepared


def agreed(context, call, numbers):
    """The slices of a call whose numbers of all ranks are known."""
    return _slices_of(context, call, numbers.tolist())
