"""Drafts of which the tokens are kept in the place of states: a state after those that are accepted is computed again.

A token takes key_width + value_width + 2 numbers for each head in the place of key_width value_width.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from . import _serving as serving


def keep_window(name, windows, slots, tokens, raw):
    """Leaves the keys, values, decays and betas of rows in their slots of `windows`, as `gated_delta_rule_mtp` has them."""
    _, k, v, a, b = tokens
    shapes = {
        "replayssm_rawv": (v.shape[2], v.shape[1], v.shape[3]),
        "replayssm_rawk": (k.shape[2], k.shape[1], k.shape[3]),
        "replayssm_g": (v.shape[2], v.shape[1]),
        "replayssm_beta": (v.shape[2], v.shape[1]),
    }
    for argument, shape in shapes.items():
        window = windows[argument]
        if window is None or window.shape[1:] != shape:
            found = "None" if window is None else tuple(window.shape)
            raise ValueError(f"{name}: `{argument}` must be of shape (slots, {', '.join(map(str, shape))}), got {found}")
    A_log, dt_bias = raw
    of_gates = windows["replayssm_g"].dtype
    log_decay = -A_log.to(of_gates).exp() * softplus(a.to(of_gates) + dt_bias.to(of_gates))
    made = (v, k, log_decay, b.to(windows["replayssm_beta"].dtype).sigmoid())
    for window, values in zip(windows.values(), made):
        serving.put(window, slots, values.transpose(1, 2))


def gated_delta_rule_replayssm_commit(
    checkpoint_state: Tensor,
    rawv_cache: Tensor,
    rawk_cache: Tensor,
    g_cache: Tensor,
    beta_cache: Tensor,
    state_indices: Tensor,
    accept_lens: Tensor,
    *,
    track_state_indices: Tensor | None = None,
    track_steps: Tensor | None = None,
    use_qk_l2norm: bool = True,
    null_block_id: int = -1,
    backend: str = "auto",
) -> None:
    """Moves the states of all layers past the tokens of a draft that are accepted, which `gated_delta_rule_mtp` has kept.

    Args:
        checkpoint_state: (layers, slots, value_heads, value_width, key_width), changed in place.
        rawv_cache, rawk_cache: (layers, slots, value_heads, tokens, value_width) and (layers, slots, heads, tokens, key_width).
        g_cache, beta_cache: (layers, slots, value_heads, tokens), logarithms of decays, and betas.
        state_indices: (batch,), slots, each once; one that is not above `null_block_id` is padding.
        accept_lens: (batch,), tokens that are accepted, from 0; what others are, NaN too, changes nothing.
        track_state_indices, track_steps: (batch,), slots apart from those that receive the states after these tokens, from 0, if
            they are accepted; both or neither.
        use_qk_l2norm: whether keys are divided by their lengths, as in the call that has kept them.
    """
    name = "gated_delta_rule_replayssm_commit"
    layers, slots = checkpoint_state.shape[:2]
    tokens = rawk_cache.shape[3]
    if (track_state_indices is None) != (track_steps is None):
        raise ValueError(f"{name}: `track_state_indices` and `track_steps` must be given together")
    for argument, cache in {
        "rawv_cache": rawv_cache,
        "rawk_cache": rawk_cache,
        "g_cache": g_cache,
        "beta_cache": beta_cache,
    }.items():
        if cache.shape[:2] != (layers, slots) or cache.shape[3] != tokens:
            words = f"must be of shape ({layers}, {slots}, heads, {tokens}, ..)"
            raise ValueError(f"{name}: `{argument}` {words}, got {tuple(cache.shape)}")
    live = (state_indices > null_block_id) & (accept_lens > 0)
    numbers = torch.arange(tokens + 1, device=checkpoint_state.device)
    # one token more, which changes nothing: the state after the last accepted one goes to two places
    kept = numbers < accept_lens[:, None]
    write = torch.where(live[:, None] & (numbers == tokens), state_indices[:, None], -1)
    if track_steps is not None:
        tracked = live & (track_state_indices > null_block_id) & (track_steps < accept_lens)
        write = torch.where(tracked[:, None] & (numbers == track_steps[:, None]), track_state_indices[:, None], write)

    def window(cache):
        rows = cache[:, state_indices.clamp(min=0).long()].transpose(2, 3)
        rows = pad(rows, (0, 0) * (rows.dim() - 3) + (0, 1))
        return torch.where(kept.view(1, *kept.shape, *[1] * (rows.dim() - 3)), rows, 0).flatten(0, 1)

    def of_layers(indices):
        first = torch.arange(layers, device=indices.device).view(-1, *[1] * indices.dim()) * slots
        return torch.where(indices < 0, -1, indices + first).flatten(0, 1)

    k, v, g, beta = (window(cache) for cache in (rawk_cache, rawv_cache, g_cache, beta_cache))
    step = serving.delta_step(k, k, v, g, beta, qk_l2norm=use_qk_l2norm)
    bounds = serving.even_bounds(k.shape[0], tokens + 1, k.device)
    step(
        checkpoint_state.flatten(0, 1).transpose(-1, -2),
        of_layers(torch.where(live, state_indices, -1)),
        of_layers(write),
        bounds,
    )
