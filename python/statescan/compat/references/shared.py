"""What the references share: types, and step sizes."""

import torch
from torch.nn.functional import softplus


def wide(*tensors):
    """The same in float64 or complex128."""
    return [None if t is None else t.to(torch.promote_types(t.dtype, torch.float64)) for t in tensors]


def state_type(x, is_complex):
    """The type of the states that are returned."""
    if x.dtype in (torch.float64, torch.complex128):
        return torch.complex128 if is_complex else torch.float64
    return torch.complex64 if is_complex else torch.float32


def discretized(rule, step, decay_step, A):
    """What a step multiplies the state by, and what it multiplies the input by."""
    decay, own = decay_step * A, step * A
    if rule == "bilinear":
        return (1 + decay / 2) / (1 - decay / 2), step / (1 - own / 2)
    gains = {
        "mamba": lambda: step,
        "dirac": lambda: torch.ones_like(step),
        "zoh": lambda: step * torch.where(own == 0, 1, torch.expm1(own) / torch.where(own == 0, 1, own)),
    }
    if rule not in gains:
        raise ValueError(f'`discretization` must be "mamba", "zoh", "bilinear" or "dirac", got {rule!r}')
    return torch.exp(decay), gains[rule]()


def step_sizes(delta, bias, is_softplus, limits=None):
    delta = delta if bias is None else delta + bias
    # float64 tells softplus from its argument up to 37
    delta = softplus(delta, threshold=40) if is_softplus else delta
    return delta if limits is None else delta.clamp(*limits)
