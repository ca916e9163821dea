"""Norms with a gate, as functions and as modules; in operations of PyTorch where there is no kernel."""

import torch
from torch import Tensor
from torch.nn.functional import silu
from torch.types import Device

from .. import functions
from .._inner.products import has_kernel
from .._operations import NORM
from ._checks import check_groups, check_shape


def layernorm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
) -> Tensor:
    """Normalizes the last axis, or each `group_size` of it: ``norm(x) * silu(z)``, or ``norm(x * silu(z))``.

    Computes in float32 or better, and returns x's type.
    """
    name, dim = "rmsnorm_fn" if is_rms_norm else "layernorm_fn", x.shape[-1]
    group_size = dim if group_size is None else group_size
    check_groups(name, "group_size", group_size, dim, "channels of x")
    if has_kernel(NORM, x) and x.dim() <= 4:
        groups = dim // group_size
        kind = "rms" if is_rms_norm else "layer"
        return functions.norm(x, weight, bias, z=z, kind=kind, eps=eps, groups=groups, norm_before_gate=norm_before_gate)
    for argument, tensor, shape in (("weight", weight, (dim,)), ("bias", bias, (dim,)), ("z", z, x.shape)):
        check_shape(name, argument, tensor, shape)
    wide = torch.promote_types(x.dtype, torch.float32)
    y = x.to(wide)
    gate = None if z is None else silu(z.to(wide))
    if gate is not None and not norm_before_gate:
        y = y * gate
    y = y.unflatten(-1, (-1, group_size))
    if not is_rms_norm:
        y = y - y.mean(-1, keepdim=True)
    y = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)).flatten(-2) * weight
    if bias is not None:
        y = y + bias
    if gate is not None and norm_before_gate:
        y = y * gate
    return y.to(x.dtype)


def rmsnorm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
) -> Tensor:
    """`layernorm_fn` without the mean."""
    return layernorm_fn(x, weight, bias, z, eps, group_size, norm_before_gate, is_rms_norm=True)


class LayerNorm(torch.nn.Module):
    """`layernorm_fn` with its parameters."""

    is_rms_norm = False

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.group_size = group_size
        self.norm_before_gate = norm_before_gate
        self.weight: torch.nn.Parameter = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None if self.is_rms_norm else torch.nn.Parameter(torch.empty_like(self.weight)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        size, order = self.weight.shape[0], self.norm_before_gate
        return f"{size}, eps={self.eps}, group_size={self.group_size}, norm_before_gate={order}"

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        return layernorm_fn(x, self.weight, self.bias, z, self.eps, self.group_size, self.norm_before_gate, self.is_rms_norm)


class RMSNorm(LayerNorm):
    """`rmsnorm_fn` with its parameter."""

    is_rms_norm = True
