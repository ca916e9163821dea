"""What inner functions on a rank's slice of time share: their convolutions and scans are passes over the ranks of a context."""

from .._operations import CAUSAL_CONV1D
from ..distributed._passes import PASSES
from .shared import Inner, each

# what a pass over ranks keeps beside saved states
OF_PASS = ("links", "entering", "continues", "numbers")
_SAVES = ("scanned", "decays", *(f"conv_{name}" for name in OF_PASS), "states", *OF_PASS)


def over_ranks(op):
    """The function that takes the name of a context beside its options."""
    return Inner(f"{op.name}_ranks", op.tensors, op.differentiable, (*op.options, ("str context", "")), _SAVES)


def convolved_back(name, call, saved, by_result, of, needed):
    """The gradients by the weight and the bias of the convolution; that by what was convolved goes into `of`."""
    found = run_back(CAUSAL_CONV1D, name, [True, *needed], call.convolution(), saved, (by_result, None))
    by_input, by_filter, by_bias, _ = found
    call.input(of).copy_(by_input)
    return by_filter if by_filter is None else by_filter.view_as(call.given.conv1d_weight), by_bias


def run(op, name, save, arguments):
    """A forward pass over ranks: two results, and what it keeps."""
    first, second, *kept = PASSES[op.name][0](name, save, *arguments)
    return first, second, kept


def run_back(op, name, asked, arguments, saved, gradients):
    """A backward pass alike: the gradients that are asked for, by the numbers of the first arguments, None for the others."""
    asked = [*asked, *[False] * (op.differentiable - len(asked))]
    return each(PASSES[op.name][1](name, asked, *arguments, list(saved), *gradients), asked)
