"""The functions on a rank's slices of sequences: their convolutions and scans are passes over the ranks of a context."""

from dataclasses import replace

from ..distributed._passes import PASSES
from .mamba import MAMBA
from .mamba2 import MAMBA2
from .shared import differentiable


def _over_ranks(op):
    """The function that takes the name of a context behind its options."""
    return differentiable(replace(op, options=(*op.options, ("str context", "")), ranks=PASSES))


mamba_inner_ranks, mamba2_inner_ranks = _over_ranks(MAMBA), _over_ranks(MAMBA2)
