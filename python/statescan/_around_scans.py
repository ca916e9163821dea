"""What layers compute around their scans: convolutions, norms, and Mamba-3's maps."""

from typing import Literal, NoReturn, overload

from . import _dispatch, _exact
from ._operations import CAUSAL_CONV1D, NORM, TURNED_MAPS
from ._pool import State
from ._steps import causal_conv1d_update
from ._types import Activation, Array, Context, Kind, Out, T


# fmt: off
@overload
def causal_conv1d(
    x: T, weight: Array, bias: Array | None = None, *, activation: Activation = None, initial_states: State | None = None,
    seq_idx: Array | None = None, return_final_states: Literal[False] = False, reverse: bool = False,
    cu_seqlens: Array | None = None, context: Context | None = None,
    exact: bool = False, out: Out = None
) -> T: ...
@overload
def causal_conv1d(
    x: T, weight: Array, bias: Array | None = None, *, activation: Activation = None, initial_states: State | None = None,
    seq_idx: Array | None = None, return_final_states: Literal[True], reverse: bool = False, cu_seqlens: Array | None = None,
    context: Context | None = None,
    exact: bool = False, out: Out = None
) -> tuple[T, T]: ...
@overload
def causal_conv1d(
    x: T, weight: Array, bias: Array | None = None, *, activation: Activation = None, initial_states: State | None = None,
    seq_idx: Array | None = None, return_final_states: bool = False, reverse: bool = False, cu_seqlens: Array | None = None,
    context: Context | None = None,
    exact: bool = False, out: Out = None
) -> T | tuple[T, T]: ...
# fmt: on
def causal_conv1d(
    x: T,
    weight: Array,
    bias: Array | None = None,
    *,
    activation: Activation = None,
    initial_states: State | None = None,
    seq_idx: Array | None = None,
    return_final_states: bool = False,
    reverse: bool = False,
    cu_seqlens: Array | None = None,
    context: Context | None = None,
    exact: bool = False,
    out: Out = None,
    **renamed: NoReturn,
) -> T | tuple[T, T]:
    """Causal depthwise convolution over time: ``y[t] = bias + sum_k weight[k] x[t - (width - 1) + k]``, then the activation.

    Args:
        x: (batch, dim, seqlen).
        weight: (dim, width), width 2 to 8; the last tap is the present.
        bias: (dim,).
        activation: None, "silu" or "swish".
        initial_states: (batch, dim, width - 1), the inputs before the first step, the latest last.
        seq_idx: (batch, seqlen), as in `selective_scan`. Steps with a negative value are padding, where y is zero; there is none
            where initial states are (batch, sequences, dim, width - 1).
        return_final_states: whether to return the last width - 1 inputs, too.
        reverse: convolve from the last step to the first; states are then in the order in which it walks.
        cu_seqlens: (sequences + 1,), as in `selective_scan`; states are (sequences, dim, width - 1).
        context, exact, out: as in `selective_scan`.

    Returns:
        y, of x's shape and type; with `return_final_states` also the final states, shaped as the initial states, of x's type.

    Examples:
        >>> y = causal_conv1d(torch.randn(2, 8, 20), torch.randn(8, 4), activation="silu")
        >>> y.shape
        torch.Size([2, 8, 20])
    """
    if renamed:
        _dispatch.refuse_keyword(CAUSAL_CONV1D, renamed)
    tensors = (x, weight, bias, initial_states, cu_seqlens, seq_idx)
    options = (activation, reverse)
    if exact:
        own, excluded = {"activation": activation}, {"reverse": reverse, "context": context, "out": out}
        y, final_states = _exact.scan(CAUSAL_CONV1D, causal_conv1d_update, tensors, options, own, excluded)
    else:
        y, final_states = _dispatch.call(CAUSAL_CONV1D, tensors, options, context, out)
    return (y, final_states) if return_final_states else y


