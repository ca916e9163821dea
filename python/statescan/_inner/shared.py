"""How a function of several operations joins PyTorch's library, as the operations themselves do."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .. import _gradients, _native
from .._operations import CAUSAL_CONV1D, Operation
from ..torch import _declare, _define, _library, _New, _registered, _requires_grad, _with_defaults, recorded

# a pass over ranks keeps these beside saved states
_OF_PASS = ("links", "entering", "continues", "numbers")


class Described(NamedTuple):
    """Shapes and options of a call without data."""

    # arguments of both operations
    convolution: tuple
    scan: tuple
    # channels of what is projected, and of the scan's result if that is kept, or None
    width: Any
    kept: Any


@dataclass(frozen=True, eq=False)
class Inner:
    """A function between projections, described as an operation is."""

    # the kind of its native passes
    kind: str
    # names of the tensors; those that may be None end in "?"
    tensors: tuple[str, ...]
    # how many of them, from the first, have gradients
    differentiable: int
    # types and names of the rest, and their defaults
    options: tuple[tuple[str, object], ...]
    scan: Operation
    # describes arguments with their names, and what makes (batch, seqlen, ..) beside them
    describe: Callable[[Any, Callable], Described]
    # passes over ranks by the names of operations; None for sequences that are here as a whole
    ranks: Any = None

    state = None
    keeps_result = False
    adds = None

    @property
    def name(self):
        return self.kind if self.ranks is None else f"{self.kind}_ranks"

    @property
    def saves(self):
        """Names of what the backward pass needs beside the arguments."""
        own = "scanned", "decays"
        if self.ranks is None:
            return (*own, "states")
        return (*own, *(f"conv_{name}" for name in _OF_PASS), "states", *_OF_PASS)


def _allocate(op):
    """A function that gives the results of `op`, and what it keeps if `save` says so, of tensors without data."""
    names = [name.rstrip("?") for name in op.tensors] + [option.split()[-1] for option, _ in op.options]
    arguments_of = namedtuple(op.name, names)._make

    def without_data(name, save, described):
        """The last state, and what convolution and scan keep."""
        if op.ranks is None:
            _, state = op.scan.results(_New, *described.scan)
            return state, [op.scan.saved(_New, *described.scan)] if save else []
        _, _, *of_conv = op.ranks[CAUSAL_CONV1D.name][0](name, save, *described.convolution)
        _, state, *of_scan = op.ranks[op.scan.name][0](name, save, *described.scan)
        return state, [*of_conv, *of_scan]

    def allocate(save, arguments):
        rows, given = arguments[0], arguments_of(arguments)

        def room(*channels):
            return rows.new_empty(*rows.shape[:2], *channels)

        described = op.describe(given, room)
        out = room(described.width if given.outproj_weight is None else given.outproj_weight.shape[0])
        state, kept = without_data(arguments[-1], save, described)
        if not save:
            return [out, state]
        scanned = rows.new_empty(0) if described.kept is None else room(described.kept)
        wide = torch.promote_types(given.A.dtype, torch.float32)
        decays = torch.empty_like(given.A, dtype=wide) if given.A_log else rows.new_empty(0)
        return [out, state, scanned, decays, *kept]

    return allocate


def differentiable(op: Inner):
    """The function, which takes the tensors and the options."""
    arguments, complete = _with_defaults(op)
    kind, ranks = op.kind, op.ranks

    def compute_forward(save, arguments, place):
        return _native.layer_forward(kind, save, arguments, place, ranks)

    def compute_backward(needed, arguments, place):
        return _native.layer_backward(kind, needed, arguments, place, ranks)

    allocate, schema = _allocate(op), ["bool save", *arguments]
    pass_forward = _define(op, f"{op.name}_forward", schema, "Tensor[]", complete, compute_forward, allocate)
    _gradients.refuse_vmap(op, _registered(f"{op.name}_forward"), _library)

    def without_data(needed, arguments):
        return [torch.empty_like(tensor) for tensor, wanted in zip(arguments, needed) if wanted]

    schema = ["bool[] needed", *_declare(op.tensors), *(name for name, _ in op.options)]
    schema += [*(f"Tensor {name}" for name in op.saves), "Tensor? grad_first", "Tensor? grad_second"]
    pass_backward = _define(op, f"{op.name}_backward", schema, "Tensor[]", tuple, compute_backward, without_data)
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
