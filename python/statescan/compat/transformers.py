"""What `transformers` is given where other code is given a function of `mamba_ssm` or `causal_conv1d`.

A package's function of a whole layer takes raw weights: adapters, hooks and packed weights of the layer's modules are passed by,
and so is the mask behind its convolution. Models of `transformers` call such a function in training and go on with their modules
where it gives None. They are given one that does, so that training and evaluation are the same function.
"""

import functools
import sys

from .causal_conv1d import causal_conv1d_fn, causal_conv1d_update


def go_on_with_modules(*arguments, **options) -> None:
    """Stands for a function of a whole layer."""


def _with_any_activation(convolution):
    """A convolution with any activation of `transformers` behind it, as a configuration may name them."""

    @functools.wraps(convolution)
    def convolve(*arguments, activation=None, **options):
        if activation in (None, "silu", "swish"):
            return convolution(*arguments, activation=activation, **options)
        from transformers.activations import ACT2FN

        return ACT2FN[activation](convolution(*arguments, **options))

    return convolve


FUNCTIONS = {
    "causal_conv1d_fn": _with_any_activation(causal_conv1d_fn),
    "causal_conv1d_update": _with_any_activation(causal_conv1d_update),
    "mamba_inner_fn": go_on_with_modules,
    "mamba_split_conv1d_scan_combined": go_on_with_modules,
}


def is_asking(depth):
    """Whether the call `depth` frames above this one's caller, or the one above that, is of the decorator by which `transformers`
    finds functions since its models take None for an answer. Older models look for functions themselves, and want results."""
    frame = sys._getframe(depth + 1)
    for _ in range(2):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") == "transformers.integrations.hub_kernels":
            return True
        frame = frame.f_back
    return False
