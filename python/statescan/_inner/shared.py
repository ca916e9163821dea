"""How a function of several operations joins PyTorch's library, as the operations themselves do, and the parts of a tensor."""

from collections import namedtuple
from dataclasses import dataclass

import torch

from .. import _gradients, _native
from .._operations import CAUSAL_CONV1D
from ..torch import _UNOBSERVED, _declare, _define, _library, _registered, _requires_grad, _with_defaults, recorded


@dataclass(frozen=True, eq=False)
class Inner:
    """A function between projections, described as an operation is."""

    name: str
    # names of the tensors; those that may be None end in "?"
    tensors: tuple[str, ...]
    # how many of them, from the first, have gradients
    differentiable: int
    # types and names of the rest, and their defaults
    options: tuple[tuple[str, object], ...]
    # names of what the backward pass needs beside them
    saves: tuple[str, ...]

    state = None
    keeps_result = False
    adds = None

    def named(self):
        """The class of a call's arguments by their names."""
        names = [name.rstrip("?") for name in self.tensors] + [option.split()[-1] for option, _ in self.options]
        return namedtuple(self.name, names)


class Parts:
    """Parts of a tensor (batch, seqlen, channels), each from some channel on, as views of PyTorch's. `Rows`, of the native part,
    has them for its functions, in less time; these go anywhere, and have symbolic sizes."""

    __slots__ = ("_start", "_strides", "batch", "seqlen", "tensor")

    def __init__(self, tensor):
        self.tensor = tensor
        self.batch, self.seqlen, _ = tensor.shape
        self._strides = tensor.stride()
        self._start = tensor.storage_offset()

    @staticmethod
    def filters(weight, name):
        """(dim, width) of a convolution's weight, which may be that of a module."""
        return weight.squeeze(1) if weight.dim() == 3 else weight

    def rows(self, first, count):
        """(batch, seqlen, count)."""
        return self._view(first, (self.batch, self.seqlen, count), self._strides)

    def timed(self, first, count):
        """(batch, count, seqlen)."""
        row, step, channel = self._strides
        return self._view(first, (self.batch, count, self.seqlen), (row, channel, step))

    def groups(self, first, groups, width):
        """(batch, seqlen, groups, width), of so many neighbouring groups of channels."""
        row, step, channel = self._strides
        return self._view(first, (self.batch, self.seqlen, groups, width), (row, step, width * channel, channel))

    def _view(self, first, sizes, strides):
        return self.tensor.as_strided(sizes, strides, self._start + first * self._strides[2])


def are_aligned(tensor, first):
    """Whether the channels from `first` on of a dense tensor (batch, seqlen, channels) are a matrix whose rows are aligned."""
    row, step, channel = tensor.stride()
    size = tensor.element_size()
    return channel == 1 and row == tensor.shape[1] * step and step * size % 16 == first * size % 16 == 0


def columns(tensor, first, count):
    """Some channels of such a tensor, as a matrix."""
    batch, seqlen, _ = tensor.shape
    return tensor.as_strided((batch * seqlen, count), (tensor.stride(1), 1), tensor.storage_offset() + first)


def decays(A, are_logarithms):
    """`-exp(A)` of logarithms, in float32 or better."""
    if not are_logarithms:
        return A
    return torch.exp(A if A.dtype in (torch.float32, torch.float64) else A.float()).neg_()


def through_decays(by_A, A, like):
    """The gradient by the logarithms that `A` is the decays of, which `like` is one of."""
    return by_A.mul_(A) if like.dtype == by_A.dtype else by_A.mul_(A).to(like.dtype)


def matrix(rows):
    """(batch seqlen, channels) of (batch, seqlen, channels), or of None."""
    return rows if rows is None else rows.reshape(-1, rows.shape[-1])


def project(rows, weight, bias):
    """The projection of rows, (batch, seqlen, channels) or a matrix; the same rows without a weight."""
    return rows if weight is None else torch._C._nn.linear(rows, weight, bias)


