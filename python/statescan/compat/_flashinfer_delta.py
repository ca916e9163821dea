"""The gated delta rule of flashinfer 0.7.4, `flashinfer.gdn_prefill` and `flashinfer.gdn_decode`, as `flashinfer` here has it."""

from typing import Any

import torch
from torch import Tensor

from .. import functions
from .._pool import StatePool
from . import _serving as serving
from ._flashinfer_replay import keep_window


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    output: Tensor | None = None,
    output_state: Tensor | None = None,
    state_checkpoints: Tensor | None = None,
    checkpoint_cu_starts: Tensor | None = None,
    checkpoint_every_n_tokens: int = 0,
    use_cp: str | bool = "auto",
    state_indices: Tensor | None = None,
    _cp_chunk_len: int | None = None,
    backend: str = "auto",
    max_seqlen: int | None = None,
    *,
    gate_domain: str = "linear",
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    beta_is_logit: bool = False,
    cu_seqlens_cpu: Any = None,
    output_state_indices: Tensor | None = None,
    checkpoint_state_indices: Tensor | None = None,
    prefix_lens: Tensor | None = None,
) -> Any:
    """The gated delta rule of packed sequences.

    Args:
        q, k, v: (tokens, heads, width), with more heads of v, or of q, than of the others.
        g: (tokens, most heads), the decay itself, one below 1.2e-38 counts as that; with `gate_domain` "log" its logarithm, and
            with `use_gate_in_kernel` a raw gate beside `A_log` and `dt_bias`, (most heads,).
        beta: (tokens, most heads); with `beta_is_logit` it goes through a sigmoid.
        initial_state: (sequences, most heads, value_width, key_width), or with `state_indices` a pool of slots.
        cu_seqlens: (sequences + 1,), the bounds of sequences. `cu_seqlens_cpu` is not looked at.
        output, output_state: are filled with the results; `output_state` is a pool with `state_indices`. Where it is
            `initial_state` itself, states are changed where they lie.
        state_checkpoints: (checkpoints, most heads, value_width, key_width), receives the states after each
            `checkpoint_every_n_tokens` tokens of a sequence, which may be any number. Sequences are scanned piece by piece then.
        checkpoint_cu_starts: (sequences + 1,), where the checkpoints of each sequence begin, or their slots in
            `checkpoint_state_indices`, with which `state_checkpoints` is a pool; a negative one keeps nothing.
        state_indices: (sequences,), the slot of each; a negative one is padding.
        output_state_indices: (sequences,), the slots that are written, if other ones; a negative one of either kind stands for
            zeros, or for nothing that is left, and a sequence without tokens leaves nothing.
        prefix_lens: (sequences,), the tokens of each before this call, from whose first one checkpoints are counted.

    Returns:
        y, (tokens, most heads, value_width); with `output_final_state` also `output_state`.
    """
    every, slots, final = checkpoint_every_n_tokens, output_state_indices, output_final_state
    gate = {"A_log": A_log, "dt_bias": dt_bias}
    _together("checkpoint_every_n_tokens", every, state_checkpoints=state_checkpoints, checkpoint_cu_starts=checkpoint_cu_starts)
    for option, value in {"checkpoint_state_indices": checkpoint_state_indices, "prefix_lens": prefix_lens}.items():
        _together(option, value, checkpoint_every_n_tokens=every)
    _together("state_indices", state_indices, initial_state=initial_state)
    _together("state_indices", state_indices is not None and final, output_state=output_state)
    _together("output_state_indices", slots, state_indices=state_indices, output_state=output_state, output_final_state=final)
    _together("use_gate_in_kernel", use_gate_in_kernel, g=g, **gate)
    if cu_seqlens is None:
        raise TypeError("chunk_gated_delta_rule: `cu_seqlens` must be given")
    if gate_domain not in ("linear", "log"):
        raise ValueError(f"chunk_gated_delta_rule: `gate_domain` must be linear or log, got {gate_domain!r}")
    if q.shape[1] > v.shape[1]:
        # a key for several queries: each has a state of its own
        k, v = (tensor.repeat_interleave(q.shape[1] // v.shape[1], dim=1) for tensor in (k, v))
    if g is not None and gate_domain == "linear" and not use_gate_in_kernel:
        # a chunk's decays are differences of logarithms, which infinite ones have not
        g = g.clamp(min=torch.finfo(torch.float32).tiny).log()
    tensors = [None if tensor is None else tensor[None] for tensor in (q, k, v, g, beta)]
    options = {"scale": scale, "qk_l2norm": use_qk_l2norm_in_kernel, "beta_sigmoid": beta_is_logit and beta is not None}
    options |= gate if use_gate_in_kernel else {}
    states = None if initial_state is None else initial_state.transpose(-1, -2)
    write = state_indices if slots is None else torch.where(cu_seqlens.diff() > 0, slots, -1).to(state_indices.dtype)
    if state_indices is not None and final and output_state is initial_state and not every:
        y, _ = serving.delta_scan(*tensors, **options)(StatePool(states, state_indices, write), cu_seqlens)
        return serving.filled(output, y[0]), output_state
    if state_indices is not None:
        found = states[state_indices.clamp(min=0).long()]
        states = torch.where(state_indices[:, None, None, None] < 0, 0, found)
    if every:
        kept = (every, state_checkpoints, checkpoint_cu_starts, checkpoint_state_indices, prefix_lens)
        y, after = _with_checkpoints(tensors, options, states, cu_seqlens, kept)
    else:
        y, after = serving.delta_scan(*tensors, **options)(states, cu_seqlens)
    y = serving.filled(output, y[0])
    if not final:
        return y
    after = after.transpose(-1, -2)
    if state_indices is None:
        return y, serving.filled(output_state, after)
    serving.put(output_state, write, after)
    return y, output_state


def _together(option, value, **needed):
    """Refuses an option without others that it needs."""

    def lacks(value):
        return value is None or value is False or (type(value) is int and value == 0)

    if not lacks(value) and any(map(lacks, needed.values())):
        names = " and ".join(f"`{name}`" for name in needed)
        raise ValueError(f"chunk_gated_delta_rule: {names} must be given with `{option}`")


def _with_checkpoints(tensors, options, before, cu_seqlens, kept):
    """y and the final states of sequences whose states at the ends of pieces are kept."""
    every, checkpoints, starts, slots, prefixes = kept
    bounds, starts = cu_seqlens.tolist(), starts.tolist()
    prefixes = [0] * len(bounds) if prefixes is None else prefixes.tolist()
    pieces, places, last = [], [], []
    for sequence, (start, stop) in enumerate(zip(bounds, bounds[1:])):
        cuts = range(start + every - prefixes[sequence] % every, stop + 1, every)
        places += [(len(pieces) + number, starts[sequence] + number) for number in range(len(cuts))]
        # an empty sequence is one piece, too, whose state is the initial one
        ends = [*cuts] if stop in cuts else [*cuts, stop]
        pieces += [(begin, end, sequence) for begin, end in zip([start, *ends], ends)]
        last.append(len(pieces) - 1)

    def scan(pool, bounds):
        return functions.gated_delta_rule(*tensors, pool, cu_seqlens=bounds, **options)[0]

    q, _, v, *_ = tensors
    y, states = serving.in_pieces(scan, pieces, before, v, (v.shape[2], q.shape[3], v.shape[3]))
    if places:
        piece, place = torch.tensor(places, device=states.device).t()
        serving.put(checkpoints, place if slots is None else slots[place], states[piece].transpose(-1, -2))
    return y, states[last]


def _decode(states, tensors, read, write, raw, buffer=None, **options):
    """Rows of a token or a few, (batch, tokens, ..), by states with keys first.

    Args:
        read, write: the slots, (batch,), write also (batch, tokens) or None for those that are read; None for row numbers.
        raw: A_log and dt_bias.
        buffer: (batch, tokens, ..) of states, which receives that after each token.
    """
    q, k, v, a, b = tensors
    options |= {"A_log": raw[0], "dt_bias": raw[1], "beta_sigmoid": True}
    if v.shape[1] == 1 and write is None and buffer is None:
        one = [tensor[:, 0] for tensor in tensors]
        return functions.gated_delta_rule_update(states, *one, state_batch_indices=read, **options)[:, None]
    rows, steps = v.shape[:2]
    read = torch.arange(rows, device=v.device) if read is None else read
    write = read if write is None else write.to(read.dtype)
    step = serving.delta_step(*tensors, **options)
    if buffer is not None:
        serving.fill_each(step, states, None, read, buffer[:, :steps])
    return step(states, read, serving.without_padding(read, write), None).reshape(v.shape)


def gated_delta_rule_decode_pretranspose(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
    output: Tensor | None = None,
    use_qk_l2norm: bool = True,
    initial_state: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    output_state_indices: Tensor | None = None,
    intermediate_states_buffer: Tensor | None = None,
    disable_state_update: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """A token or a few of each row from raw gates: the decay is ``exp(-exp(A_log) softplus(a + dt_bias))``, sigmoid(b) is beta.

    Args:
        q, k: (batch, tokens, heads, key_width).
        v: (batch, tokens, value_heads, value_width).
        state: (batch, value_heads, value_width, key_width), or None with `initial_state`.
        A_log, dt_bias: (value_heads,).
        a, b: (batch, tokens, value_heads).
        initial_state, initial_state_indices: a pool, (slots, value_heads, value_width, key_width), and the slot of each row; a
            negative one is padding.
        output_state_indices: (batch,), the slots that are written in the place of those.
        intermediate_states_buffer: (batch, tokens, value_heads, value_width, key_width), receives the state after each token, by
            way of as many states that are made for it.
        disable_state_update: whether the states stay as they are.

    Returns:
        y, shaped as v, and `state` or `initial_state`.
    """
    name = "gated_delta_rule_decode_pretranspose"
    if (initial_state is None) != (initial_state_indices is None) or (initial_state is None) == (state is None):
        raise ValueError(f"{name}: `state` must be given, or `initial_state` with `initial_state_indices`")
    pool = state if initial_state is None else initial_state
    write = output_state_indices
    if disable_state_update:
        write = torch.full((q.shape[0],), -1, device=q.device)
    buffer = None if intermediate_states_buffer is None else intermediate_states_buffer.transpose(-1, -2)
    options = {"scale": scale, "qk_l2norm": use_qk_l2norm}
    y = _decode(pool.transpose(-1, -2), (q, k, v, a, b), initial_state_indices, write, (A_log, dt_bias), buffer=buffer, **options)
    return serving.filled(output, y), pool


def gated_delta_rule_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
    output: Tensor | None = None,
    use_qk_l2norm: bool = True,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """`gated_delta_rule_decode_pretranspose` with a state of (batch, value_heads, key_width, value_width)."""
    y = _decode(state, (q, k, v, a, b), None, None, (A_log, dt_bias), scale=scale, qk_l2norm=use_qk_l2norm)
    return serving.filled(output, y), state


def gated_delta_rule_mtp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor,
    initial_state_indices: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
    output: Tensor | None = None,
    intermediate_states_buffer: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    disable_state_update: bool | None = None,
    use_qk_l2norm: bool = True,
    output_state_indices: Tensor | None = None,
    cache_replayssm: bool = False,
    replayssm_rawv: Tensor | None = None,
    replayssm_rawk: Tensor | None = None,
    replayssm_g: Tensor | None = None,
    replayssm_beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Several tokens of each row, as `gated_delta_rule_decode_pretranspose` with a pool has them.

    Args:
        ssm_state_indices: (batch, tokens), the slots that the states after tokens are left in, and no others.
        disable_state_update: whether the pool stays as it is: True if it is None, as in flashinfer before 0.8.
        cache_replayssm: whether the tokens are kept for `gated_delta_rule_replayssm_commit`, in the slots of these windows; the
            pool must stay as it is, and no states are kept.
        replayssm_rawv, replayssm_rawk: (slots, value_heads, tokens, value_width) and (slots, heads, tokens, key_width).
        replayssm_g, replayssm_beta: (slots, value_heads, tokens), logarithms of decays, and betas.
        (the others): as in `gated_delta_rule_decode_pretranspose`.

    Returns:
        y, shaped as v, and `initial_state`.
    """
    name = "gated_delta_rule_mtp"
    still = True if disable_state_update is None else disable_state_update
    buffer, write = intermediate_states_buffer, output_state_indices
    if cache_replayssm and (not still or buffer is not None):
        other = "disable_state_update=False" if not still else "intermediate_states_buffer"
        raise ValueError(f"{name}: `cache_replayssm` excludes `{other}`")
    if ssm_state_indices is not None and (still or buffer is not None):
        other = "disable_state_update" if still else "intermediate_states_buffer"
        raise ValueError(f"{name}: `ssm_state_indices` excludes `{other}`")
    write = output_state_indices if ssm_state_indices is None else ssm_state_indices
    if still:
        write = torch.full((q.shape[0],), -1, device=q.device)
    tokens, raw = (q, k, v, a, b), (A_log, dt_bias)
    if cache_replayssm:
        windows = {"replayssm_rawv": replayssm_rawv, "replayssm_rawk": replayssm_rawk}
        windows |= {"replayssm_g": replayssm_g, "replayssm_beta": replayssm_beta}
        keep_window(name, windows, initial_state_indices, tokens, raw)
    y = _decode(
        initial_state.transpose(-1, -2),
        tokens,
        initial_state_indices,
        write,
        raw,
        buffer=None if buffer is None else buffer.transpose(-1, -2),
        scale=scale,
        qk_l2norm=use_qk_l2norm,
    )
    return serving.filled(output, y), initial_state
