"""Layers and functions refuse calls in their own names and those of their arguments."""

import math
import numbers

import torch

from .._inner.products import autocast_type
from ._cache import only_forwards
from ._plain import is_plain


def _name(layer):
    return type(layer).__name__


def _type(tensor):
    """The name of a tensor's type, as all frameworks have it."""
    return str(tensor.dtype).removeprefix("torch.")


def check_groups(function, name, count, size, what):
    """Refuses a number of groups, or a size of them, by which something is not divided into equal parts."""
    if count < 1 or size % count:
        raise ValueError(f"{function}: `{name}` must give equal parts of the {size} {what}, got {count}")


def check_shape(function, name, tensor, shape):
    """Refuses a tensor of another shape, which might be stretched to it."""
    if tensor is not None and tensor.shape != tuple(shape):
        raise ValueError(f"{function}: `{name}` must have shape {tuple(shape)}, got {tuple(tensor.shape)}")


def check_real(layer, dtype=None, **parameters):
    """Refuses complex numbers where a layer's own type, or its parameters, are real."""
    for name, of in {"dtype": dtype, **{name: parameter.dtype for name, parameter in parameters.items()}}.items():
        if of is not None and not of.is_floating_point:
            raise TypeError(f"{_name(layer)}: `{name}` must be of a floating-point type, got {str(of).removeprefix('torch.')}")


def check_count(layer, low=1, high=None, **values):
    """Refuses what is not a whole number in a range."""
    for name, value in values.items():
        is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if not is_whole or value < low or (high is not None and value > high):
            expected = f"a whole number of {low} or more" if high is None else f"a whole number from {low} to {high}"
            error = ValueError if is_whole else TypeError
            raise error(f"{_name(layer)}: `{name}` must be {expected}, got {value!r}")


def _are_numbers(*values):
    return all(isinstance(value, numbers.Real) for value in values)


def _class(*values):
    """The exception for values that cannot be."""
    return ValueError if _are_numbers(*values) else TypeError


def check_number(layer, expected, holds, **values):
    """Refuses what is not a number for which `holds` is true; `expected` says so."""
    for name, value in values.items():
        if not (_are_numbers(value) and math.isfinite(value) and holds(value)):
            raise _class(value)(f"{_name(layer)}: `{name}` must be {expected}, got {value!r}")


def check_range(layer, name, low, high, *, positive):
    """Refuses two numbers that fall, or are not positive."""
    # neither is NaN where they do not fall
    if not (_are_numbers(low, high) and low <= high) or (positive and not 0 < low <= high < math.inf):
        expected = "positive numbers" if positive else "numbers"
        raise _class(low, high)(f"{_name(layer)}: `{name}` must be two {expected} that do not fall, got ({low!r}, {high!r})")


def check_step_sizes(layer, dt_min, dt_max, dt_init_floor=0.0):
    """Refuses limits of step sizes between which no logarithm can be drawn."""
    check_number(layer, "a positive number", lambda value: value > 0, dt_min=dt_min)
    check_number(layer, f"a number of `dt_min`, {dt_min!r}, or more", lambda value: value >= dt_min, dt_max=dt_max)
    check_number(layer, "a number of 0 or more", lambda value: value >= 0, dt_init_floor=dt_init_floor)


def check_states(layer, batch, conv_state, channels, ssm_state, shape):
    """Refuses states of other shapes than (batch, channels, d_conv) and (batch, shape). A convolution's may hold any number of
    inputs from the d_conv - 1 that it needs."""
    if conv_state.shape[:-1] != (batch, channels) or conv_state.shape[-1] < layer.d_conv - 1:
        expected, got = (batch, channels, layer.d_conv), tuple(conv_state.shape)
        raise ValueError(f"{_name(layer)}: `conv_state` must have shape {expected}, got {got}")
    if ssm_state.shape != (batch, *shape):
        raise ValueError(f"{_name(layer)}: `ssm_state` must have shape {(batch, *shape)}, got {tuple(ssm_state.shape)}")


def check_input(layer, name, x, module=None):
    """Refuses what is not (batch, seqlen, d_model), or not of the type and the device of the weights of a module."""
    shape = x.shape
    if len(shape) != 3 or shape[2] != layer.d_model:
        expected = f"shape (batch, seqlen, d_model), d_model being {layer.d_model}"
        raise ValueError(f"{_name(layer)}: `{name}` must have {expected}, got {tuple(shape)}")
    weight = None if module is None else module._parameters.get("weight")
    is_real = x.is_floating_point()
    if is_real and weight is not None and x.dtype == weight.dtype and x.device == weight.device:
        return
    # a layer of projections and convolutions is one of real numbers
    if not (is_real or (module is None and x.is_complex())):
        raise TypeError(f"{_name(layer)}: `{name}` must be of a floating-point type, got {_type(x)}")
    # a layer that is not plain may convert by itself, as autocast does
    if weight is not None and is_plain(module, torch.nn.Linear):
        if x.device != weight.device:
            raise ValueError(f"{_name(layer)}: `{name}` must be on {weight.device}, as weights are, got one on {x.device}")
        if autocast_type(x.device.type) is None:
            raise TypeError(f"{_name(layer)}: `{name}` must be {_type(weight)}, as weights are, got {_type(x)}")


def one_step(layer, hidden_states, in_proj):
    """(batch, 1, d_model) as (batch, d_model)."""
    only_forwards(layer, "a step")
    if hidden_states.dim() != 3 or hidden_states.shape[1] != 1:
        shape = tuple(hidden_states.shape)
        raise ValueError(f"{_name(layer)}: a step takes `hidden_states` of shape (batch, 1, d_model), got {shape}")
    check_input(layer, "hidden_states", hidden_states, in_proj)
    return hidden_states.squeeze(1)


def no_cache_of_ranks(layer, cache, context):
    """Refuses states of a layer beside a context: each rank would leave those of its own slice."""
    if cache is not None and context is not None:
        raise ValueError(f"{_name(layer)}: `context` does not go with states that the layer goes on from")


def check_packing(layer, x, seq_idx, cu_seqlens):
    """Refuses bounds and numbers of sequences of other shapes than those of x, (batch, seqlen, ..)."""
    if seq_idx is not None and seq_idx.shape != x.shape[:2]:
        raise ValueError(f"{_name(layer)}: `seq_idx` must have shape {tuple(x.shape[:2])}, got {tuple(seq_idx.shape)}")
    if cu_seqlens is not None and (cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2 or x.shape[0] != 1):
        shapes = f"{tuple(cu_seqlens.shape)} and a batch of {x.shape[0]}"
        raise ValueError(f"{_name(layer)}: `cu_seqlens` must have shape (sequences + 1,), beside a batch of 1, got {shapes}")


def check_times(layer, times, shape):
    """Refuses times between steps of other shapes than `shape`, or that with a last axis of 1."""
    if times is not None and times.shape not in (shape, (*shape, 1)):
        expected, got = tuple(shape), tuple(times.shape)
        raise ValueError(f"{_name(layer)}: `integration_timesteps` must have shape {expected} or {(*expected, 1)}, got {got}")


def check_memory(layer, cache, batch):
    """Refuses S5's cache of another number of sequences."""
    if cache is not None and cache["ssm_state"].shape[0] != batch:
        got = cache["ssm_state"].shape[0]
        raise ValueError(f"{_name(layer)}: `inference_cache` must have a state of {batch} sequences, got {got}")
