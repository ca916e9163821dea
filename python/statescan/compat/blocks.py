"""Blocks of language models, as `mamba_ssm.modules` has them: a norm and a mixer on a residual stream, and a gated unit."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, float32, nn
from torch.nn.functional import silu
from torch.types import Device

from .._types import Cache
from .layer_norm import RMSNorm, layer_norm_fn


class Block(nn.Module):
    """A mixer, and maybe a unit behind it, each with a norm of the residual stream before it.

    Args:
        dim: channels of the stream.
        mixer_cls, mlp_cls, norm_cls: called with dim; a `mlp_cls` of `torch.nn.Identity` is no unit.
        fused_add_norm: whether a sum and its norm are one function, in float32; norms are `torch.nn.LayerNorm` or `RMSNorm` then.
        residual_in_fp32: whether the stream is float32 whatever the type of the layers.
    """

    def __init__(
        self,
        dim: int,
        mixer_cls: Callable[[int], nn.Module],
        mlp_cls: Callable[[int], nn.Module],
        norm_cls: Callable[[int], nn.Module] = nn.LayerNorm,
        fused_add_norm: bool = False,
        residual_in_fp32: bool = False,
    ) -> None:
        super().__init__()
        self.residual_in_fp32 = residual_in_fp32
        self.fused_add_norm = fused_add_norm
        self.norm: Any = norm_cls(dim)
        self.mixer: Any = mixer_cls(dim)
        self.mlp: Any = None
        if mlp_cls is not nn.Identity:
            self.norm2: Any = norm_cls(dim)
            self.mlp = mlp_cls(dim)
        if fused_add_norm and not isinstance(self.norm, (nn.LayerNorm, RMSNorm)):
            kind = type(self.norm).__name__
            raise ValueError(f"Block: `norm_cls` must make a LayerNorm or RMSNorm with fused_add_norm, got {kind}")

    def forward(
        self, hidden_states: Tensor, residual: Tensor | None = None, inference_params: Cache | None = None, **mixer_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """The mixer's result, or the unit's, which is not in the stream yet, and the stream."""
        hidden_states, residual = self._add(self.norm, hidden_states, residual)
        hidden_states = self.mixer(hidden_states, inference_params=inference_params, **mixer_kwargs)
        if self.mlp is not None:
            hidden_states, residual = self._add(self.norm2, hidden_states, residual)
            hidden_states = self.mlp(hidden_states)
        return hidden_states, residual

    def _add(self, norm, hidden_states, residual):
        """The stream with something added, normalized, and as it is."""
        if self.fused_add_norm:
            return add_and_norm(norm, hidden_states, residual, self.residual_in_fp32, prenorm=True)
        residual = hidden_states if residual is None else hidden_states + residual
        normed = norm(residual.to(norm.weight.dtype))
        return normed, residual.to(float32) if self.residual_in_fp32 else residual

    def allocate_inference_cache(self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        return self.mixer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)


def add_and_norm(norm: Any, hidden_states: Tensor, residual: Tensor | None, residual_in_fp32: bool, prenorm: bool) -> Any:
    """`layer_norm_fn` with the weights of a norm."""
    return layer_norm_fn(
        hidden_states,
        norm.weight,
        norm.bias,
        residual=residual,
        eps=norm.eps,
        prenorm=prenorm,
        residual_in_fp32=residual_in_fp32,
        is_rms_norm=isinstance(norm, RMSNorm),
    )


class GatedMLP(nn.Module):
    """``fc2(y * activation(gate))``, where fc1 makes y and the gate of the input.

    Args:
        in_features, hidden_features, out_features: channels; 8 / 3 of the input's inside, and as many out as in, where not given.
        activation: of the gate.
        bias: whether the projections have one.
        multiple_of: channels inside are rounded up to it.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        activation: Callable[[Tensor], Tensor] = silu,
        bias: bool = False,
        multiple_of: int = 128,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = {"device": device, "dtype": dtype}
        inside = int(8 * in_features / 3) if hidden_features is None else hidden_features
        inside = -(-inside // multiple_of) * multiple_of
        self.fc1: nn.Linear = nn.Linear(in_features, 2 * inside, bias=bias, **where)
        self.activation = activation
        self.fc2: nn.Linear = nn.Linear(inside, in_features if out_features is None else out_features, bias=bias, **where)

    def forward(self, x: Tensor) -> Tensor:
        y, gate = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(y * self.activation(gate))
