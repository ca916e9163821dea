"""Functions that `transformers` is given where other code is given a function of `mamba_ssm`, `causal_conv1d` or `fla`.

A package's function of a whole layer takes raw weights: adapters, hooks and packed weights of the layer's modules are passed by,
and so is the mask behind its convolution. Models of `transformers` call such a function in training and go on with their modules
where it gives None. They are given one that does, so that training and evaluation are the same function.

On a device for which there is no kernel here, a function of `fla` computes as the model would without it.
"""

import functools
import inspect
import sys

import torch

from . import causal_conv1d, fla, mamba_ssm

# the functions that each module of a model has asked for, by its name
CHOSEN = {}


def _with_argument(function, name, change):
    """A function that is called with another value of an argument; `change` gives it, and what is done to the first result."""
    place = list(inspect.signature(function).parameters).index(name)

    @functools.wraps(function)
    def call(*arguments, **options):
        by_position = place < len(arguments)
        value, finish = change(arguments[place] if by_position else options.get(name))
        if by_position:
            arguments = (*arguments[:place], value, *arguments[place + 1 :])
        else:
            options[name] = value
        made = function(*arguments, **options)
        if finish is None:
            return made
        return (finish(made[0]), *made[1:]) if isinstance(made, tuple) else finish(made)

    return call


def _of_any_kind(activation):
    """One that a configuration names; `transformers` has what our convolutions have not."""
    if activation in (None, "silu", "swish"):
        return activation, None
    from transformers.activations import ACT2FN

    return None, ACT2FN[activation]


def _kept(state):
    """A state that is not written over: a cache is, by what is saved for the gradient."""
    return state if state is None or not torch.is_grad_enabled() else state.clone(), None


def _without_sequences(module):
    """Refuses sequences of packed rows where the scan of the model that `module` is does not get them."""

    def change(seq_idx):
        if seq_idx is not None and "selective_scan_fn" in CHOSEN[module]:
            words = f"the scan of {module} does not take it, and would carry states from sequence to sequence"
            raise ValueError(f"causal_conv1d_fn: `seq_idx` must be None: {words}")
        return seq_idx, None

    return change


def _or_as_without(ours, own):
    """A function of `fla`, and what a model has in its place, for devices without a kernel."""

    @functools.wraps(ours)
    def compute(q, *arguments, **options):
        if q.device.type in ("cpu", "meta") or (q.device.type == "cuda" and q.dtype != torch.float64):
            return ours(q, *arguments, **options)
        if any(options.get(name) is not None for name in ("cu_seqlens", "cu_seq_lens_q", "seq_idx")):
            raise NotImplementedError(f"{ours.__name__} of statescan has no kernel on {q.device.type} for packed rows")
        return own(q, *arguments, **options)

    return compute


def _own_function():
    """The function that a model has in the place of the one that it asks for, now that its decorator asks."""
    frame = sys._getframe(2)
    while not _is_decorator(frame) or "torch_function" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["torch_function"]


_UPDATE = _with_argument(causal_conv1d.causal_conv1d_update, "activation", _of_any_kind)
_CONVOLUTION = _with_argument(causal_conv1d.causal_conv1d_fn, "activation", _of_any_kind)
_CHUNK_SCAN = _with_argument(mamba_ssm.mamba_chunk_scan_combined, "initial_states", _kept)


@functools.wraps(mamba_ssm.mamba_inner_fn)
def _no_inner(*arguments, **options) -> None:
    """Stands for a function of a whole layer."""


@functools.wraps(mamba_ssm.mamba_split_conv1d_scan_combined)
def _no_split(*arguments, **options) -> None:
    """Stands for a function of a whole layer."""


def given(name, module):
    """The function that a model's module is given, which is remembered."""
    CHOSEN.setdefault(module, set()).add(name)
    if name == "causal_conv1d_fn":
        return _with_argument(_CONVOLUTION, "seq_idx", _without_sequences(module))
    if hasattr(fla, name):
        return _or_as_without(_with_argument(getattr(fla, name), "initial_state", _kept), _own_function())
    return FUNCTIONS[name]


FUNCTIONS = {
    "causal_conv1d_fn": _CONVOLUTION,
    "causal_conv1d_update": _UPDATE,
    "mamba_chunk_scan_combined": _CHUNK_SCAN,
    "mamba_inner_fn": _no_inner,
    "mamba_split_conv1d_scan_combined": _no_split,
    "selective_scan_fn": mamba_ssm.selective_scan_fn,
}


def asking(depth):
    """The name of the module of a model for which the call `depth` frames above this one's caller, or the one above that, is made
    by the decorator by which `transformers` finds functions since its models take None for an answer; None if it is not. Older
    models look for functions themselves, and want results."""
    frame = sys._getframe(depth + 1)
    for _ in range(2):
        if frame is None or _is_decorator(frame):
            break
        frame = frame.f_back
    if frame is None or not _is_decorator(frame):
        return None
    while frame is not None and _is_decorator(frame):
        frame = frame.f_back
    return None if frame is None else frame.f_globals.get("__name__")


def _is_decorator(frame):
    return frame.f_globals.get("__name__") == "transformers.integrations.hub_kernels"
