"""What the layers share: first values of parameters, and caches."""

import math

import torch
from torch.nn.functional import pad


def step_bias(count, dt_min, dt_max, dt_init_floor, device, dtype):
    """Biases whose softplus is between the limits, log-uniform."""
    low, high = math.log(dt_min), math.log(dt_max)
    dt = torch.exp(torch.empty(count, device=device).uniform_(low, high)).clamp(min=dt_init_floor)
    return (dt + torch.log(-torch.expm1(-dt))).to(dtype)


def decays(A_log):
    """`-exp(A_log)`, in float32 or better."""
    return -torch.exp(A_log.to(torch.promote_types(A_log.dtype, torch.float32)))


def without_weight_decay(parameter):
    """Marks a parameter for optimizers that look at this."""
    parameter._no_weight_decay = True
    return parameter


def last_inputs(before, x, count):
    """The last `count` steps of x, (batch, dim, seqlen), and of what came before it; zeros where there was nothing."""
    if before is not None:
        x = torch.cat([before.to(x.dtype), x], dim=-1)
    return pad(x, (count - x.shape[-1], 0))


def cached_states(layer, inference_params, batch_size, initialize_states):
    """The states of a layer in `inference_params.key_value_memory_dict`; they are made when they are first asked for."""
    if layer.layer_idx is None:
        raise ValueError(f"{type(layer).__name__}: `layer_idx` must be given to use inference_params")
    cache = inference_params.key_value_memory_dict
    if layer.layer_idx not in cache:
        cache[layer.layer_idx] = layer.allocate_inference_cache(batch_size, None)
    elif initialize_states:
        for state in cache[layer.layer_idx]:
            state.zero_()
    return cache[layer.layer_idx]


def one_step(layer, hidden_states):
    """(batch, 1, d_model) as (batch, d_model)."""
    if hidden_states.dim() != 3 or hidden_states.shape[1] != 1:
        shape = tuple(hidden_states.shape)
        raise ValueError(f"{type(layer).__name__}: a step takes `hidden_states` of shape (batch, 1, d_model), got {shape}")
    return hidden_states.squeeze(1)


def no_cache_of_ranks(layer, cache, context):
    """Refuses states of a layer beside a context: each rank would leave those of its own slice."""
    if cache is not None and context is not None:
        raise ValueError(f"{type(layer).__name__}: `context` does not go with states that the layer goes on from")
