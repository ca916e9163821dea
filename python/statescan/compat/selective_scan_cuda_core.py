"""The compiled modules of VMamba, `selective_scan_cuda_core` and `selective_scan_cuda_oflex`, which its models call directly."""

from torch import Tensor

from .selective_scan_cuda import backward, forward


def fwd(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    nrows: int = 1,
    out_float: bool = False,
) -> list[Tensor]:
    """`selective_scan_cuda_core.fwd`, and with `out_float`, whether y is float32, `selective_scan_cuda_oflex.fwd`: y and states.
    `nrows` is a hint."""
    out, x = forward(u, delta, A, B, C, D, delta_bias, delta_softplus)
    return [out.float() if out_float else out, x]


def bwd(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    delta_bias: Tensor | None,
    dout: Tensor,
    x: Tensor | None,
    delta_softplus: bool,
    nrows: int = 1,
) -> list[Tensor | None]:
    """`selective_scan_cuda_core.bwd` and `selective_scan_cuda_oflex.bwd`: the gradients by all that `fwd` takes."""
    return backward((u, delta, A, B, C, D, delta_bias), None, dout.to(u.dtype), delta_softplus)[:-2]
