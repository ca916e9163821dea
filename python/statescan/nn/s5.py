"""S5's layer, with the interface of `lrnnx.models.ltv.S5`."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.types import Device

from .. import functions
from .._types import Context
from ._cache import Cache, count_steps, only_forwards, states_of
from ._checks import (
    check_count,
    check_input,
    check_memory,
    check_number,
    check_real,
    check_step_sizes,
    check_times,
    no_cache_of_ranks,
)


def _hippo(size):
    """Eigenvalues and eigenvectors of the normal part of HiPPO-LegS: a half on the diagonal, skew-symmetric beside it."""
    root = torch.sqrt(2 * torch.arange(size, dtype=torch.float64, device="cpu") + 1)
    # entries below the diagonal of LegS are -root root^T; half of it, of low rank, goes away
    below = torch.tril(torch.outer(root, root), -1) / 2
    imaginary, vectors = torch.linalg.eigh(1j * (below - below.T))
    return torch.complex(torch.full_like(imaginary, -0.5), imaginary), vectors


def _wide(tensor):
    """A tensor in float32 or better: complex numbers have no smaller parts."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


class S5(nn.Module):
    """A layer of S5, (batch, seqlen, d_model) to the same shape: a scan with inputs and outputs of all channels, and a skip.

    Args:
        d_model, d_state: channels and complex states.
        discretization: "bilinear", "zoh" or "dirac".
        conj_sym: whether the states stand for conjugate pairs, of which one each is kept.
        dt_min, dt_max: step sizes before training.
        step_rescale: multiplies step sizes.
        use_fast_path: taken as the origin takes it; there is one way here.
        dtype: taken as the origin takes it: A, B and C are float32, with a last axis of 2, D and log_dt of the default type.
        reverse: whether time goes from the last step to the first, for layers that need not decode.
        bidirectional: whether the result is the sum of both directions, of the same parameters.

    Examples:
        >>> S5(16, 4, conj_sym=True)(torch.randn(2, 20, 16)).shape
        torch.Size([2, 20, 16])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int,
        discretization: Literal["bilinear", "zoh", "dirac"] = "zoh",
        conj_sym: bool = False,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        step_rescale: float = 1.0,
        use_fast_path: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        reverse: bool = False,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        if discretization not in ("bilinear", "zoh", "dirac"):
            raise ValueError(f'S5: `discretization` must be "bilinear", "zoh" or "dirac", got {discretization!r}')
        check_count(self, d_model=d_model, d_state=d_state)
        check_step_sizes(self, dt_min, dt_max)
        check_number(self, "a number", lambda value: True, step_rescale=step_rescale)
        self.d_model = d_model
        self.d_state = d_state
        self.discretization = discretization
        self.conj_sym = conj_sym
        self.step_rescale = step_rescale
        self.use_fast_path = use_fast_path
        self.reverse = reverse
        self.bidirectional = bidirectional
        self._steps = (dt_min, dt_max)

        parts = {"device": device, "dtype": torch.float32}
        self.A = nn.Parameter(torch.empty(d_state, 2, **parts))
        self.B = nn.Parameter(torch.empty(d_state, d_model, 2, **parts))
        self.C = nn.Parameter(torch.empty(d_model, d_state, 2, **parts))
        self.D = nn.Parameter(torch.empty(d_model, device=device))
        self.log_dt: nn.Parameter = nn.Parameter(torch.empty(d_state, device=device))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws all parameters again, as the constructor does."""
        size = 2 * self.d_state if self.conj_sym else self.d_state
        eigenvalues, vectors = _hippo(size)
        # the first one of each conjugate pair is kept: eigenvalues are in the order of their imaginary parts
        eigenvalues, vectors = eigenvalues[: self.d_state], vectors[:, : self.d_state]
        scale = size**-0.5
        B = scale * torch.randn(size, self.d_model, dtype=torch.float64, device="cpu")
        C = scale * torch.view_as_complex(torch.randn(self.d_model, size, 2, dtype=torch.float64, device="cpu"))
        for parameter, value in ((self.A, eigenvalues), (self.B, vectors.mH @ B.to(vectors.dtype)), (self.C, C @ vectors)):
            parameter.copy_(torch.view_as_real(value.resolve_conj()))
        self.D.normal_(std=0.1)
        low, high = (math.log(limit) for limit in self._steps)
        self.log_dt.uniform_(low, high)

    def extra_repr(self) -> str:
        return f"{self.d_model}, d_state={self.d_state}, discretization={self.discretization!r}, conj_sym={self.conj_sym}"

    def _continuous(self):
        """A, B, C and step sizes."""
        check_real(self, A=self.A)
        maps = (torch.view_as_complex(_wide(part).contiguous()) for part in (self.A, self.B, self.C))
        return *maps, _wide(self.log_dt).exp() * self.step_rescale

    def forward(
        self,
        x: Tensor,
        integration_timesteps: Tensor | Cache | None = None,
        lengths: Tensor | None = None,
        inference_cache: Cache | dict[str, Any] | None = None,
        context: Context | None = None,
    ) -> Tensor:
        """The layer on a sequence.

        Args:
            x: (batch, seqlen, d_model).
            integration_timesteps: (batch, seqlen), or with a last axis of 1: the time before each step, in units of dt, by which
                states decay; one unit everywhere if it is None. A cache in its place is `inference_cache`.
            lengths: taken as the origin takes it; no step sees a later one, so that rows may be longer than their sequences. It
                does not go with the other direction.
            inference_cache: from `cache`, or from `allocate_inference_cache`. Where it has seen steps the layer goes on from its
                state, by any number of steps; either way it leaves its state there. For use without gradients.
            context: of `statescan.distributed`, where x is this rank's slice; it does not go with a cache.
        """
        if isinstance(integration_timesteps, Cache):
            integration_timesteps, inference_cache = None, integration_timesteps
        no_cache_of_ranks(self, inference_cache, context)
        check_input(self, "x", x)
        check_times(self, integration_timesteps, x.shape[:2])
        if inference_cache is None:
            return self._in_directions(x, integration_timesteps, lengths, context)
        if isinstance(inference_cache, Cache):
            (state,), goes_on = states_of(self, inference_cache, x.shape[0])
        else:
            only_forwards(self, "a cache")
            check_memory(self, inference_cache, x.shape[0])
            state, goes_on = inference_cache["ssm_state"], inference_cache["seqlen_offset"] > 0
        if goes_on and x.shape[1] == 1:
            y = self._one_step(x.squeeze(1), state, self._continuous(), integration_timesteps)
        else:
            y, last_state = self._scan(x, integration_timesteps, state if goes_on else None)
            state.copy_(last_state)
        count_steps(inference_cache, x.shape[1])
        return y

    def _in_directions(self, x, times, lengths, context):
        """The layer without states, in its direction or as the sum of both."""
        if not (self.reverse or self.bidirectional):
            return self._scan(x, times, context=context)[0]
        if lengths is not None:
            raise ValueError("S5: `lengths` does not go with `reverse` and `bidirectional`, for which padding comes first")
        if times is not None and context is not None:
            raise ValueError("S5: `integration_timesteps` does not go with `context` in the other direction")
        # the time between two steps is that before the later one
        behind = None if times is None else times.roll(-1, 1)
        y = self._scan(x, behind, context=context, reverse=True)[0]
        return self._scan(x, times, context=context)[0] + y if self.bidirectional else y

    def _scan(self, x, times, state=None, context=None, reverse=False):
        """The layer in one direction, and the state behind it."""
        A, B, C, dt = self._continuous()
        steps, decay_steps = dt, None
        if times is not None:
            decay_steps = times.reshape(x.shape[0], 1, x.shape[1]).to(dt.dtype) * dt[:, None]
            steps = dt[:, None].expand_as(decay_steps)
        y, last_state = functions.s5_inner_fn(
            x.transpose(1, 2),
            steps,
            A,
            B,
            C,
            self.D,
            decay_steps,
            self.discretization,
            self.conj_sym,
            initial_state=state,
            return_last_state=True,
            reverse=reverse,
            context=context,
        )
        return y.transpose(1, 2).to(x.dtype), last_state

    def step(
        self, x: Tensor, inference_cache: dict[str, Any], integration_timesteps: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """The layer on one step, (batch, 1, d_model) or (batch, d_model); the cache is changed in place, and returned behind."""
        only_forwards(self, "a step")
        x = x.squeeze(1) if x.dim() == 3 else x
        if x.dim() != 2 or x.shape[1] != self.d_model:
            expected = f"(batch, 1, d_model) or (batch, d_model), d_model being {self.d_model}"
            raise ValueError(f"S5: a step takes `x` of shape {expected}, got {tuple(x.shape)}")
        check_times(self, integration_timesteps, x.shape[:1])
        check_memory(self, inference_cache, x.shape[0])
        maps = tuple(inference_cache[name] for name in ("A", "B_tilde", "C_tilde", "dt"))
        y = self._one_step(x, inference_cache["ssm_state"], maps, integration_timesteps)
        inference_cache["seqlen_offset"] += 1
        return y, inference_cache

    def _one_step(self, x, state, maps, times):
        """The layer on (batch, d_model), which changes the state: (batch, 1, d_model)."""
        A, B, C, dt = maps
        decay_steps = None if times is None else times.reshape(-1, 1).to(dt.dtype) * dt
        y = functions.simplified_state_update(
            state,
            x,
            dt if decay_steps is None else dt.expand_as(decay_steps),
            A,
            B,
            C,
            self.D,
            decay_steps,
            discretization=self.discretization,
            conj_sym=self.conj_sym,
        )
        return y.unsqueeze(1).to(x.dtype)

    def cache(self, batch_size: int, dtype: torch.dtype | None = None) -> Cache:
        """Makes the cache that sequences go on from: ``layer(x, cache)`` takes a prompt, and then one step or many at a time."""
        only_forwards(self, "a cache")
        return Cache((self.allocate_inference_cache(batch_size, 0, dtype)["ssm_state"],))

    @torch.no_grad()
    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """A state of zeros, the maps that steps use, and how many steps there were. The state is complex128 where a parameter is
        float64, or `dtype` is: inputs in float64 go with such a one."""
        A, B, C, dt = self._continuous()
        kind = torch.promote_types(torch.promote_types(A.dtype, dt.dtype), torch.promote_types(self.D.dtype, dtype or A.dtype))
        state = torch.zeros(batch_size, self.d_state, dtype=kind, device=A.device)
        return {"ssm_state": state, "A": A, "B_tilde": B, "C_tilde": C, "dt": dt, "seqlen_offset": 0}
