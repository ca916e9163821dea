"""The norms."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from ...nn._checks import check_groups
from ._shared import wide


def _normed(x, weight, bias, eps, is_rms_norm, group_size=None):
    groups = x.unflatten(-1, (-1, group_size or x.shape[-1]))
    groups = groups if is_rms_norm else groups - groups.mean(-1, keepdim=True)
    y = (groups / torch.sqrt(groups.square().mean(-1, keepdim=True) + eps)).flatten(-2) * weight
    return y if bias is None else y + bias


def rms_norm_gated_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    upcast: bool = True,
) -> Tensor:
    """`mamba_ssm.ops.triton.layernorm_gated.rmsnorm_fn`; `upcast` is taken as the origin takes it, and changes nothing."""
    if group_size is not None:
        check_groups("rms_norm_ref", "group_size", group_size, x.shape[-1], "channels of x")
    total, weight, bias, z = wide(x, weight, bias, z)
    gate = 1 if z is None else silu(z)
    y = _normed(total if norm_before_gate else total * gate, weight, bias, eps, True, group_size)
    return (y * gate if norm_before_gate else y).to(x.dtype)


def _residual_norm(is_rms_norm):
    def norm(
        x,
        weight,
        bias,
        residual=None,
        x1=None,
        weight1=None,
        bias1=None,
        eps=1e-6,
        dropout_p=0.0,
        rowscale=None,
        prenorm=False,
        dropout_mask=None,
        dropout_mask1=None,
        upcast=False,
    ):
        """A norm of `mamba_ssm.ops.triton.layer_norm`. Where a mask is False nothing of x, or x1, is kept; without one it is
        drawn. `upcast` is taken as the origin takes it, and changes nothing."""

        def kept(part, mask):
            if dropout_p == 0.0:
                return part
            mask = torch.rand_like(part) >= dropout_p if mask is None else mask
            return torch.where(mask, part, 0) / (1 - dropout_p)

        total, residual, other, scale = wide(x, residual, x1, rowscale)
        total = kept(total if scale is None else total * scale[..., None], dropout_mask)
        total = total if other is None else total + kept(other, dropout_mask1)
        total = total if residual is None else total + residual
        pairs = [(weight, bias)] if weight1 is None else [(weight, bias), (weight1, bias1)]
        results = [_normed(total, *wide(*pair), eps, is_rms_norm).to(x.dtype) for pair in pairs]
        results += [total.to(x.dtype)] if prenorm else []
        return tuple(results) if len(results) > 1 else results[0]

    return norm


layer_norm_ref: Callable[..., Any] = _residual_norm(is_rms_norm=False)
rms_norm_ref: Callable[..., Any] = _residual_norm(is_rms_norm=True)
