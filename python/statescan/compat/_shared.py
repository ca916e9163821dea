"""Names that more than one origin has."""

import torch

from .. import functions


def as_complex(pairs):
    """Complex numbers from real ones, (.., 2 n): real and imaginary parts in turn."""
    pairs = pairs.to(torch.promote_types(pairs.dtype, torch.float32))
    return torch.view_as_complex(pairs.unflatten(-1, (-1, 2)).contiguous())


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
