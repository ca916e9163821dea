"""Mamba's layer, with the interface of `mamba_ssm.Mamba`."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.types import Device

from .. import functions
from .._inner import mamba_as_one
from .._types import Cache as Params
from .._types import Context
from ._cache import Cache, count_steps, in_directions, only_forwards, states_of
from ._checks import (
    check_count,
    check_input,
    check_number,
    check_real,
    check_states,
    check_step_sizes,
    no_cache_of_ranks,
    one_step,
)
from ._convolution import convolve, convolve_step
from ._plain import plain_filters, plain_weights
from ._shared import (
    cached_states,
    decays,
    draw_modules_again,
    draw_step_bias,
    last_inputs,
    new_state,
    without_weight_decay,
)


class Mamba(nn.Module):
    """A layer of Mamba, (batch, seqlen, d_model) to the same shape: projection, convolution, selective scan, gate, projection.

    Modules may be exchanged, adapted, hooked, quantized or kept elsewhere: the result is that of the modules as they stand.

    Args:
        d_model: channels in and out.
        d_state, d_conv, expand: states of a channel, taps of the convolution, channels of the scan for each channel in.
        dt_rank: rank of the projection to step sizes; "auto" is a sixteenth of d_model.
        dt_min, dt_max, dt_init, dt_scale, dt_init_floor: step sizes before training; dt_init is "random" or "constant".
        conv_bias, bias: whether the convolution, and the projections in and out, have a bias.
        use_fast_path: whether one function may take the weights of all modules, where these are plain; the result is the same.
        layer_idx: where its states are in the `inference_params` of a model.
        reverse: whether time goes from the last step to the first, for layers that need not decode.
        bidirectional: whether the result is the sum of both directions, of the same parameters.

    Examples:
        >>> Mamba(16, d_state=4, bidirectional=True)(torch.randn(2, 20, 16)).shape
        torch.Size([2, 20, 16])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: float = 2,
        dt_rank: int | Literal["auto"] = "auto",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init: Literal["random", "constant"] = "random",
        dt_scale: float = 1.0,
        dt_init_floor: float = 1e-4,
        conv_bias: bool = True,
        bias: bool = False,
        use_fast_path: bool = True,
        layer_idx: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        reverse: bool = False,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        if dt_init not in ("random", "constant"):
            raise ValueError(f'Mamba: `dt_init` must be "random" or "constant", got {dt_init!r}')
        check_count(self, d_model=d_model, d_state=d_state)
        check_count(self, 2, 8, d_conv=d_conv)
        check_real(self, dtype)
        check_number(self, f"a number that gives a channel or more for {d_model} in", lambda n: n * d_model >= 1, expand=expand)
        rank = math.ceil(d_model / 16) if dt_rank == "auto" else dt_rank
        check_count(self, dt_rank=rank)
        check_step_sizes(self, dt_min, dt_max, dt_init_floor)
        check_number(self, "a number of 0 or more", lambda n: n >= 0, dt_scale=dt_scale)
        where = {"device": device, "dtype": dtype}
        self.d_model = d_model
        self.d_state = d_state
        self.d_conv = d_conv
        self.expand = expand
        self.d_inner: int = int(expand * d_model)
        dim = self.d_inner
        self.dt_rank = rank
        self.use_fast_path = use_fast_path
        self.reverse = reverse
        self.bidirectional = bidirectional
        self.layer_idx = layer_idx
        self._steps = (dt_min, dt_max, dt_init_floor)
        self._projection = (dt_init, dt_scale)

        self.in_proj: nn.Linear = nn.Linear(d_model, 2 * dim, bias=bias, **where)
        self.conv1d: nn.Conv1d = nn.Conv1d(dim, dim, d_conv, groups=dim, padding=d_conv - 1, bias=conv_bias, **where)
        self.x_proj: nn.Linear = nn.Linear(dim, rank + 2 * d_state, bias=False, **where)
        self.dt_proj: nn.Linear = nn.Linear(rank, dim, bias=True, **where)
        self.A_log: nn.Parameter = nn.Parameter(torch.empty(dim, d_state, device=device, dtype=torch.float32))
        self.D = nn.Parameter(torch.empty(dim, device=device))
        self.out_proj: nn.Linear = nn.Linear(dim, d_model, bias=bias, **where)
        self._draw()

    @torch.no_grad()
    def _draw(self):
        """First values that the modules do not draw themselves."""
        weight, bias = (self.dt_proj._parameters.get(name) for name in ("weight", "bias"))
        if weight is not None:
            kind, scale = self._projection
            scale *= self.dt_rank**-0.5
            weight.fill_(scale) if kind == "constant" else weight.uniform_(-scale, scale)
        if bias is not None:
            draw_step_bias(bias, *self._steps)
            # weights are often drawn again by a model's own rule, which must leave this one alone
            bias._no_reinit = True
        self.A_log.copy_(torch.arange(1, self.d_state + 1, device=self.A_log.device, dtype=torch.float32).log())
        self.D.fill_(1)
        without_weight_decay(self.A_log, self.D)

    def reset_parameters(self) -> None:
        """Draws all parameters again as the constructor does, modules' too. Exchanged modules draw theirs, if they can.

        Where every module's `reset_parameters` is called, this one comes behind those of its own modules.
        """
        draw_modules_again(self)
        self._draw()

    def extra_repr(self) -> str:
        return f"{self.d_model}, d_state={self.d_state}, d_conv={self.d_conv}, expand={self.expand}, dt_rank={self.dt_rank}"

    def forward(
        self, hidden_states: Tensor, inference_params: Cache | Params | None = None, context: Context | None = None
    ) -> Tensor:
        """The layer on a sequence.

        Args:
            hidden_states: (batch, seqlen, d_model).
            inference_params: a cache, of `cache` or as the origin has it (`key_value_memory_dict`, `seqlen_offset`). The layer
                leaves its states there, and goes on from them where they have seen steps, by any number of steps. States are
                changed in place: for use without gradients.
            context: of `statescan.distributed`, where the sequence is this rank's slice. It does not go with a cache.
        """
        in_proj = self.in_proj
        check_input(self, "hidden_states", hidden_states, in_proj)
        no_cache_of_ranks(self, inference_params, context)
        if inference_params is None:
            return in_directions(self, self._scan, hidden_states, context=context)
        states, goes_on = states_of(self, inference_params, hidden_states.shape[0])
        if goes_on and hidden_states.shape[1] == 1:
            y = self.step(hidden_states, *states)[0]
        else:
            y = self._by_modules(in_proj(hidden_states).transpose(1, 2), states, goes_on)
        count_steps(inference_params, hidden_states.shape[1])
        return y

    def _scan(self, hidden_states, seq_idx, cu_seqlens, context):
        """The layer without states, and without packed sequences, which it does not take."""
        xz, weights = self.in_proj(hidden_states), self._plain_weights()
        out = None if weights is None else self._as_one(xz, weights, context)
        return self._by_modules(xz.transpose(1, 2), context=context) if out is None else out

    def _plain_weights(self):
        """Weights and biases of the modules between both projections, where one function may take them; None otherwise."""
        if not self.use_fast_path:
            return None
        found = plain_filters(self.conv1d, self.d_conv), *(plain_weights(m, nn.Linear) for m in (self.x_proj, self.dt_proj))
        if None in found:
            return None
        # the function has no place for a bias of `x_proj`, which an exchanged one may have
        _, (_, bias), _ = found
        return found if bias is None else None

    def _as_one(self, xz, weights, context):
        """Everything behind the first projection, (batch, seqlen, 2 d_inner), as one function; None where that has no kernel."""
        convolution, (maps, _), (steps, step_bias) = weights
        out_proj = plain_weights(self.out_proj, nn.Linear)
        scan = (step_bias, self.A_log, self.D)
        out = mamba_as_one(xz, convolution, (maps, steps), scan, out_proj or (None, None), A_log=True, context=context)
        return out if out is None or out_proj is not None else self.out_proj(out)

    def _by_modules(self, xz, states=None, goes_on=False, context=None):
        """Everything behind it by calls of the modules, which leaves its states in `states` and may go on from them."""
        conv_state, ssm_state = states or (None, None)
        x, z = xz.chunk(2, dim=1)
        before = conv_state[..., 1:] if goes_on else None
        inputs = None if states is None else last_inputs(before, x, self.d_conv)
        x = convolve(self, x, before, context=context)
        dt, B, C, bias = self._maps(x.transpose(1, 2))
        y, last_state = functions.selective_scan(
            x,
            dt.transpose(1, 2),
            decays(self.A_log),
            B.transpose(1, 2),
            C.transpose(1, 2),
            self.D,
            ssm_state if goes_on else None,
            z=z,
            dt_bias=bias,
            dt_softplus=True,
            context=context,
        )
        if states is not None:
            conv_state.copy_(inputs)
            ssm_state.copy_(last_state)
        return self.out_proj(y.transpose(1, 2))

    def step(self, hidden_states: Tensor, conv_state: Tensor, ssm_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The layer on one step, (batch, 1, d_model); both states are changed in place, and returned behind the result."""
        in_proj = self.in_proj
        hidden_states = one_step(self, hidden_states, in_proj)
        check_states(self, hidden_states.shape[0], conv_state, self.d_inner, ssm_state, (self.d_inner, self.d_state))
        x, z = in_proj(hidden_states).chunk(2, dim=-1)
        x = convolve_step(self, x, conv_state)
        dt, B, C, bias = self._maps(x)
        y = functions.selective_state_update(
            ssm_state, x, dt, decays(self.A_log), B, C, self.D, z=z, dt_bias=bias, dt_softplus=True
        )
        return self.out_proj(y).unsqueeze(1), conv_state, ssm_state

    def _maps(self, x):
        """Step sizes, input and output maps, and the bias that the scan adds to the step sizes, which a module adds itself."""
        dt, B, C = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        module = self.dt_proj
        plain = plain_weights(module, nn.Linear)
        if plain is None:
            return module(dt), B, C, None
        weight, bias = plain
        return linear(dt, weight), B, C, bias

    def cache(self, batch_size: int, dtype: torch.dtype | None = None) -> Cache:
        """Makes the cache that sequences go on from: ``layer(x, cache)`` takes a prompt, and then one step or many at a time."""
        only_forwards(self, "a cache")
        return Cache(self.allocate_inference_cache(batch_size, 0, dtype))

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """States of zeros: the convolution's, (batch, d_inner, d_conv), and the scan's, (batch, d_inner, d_state)."""
        conv_state = new_state(self, (batch_size, self.d_inner, self.d_conv), self.conv1d, dtype)
        return conv_state, new_state(self, (batch_size, self.d_inner, self.d_state), self.dt_proj, dtype)

    def _get_states_from_cache(self, inference_params, batch_size, initialize_states=False):
        return cached_states(self, inference_params, batch_size, initialize_states)
