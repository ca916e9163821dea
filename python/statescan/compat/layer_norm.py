"""Norms that add a residual first, as `mamba_ssm.ops.triton.layer_norm` has them; in operations of PyTorch where there is no
kernel for what is asked."""

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout, linear
from torch.types import Device

from .. import functions
from .._inner.products import has_kernel
from .._operations import NORM
from ..nn._checks import check_shape


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    """``norm(dropout(rowscale x) + dropout(x1) + residual)`` over the last axis, computed in float32 or better.

    Args:
        x, x1, residual: (.., dim); what is None is left out.
        weight, bias, weight1, bias1: (dim,); with `weight1` there is a second result, of the same norm.
        rowscale: (..), multiplies x.
        prenorm: whether to return the sum, too: of the residual's type, or without one float32 with `residual_in_fp32`.
        return_dropout_mask: False; the masks are not kept.

    Returns:
        A result of x's type, or a tuple: the results, and with `prenorm` the sum.
    """
    if return_dropout_mask:
        raise ValueError("layer_norm_fn: `return_dropout_mask` must be False")
    bare = rowscale is None and x1 is None and weight1 is None and dropout_p == 0
    if bare and has_kernel(NORM, x) and x.dim() <= 4:
        kind = "rms" if is_rms_norm else "layer"
        made = functions.norm(x, weight, bias, residual=residual, kind=kind, eps=eps)
        if residual is None:
            made = made, x.to(torch.float32) if residual_in_fp32 else x
        return made if prenorm else made[0]
    of_channels = {"weight": weight, "bias": bias, "weight1": weight1, "bias1": bias1}
    pairs = [(name, tensor, x.shape[-1:]) for name, tensor in of_channels.items()]
    pairs += [("residual", residual, x.shape), ("x1", x1, x.shape), ("rowscale", rowscale, x.shape[:-1])]
    for name, tensor, shape in pairs:
        check_shape("layer_norm_fn", name, tensor, shape)
    wide = torch.promote_types(x.dtype, torch.float32)
    total = x.to(wide)
    if rowscale is not None:
        total = total * rowscale.unsqueeze(-1)
    total = dropout(total, dropout_p)
    if x1 is not None:
        total = total + dropout(x1.to(wide), dropout_p)
    if residual is not None:
        total = total + residual.to(wide)
    centered = total if is_rms_norm else total - total.mean(-1, keepdim=True)
    normed = centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + eps)

    def result(weight, bias):
        y = normed * weight
        return (y if bias is None else y + bias).to(x.dtype)

    results = [result(weight, bias)]
    if weight1 is not None:
        results.append(result(weight1, bias1))
    if prenorm:
        kept = torch.float32 if residual_in_fp32 else x.dtype
        results.append(total.to(kept if residual is None else residual.dtype))
    return tuple(results) if len(results) > 1 else results[0]


_OF_RMS = [p for p in inspect.signature(layer_norm_fn).parameters.values() if p.name != "is_rms_norm"]
_NAMES = [p.name for p in _OF_RMS]


def rms_norm_fn(*args: Any, **options: Any) -> Any:
    """`layer_norm_fn` without the mean, with its arguments but `is_rms_norm`."""
    if len(args) > len(_NAMES):
        raise TypeError(f"rms_norm_fn takes {len(_NAMES)} positional arguments but {len(args)} were given")
    return layer_norm_fn(**dict(zip(_NAMES, args)), **options, is_rms_norm=True)


rms_norm_fn.__signature__ = inspect.Signature(_OF_RMS)


def layer_norm_linear_fn(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    linear_weight: Tensor,
    linear_bias: Tensor | None,
    residual: Tensor | None = None,
    eps: float = 1e-6,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
) -> Any:
    """`layer_norm_fn` and a linear layer."""
    y, total = layer_norm_fn(
        x,
        norm_weight,
        norm_bias,
        residual,
        eps=eps,
        prenorm=True,
        residual_in_fp32=residual_in_fp32,
        is_rms_norm=is_rms_norm,
    )
    y = linear(y, linear_weight, linear_bias)
    return (y, total) if prenorm else y


class RMSNorm(torch.nn.Module):
    """`rms_norm_fn` with its parameter."""

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, dropout_p: float = 0.0, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.eps = eps
        self.dropout_p = dropout_p
        self.weight: torch.nn.Parameter = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.weight)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}, dropout_p={self.dropout_p}"

    def forward(self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False) -> Any:
        p = self.dropout_p if self.training else 0.0
        return rms_norm_fn(
            x, self.weight, None, residual, eps=self.eps, dropout_p=p, prenorm=prenorm, residual_in_fp32=residual_in_fp32
        )
