"""SSD in parts, as `mamba_ssm.modules.ssd_minimal` and `mamba_ssm.ops.triton.ssd_chunk_state` have it."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import functions


def segsum(x: Tensor) -> Tensor:
    """(.., T) to (.., T, T): sums of what is behind the second index up to the first, minus infinity where that comes later."""
    steps = x.shape[-1]
    ones = torch.ones(steps, steps, device=x.device, dtype=torch.bool)
    below = x[..., None].expand(*x.shape, steps).masked_fill(~ones.tril(-1), 0)
    return below.cumsum(-2).masked_fill(~ones.tril(), -torch.inf)


def ssd_minimal_discrete(
    X: Tensor, A: Tensor, B: Tensor, C: Tensor, block_len: int, initial_states: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The scan of Listing 1 of Mamba-2's paper: inputs are multiplied by their steps already, and so is A.

    Args:
        X: (batch, seqlen, nheads, headdim).
        A: (batch, seqlen, nheads), the logarithms of decays.
        B, C: (batch, seqlen, nheads, dstate).
        block_len: a hint; any sequence length goes with any.
        initial_states: (batch, 1, nheads, headdim, dstate).

    Returns:
        Y, shaped as X, and the state after the last step, (batch, nheads, headdim, dstate).
    """
    state = None if initial_states is None else initial_states.squeeze(1)
    y, state = functions.ssd(X, torch.ones_like(A), torch.ones_like(A[0, 0]), B, C, block_len, initial_state=state, dt_a=A)
    return y, state.to(X.dtype)


def chunk_state(B: Tensor, x: Tensor, dt: Tensor, dA_cumsum: Tensor, states_in_fp32: bool = True) -> Tensor:
    """The state that each chunk adds to what comes before it, in operations of PyTorch.

    Args:
        B: (batch, seqlen, ngroups, dstate).
        x: (batch, seqlen, nheads, headdim).
        dt, dA_cumsum: (batch, nheads, nchunks, chunk_size): steps, and the sums of dt A within a chunk.
        states_in_fp32: whether the result is float32, and not of B's type.

    Returns:
        (batch, nchunks, nheads, headdim, dstate).
    """
    states = _chunk_state(B.float(), x.float(), dt.float(), dA_cumsum.float())
    return states if states_in_fp32 else states.to(B.dtype)


def chunk_state_ref(B: Tensor, x: Tensor, dt: Tensor, dA_cumsum: Tensor) -> Tensor:
    """`chunk_state` in x's type."""
    return _chunk_state(*(tensor.to(x.dtype) for tensor in (B, x, dt, dA_cumsum)))


def _chunk_state(B, x, dt, dA_cumsum):
    _, nheads, nchunks, chunk_size = dt.shape
    B = B.repeat_interleave(nheads // B.shape[2], 2)
    missing = nchunks * chunk_size - x.shape[1]
    B, x = (pad(tensor, (0, 0, 0, 0, 0, missing)).unflatten(1, (nchunks, chunk_size)) for tensor in (B, x))
    weights = torch.exp(dA_cumsum[..., -1:] - dA_cumsum) * dt
    return torch.einsum("bclhn,bhcl,bclhp->bchpn", B, weights, x)
