"""The compiled module of `mamba_ssm`, which forks of it call. Gradients are those of this package's scan, computed anew."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from ._shared import gradients, scan


def fwd(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
) -> list[Tensor]:
    """`selective_scan_cuda.fwd`: y without the gate, the states, and with z the gated y.

    The states are (batch, dim, 1, 2 dstate), as those of one chunk: the last state is at odd places, and what is saved beside it
    for `bwd` there is zero here.
    """
    out, x = forward(u, delta, A, B, C, D, delta_bias, delta_softplus)
    return [out, x] if z is None else [out, x, out * silu(z)]


def forward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
) -> list[Tensor]:
    """y, and the states as `fwd` has them."""
    out, state = scan(u, delta, A, B, C, D, None, delta_bias, delta_softplus, return_last_state=True)
    return [out, torch.stack([torch.zeros_like(state), state], -1).flatten(-2)[:, :, None]]


def bwd(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    dout: Tensor,
    x: Tensor | None,
    out: Tensor | None,
    dz: Tensor | None,
    delta_softplus: bool,
    recompute_out_z: bool,
) -> list[Tensor | None]:
    """`selective_scan_cuda.bwd`: the gradients by u, delta, A, B, C, D and delta_bias, with z that by z, which is also written to
    `dz`, and with `recompute_out_z` the gated y."""
    tensors = (u, delta, A, B, C, D, delta_bias)
    *others, by_z, y = backward(tensors, z, dout, delta_softplus)
    if z is None:
        return others
    if dz is not None:
        by_z = dz.copy_(by_z)
    return [*others, by_z, *([y] if recompute_out_z else [])]


@torch.enable_grad()
def backward(tensors: tuple[Tensor | None, ...], z: Tensor | None, dout: Tensor, delta_softplus: bool) -> list[Tensor | None]:
    """The gradients by tensors and z, and what they are gradients of."""
    tensors = [None if tensor is None else tensor.detach().requires_grad_() for tensor in (*tensors, z)]
    *first, delta_bias, z = tensors
    y = scan(*first, z, delta_bias, delta_softplus, return_last_state=False)
    return [*gradients([y], tensors, [dout]), y.detach()]
