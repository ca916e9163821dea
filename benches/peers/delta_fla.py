"""The gated delta rule of `fla` (flash-linear-attention, Triton) beside statescan's on a CUDA device, in one run.

Both are called through the same functions, in bf16 with 128 keys and values, normalised queries and keys, initial and final
states. Each row is verified before it is timed: the relative errors of both against a recurrence in float64 over the first
steps are printed. Times are microseconds of the device out of a CUDA graph, with nothing of the call in the caches; medians of
turns. The peer refuses its backward pass on Hopper with the Triton of PyTorch 2.8 to 2.11, so forward passes alone are timed.

    pip install flash-linear-attention && python benches/peers/delta_fla.py
"""

import argparse
import functools

import fla.ops.gated_delta_rule as gdn
import fla.ops.kda as kda
import torch
from device import call_times

from statescan.compat import fla as ours

WIDTH, VERIFIED_STEPS = 128, 256
BF16 = torch.bfloat16

# (batch, seqlen, heads of keys, heads of values)
FORWARD = [(1, 2048, 16, 32), (1, 8192, 16, 32), (1, 32768, 16, 32), (4, 8192, 16, 32), (1, 8192, 2, 8), (1, 32768, 2, 8)]
CHANNELS = [(1, 8192, 16, 16)]
STEPS = [(1, 1, 16, 32), (16, 1, 16, 32), (64, 1, 16, 32)]


def inputs(sizes, channels):
    batch, seqlen, heads, values = sizes
    real = lambda *shape: torch.randn(shape, device="cuda")  # noqa: E731
    gate = (batch, seqlen, values, WIDTH) if channels else (batch, seqlen, values)
    return {
        "q": real(batch, seqlen, heads, WIDTH).to(BF16),
        "k": real(batch, seqlen, heads, WIDTH).to(BF16),
        "v": real(batch, seqlen, values, WIDTH).to(BF16),
        "g": -torch.nn.functional.softplus(real(*gate) - 4),
        "beta": torch.rand(batch, seqlen, values, device="cuda").to(BF16),
        "initial_state": real(batch, values, WIDTH, WIDTH),
    }


def exact(q, k, v, g, beta, initial_state):
    """The recurrence in float64."""
    q, k = (t.double() / (t.double().square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
    q, k = (t.repeat_interleave(v.shape[2] // q.shape[2], 2) for t in (q, k))
    v, decay, beta, state, ys = v.double(), g.double().exp(), beta.double(), initial_state.double(), []
    for t in range(v.shape[1]):
        state = state * decay[:, t].reshape(*decay.shape[:1], decay.shape[2], -1, 1)
        d = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * d[:, :, None, :]
        ys.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * WIDTH**-0.5)
    return torch.stack(ys, 1)


def call(function, tensors):
    return function(**tensors, output_final_state=True, use_qk_l2norm_in_kernel=True)


def error(function, tensors):
    """Of the first steps of the first row."""
    some = {name: t[:1] if name == "initial_state" else t[:1, :VERIFIED_STEPS] for name, t in tensors.items()}
    expected, got = exact(**some), call(function, tensors)[0][:1, :VERIFIED_STEPS].double()
    found = ((got - expected).norm() / expected.norm()).item()
    assert found < 0.01, found
    return found


@torch.no_grad()
def row(name, sizes, functions, channels):
    tensors = inputs(sizes, channels)
    errors = [error(function, tensors) for function in functions]
    own, peer = call_times([functools.partial(call, function, tensors) for function in functions])
    print(f"| {name} | {sizes} | {own:.1f} | {peer:.1f} | {peer / own:.2f} | {errors[0]:.1e}, {errors[1]:.1e} |", flush=True)


def rows():
    """Names of rows, sizes, functions of both, and whether each channel has a decay."""
    recurrent = ours.fused_recurrent_gated_delta_rule, gdn.fused_recurrent_gated_delta_rule
    whole = ours.chunk_gated_delta_rule, gdn.chunk_gated_delta_rule
    yield from (("step", sizes, recurrent, False) for sizes in STEPS)
    recurrent = ours.fused_recurrent_kda, kda.fused_recurrent_kda
    yield from (("step, a decay a channel", sizes, recurrent, True) for sizes in STEPS)
    yield from (("forward", sizes, whole, False) for sizes in FORWARD)
    yield from (("forward, a decay a channel", sizes, (ours.chunk_kda, kda.chunk_kda), True) for sizes in CHANNELS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose names begin so")
    only = parser.parse_args().only
    print(torch.cuda.get_device_name(), torch.__version__)
    print("| | (batch, seqlen, heads, heads of values) | statescan | fla | ratio | errors |\n|---|---|---|---|---|---|")
    for name, *rest in rows():
        if name.startswith(only):
            row(name, *rest)


if __name__ == "__main__":
    main()
