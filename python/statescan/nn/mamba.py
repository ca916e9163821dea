"""Mamba's layer, with the interface of `mamba_ssm.Mamba`."""

import math

import torch
from torch import nn
from torch.nn.functional import linear

from .. import functions
from .shared import cached_states, decays, last_inputs, no_cache_of_ranks, one_step, step_bias, without_weight_decay


class Mamba(nn.Module):
    """A layer of Mamba, (batch, seqlen, d_model) to the same shape: projection, convolution, selective scan, gate, projection.

    Args:
        d_model: channels in and out.
        d_state, d_conv, expand: states of a channel, taps of the convolution, channels of the scan for each channel in.
        dt_rank: rank of the projection to step sizes; "auto" is a sixteenth of d_model.
        dt_min, dt_max, dt_init, dt_scale, dt_init_floor: step sizes before training; dt_init is "random" or "constant".
        conv_bias, bias: whether the convolution, and the projections in and out, have a bias.
        use_fast_path: taken as the origin takes it; there is one way here.
        layer_idx: where its states are in a cache.
    """

    def __init__(
        self,
        d_model,
        d_state=16,
        d_conv=4,
        expand=2,
        dt_rank="auto",
        dt_min=0.001,
        dt_max=0.1,
        dt_init="random",
        dt_scale=1.0,
        dt_init_floor=1e-4,
        conv_bias=True,
        bias=False,
        use_fast_path=True,
        layer_idx=None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        if dt_init not in ("random", "constant"):
            raise ValueError(f'Mamba: `dt_init` must be "random" or "constant", got {dt_init!r}')
        where = {"device": device, "dtype": dtype}
        self.d_model = d_model
        self.d_state = d_state
        self.d_conv = d_conv
        self.expand = expand
        self.d_inner = dim = int(expand * d_model)
        self.dt_rank = rank = math.ceil(d_model / 16) if dt_rank == "auto" else dt_rank
        self.use_fast_path = use_fast_path
        self.layer_idx = layer_idx

        self.in_proj = nn.Linear(d_model, 2 * dim, bias=bias, **where)
        self.conv1d = nn.Conv1d(dim, dim, d_conv, groups=dim, padding=d_conv - 1, bias=conv_bias, **where)
        self.x_proj = nn.Linear(dim, rank + 2 * d_state, bias=False, **where)
        self.dt_proj = nn.Linear(rank, dim, bias=True, **where)
        self.A_log = without_weight_decay(nn.Parameter(torch.arange(1.0, d_state + 1, device=device).log().repeat(dim, 1)))
        self.D = without_weight_decay(nn.Parameter(torch.ones(dim, device=device)))
        self.out_proj = nn.Linear(dim, d_model, bias=bias, **where)

        scale = dt_scale * rank**-0.5
        with torch.no_grad():
            if dt_init == "constant":
                self.dt_proj.weight.fill_(scale)
            else:
                self.dt_proj.weight.uniform_(-scale, scale)
            self.dt_proj.bias.copy_(step_bias(dim, dt_min, dt_max, dt_init_floor, device, dtype))
        # weights are often drawn again by a model's own rule, which must leave this one alone
        self.dt_proj.bias._no_reinit = True

    def forward(self, hidden_states, inference_params=None, *, context=None):
        """The layer on a sequence.

        With `inference_params` (`key_value_memory_dict`, `seqlen_offset`) it leaves its states there, and goes on from them where
        the offset is not 0, by any number of steps. States are changed in place: for use without gradients. With a `context` of
        `statescan.distributed`, which does not go with those, the sequence is this rank's slice.
        """
        no_cache_of_ranks(self, inference_params, context)
        states, goes_on = (None, None), False
        if inference_params is not None:
            states = self._get_states_from_cache(inference_params, hidden_states.shape[0])
            goes_on = inference_params.seqlen_offset > 0
            if goes_on and hidden_states.shape[1] == 1:
                return self.step(hidden_states, *states)[0]
        conv_state, ssm_state = states
        x, z = self.in_proj(hidden_states).transpose(1, 2).chunk(2, dim=1)
        before = conv_state[..., 1:] if goes_on else None
        inputs = None if conv_state is None else last_inputs(before, x, self.d_conv)
        x = functions.causal_conv1d(
            x, self._filters(), self.conv1d.bias, activation="silu", initial_states=before, context=context
        )
        dt, B, C = self._maps(x.transpose(1, 2))
        y, last_state = functions.selective_scan(
            x,
            dt.transpose(1, 2),
            decays(self.A_log),
            B.transpose(1, 2),
            C.transpose(1, 2),
            self.D,
            ssm_state if goes_on else None,
            z=z,
            dt_bias=self.dt_proj.bias,
            dt_softplus=True,
            context=context,
        )
        if ssm_state is not None:
            conv_state.copy_(inputs)
            ssm_state.copy_(last_state)
        return self.out_proj(y.transpose(1, 2))

    def step(self, hidden_states, conv_state, ssm_state):
        """The layer on one step, (batch, 1, d_model); both states are changed in place, and returned behind the result."""
        x, z = self.in_proj(one_step(self, hidden_states)).chunk(2, dim=-1)
        x = functions.causal_conv1d_update(x, conv_state, self._filters(), self.conv1d.bias, activation="silu")
        dt, B, C = self._maps(x)
        y = functions.selective_state_update(
            ssm_state, x, dt, decays(self.A_log), B, C, self.D, z=z, dt_bias=self.dt_proj.bias, dt_softplus=True
        )
        return self.out_proj(y).unsqueeze(1), conv_state, ssm_state

    def _filters(self):
        return self.conv1d.weight.squeeze(1)

    def _maps(self, x):
        """Step sizes, before their bias, and input and output maps."""
        dt, B, C = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        return linear(dt, self.dt_proj.weight), B, C

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None, **kwargs):
        """States of zeros: the convolution's, (batch, d_inner, d_conv), and the scan's, (batch, d_inner, d_state)."""
        conv_state = self.conv1d.weight.new_zeros(batch_size, self.d_inner, self.d_conv, dtype=dtype)
        ssm_state = self.dt_proj.weight.new_zeros(batch_size, self.d_inner, self.d_state, dtype=dtype)
        return conv_state, ssm_state

    def _get_states_from_cache(self, inference_params, batch_size, initialize_states=False):
        return cached_states(self, inference_params, batch_size, initialize_states)
