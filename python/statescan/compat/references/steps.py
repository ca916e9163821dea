"""One step of a scan."""

import torch
from torch.nn.functional import silu

from ..shared import check_groups, check_shape
from .shared import discretized, step_sizes, wide


def selective_state_update_ref(
    state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, deltaA=None, discretization="mamba"
):
    """`statescan.selective_state_update`; the state is changed in place."""
    heads = state.dim() == 4
    before, *streams, A, D, dt_bias, B, C = wide(state, x, dt, z, deltaA, A, D, dt_bias, B, C)
    if not heads:
        # one head, whose channels are the input's
        before, B, C = before[:, None], B.view(len(B), -1, B.shape[-1]), C.view(len(C), -1, C.shape[-1])
        streams = [None if t is None else t[:, None] for t in streams]
        A, D, dt_bias = (None if t is None else t[None] for t in (A, D, dt_bias))
    inputs, dt, z, deltaA = streams
    # (batch, ngroups, dstate) for heads, and for channels where there is one head
    axis = 1 if heads else 2
    size = before.shape[axis]
    B, C = (m[:, :, None] if heads else m[:, None] for m in (B, C))
    for name, map in (("B", B), ("C", C)):
        check_groups("selective_state_update_ref", name, map.shape[axis], size, "heads" if heads else "channels of x")
    B, C = (m.repeat_interleave(size // m.shape[axis], axis) for m in (B, C))
    step = step_sizes(dt, dt_bias, dt_softplus)
    decay, gain = discretized(discretization, step[..., None], (step if deltaA is None else deltaA)[..., None], A)
    after = decay * before + gain * B * inputs[..., None]
    y = (C * after).sum(-1)
    y = 2 * y.real if y.is_complex() else y
    y = y if D is None else y + D * inputs
    y = (y if z is None else y * silu(z)).to(x.dtype)
    with torch.no_grad():
        state.copy_(after if heads else after[:, 0])
    return y if heads else y[:, 0]


def simplified_state_update_ref(state, x, dt, A, B, C, D=None, deltaA=None, discretization="bilinear", conj_sym=True):
    """`lrnnx.ops.triton.simplified_state_update`; the state is changed in place."""
    if D is not None and D.dim() == 2:
        check_shape("simplified_state_update_ref", "D", D, (x.shape[1], x.shape[1]))
    before, inputs, dt, A, B, C, D, deltaA = wide(state, x, dt, A.flatten(), B, C, D, deltaA)
    decay, gain = discretized(discretization, dt, dt if deltaA is None else deltaA, A)
    after = decay * before + gain * (inputs.to(B.dtype) @ B.T)
    y = (2 if conj_sym else 1) * (after @ C.T).real
    if D is not None:
        y = y + (inputs @ D.T if D.dim() == 2 else inputs * D)
    with torch.no_grad():
        state.copy_(after)
    return y.to(x.dtype)