# fmt: off
@overload
def norm(
    x: T, weight: Array | None = None, bias: Array | None = None, *, z: Array | None = None, residual: None = None,
    residual_scale: None = None, kind: Kind = "rms", eps: float = 1e-5, groups: int = 1, norm_before_gate: bool = False,
    out: Out = None
) -> T: ...
@overload
def norm(
    x: T, weight: Array | None = None, bias: Array | None = None, *, z: Array | None = None, residual: Array,
    residual_scale: None = None, kind: Kind = "rms", eps: float = 1e-5, groups: int = 1, norm_before_gate: bool = False,
    out: Out = None
) -> tuple[T, T]: ...
@overload
def norm(
    x: T, weight: Array | None = None, bias: Array | None = None, *, z: Array | None = None, residual: Array,
    residual_scale: Array, kind: Kind = "rms", eps: float = 1e-5, groups: int = 1, norm_before_gate: bool = False,
    out: Out = None
) -> T: ...
@overload
def norm(
    x: T, weight: Array | None = None, bias: Array | None = None, *, z: Array | None = None, residual: Array | None = None,
    residual_scale: Array | None = None, kind: Kind = "rms", eps: float = 1e-5, groups: int = 1, norm_before_gate: bool = False,
    out: Out = None
) -> T | tuple[T, T]: ...
# fmt: on
def norm(
    x: T,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    z: Array | None = None,
    residual: Array | None = None,
    residual_scale: Array | None = None,
    kind: Kind = "rms",
    eps: float = 1e-5,
    groups: int = 1,
    norm_before_gate: bool = False,
    out: Out = None,
    **renamed: NoReturn,
) -> T | tuple[T, T]:
    """RMS or layer norm of rows: ``weight norm(s silu(z)) + bias`` or ``silu(z) (weight norm(s) + bias)``, ``s = x + residual``.

    Args:
        x: (.., dim), with up to three leading axes.
        weight, bias: (dim,).
        z: as x, gate.
        residual: as x, added to it first.
        residual_scale: (.., 1), multiplies each row of the residual.
        kind: "rms", or "layer", which subtracts the mean, or "none", which leaves rows as they are.
        eps: added to the mean square, 0 or more.
        groups: equal groups of neighbouring channels, each normed by itself.
        norm_before_gate: whether the gate multiplies the normed row, and not what is normed.
        out: an array for y, or one each for y and the sum, as in `selective_scan`.

    Returns:
        y, of x's shape and type; with a residual that has no scale also the sum, of the residual's type.

    Examples:
        >>> norm(torch.tensor([3.0, 4.0]), eps=0.0)
        tensor([0.8485, 1.1314])
    """
    if renamed:
        _dispatch.refuse_keyword(NORM, renamed)
    results = _dispatch.call(NORM, (x, weight, bias, z, residual, residual_scale), (kind, eps, groups, norm_before_gate), out=out)
    return results[0] if residual is None or residual_scale is not None else tuple(results)


def turned_maps(maps: T, bias: Array, rate: Array, dt: Array, *, out: Out = None, **renamed: NoReturn) -> tuple[T, T]:
    """Mamba-3's maps of heads: those of groups, biased, and turned in pairs of neighbours by ``sum(pi tanh(rate) dt)`` over time.

    Args:
        maps: (batch, seqlen, 2, ngroups, dstate), both maps of each step, those of queries and of keys.
        bias: (2, nheads, dstate), added first; nheads / ngroups neighbouring heads share a map.
        rate: (batch, seqlen, nheads, angles), rates of the angles, before the tanh. The first angles pairs of columns are turned.
        dt: (batch, seqlen, nheads), step sizes.
        out: an array for the maps, or one each for the maps and the products, as in `selective_scan`.

    Returns:
        The maps of heads, (batch, seqlen, 2, nheads, dstate), of the type of maps; and the products of both maps of each step, of
        dt's shape and type. Angles begin at 0 in each row: products of maps of different steps depend on differences alone.

    Examples:
        >>> maps, bias = torch.randn(2, 20, 2, 1, 8), torch.ones(2, 4, 8)
        >>> turned, dots = turned_maps(maps, bias, torch.randn(2, 20, 4, 2), torch.rand(2, 20, 4))
        >>> turned.shape, dots.shape
        (torch.Size([2, 20, 2, 4, 8]), torch.Size([2, 20, 4]))
    """
    if renamed:
        _dispatch.refuse_keyword(TURNED_MAPS, renamed)
    return _dispatch.call(TURNED_MAPS, (maps, bias, rate, dt), (), out=out)
