"""The layers share this: first values of parameters, and states."""

import math

import torch
from torch.nn.functional import pad

_STATE_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def draw_step_bias(bias, dt_min, dt_max, dt_init_floor):
    """Fills biases with values whose softplus is between the limits, log-uniform."""
    dt = torch.empty_like(bias, dtype=torch.promote_types(bias.dtype, torch.float32))
    dt = dt.uniform_(math.log(dt_min), math.log(dt_max)).exp().clamp(min=dt_init_floor)
    bias.copy_(dt + torch.log(-torch.expm1(-dt)))


def draw_modules_again(layer):
    """Calls `reset_parameters` of the modules that have it; those that do not keep their values."""
    for module in layer.children():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


def decays(A_log):
    """`-exp(A_log)`, in float32 or better."""
    return -torch.exp(A_log.to(torch.promote_types(A_log.dtype, torch.float32)))


def without_weight_decay(*parameters):
    """Marks parameters for optimizers that look at this."""
    for parameter in parameters:
        parameter._no_weight_decay = True


def last_inputs(before, x, count):
    """The last `count` steps of x, (batch, dim, seqlen), and of what came before it; zeros where there was nothing."""
    if before is not None:
        x = torch.cat([before.to(x.dtype), x], dim=-1)
    return pad(x, (count - x.shape[-1], 0))


def new_state(layer, shape, module, dtype):
    """A state of zeros where the layer's own parameters are, by default of the type of a module's weights. Packed weights have no
    type that would do, and other modules no weight: the state is then of the type of `A_log`."""
    weight = getattr(module, "weight", None)
    if dtype is None:
        dtype = weight.dtype if isinstance(weight, torch.Tensor) and weight.dtype in _STATE_TYPES else layer.A_log.dtype
    return torch.zeros(shape, dtype=dtype, device=layer.A_log.device)


def cached_states(layer, inference_params, batch_size, initialize_states):
    """The states of a layer in `inference_params.key_value_memory_dict`; they are made when they are first asked for."""
    name, index = type(layer).__name__, layer.layer_idx
    if index is None:
        raise ValueError(f"{name}: `layer_idx` must be given to use inference_params")
    cache = inference_params.key_value_memory_dict
    if index not in cache:
        cache[index] = layer.allocate_inference_cache(batch_size, None)
    elif cache[index][0].shape[0] != batch_size:
        got = cache[index][0].shape[0]
        raise ValueError(f"{name}: `inference_params` must have states of {batch_size} sequences for layer {index}, got {got}")
    elif initialize_states:
        for state in cache[index]:
            state.zero_()
    return cache[index]
