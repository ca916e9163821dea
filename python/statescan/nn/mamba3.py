"""Mamba-3's layer, with the interface of `mamba_ssm.modules.mamba3`."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.types import Device

from .._types import Cache as Params
from ..derived.mamba3 import mamba3_siso_combined
from ._cache import Cache, count_steps, states_of
from ._checks import check_count, check_input, check_packing, check_real, check_step_sizes
from ._norms import RMSNorm
from ._shared import cached_states, draw_modules_again, draw_step_bias, without_weight_decay


def _heavy_tail(x):
    """As softplus a positive function that grows like x, and falls like 1 / x."""
    return torch.where(x >= 0, 1 + x, 1 / (1 - x.clamp(max=0)))


class Mamba3(nn.Module):
    """A layer of Mamba-3, of single inputs and outputs (SISO), (batch, seqlen, d_model) to the same shape.

    Args:
        d_model: channels in and out.
        d_state, expand, headdim: states of a channel, channels inside for each channel in, channels of a head.
        ngroups: groups of heads that share input and output maps.
        rope_fraction: 0.5 or 1, the part of the states that is turned.
        dt_min, dt_max, dt_init_floor: step sizes before training.
        A_floor: the least decay rate.
        is_outproj_norm: whether a norm of each head stands before the gate.
        is_mimo, mimo_rank: False and any; there is no layer of several inputs and outputs here.
        chunk_size: a hint to the scan.
        dropout, n_layer: not used, as in the origin.
        layer_idx: where its states are in the `inference_params` of a model.
        A_activation: the function that gives decay rates. Layers of `mamba_ssm` have "softplus" up to 2.3.2, and "heavy_tail"
            since; nothing in a checkpoint says which it was trained with.

    Examples:
        >>> layer = Mamba3(16, d_state=8, headdim=8)
        >>> cache = layer.cache(batch_size=2)
        >>> with torch.no_grad():
        ...     layer(torch.randn(2, 20, 16), cache).shape
        torch.Size([2, 20, 16])
    """

    reverse: bool = False
    bidirectional: bool = False

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        expand: int = 2,
        headdim: int = 64,
        ngroups: int = 1,
        rope_fraction: float = 0.5,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        A_floor: float = 1e-4,
        is_outproj_norm: bool = False,
        is_mimo: bool = False,
        mimo_rank: int = 4,
        chunk_size: int = 64,
        dropout: float = 0.0,
        layer_idx: int | None = None,
        n_layer: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        A_activation: Literal["softplus", "heavy_tail"] = "softplus",
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if is_mimo:
            raise NotImplementedError("Mamba3: `is_mimo` must be False: there is no layer of several inputs and outputs")
        if A_activation not in ("softplus", "heavy_tail"):
            raise ValueError(f'Mamba3: `A_activation` must be "softplus" or "heavy_tail", got {A_activation!r}')
        if rope_fraction not in (0.5, 1.0):
            raise ValueError(f"Mamba3: `rope_fraction` must be 0.5 or 1, got {rope_fraction!r}")
        check_count(self, d_model=d_model, expand=expand, headdim=headdim, ngroups=ngroups, chunk_size=chunk_size)
        check_count(self, int(2 / rope_fraction), d_state=d_state)
        check_step_sizes(self, dt_min, dt_max, dt_init_floor)
        check_real(self, dtype)
        self._steps = (dt_min, dt_max, dt_init_floor)
        self.d_model = d_model
        self.d_state = d_state
        self.expand = expand
        self.headdim = headdim
        self.num_bc_heads = ngroups
        self.chunk_size = chunk_size
        self.layer_idx = layer_idx
        self.A_floor = A_floor
        self.A_activation = A_activation
        self.is_outproj_norm = is_outproj_norm
        self.is_mimo: bool = False
        self.mimo_rank: int = 1
        self.d_inner: int = expand * d_model
        self.nheads: int = self.d_inner // headdim
        if self.d_inner % headdim:
            raise ValueError(f"Mamba3: `headdim` must divide {self.d_inner}, `expand` times `d_model`, got {headdim}")
        if self.nheads % ngroups:
            raise ValueError(f"Mamba3: `ngroups` must divide the {self.nheads} heads, got {ngroups}")
        self.num_rope_angles: int = int(d_state * rope_fraction) // 2
        self.rotary_dim_divisor: int = int(2 / rope_fraction)
        self.split_tensor_size: int = 2 * self.num_rope_angles

        where = {"device": device, "dtype": dtype}
        maps = ngroups * d_state
        self._sizes = (self.d_inner, self.d_inner, maps, maps, self.nheads, self.nheads, self.nheads, self.num_rope_angles)
        self.in_proj: nn.Linear = nn.Linear(d_model, sum(self._sizes), bias=False, **where)
        self.dt_bias: nn.Parameter = nn.Parameter(torch.empty(self.nheads, device=device, dtype=torch.float32))
        shape = (self.nheads, 1, d_state)
        self.B_bias: nn.Parameter = nn.Parameter(torch.empty(shape, device=device, dtype=torch.float32))
        self.C_bias: nn.Parameter = nn.Parameter(torch.empty(shape, device=device, dtype=torch.float32))
        self.B_norm: RMSNorm = RMSNorm(d_state, 1e-5, **where)
        self.C_norm: RMSNorm = RMSNorm(d_state, 1e-5, **where)
        self.D: nn.Parameter = nn.Parameter(torch.empty(self.nheads, device=device))
        if is_outproj_norm:
            self.norm: RMSNorm = RMSNorm(self.d_inner, 1e-5, headdim, norm_before_gate=True, **where)
        self.out_proj: nn.Linear = nn.Linear(self.d_inner, d_model, bias=False, **where)
        self._draw()

    @torch.no_grad()
    def _draw(self):
        """First values that the modules do not draw themselves."""
        draw_step_bias(self.dt_bias, *self._steps)
        for parameter in (self.B_bias, self.C_bias, self.D):
            parameter.fill_(1)
        without_weight_decay(self.dt_bias, self.D)

    def reset_parameters(self) -> None:
        """Draws all parameters again as the constructor does, modules' too."""
        draw_modules_again(self)
        self._draw()

    def extra_repr(self) -> str:
        sizes = f"{self.d_model}, d_state={self.d_state}, expand={self.expand}, headdim={self.headdim}"
        return f"{sizes}, ngroups={self.num_bc_heads}, A_activation={self.A_activation!r}"

    def forward(
        self,
        u: Tensor,
        seq_idx: Cache | None = None,
        cu_seqlens: Tensor | None = None,
        inference_params: Cache | Params | None = None,
    ) -> Tensor:
        """The layer on a sequence.

        Args:
            u: (batch, seqlen, d_model).
            seq_idx: None, or a cache, which is `inference_params` then.
            cu_seqlens: (sequences + 1,), bounds of the sequences of a batch of 1.
            inference_params: a cache, of `cache` or as the origin has it (`key_value_memory_dict`, `seqlen_offset`). The layer
                leaves its states there, one of each sequence, and goes on from them, by any number of steps, where they have
                seen some. States are changed in place: for use without gradients.
        """
        if isinstance(seq_idx, Cache):
            seq_idx, inference_params = None, seq_idx
        if seq_idx is not None:
            raise ValueError("Mamba3: `seq_idx` must be None: `cu_seqlens` gives the bounds of packed sequences")
        check_input(self, "u", u, self.in_proj)
        check_packing(self, u, None, cu_seqlens)
        if inference_params is None:
            return self._scan(u, cu_seqlens)
        sequences = u.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        states, goes_on = states_of(self, inference_params, sequences)
        count_steps(inference_params, u.shape[1])
        return self._scan(u, cu_seqlens, states, goes_on)

    def _scan(self, u, cu_seqlens=None, states=None, goes_on=False):
        """The layer, from the states of a cache where they have seen steps; they are changed."""
        z, x, B, C, dt, A, trap, angles = self.in_proj(u).split(self._sizes, -1)
        z, x = (t.unflatten(-1, (self.nheads, self.headdim)) for t in (z, x))
        B, C = (norm(t.unflatten(-1, (-1, self.d_state))) for norm, t in ((self.B_norm, B), (self.C_norm, C)))
        A = A.to(torch.promote_types(A.dtype, torch.float32))
        A = -(softplus(A) if self.A_activation == "softplus" else _heavy_tail(A)).clamp(min=self.A_floor)
        dt = softplus(dt + self.dt_bias)
        before = None if not goes_on else (*states[:2], states[2].squeeze(1), states[3])
        y, *after = mamba3_siso_combined(
            C,
            B,
            x,
            *((A * dt).transpose(1, 2), dt.transpose(1, 2), trap.transpose(1, 2)),
            *(self.C_bias.squeeze(1), self.B_bias.squeeze(1)),
            angles[:, :, None].expand(-1, -1, self.nheads, -1),
            D=self.D,
            Z=None if self.is_outproj_norm else z,
            Input_States=before,
            chunk_size=self.chunk_size,
            return_final_states=True,
            cu_seqlens=cu_seqlens,
        )
        if states is not None:
            for state, new in zip(states, after):
                state.copy_(new.view_as(state))
        y = y.flatten(-2)
        return self.out_proj(self.norm(y, z.flatten(-2)) if self.is_outproj_norm else y)

    def step(
        self, u: Tensor, angle_state: Tensor, ssm_state: Tensor, k_state: Tensor, v_state: Tensor, **kwargs: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The layer on one step, (batch, d_model) or (batch, 1, d_model). The states, as `allocate_inference_cache` makes them,
        are changed in place, and returned behind the result."""
        states = (angle_state, ssm_state, k_state, v_state)
        flat = u.dim() == 2
        u = u[:, None] if flat else u
        check_input(self, "u", u, self.in_proj)
        out = self._scan(u, None, states, goes_on=True)
        return out[:, 0] if flat else out, *states

    def cache(self, batch_size: int, dtype: torch.dtype | None = None) -> Cache:
        """Makes the cache that sequences go on from: ``layer(x, cache)`` takes a prompt, and then one step or many at a time."""
        return Cache(self.allocate_inference_cache(batch_size, 0, dtype=dtype))

    def allocate_inference_cache(
        self,
        batch_size: int,
        max_seqlen: int,
        device: Device = None,
        dtype: torch.dtype | None = None,
        inplace_state: None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States of zeros: angles (batch, nheads, angles) and the scan's (batch, nheads, headdim, d_state), in float32 or better,
        the last keys (batch, 1, nheads, d_state) and values (batch, nheads, headdim)."""
        weight = self.in_proj.weight
        device, dtype = weight.device if device is None else device, weight.dtype if dtype is None else dtype
        wide, heads = torch.promote_types(dtype, torch.float32), (batch_size, self.nheads)
        return (
            torch.zeros(*heads, self.num_rope_angles, device=device, dtype=wide),
            torch.zeros(*heads, self.headdim, self.d_state, device=device, dtype=wide),
            torch.zeros(batch_size, 1, self.nheads, self.d_state, device=device, dtype=dtype),
            torch.zeros(*heads, self.headdim, device=device, dtype=dtype),
        )

    def _get_states_from_cache(self, inference_params, batch_size, initialize_states=False):
        return cached_states(self, inference_params, batch_size, initialize_states)
