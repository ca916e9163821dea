"""The scans."""

import torch
from torch.nn.functional import silu

from ..shared import as_complex, check_groups
from .shared import discretized, state_type, step_sizes, wide


def _scan(x, step, A, B, C, decay_step=None, rule="mamba"):
    """The recurrence of heads: x (batch, seqlen, nheads, headdim), steps alike, A (nheads, headdim, dstate), maps (batch, seqlen,
    nheads, 1, dstate). Gives y, shaped as x, and the last state."""
    state, outputs = A.new_zeros(x.shape[0], *x.shape[2:], B.shape[-1]), []
    steps = (t.unbind(1) for t in (x, step, step if decay_step is None else decay_step, B, C))
    for x_t, step_t, decay_t, B_t, C_t in zip(*steps):
        decay, gain = discretized(rule, step_t[..., None], decay_t[..., None], A)
        state = decay * state + gain * B_t * x_t[..., None]
        y = (C_t * state).sum(-1)
        outputs.append(2 * y.real if y.is_complex() else y)
    return torch.stack(outputs, 1) if outputs else x, state


def _map_of_channels(name, map, is_complex, x):
    """A map of the selective scan as (batch, seqlen, dim, 1, dstate)."""
    batch, dim, seqlen = x.shape
    if map.dim() == 2:
        return map[:, None].expand(batch, seqlen, dim, 1, map.shape[1])
    if is_complex and not map.is_complex():
        map = as_complex(map)
    map = map[:, None] if map.dim() == 3 else map
    check_groups("selective_scan_ref", name, map.shape[1], dim, "channels of u")
    return map.repeat_interleave(dim // map.shape[1], 1).permute(0, 3, 1, 2)[..., None, :]


def selective_scan_ref(
    u,
    delta,
    A,
    B,
    C,
    D=None,
    z=None,
    delta_bias=None,
    delta_softplus=False,
    return_last_state=False,
    *,
    deltaA=None,
    rule="mamba",
):
    """`mamba_ssm.selective_scan_fn`; `deltaA` and `rule`, the discretization, are those of `lrnnx`."""
    x, delta, A, B, C, D, z, bias, deltaA = wide(u, delta, A, B, C, D, z, delta_bias, deltaA)
    delta = step_sizes(delta, None if bias is None else bias[:, None], delta_softplus)
    B, C = (_map_of_channels(name, map, A.is_complex(), x) for name, map in (("B", B), ("C", C)))
    in_time = [None if t is None else t.transpose(1, 2)[..., None] for t in (x, delta, deltaA)]
    y, state = _scan(*in_time[:2], A[:, None], B, C, in_time[2], rule)
    y = y.squeeze(-1).transpose(1, 2)
    y = y if D is None else y + D[:, None] * x
    y = (y if z is None else y * silu(z)).to(u.dtype)
    return (y, state.squeeze(2).to(state_type(u, A.is_complex()))) if return_last_state else y


def head_scan(x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit=None):
    """Mamba-2's scan of wide tensors, with time before heads; A is (nheads,) or (nheads, headdim, dstate)."""
    heads = x.shape[2]
    per_channel = dt if dt.dim() == 4 else dt[..., None]
    if dt_bias is not None and dt_bias.dim() == 1:
        dt_bias = dt_bias[:, None]
    A = A[:, None, None] if A.dim() == 1 else A.unflatten(0, x.shape[2:])
    for name, map in (("B", B), ("C", C)):
        check_groups("ssd_chunk_scan_combined_ref", name, map.shape[2], heads, "heads")
    B, C = (map.repeat_interleave(heads // map.shape[2], 2)[..., None, :] for map in (B, C))
    y, _ = _scan(x, step_sizes(per_channel, dt_bias, dt_softplus, dt_limit).expand_as(x), A, B, C)
    if D is not None:
        y = y + (D[:, None] if D.dim() == 1 else D) * x
    return y if z is None else y * silu(z)


def ssd_chunk_scan_combined_ref(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, dt_softplus=False):
    """`mamba_ssm.ops.triton.ssd_combined.mamba_chunk_scan`."""
    return head_scan(*wide(x, dt, A, B, C, D, z, dt_bias), dt_softplus).to(x.dtype)


def simplified_scan_ref(u, delta, A, B, C, deltaA=None, return_last_state=False, discretization="bilinear"):
    """`statescan.simplified_scan_fn` from a state of zeros."""
    inputs, delta, A, B, C, deltaA = wide(u, delta, A.flatten(), B, C, deltaA)
    inputs, A, B, C = (t.to(torch.complex128) for t in (inputs, A, B, C))
    delta, deltaA = (t if t is None or t.dim() == 3 else t[:, None].expand(len(u), -1, u.shape[2]) for t in (delta, deltaA))
    state, outputs = A.new_zeros(u.shape[0], A.shape[0]), []
    for t in range(u.shape[2]):
        decay, gain = discretized(discretization, delta[..., t], (delta if deltaA is None else deltaA)[..., t], A)
        state = decay * state + gain * (inputs[..., t] @ B.T)
        outputs.append(state @ C.T)
    kind = state_type(u, True)
    y = (torch.stack(outputs, -1) if outputs else inputs).to(kind)
    return (y, state.to(kind)) if return_last_state else y


def s5_inner_ref(u, delta, A, B, C, D, deltaA=None, discretization="bilinear", conj_sym=True):
    """`statescan.s5_inner_fn` from a state of zeros."""
    inputs, D = wide(u, D)
    y = simplified_scan_ref(inputs, delta, A, B, C, deltaA, discretization=discretization)
    y = (2 if conj_sym else 1) * y.real + D[:, None] * (inputs.real if inputs.is_complex() else inputs)
    return y.to(state_type(u, False) if u.is_complex() else u.dtype)