def project_back(by_out, weight, like):
    """The gradient by what was projected, of that by the result; zeros where there is none. All are matrices."""
    if by_out is None:
        return like().zero_()
    return by_out if weight is None else torch.mm(by_out, weight)


def projection_gradients(by_out, rows, parameters, needed):
    """The gradients by the weight and the bias of a projection, where they are needed; `rows` makes what was projected."""
    if by_out is None:
        return tuple(torch.zeros_like(parameter) if wanted else None for parameter, wanted in zip(parameters, needed))
    by_weight = torch.mm(by_out.t(), matrix(rows())) if needed[0] else None
    return by_weight, by_out.sum(0) if needed[1] else None


def run(op, inputs, outputs, place):
    """A forward pass of an operation: the results that `outputs` leaves to it."""
    return _native.forward(op.number, inputs, outputs, place)


def run_back(op, inputs, outputs, place):
    """A backward pass alike: the gradients."""
    return _native.backward(op.number, inputs, outputs, place)


def each(made, asked):
    """Gradients in the order in which they may be asked for, None for those that were not."""
    made = iter(made)
    return [next(made) if is_made else None for is_made in asked]


def convolved_back(convolution, by_result, by_x, weight, needed, place):
    """Writes the gradient by what was convolved, and gives those by the weight and the bias, where they are needed."""
    made = run_back(CAUSAL_CONV1D, (*convolution, by_result, None), (by_x, *needed, None), place)
    by_filter, by_bias = each(made, needed)
    return by_filter if by_filter is None else by_filter.view_as(weight), by_bias


def _known(place, arguments):
    """The place of a call that goes past the dispatcher; None where somebody has a say in it."""
    return place if place is not _UNOBSERVED else place.of(arguments)


def differentiable(op: Inner, forward, backward, allocate):
    """The function, which takes the tensors and the options. `forward(save, arguments, place)` gives two results, and what is
    saved if that is wanted; `backward(needed, arguments, saved, gradients, place)` all gradients. It writes into nothing but
    what it has made: saved tensors may be somebody else's, too. `allocate(save, arguments)` is `forward` without data."""
    arguments, complete = _with_defaults(op)

    def compute_forward(save, arguments, place):
        place = _known(place, arguments)
        return None if place is None else forward(save, arguments, place)

    pass_forward = _define(op, f"{op.name}_forward", ["bool save", *arguments], "Tensor[]", complete, compute_forward, allocate)
    _gradients.refuse_vmap(op, _registered(f"{op.name}_forward"), _library)
    count, saves = len(op.tensors) + len(op.options), len(op.saves)

    def compute(needed, arguments, place):
        place = _known(place, arguments)
        if place is None:
            return None
        found = backward(needed, arguments[:count], arguments[count : count + saves], arguments[-2:], place)
        return [gradient for gradient, wanted in zip(found, needed) if wanted]

    def without_data(needed, arguments):
        return [torch.empty_like(tensor) for tensor, wanted in zip(arguments, needed) if wanted]

    schema = ["bool[] needed", *_declare(op.tensors), *(name for name, _ in op.options)]
    schema += [*(f"Tensor {name}" for name in op.saves), "Tensor? grad_first", "Tensor? grad_second"]
    pass_backward = _define(op, f"{op.name}_backward", schema, "Tensor[]", tuple, compute, without_data)
    _gradients.map_cotangents(op, _registered(f"{op.name}_backward"), _library)
    function = _gradients.differentiable(op, pass_forward, pass_backward)

    def chosen(save, *arguments):
        return save, function, complete(arguments)

    _gradients.dispatch(_registered(f"{op.name}_forward"), _library, chosen)

    def call(tensors, options):
        if _requires_grad(tensors):
            return recorded(function, pass_forward, tensors, options)
        return tuple(pass_forward(False, tensors + options))

    return call
