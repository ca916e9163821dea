"""What more than one origin has."""

import torch

from .. import functions
from .. import torch as framework
from .._inner.maps import as_complex
from .._operations import Operation

# tensors are served from the first call on, which the compiler may be looking at: it does not follow an import
functions._served[torch.Tensor] = framework


def has_kernel(op: Operation, tensor):
    """Whether an operation runs where a tensor is, in its precision; one without data runs anywhere."""
    if tensor.is_cuda:
        return tensor.dtype not in (torch.float64, torch.complex128)
    return tensor.device.type in ("cpu", "meta")


def check_groups(function, name, count, size, what):
    """Refuses a number of groups, or a size of them, by which something is not divided into equal parts."""
    if count < 1 or size % count:
        raise ValueError(f"{function}: `{name}` must give equal parts of the {size} {what}, got {count}")


def check_shape(function, name, tensor, shape):
    """Refuses a tensor of another shape, which might be stretched to it."""
    if tensor is not None and tensor.shape != tuple(shape):
        raise ValueError(f"{function}: `{name}` must have shape {tuple(shape)}, got {tuple(tensor.shape)}")


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


def of_complex(map):
    """A map of a complex A: one that varies with time is real, (.., dstate, 2 seqlen)."""
    return map if map is None or map.dim() == 2 or map.is_complex() else as_complex(map)


def scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state, **options):
    """The selective scan; maps of a complex A that vary with time are real, (.., dstate, 2 seqlen)."""
    if A.is_complex():
        B, C = of_complex(B), of_complex(C)
    y, last_state = functions.selective_scan(u, delta, A, B, C, D, z=z, dt_bias=delta_bias, dt_softplus=delta_softplus, **options)
    return (y, last_state) if return_last_state else y


def by_channels(scan, x, dt, A, B, C, D, z, dt_bias, **options):
    """Mamba-2's scan by Mamba's, of tensors as `mamba_ssm.ops.triton.ssd_combined.ssd_selective_scan` takes them."""
    heads = x.shape[2:]

    def of_channels(tensor):
        """(nheads,) or (nheads, headdim) as (nheads * headdim,)."""
        return None if tensor is None else (tensor[:, None].expand(heads) if tensor.dim() == 1 else tensor).flatten()

    def in_time(tensor):
        return None if tensor is None else tensor.flatten(2).transpose(1, 2)

    y, _ = scan(
        in_time(x),
        in_time(dt[..., None].expand_as(x) if dt.dim() == 3 else dt),
        A[:, None, None].expand(*heads, B.shape[-1]).flatten(0, 1) if A.dim() == 1 else A,
        B.permute(0, 2, 3, 1),
        C.permute(0, 2, 3, 1),
        of_channels(D),
        z=in_time(z),
        dt_bias=of_channels(dt_bias),
        **options,
    )
    return y.transpose(1, 2).unflatten(2, heads)


def gradients(results, tensors, cotangents):
    """The gradients of results by tensors, None for those that are None."""
    found = iter(torch.autograd.grad(results, [tensor for tensor in tensors if tensor is not None], cotangents))
    return [None if tensor is None else next(found) for tensor in tensors]
