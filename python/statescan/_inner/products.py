"""Whether what lies between projections goes as one function: where its operations have kernels, and in one type."""

import torch

from .. import _dispatch
from .. import torch as framework

# tensors are served from the first call on, which the compiler may be looking at: it does not follow an import
_dispatch.served[torch.Tensor] = framework


def has_kernel(op, tensor):
    """Whether an operation runs where a tensor is, in its precision; one without data runs anywhere."""
    if tensor.is_cuda:
        return tensor.dtype not in (torch.float64, torch.complex128)
    return tensor.device.type in ("cpu", "meta")


# asked once: the compiler of PyTorch 2.11 does not look into the question
_WITH_AUTOCAST = frozenset(kind for kind in ("cpu", "cuda", "xpu", "mps") if torch.amp.is_autocast_available(kind))


def autocast_type(kind):
    """The type of products under autocast on a kind of device; None without it, and for kinds that have none."""
    if kind in _WITH_AUTOCAST and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None


def as_products(rows, *parameters):
    """The parameters of products of rows in a function that is one; None where the products would not be in the rows' type."""
    dtype, narrow = rows.dtype, autocast_type(rows.device.type)
    if narrow is not None:
        # as a product under autocast takes them
        if dtype != narrow:
            return None
        return [parameter if parameter is None else parameter.to(dtype) for parameter in parameters]
    if any(parameter is not None and parameter.dtype != dtype for parameter in parameters):
        return None
    return parameters
