"""Recurrences of single channels by `linear_scan`: the linear recurrent unit, the real-gated one of Griffin, and S7."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from .. import functions

# the smallest 1 - a^2 that the derivative of its root is taken at, as Griffin's own code has it
_LEAST = 1 / (4 * 1000.0**2)


def _wide(tensor):
    """A tensor in float32 at least: decays near 1 differ by little from it."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _scan(name, a, b, x, initial_state, reset):
    """States in x's type, complex where they are, and the last one; a step where `reset` is set has no state before it."""
    if reset is not None:
        if reset.shape != (x.shape[0], x.shape[2]):
            expected, got = (x.shape[0], x.shape[2]), tuple(reset.shape)
            raise ValueError(f"{name}: `reset` must be of (batch, seqlen), {expected}, got {got}")
        a = torch.where(reset[:, None], 0, a)
    h, state = functions.linear_scan(a, b, initial_state)
    return (h if h.is_complex() else h.to(x.dtype)), state


def _check(name, x, like, channels):
    """Refuses shapes that would be stretched."""
    if x.dim() != 3:
        raise ValueError(f"{name}: `x` must be of (batch, dim, seqlen), got {tuple(x.shape)}")
    for argument, tensor in like.items():
        if tensor.shape != x.shape:
            raise ValueError(f"{name}: `{argument}` must have the shape of `x`, {tuple(x.shape)}, got {tuple(tensor.shape)}")
    for argument, tensor in channels.items():
        if tensor is not None and tensor.shape != x.shape[1:2]:
            raise ValueError(f"{name}: `{argument}` must be of (dim,), ({x.shape[1]},), got {tuple(tensor.shape)}")


def _root(u):
    """The square root, with a derivative that is bounded at 0."""
    near = u.detach().sqrt() + (u - u.detach()) / (2 * _LEAST**0.5)
    return torch.where(u < _LEAST, near, u.clamp(min=_LEAST).sqrt())


def gated(x: Tensor, log_a: Tensor, reset: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Decay and input of RG-LRU, ``a`` and ``sqrt(1 - a^2) x``, by the decay's logarithm; where `reset` is set the input is x."""
    factor = _root(-torch.expm1(2 * log_a))
    if reset is not None:
        factor = torch.where(reset[:, None], 1, factor)
    return log_a.exp(), factor * x


def rg_lru(
    x: Tensor,
    recurrent_gate: Tensor,
    input_gate: Tensor,
    param: Tensor,
    initial_state: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    c: float = 8.0,
) -> tuple[Tensor, Tensor]:
    """The real-gated linear recurrent unit of Griffin: ``a = exp(-c r softplus(param))``, ``h = a h' + sqrt(1 - a^2) i x``.

    Args:
        x: (batch, dim, seqlen).
        recurrent_gate, input_gate: r and i, as x, between 0 and 1.
        param: (dim,).
        initial_state: (batch, dim), the state before the first step.
        reset: (batch, seqlen), bool: steps that begin a text, where ``h = i x``.
        c: the factor of the decay's logarithm.

    Returns:
        h, of x's shape and type, and the state after the last step, (batch, dim), float32 (float64 where x is).

    Examples:
        >>> x, r, i = torch.randn(2, 8, 20), torch.rand(2, 8, 20), torch.rand(2, 8, 20)
        >>> h, state = rg_lru(x, r, i, torch.randn(8))
        >>> h.shape, state.shape
        (torch.Size([2, 8, 20]), torch.Size([2, 8]))
    """
    _check("rg_lru", x, {"recurrent_gate": recurrent_gate, "input_gate": input_gate}, {"param": param})
    log_a = -c * _wide(recurrent_gate) * softplus(_wide(param))[:, None]
    a, b = gated(input_gate * x, log_a, reset)
    return _scan("rg_lru", a, b, x, initial_state, reset)


def lru(
    x: Tensor,
    nu_log: Tensor,
    theta_log: Tensor,
    gamma_log: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The linear recurrent unit: ``a = exp(-exp(nu_log) + i exp(theta_log))``, ``h = a h' + exp(gamma_log) x``.

    Args:
        x: (batch, dim, seqlen), real or complex: inputs by channels of the state, behind the layer's first matrix.
        nu_log, theta_log, gamma_log: (dim,).
        initial_state: (batch, dim), complex, the state before the first step.
        reset: (batch, seqlen), bool: steps that begin a sequence.

    Returns:
        h, of x's shape, complex, and the state after the last step, (batch, dim).

    Examples:
        >>> h, state = lru(torch.randn(2, 8, 20), *torch.randn(3, 8))
        >>> h.dtype, state.shape
        (torch.complex64, torch.Size([2, 8]))
    """
    _check("lru", x, {}, {"nu_log": nu_log, "theta_log": theta_log, "gamma_log": gamma_log})
    a = torch.exp(torch.complex(-_wide(nu_log).exp(), _wide(theta_log).exp()))
    b = x if gamma_log is None else gamma_log.exp()[:, None] * x
    return _scan("lru", a[:, None].expand(x.shape), b, x, initial_state, reset)


def s7(x: Tensor, A: Tensor, initial_state: Tensor | None = None, *, reset: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """S7's recurrence with a decay of each step: ``a = 1 - 1 / (A^2 + 1/2)``, ``h = a h' + x``.

    Args:
        x: (batch, dim, seqlen), real or complex: inputs by channels of the state, behind the layer's matrices.
        A: as x.
        initial_state: (batch, dim), the state before the first step.
        reset: (batch, seqlen), bool: steps that begin a sequence.

    Returns:
        h, of x's shape and type, complex where A is, and the state after the last step, (batch, dim).

    Examples:
        >>> h, state = s7(torch.randn(2, 8, 20), torch.randn(2, 8, 20))
        >>> h.shape, state.shape
        (torch.Size([2, 8, 20]), torch.Size([2, 8]))
    """
    _check("s7", x, {"A": A}, {})
    A = _wide(A)
    return _scan("s7", 1 - 1 / (A * A + 0.5), x, x, initial_state, reset)
