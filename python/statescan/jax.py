"""Functions that compute layers of Mamba and Mamba-2 behind their first projection, on JAX arrays.

The functions are those that the layers of `statescan.nn` are made of, composed of the operations' primitives and of products of
XLA's: `jit`, `grad`, `vmap` and whatever JAX makes of functions work on them. Weights have the shapes of `mamba_ssm`'s
checkpoints.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from statescan.jax import mamba_inner
    >>> dim, dstate, rank, width = 8, 4, 2, 5
    >>> shapes = {"conv1d_weight": (dim, 3), "x_proj_weight": (rank + 2 * dstate, dim), "dt_proj_weight": (dim, rank),
    ...           "A": (dim, dstate), "outproj_weight": (width, dim)}
    >>> weights = {name: 0.1 * jnp.ones(shape) for name, shape in shapes.items()}
    >>> loss = lambda weights, xz: mamba_inner(xz, **weights, A_log=True)[0].sum()
    >>> gradients = jax.jit(jax.grad(loss))(weights, jnp.ones((1, 6, 2 * dim)))
    >>> gradients["x_proj_weight"].shape
    (10, 8)
"""

import jax
import jax.numpy as jnp

from . import functions
from ._types import Activation

__all__ = ["mamba2_inner", "mamba_inner"]


def _decays(A, A_log):
    """A from what is given: where it is the logarithm, the exponential is that of its own type, of 32 bits at least."""
    return -jnp.exp(A.astype(jnp.promote_types(A.dtype, jnp.float32))) if A_log else A


def _filters(weight):
    return weight.reshape(weight.shape[0], -1)


def _expect(name, axis, got, expected):
    if got != expected:
        raise ValueError(f"mamba_inner: `{name}` must have {expected} {axis}, got {got}")


def _linear(rows, weight, bias=None):
    """A product as PyTorch writes it; rows as they are where there is no weight."""
    if weight is None:
        return rows
    y = rows @ weight.T
    return y if bias is None else y + bias


def mamba_inner(
    xz: jax.Array,
    conv1d_weight: jax.Array,
    conv1d_bias: jax.Array | None = None,
    x_proj_weight: jax.Array | None = None,
    dt_proj_weight: jax.Array | None = None,
    dt_bias: jax.Array | None = None,
    A: jax.Array | None = None,
    D: jax.Array | None = None,
    outproj_weight: jax.Array | None = None,
    outproj_bias: jax.Array | None = None,
    B: jax.Array | None = None,
    C: jax.Array | None = None,
    B_bias: jax.Array | None = None,
    C_bias: jax.Array | None = None,
    B_norm: jax.Array | None = None,
    C_norm: jax.Array | None = None,
    dt_norm: jax.Array | None = None,
    dt_softplus: bool = True,
    A_log: bool = False,
    eps: float = 1e-6,
) -> tuple[jax.Array, jax.Array]:
    """Computes a Mamba layer behind its first projection: a convolution with SiLU, projections to step sizes and maps, the
    selective scan with its gate, and the last projection.

    Args:
        xz: (batch, seqlen, 2 dim), the input and the gate.
        conv1d_weight: (dim, width) or (dim, 1, width).
        conv1d_bias: (dim,).
        x_proj_weight: (rank + 2 dstate, dim), without the rows of maps that are given. Where A is complex, B and C have 2 dstate
            rows each: real and imaginary parts in turn.
        dt_proj_weight: (dim, rank).
        dt_bias: (dim,), added to step sizes.
        A: (dim, dstate), real or complex.
        D: (dim,).
        outproj_weight: (out, dim); without it nothing is projected.
        outproj_bias: (out,).
        B, C: as `statescan.selective_scan` takes them; those that are not given are projected.
        B_bias, C_bias: added to maps that are projected.
        B_norm, C_norm, dt_norm: weights of RMS norms of projected maps, behind their biases, and of the steps' low rank.
        dt_softplus: whether step sizes are the softplus of what is projected.
        A_log: whether A is the logarithm of what decays are the negative of.
        eps: of the norms.

    Returns:
        (batch, seqlen, out or dim), and the state after the last step, (batch, dim, dstate).

    Raises:
        ValueError: shapes that do not fit, by the name of this function or of the operation that refuses them.
    """
    (dim, dstate), is_complex = A.shape, jnp.iscomplexobj(A)
    rank, rows = dt_proj_weight.shape[1], dstate * (2 if is_complex else 1)
    # slices would leave out what is too much
    _expect("xz", "channels", xz.shape[-1], 2 * dim)
    _expect("x_proj_weight", "rows", x_proj_weight.shape[0], rank + sum(rows for given in (B, C) if given is None))
    x, z = (xz[..., part : part + dim].swapaxes(1, 2) for part in (0, dim))
    x = functions.causal_conv1d(x, _filters(conv1d_weight), conv1d_bias, activation="silu")
    projected = _linear(x.swapaxes(1, 2), x_proj_weight)
    starts = iter(range(rank, projected.shape[-1], rows))

    def normed(part, weight):
        return part if weight is None else functions.norm(part, weight, eps=eps)

    def of(given, bias, weight):
        if given is not None:
            return given
        start = next(starts)
        part = projected[..., start : start + rows]
        part = normed(part if bias is None else part + bias, weight)
        return (jax.lax.complex(part[..., ::2], part[..., 1::2]) if is_complex else part).swapaxes(1, 2)

    dt = _linear(normed(projected[..., :rank], dt_norm), dt_proj_weight).swapaxes(1, 2)
    B, C = of(B, B_bias, B_norm), of(C, C_bias, C_norm)
    options = {"z": z, "dt_bias": dt_bias, "dt_softplus": dt_softplus}
    y, state = functions.selective_scan(x, dt, _decays(A, A_log), B, C, D, **options)
    return _linear(y.swapaxes(1, 2), outproj_weight, outproj_bias), state


