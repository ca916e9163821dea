"""How a function of several operations joins PyTorch's library, as the operations themselves do."""

from dataclasses import dataclass

import torch

from .. import _gradients, _native
from ..torch import _declare, _define, _library, _registered, _requires_grad, _with_defaults, recorded


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


def run(op, inputs, outputs, place):
    """A forward pass of an operation: the results that `outputs` leaves to it."""
    return _native.forward(op.number, inputs, outputs, place)


def run_back(op, inputs, outputs, place):
    """A backward pass alike: the gradients."""
    return _native.backward(op.number, inputs, outputs, place)


def differentiable(op: Inner, forward, backward, allocate):
    """The function, which takes the tensors and the options. `forward(save, arguments, place)` gives two results, and what is
    saved if that is wanted; `backward(needed, arguments, saved, gradients, place)` all gradients; `allocate(save, arguments)` is
    the former without data."""
    arguments, complete = _with_defaults(op)

    def compute_forward(save, arguments, place):
        # the dispatcher sees the whole, and not the operations one by one
        return forward(save, arguments, place) if isinstance(place, tuple) else None

    pass_forward = _define(op, f"{op.name}_forward", ["bool save", *arguments], "Tensor[]", complete, compute_forward, allocate)
    _gradients.refuse_vmap(op, _registered(f"{op.name}_forward"), _library)
    count, saves = len(op.tensors) + len(op.options), len(op.saves)

    def compute(needed, arguments, place):
        if not isinstance(place, tuple):
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

    def call(tensors, options):
        if _requires_grad(tensors):
            return recorded(function, tensors, options)
        return tuple(pass_forward(False, tensors + options))

    return call
