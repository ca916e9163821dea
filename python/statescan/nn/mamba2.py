"""Mamba-2's layer, with the interface of `mamba_ssm.Mamba2`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from torch.types import Device

from .. import functions
from .._inner import mamba2_as_one
from .._types import Cache as Params
from .._types import Context
from ._cache import Cache, count_steps, in_directions, only_forwards, states_of
from ._checks import (
    check_count,
    check_input,
    check_number,
    check_packing,
    check_range,
    check_real,
    check_states,
    check_step_sizes,
    no_cache_of_ranks,
    one_step,
)
from ._convolution import convolve, convolve_step
from ._norms import RMSNorm
from ._plain import is_plain, plain_filters, plain_weights
from ._shared import (
    cached_states,
    decays,
    draw_modules_again,
    draw_step_bias,
    last_inputs,
    new_state,
    without_weight_decay,
)


class Mamba2(nn.Module):
    """A layer of Mamba-2, (batch, seqlen, d_model) to the same shape: projection, convolution, SSD, gated norm, projection.

    Modules may be exchanged, adapted, hooked, quantized or kept elsewhere: the result is that of the modules as they stand.

    Args:
        d_model: channels in and out.
        d_state, d_conv, expand: states of a channel, taps of the convolution, channels inside for each channel in.
        conv_init: filters before training are between -conv_init and conv_init.
        headdim: channels of a head.
        d_ssm: channels of the scan, of those inside; the others are a gated unit beside it. All of them by default.
        ngroups: groups of heads that share input and output maps.
        A_init_range: decays before training.
        D_has_hdim: whether each channel has a skip of its own, and not each head.
        rmsnorm, norm_before_gate: whether a norm follows the scan, and whether the gate follows the norm.
        dt_min, dt_max, dt_init_floor: step sizes before training.
        dt_limit: lowest and highest step.
        bias, conv_bias: whether the projections in and out, and the convolution, have a bias.
        chunk_size: a hint to the scan.
        use_mem_eff_path: whether one function may take the weights of all modules, where these are plain; the result is the same.
        sequence_parallel: taken as the origin takes it; a layer is on one device.
        layer_idx: where its states are in the `inference_params` of a model.
        process_group: None; a layer is not divided among processes here.
        reverse: whether time goes from the last step to the first, for layers that need not decode.
        bidirectional: whether the result is the sum of both directions, of the same parameters.

    Examples:
        >>> layer = Mamba2(16, d_state=4, headdim=8)
        >>> cache = layer.cache(batch_size=2)
        >>> with torch.no_grad():
        ...     layer(torch.randn(2, 20, 16), cache).shape
        torch.Size([2, 20, 16])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        d_conv: int = 4,
        conv_init: float | None = None,
        expand: int = 2,
        headdim: int = 64,
        d_ssm: int | None = None,
        ngroups: int = 1,
        A_init_range: tuple[float, float] = (1, 16),
        D_has_hdim: bool = False,
        rmsnorm: bool = True,
        norm_before_gate: bool = False,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        bias: bool = False,
        conv_bias: bool = True,
        chunk_size: int = 256,
        use_mem_eff_path: bool = True,
        layer_idx: int | None = None,
        process_group: None = None,
        sequence_parallel: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        reverse: bool = False,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        if process_group is not None:
            raise ValueError("Mamba2: `process_group` must be None: a layer is not divided among processes")
        check_count(
            self, d_model=d_model, d_state=d_state, expand=expand, headdim=headdim, ngroups=ngroups, chunk_size=chunk_size
        )
        check_count(self, 2, 8, d_conv=d_conv)
        check_real(self, dtype)
        self._steps = (dt_min, dt_max, dt_init_floor)
        self._decays = tuple(A_init_range)
        self._check_ranges(conv_init, dt_limit)
        where = {"device": device, "dtype": dtype}
        self.d_model = d_model
        self.d_state = d_state
        self.d_conv = d_conv
        self.conv_init = conv_init
        self.expand = expand
        self.process_group = process_group
        self.sequence_parallel = sequence_parallel
        self.d_inner: int = expand * d_model
        self.headdim = headdim
        self.d_ssm: int = self.d_inner if d_ssm is None else d_ssm
        self.ngroups = ngroups
        self.nheads: int = self.d_ssm // headdim
        self.D_has_hdim = D_has_hdim
        self.rmsnorm = rmsnorm
        self.norm_before_gate = norm_before_gate
        self.dt_limit: tuple[float, float] = tuple(dt_limit)
        self.chunk_size = chunk_size
        self.use_mem_eff_path = use_mem_eff_path
        self.layer_idx = layer_idx
        self.reverse = reverse
        self.bidirectional = bidirectional
        check_count(self, d_ssm=self.d_ssm)
        if self.d_ssm % headdim or not 0 < self.d_ssm <= self.d_inner:
            expected = f"a multiple of `headdim` ({headdim}) and at most {self.d_inner}, `expand` times `d_model`"
            raise ValueError(f"Mamba2: `d_ssm` must be {expected}, got {self.d_ssm}")
        if self.nheads % ngroups:
            raise ValueError(f"Mamba2: `ngroups` must divide the {self.nheads} heads, got {ngroups}")

        self.in_proj: nn.Linear = nn.Linear(d_model, 2 * self.d_inner + 2 * ngroups * d_state + self.nheads, bias=bias, **where)
        dim = self.d_convolved
        self.conv1d: nn.Conv1d = nn.Conv1d(dim, dim, d_conv, groups=dim, padding=d_conv - 1, bias=conv_bias, **where)
        self.dt_bias: nn.Parameter = nn.Parameter(torch.empty(self.nheads, **where))
        self.A_log: nn.Parameter = nn.Parameter(torch.empty(self.nheads, device=device, dtype=dtype or torch.float32))
        self.D = nn.Parameter(torch.empty(self.d_ssm if D_has_hdim else self.nheads, device=device))
        if rmsnorm:
            self.norm: RMSNorm = RMSNorm(self.d_ssm, 1e-5, self.d_ssm // ngroups, norm_before_gate, **where)
        self.out_proj: nn.Linear = nn.Linear(self.d_inner, d_model, bias=bias, **where)
        self._draw()

    def _check_ranges(self, conv_init, dt_limit):
        """Refuses what first values cannot be drawn from, and steps without a limit in between."""
        check_step_sizes(self, *self._steps)
        check_range(self, "A_init_range", *self._decays, positive=True)
        check_range(self, "dt_limit", *dt_limit, positive=False)
        if conv_init is not None:
            check_number(self, "None or a number of 0 or more", lambda n: n >= 0, conv_init=conv_init)

    @torch.no_grad()
    def _draw(self):
        """First values that the modules do not draw themselves."""
        filters = self.conv1d._parameters.get("weight")
        if self.conv_init is not None and filters is not None:
            filters.uniform_(-self.conv_init, self.conv_init)
        draw_step_bias(self.dt_bias, *self._steps)
        self.A_log.copy_(torch.empty_like(self.A_log, dtype=torch.float32).uniform_(*self._decays).log())
        self.D.fill_(1)
        without_weight_decay(self.dt_bias, self.A_log, self.D)

    def reset_parameters(self) -> None:
        """Draws all parameters again as the constructor does, modules' too. Exchanged modules draw theirs, if they can.

        Where every module's `reset_parameters` is called, this one comes behind those of its own modules.
        """
        draw_modules_again(self)
        self._draw()

    def extra_repr(self) -> str:
        sizes = f"{self.d_model}, d_state={self.d_state}, d_conv={self.d_conv}, expand={self.expand}, headdim={self.headdim}"
        unit = "" if self.d_ssm == self.d_inner else f", d_ssm={self.d_ssm}"
        return f"{sizes}{unit}, ngroups={self.ngroups}, chunk_size={self.chunk_size}"

    def forward(
        self,
        u: Tensor,
        seqlen: int | Cache | None = None,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        inference_params: Cache | Params | None = None,
        context: Context | None = None,
    ) -> Tensor:
        """The layer on a sequence.

        Args:
            u: (batch, seqlen, d_model), or with `seqlen` (batch * seqlen, d_model).
            seqlen: steps of a row, where rows follow one another. A cache in its place is `inference_params`.
            seq_idx: (batch, seqlen), the sequence that each step belongs to.
            cu_seqlens: (sequences + 1,), bounds of the sequences of a batch of 1.
            inference_params: a cache, of `cache` or as the origin has it (`key_value_memory_dict`, `seqlen_offset`). The layer
                leaves its states there, one for each sequence with `cu_seqlens`, and goes on from them, by any number of steps,
                where they have seen some. States are changed in place: for use without gradients.
            context: of `statescan.distributed`, where u is this rank's slice, with its part of `seq_idx`. It does not go with a
                cache or `cu_seqlens`.
        """
        if isinstance(seqlen, Cache):
            seqlen, inference_params = None, seqlen
        no_cache_of_ranks(self, inference_params, context)
        if cu_seqlens is not None and context is not None:
            raise ValueError("Mamba2: `context` goes with `seq_idx`, not with `cu_seqlens`")
        flat = seqlen is not None
        if flat:
            if u.dim() != 2 or seqlen < 1 or u.shape[0] % seqlen:
                raise ValueError(f"Mamba2: `u` must have shape (batch * seqlen {seqlen}, d_model), got {tuple(u.shape)}")
            u = u.unflatten(0, (-1, seqlen))
        check_input(self, "u", u, self.in_proj)
        check_packing(self, u, seq_idx, cu_seqlens)
        if inference_params is None:
            out = in_directions(self, self._scan, u, seq_idx, cu_seqlens, context)
        else:
            out = self._scan_with_states(u, seq_idx, cu_seqlens, inference_params)
        return out.flatten(0, 1) if flat else out

    def _scan(self, u, seq_idx, cu_seqlens, context):
        """The layer without states."""
        if seq_idx is None and cu_seqlens is not None:
            steps = torch.arange(u.shape[1], device=u.device)
            seq_idx = torch.searchsorted(cu_seqlens[1:-1].to(steps.dtype).contiguous(), steps, right=True)[None].int()
        projected, weights = self.in_proj(u), self._plain_weights()
        if weights is None:
            return self._by_modules(projected, seq_idx=seq_idx, context=context)
        return self._as_one(projected, weights, seq_idx, context)

    def _scan_with_states(self, u, seq_idx, cu_seqlens, inference_params):
        """The layer from the states of a cache, which are changed."""
        sequences = u.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        states, goes_on = states_of(self, inference_params, sequences)
        count_steps(inference_params, u.shape[1])
        if cu_seqlens is not None:
            # they say what `seq_idx` says, and where sequences are that have no steps
            return self._by_modules(self.in_proj(u), states, goes_on, cu_seqlens=cu_seqlens)
        if goes_on and u.shape[1] == 1:
            return self.step(u, *states)[0]
        return self._by_modules(self.in_proj(u), states, goes_on, seq_idx=seq_idx)

    def _plain_weights(self):
        """Filters and bias of the convolution, and the norm if there is one, where one function may take them; None otherwise."""
        found = plain_filters(self.conv1d, self.d_conv) if self.use_mem_eff_path else None
        if found is None or not self.rmsnorm:
            return None if found is None else (*found, None)
        norm = self.norm
        groups = (norm.group_size or self.d_ssm) * self.ngroups if is_plain(norm, RMSNorm) else None
        return (*found, norm) if groups == self.d_ssm else None

    def _as_one(self, projected, weights, seq_idx, context):
        """Everything behind the first projection, as one function."""
        filters, conv_bias, norm = weights
        weights = (filters, conv_bias, self.dt_bias, self.A_log, self._skips(), None if norm is None else norm.weight)
        of_norm = {} if norm is None else {"eps": norm.eps, "norm_before_gate": norm.norm_before_gate}
        out_proj = plain_weights(self.out_proj, nn.Linear)
        y, _ = mamba2_as_one(
            projected,
            weights,
            out_proj or (None, None),
            seq_idx=seq_idx,
            context=context,
            dt_limit=self.dt_limit,
            headdim=self.headdim,
            ngroups=self.ngroups,
            chunk_size=self.chunk_size,
            A_log=True,
            **of_norm,
        )
        return y if out_proj is not None else self.out_proj(y)

    def _by_modules(self, projected, states=None, goes_on=False, **sequences):
        """The whole by calls of the modules. It leaves its states in `states`, of each sequence with `cu_seqlens`, and may go on
        from them. `sequences` are that, `seq_idx` and `context`."""
        conv_state, ssm_state = states or (None, None)
        cu_seqlens = sequences.get("cu_seqlens")
        unit, z, xBC, dt = self._split(projected)
        xBC = xBC.transpose(1, 2)
        before = conv_state[..., 1:] if goes_on else None
        inputs = None if states is None else self._last_inputs(before, xBC, cu_seqlens)
        x, B, C = self._parts(convolve(self, xBC, before, **sequences).transpose(1, 2))
        y, last_states = functions.ssd(
            x,
            dt,
            decays(self.A_log),
            B,
            C,
            self.chunk_size,
            self._skips(),
            z=None if self.rmsnorm else z.unflatten(-1, (self.nheads, self.headdim)),
            dt_bias=self.dt_bias,
            initial_state=ssm_state if goes_on else None,
            dt_softplus=True,
            dt_limit=self.dt_limit,
            **sequences,
        )
        if states is not None:
            conv_state.copy_(inputs)
            ssm_state.copy_(last_states)
        return self._finish(unit, z, y.flatten(-2))

    def step(self, hidden_states: Tensor, conv_state: Tensor, ssm_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The layer on one step, (batch, 1, d_model); both states are changed in place, and returned behind the result."""
        in_proj = self.in_proj
        hidden_states = one_step(self, hidden_states, in_proj)
        shape = (self.nheads, self.headdim, self.d_state)
        check_states(self, hidden_states.shape[0], conv_state, self.d_convolved, ssm_state, shape)
        unit, z, xBC, dt = self._split(in_proj(hidden_states))
        x, B, C = self._parts(convolve_step(self, xBC, conv_state))
        # a number that a head has once is expanded, without a copy
        skips = self._skips() if self.D_has_hdim else self.D[:, None].expand(-1, self.headdim)
        y = functions.selective_state_update(
            ssm_state,
            x,
            dt[..., None].expand(-1, -1, self.headdim),
            decays(self.A_log)[:, None, None].expand(-1, self.headdim, self.d_state),
            B,
            C,
            skips,
            z=None if self.rmsnorm else z.unflatten(-1, (self.nheads, self.headdim)),
            dt_bias=self.dt_bias[:, None].expand(-1, self.headdim),
            dt_softplus=True,
            dt_limit=self.dt_limit,
        )
        return self._finish(unit, z, y.flatten(-2)).unsqueeze(1), conv_state, ssm_state

    @property
    def d_convolved(self) -> int:
        """Channels of the convolution: those of the scan and of its maps."""
        return self.d_ssm + 2 * self.ngroups * self.d_state

    def _skips(self):
        return self.D.unflatten(0, (self.nheads, self.headdim)) if self.D_has_hdim else self.D

    def _split(self, projected):
        """The gated unit beside the scan, the gate, the convolution's input, step sizes."""
        return projected.split([2 * (self.d_inner - self.d_ssm), self.d_ssm, self.d_convolved, self.nheads], dim=-1)

    def _parts(self, xBC):
        """Heads, and groups of maps."""
        maps = self.ngroups * self.d_state
        x, B, C = xBC.split([self.d_ssm, maps, maps], dim=-1)
        return x.unflatten(-1, (self.nheads, self.headdim)), *(m.unflatten(-1, (self.ngroups, self.d_state)) for m in (B, C))

    def _finish(self, unit, z, y):
        if self.rmsnorm:
            y = self.norm(y, z)
        if unit.shape[-1] > 0:
            gate, value = unit.chunk(2, dim=-1)
            y = torch.cat([silu(gate) * value, y], dim=-1)
        return self.out_proj(y)

    def _last_inputs(self, before, x, cu_seqlens):
        """The last inputs of each sequence, (sequences, channels, d_conv)."""
        if cu_seqlens is None:
            return last_inputs(before, x, self.d_conv)
        bounds = cu_seqlens.tolist()
        parts = [x[..., start:end] for start, end in zip(bounds, bounds[1:])]
        befores = [None] * len(parts) if before is None else before.split(1)
        return torch.cat([last_inputs(old, part, self.d_conv) for old, part in zip(befores, parts)])

    def cache(self, batch_size: int, dtype: torch.dtype | None = None) -> Cache:
        """Makes the cache that sequences go on from: ``layer(x, cache)`` takes a prompt, and then one step or many at a time."""
        only_forwards(self, "a cache")
        return Cache(self.allocate_inference_cache(batch_size, 0, dtype))

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """States of zeros: the convolution's, (batch, channels, d_conv), and the scan's, (batch, nheads, headdim, d_state)."""
        conv_state = new_state(self, (batch_size, self.d_conv, self.d_convolved), self.conv1d, dtype).transpose(1, 2)
        shape = (batch_size, self.nheads, self.headdim, self.d_state)
        return conv_state, new_state(self, shape, self.in_proj, dtype)

    def _get_states_from_cache(self, inference_params, batch_size, initialize_states=False):
        return cached_states(self, inference_params, batch_size, initialize_states)
