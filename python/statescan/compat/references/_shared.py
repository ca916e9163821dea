"""The references share types."""

import torch


def wide(*tensors):
    """The tensor in float64 or complex128."""
    return [None if t is None else t.to(torch.promote_types(t.dtype, torch.float64)) for t in tensors]


def state_type(x, is_complex):
    """The type of the states that are returned."""
    if x.dtype in (torch.float64, torch.complex128):
        return torch.complex128 if is_complex else torch.float64
    return torch.complex64 if is_complex else torch.float32
