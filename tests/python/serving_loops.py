"""Plain loops in float64 of what serving engines compute of a row of tokens, with the state after each token."""

import torch
from torch.nn.functional import silu, softplus


def scan(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus=True):
    """y of (tokens, nheads, dim), and the states, (nheads, dim, dstate)."""
    ys, states = [], []
    ratio = x.shape[1] // B.shape[1]
    for t in range(x.shape[0]):
        step = dt[t] + dt_bias
        step = softplus(step) if dt_softplus else step
        b, c = (M[t].repeat_interleave(ratio, 0)[:, None] for M in (B, C))
        state = torch.exp(step[..., None] * A) * state + (step * x[t])[..., None] * b
        y = (state * c).sum(-1) + D * x[t]
        ys.append(y if z is None else y * silu(z[t]))
        states.append(state)
    return (torch.stack(ys) if ys else x), states


def delta(state, q, k, v, g, beta, scale=None, norm=True):
    """y of (tokens, value_heads, value_width), and the states, (value_heads, value_width, key_width)."""
    ys, states = [], []
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if norm:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q, k))
    for t in range(v.shape[0]):
        decay = g[t].exp()
        state = state * (decay[:, None, None] if decay.dim() == 1 else decay[:, None])
        wrong = v[t] - (state @ k[t][..., None])[..., 0]
        state = state + (beta[t][:, None] * wrong)[..., None] * k[t][:, None]
        ys.append(scale * (state @ q[t][..., None])[..., 0])
        states.append(state)
    return (torch.stack(ys) if ys else v), states


def convolution(before, x, weight, bias):
    """y of (tokens, dim) after silu, and the last width - 1 inputs after each token, (dim, width - 1)."""
    ys, states = [], []
    for t in range(x.shape[0]):
        window = torch.cat([before, x[t][:, None]], 1)
        ys.append(silu((window * weight).sum(1) + bias))
        before = window[:, 1:]
        states.append(before)
    return (torch.stack(ys) if ys else x), states
