"""The simpler layer of Mamba-2 of `mamba_ssm.modules.mamba2_simple`."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.types import Device

from .._types import Cache as Params
from .._types import Context
from ..nn import Cache, Mamba2
from ..nn._convolution import convolve
from ..nn._shared import decays, without_weight_decay
from .mamba_ssm import mamba_chunk_scan_combined
from .norms import RMSNorm


class Mamba2Simple(Mamba2):
    """`statescan.nn.Mamba2` with a norm over all channels, and maybe a state before the first step that is a parameter.

    Args:
        learnable_init_states: whether there is such a state, `init_states`, (nheads, headdim, d_state).
        activation: "silu" or "swish", behind the convolution.
        (the others): as in `statescan.nn.Mamba2`.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        d_conv: int = 4,
        conv_init: float | None = None,
        expand: int = 2,
        headdim: int = 128,
        ngroups: int = 1,
        A_init_range: tuple[float, float] = (1, 16),
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        learnable_init_states: bool = False,
        activation: Literal["silu", "swish"] = "swish",
        bias: bool = False,
        conv_bias: bool = True,
        chunk_size: int = 256,
        use_mem_eff_path: bool = True,
        layer_idx: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if activation not in ("silu", "swish"):
            raise ValueError(f'Mamba2Simple: `activation` must be "silu" or "swish", got {activation!r}')
        super().__init__(
            d_model,
            d_state,
            d_conv,
            conv_init,
            expand,
            headdim,
            ngroups=ngroups,
            A_init_range=A_init_range,
            dt_min=dt_min,
            dt_max=dt_max,
            dt_init_floor=dt_init_floor,
            dt_limit=dt_limit,
            bias=bias,
            conv_bias=conv_bias,
            chunk_size=chunk_size,
            use_mem_eff_path=use_mem_eff_path,
            layer_idx=layer_idx,
            device=device,
            dtype=dtype,
        )
        self.activation = activation
        self.learnable_init_states = learnable_init_states
        self.norm: RMSNorm = RMSNorm(self.d_inner, norm_before_gate=False, device=device, dtype=dtype)
        if learnable_init_states:
            shape = (self.nheads, headdim, d_state)
            self.init_states: nn.Parameter = nn.Parameter(torch.zeros(shape, device=device, dtype=dtype))
            without_weight_decay(self.init_states)

    def forward(
        self,
        u: Tensor,
        seq_idx: Tensor | Cache | None = None,
        inference_params: Cache | Params | None = None,
        *,
        context: Context | None = None,
    ) -> Tensor:
        """The layer on a sequence, (batch, seqlen, d_model). A cache, which may stand in the place of `seq_idx`, does not go with
        a state that is a parameter."""
        if isinstance(seq_idx, Cache):
            seq_idx, inference_params = None, seq_idx
        if self.learnable_init_states and inference_params is not None:
            raise ValueError("Mamba2Simple: `inference_params` must be None with learnable_init_states")
        return super().forward(u, seq_idx=seq_idx, inference_params=inference_params, context=context)

    def _scan(self, u, seq_idx, cu_seqlens, context):
        if not self.learnable_init_states:
            return super()._scan(u, seq_idx, cu_seqlens, context)
        unit, z, xBC, dt = self._split(self.in_proj(u))
        convolved = convolve(self, xBC.transpose(1, 2), seq_idx=seq_idx, context=context).transpose(1, 2)
        y = mamba_chunk_scan_combined(
            *self._in_order(convolved, dt),
            self.D,
            dt_bias=self.dt_bias,
            initial_states=self.init_states.expand(u.shape[0], -1, -1, -1),
            seq_idx=seq_idx,
            dt_softplus=True,
            dt_limit=self.dt_limit,
            context=context,
        )
        return self._finish(unit, z, y.flatten(-2))

    def _in_order(self, convolved, dt):
        x, B, C = self._parts(convolved)
        return x, dt, decays(self.A_log), B, C, self.chunk_size