def mamba2_inner(
    zxbcdt: jax.Array,
    conv1d_weight: jax.Array,
    conv1d_bias: jax.Array | None = None,
    dt_bias: jax.Array | None = None,
    A: jax.Array | None = None,
    D: jax.Array | None = None,
    rmsnorm_weight: jax.Array | None = None,
    outproj_weight: jax.Array | None = None,
    outproj_bias: jax.Array | None = None,
    initial_states: jax.Array | None = None,
    seq_idx: jax.Array | None = None,
    activation: Activation = "silu",
    dt_low: float | None = None,
    dt_high: float | None = None,
    eps: float = 1e-6,
    headdim: int = 64,
    ngroups: int = 1,
    chunk_size: int = 128,
    norm_before_gate: bool = False,
    A_log: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Computes a Mamba-2 layer behind its first projection: a convolution, SSD, the gated norm, the gated unit beside them, and
    the last projection.

    Args:
        zxbcdt: (batch, seqlen, 2 unit + dim + convolved + nheads), with dim = nheads headdim and convolved = dim + 2 ngroups
            dstate: gate and value of a gated unit, the gate, x with B and C, step sizes.
        conv1d_weight: (convolved, width) or (convolved, 1, width).
        conv1d_bias: (convolved,).
        dt_bias: (nheads,), added to step sizes.
        A: (nheads,).
        D: (nheads,) or (nheads, headdim).
        rmsnorm_weight: (dim,); without it the scan is gated and not normed.
        outproj_weight: (out, unit + dim); without it nothing is projected.
        outproj_bias: (out,).
        initial_states: (batch, nheads, headdim, dstate).
        seq_idx: (batch, seqlen), the sequence of each step.
        activation: of the convolution, "silu" or None.
        dt_low, dt_high: the limits of step sizes.
        eps: of the norm.
        headdim, ngroups: channels of a head, and groups that B, C and the norm have.
        chunk_size: a hint.
        norm_before_gate: whether the norm comes before the gate.
        A_log: whether A is the logarithm of what decays are the negative of.

    Returns:
        (batch, seqlen, out or unit + dim), and the final states, (batch, nheads, headdim, dstate).

    Raises:
        ValueError: shapes that do not fit, by the name of the operation that refuses them.
    """
    nheads, convolved, (batch, seqlen, width) = A.shape[0], conv1d_weight.shape[0], zxbcdt.shape
    dim = nheads * headdim
    unit = width - dim - convolved - nheads
    z, xBC, dt = zxbcdt[..., unit : unit + dim], zxbcdt[..., unit + dim : width - nheads], zxbcdt[..., width - nheads :]
    xBC = functions.causal_conv1d(
        xBC.swapaxes(1, 2), _filters(conv1d_weight), conv1d_bias, activation=activation, seq_idx=seq_idx
    ).swapaxes(1, 2)
    x = xBC[..., :dim].reshape(batch, seqlen, nheads, headdim)
    B, C = (maps.reshape(batch, seqlen, ngroups, -1) for maps in jnp.split(xBC[..., dim:], 2, -1))
    y, states = functions.ssd(
        x,
        dt,
        _decays(A, A_log),
        B,
        C,
        chunk_size,
        D,
        initial_states,
        z=None if rmsnorm_weight is not None else z.reshape(x.shape),
        dt_bias=dt_bias,
        dt_softplus=True,
        dt_limit=(0.0 if dt_low is None else dt_low, float("inf") if dt_high is None else dt_high),
        seq_idx=seq_idx,
    )
    y = y.reshape(batch, seqlen, dim)
    if rmsnorm_weight is not None:
        y = functions.norm(y, rmsnorm_weight, z=z, eps=eps, groups=ngroups, norm_before_gate=norm_before_gate)
    if unit:
        gate, value = jnp.split(zxbcdt[..., :unit], 2, -1)
        y = jnp.concatenate([jax.nn.silu(gate) * value, y], -1)
    return _linear(y, outproj_weight, outproj_bias), states
