"""The block of S5's models: a norm, the layer, a gate, dropout, and what goes past them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from torch.types import Device

from ._cache import Cache
from .s5 import S5


class S5Block(nn.Module):
    """``x + dropout(y sigmoid(W y))`` with ``y = gelu(S5(norm(x)))``, (batch, seqlen, d_model) to the same shape.

    Args:
        d_model, d_state: channels and complex states.
        dropout: the probability with which a channel of the result is left out, in training.
        device, dtype: of the parameters; those of S5 are float32.
        (the others): of `S5`, by keyword: `conj_sym`, `discretization`, `bidirectional` ..

    Examples:
        >>> S5Block(16, 4, dropout=0.1, bidirectional=True)(torch.randn(2, 20, 16)).shape
        torch.Size([2, 20, 16])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int,
        dropout: float = 0.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.norm: nn.LayerNorm = nn.LayerNorm(d_model, device=device, dtype=dtype)
        self.s5: S5 = S5(d_model, d_state, device=device, **options)
        self.gate: nn.Linear = nn.Linear(d_model, d_model, device=device, dtype=dtype)
        self.dropout: nn.Dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """The block on a sequence, from a cache of `cache` on if there is one."""
        y = gelu(self.s5(self.norm(x), inference_cache=cache))
        return x + self.dropout(y * torch.sigmoid(self.gate(y)))

    def cache(self, batch_size: int, dtype: torch.dtype | None = None) -> Cache:
        """Makes the cache of its layer."""
        return self.s5.cache(batch_size, dtype)
