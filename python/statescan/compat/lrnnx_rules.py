"""Drop-in for RG-LRU and S7 of `lrnnx` 1.0, by `linear_scan`. Every result is differentiable, last states included."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear

from .. import functions
from .._linear_scan_update import linear_scan_update
from ..derived.rules import gated, lru, s7

__all__ = ["rglru_inner_fn", "rglru_scan_fn", "s7_inner_fn", "s7_scan_fn"]


def lru_forward(self: Any, x: Tensor, integration_timesteps: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
    """The method `forward` of the origin's layer `LRU`, which has no function for its scan: x is (batch, seqlen, d_model)."""
    if x.dim() != 3:
        raise ValueError(f"LRU: `x` must be of (batch, seqlen, d_model), got {tuple(x.shape)}")
    inputs = torch.complex(x @ self.B_re.T, x @ self.B_im.T).transpose(1, 2)
    h = lru(inputs, self.nu_log, self.theta_log, self.gamma_log)[0].transpose(1, 2)
    return h.real @ self.C_re.T - h.imag @ self.C_im.T + x * self.D


def rglru_scan_fn(u: Tensor, delta: Tensor, A: Tensor, return_last_state: bool = False) -> Any:
    """RG-LRU's scan: ``a = A ** delta``, ``h = a h' + sqrt(1 - a^2) u``, and sums of h over the states of a channel.

    Args:
        u, delta: (batch, dim, seqlen).
        A: (dim, dstate), between 0 and 1.
        return_last_state: whether to return the last state, too.

    Returns:
        (batch, dim, seqlen), of u's type, and the last state, (batch, dim, dstate).
    """
    a, b = gated(u[:, :, None], delta[:, :, None].float() * A.float().log()[..., None])
    h, state = functions.linear_scan(a, b)
    y = h.sum(2).to(u.dtype)
    return (y, state) if return_last_state else y


def rglru_inner_fn(
    x: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    a: Tensor,
    recurrent_gate_weight: Tensor,
    recurrent_gate_bias: Tensor,
    input_gate_weight: Tensor,
    input_gate_bias: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    gate: Tensor,
    c: float = 8.0,
) -> Tensor:
    """Computes an RG-LRU layer behind its first projections: convolution, gates, scan, and the last projection.

    Args:
        x: (batch, dim, seqlen).
        conv1d_weight, conv1d_bias: (dim, 1, width) and (dim,).
        a: (dim,) or (dim, dstate), between 0 and 1.
        recurrent_gate_weight, input_gate_weight: (dim, dim), and biases of (dim,).
        out_proj_weight, out_proj_bias: (out, dim) and (out,).
        gate: (batch, seqlen, dim).
        c: the factor of the decay's logarithm.

    Returns:
        (batch, seqlen, out), of x's type.
    """
    convolved = functions.causal_conv1d(x, conv1d_weight.squeeze(1), conv1d_bias).float()
    in_time = convolved.transpose(1, 2)
    recurrent = linear(in_time, recurrent_gate_weight.float(), recurrent_gate_bias.float()).sigmoid()
    given = linear(in_time, input_gate_weight.float(), input_gate_bias.float()).sigmoid()
    delta, u = (c * recurrent).transpose(1, 2), (given * in_time).transpose(1, 2)
    y = rglru_scan_fn(u, delta, a[:, None] if a.dim() == 1 else a)
    bias = None if out_proj_bias is None else out_proj_bias.float()
    return linear(gate.float() * y.transpose(1, 2), out_proj_weight.float(), bias).to(x.dtype)


def s7_scan_fn(u: Tensor, A: Tensor, B: Tensor, C: Tensor, bias: Tensor | None = None, return_last_state: bool = False) -> Any:
    """S7's scan with maps of each step: ``h = (1 - 1 / (A^2 + 1/2)) h' + B u + bias``, ``y = C h``.

    Args:
        u: (batch, dim, seqlen).
        A, bias: (batch, dstate, seqlen).
        B: (batch, dstate, dim, seqlen).
        C: (batch, dim, dstate, seqlen).
        return_last_state: whether to return the last state, too.

    Returns:
        (batch, dim, seqlen), of u's type, and the last state, (batch, dstate).
    """
    b = torch.einsum("bnhl,bhl->bnl", B.float(), u.float())
    h, state = s7(b if bias is None else b + bias, A)
    y = torch.einsum("bhnl,bnl->bhl", C.float(), h).to(u.dtype)
    return (y, state) if return_last_state else y


def s7_inner_fn(
    hidden_states: Tensor,
    in_proj_weight: Tensor,
    x_proj_weight: Tensor,
    gate_proj_weight: Tensor,
    d_state: int,
    base_params: Tensor,
) -> Tensor:
    """S7's whole layer: projections, scan, gate and the sum with its input.

    Args:
        hidden_states: (batch, seqlen, dim).
        in_proj_weight, gate_proj_weight: (dim, dim).
        x_proj_weight: (2 d_state + 2 dim d_state + dim, dim), rows of A, B, C, the skip, and the scan's bias.
        d_state: the number of states.
        base_params: (d_state,), added to A.

    Returns:
        (batch, seqlen, dim).
    """
    dim = hidden_states.shape[2]
    x = linear(hidden_states, in_proj_weight)
    sizes = [d_state, dim * d_state, dim * d_state, dim, d_state]
    A, B, C, D, bias = linear(x, x_proj_weight).transpose(1, 2).split(sizes, 1)
    B, C = B.unflatten(1, (dim, d_state)).transpose(1, 2), C.unflatten(1, (dim, d_state))
    u = x.transpose(1, 2)
    y = (s7_scan_fn(u, A + base_params[:, None], B, C, bias) + D * u).transpose(1, 2)
    return linear(gelu(y), gate_proj_weight).sigmoid() * y + hidden_states


def state_update(state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, rule: str) -> Tensor:
    """One step of either scan, as `selective_state_update` of the origin has it; `dt` is RG-LRU's delta, or S7's A."""
    if rule == "rglru":
        a, b = gated(x[..., None], dt[..., None] * A.log())
    else:
        dt = dt[..., None]
        a, b = (1 - 1 / (dt * dt + 0.5)).expand_as(state), x[..., None].expand_as(state)
    h = linear_scan_update(state, a, b * B[:, None])
    return (h * C[:, None]).sum(-1).to(x.dtype)
