"""The gated delta rule of `fla` (flash-linear-attention, Triton) beside statescan's on a CUDA device, in one run.

Both are called through the same functions, in bf16 with 128 keys and values, normalised queries and keys, initial and final
states. Each row is verified before it is timed: the relative errors of both against a recurrence in float64 over the first
steps are printed, of a backward pass the largest one of a gradient. Times are microseconds of the device out of a CUDA graph,
with nothing of the call in the caches; medians of turns. A row that the peer refuses has ours alone: on Hopper with the Triton
of PyTorch 2.8 to 2.11 it has no backward pass where heads have decays.

    pip install flash-linear-attention && python benches/peers/delta_fla.py
"""

import argparse
import contextlib
import functools
import os

import fla.ops.gated_delta_rule as gdn
import fla.ops.kda as kda
import torch
from device import call_times, compile_kernels

from statescan.compat import fla as ours

WIDTH, VERIFIED_STEPS = 128, 256
BF16 = torch.bfloat16

# (batch, seqlen, heads of keys, heads of values)
FORWARD = [(1, 2048, 16, 32), (1, 8192, 16, 32), (1, 32768, 16, 32), (4, 8192, 16, 32), (1, 8192, 2, 8), (1, 32768, 2, 8)]
BACKWARD = [(1, 8192, 16, 32), (1, 32768, 16, 32), (4, 8192, 16, 32)]
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


def cut(tensors):
    """The first steps of the first row."""
    return {name: t[:1] if name == "initial_state" else t[:1, :VERIFIED_STEPS] for name, t in tensors.items()}


def gradients(function, tensors):
    """A function of every gradient; its first call runs the forward pass, in the same stream."""
    given, recorded = {name: t.detach().requires_grad_() for name, t in tensors.items()}, []

    def step():
        if not recorded:
            y = function(**given).to(BF16)
            generator = torch.Generator("cuda").manual_seed(0)
            recorded.extend((y, torch.randn(y.shape, device="cuda", generator=generator).to(BF16)))
        return torch.autograd.grad(recorded[0], list(given.values()), recorded[1], retain_graph=True)

    return step


def error(function, tensors, backward):
    """Of y, or the largest one of a gradient."""
    some = cut(tensors)
    if backward:
        expected, got = gradients(exact, some)(), gradients(lambda **given: call(function, given)[0], some)()
    else:
        expected, got = [exact(**some)], [call(function, tensors)[0][:1, :VERIFIED_STEPS]]
    found = max(((a.double() - b.double()).norm() / b.double().norm()).item() for a, b in zip(got, expected))
    assert found < (0.02 if backward else 0.01), found
    return found


def row(name, sizes, functions, channels, backward):
    tensors, errors, steps = inputs(sizes, channels), [], []
    with torch.set_grad_enabled(backward):
        for function in functions:
            try:
                errors.append(f"{error(function, tensors, backward):.1e}")
            except RuntimeError as refused:
                if function is functions[0] or "produces incorrect results" not in str(refused):
                    raise
                continue
            whole = functools.partial(call, function, tensors)
            steps.append(gradients(lambda function=function, **given: call(function, given)[0], tensors) if backward else whole)
        own, *peer = call_times(steps)
    found = f"{peer[0]:.1f} | {peer[0] / own:.2f}" if peer else "refused |"
    print(f"| {name} | {sizes} | {own:.1f} | {found} | {', '.join(errors)} |", flush=True)


def rows():
    """Names of rows, sizes, functions of both, whether each channel has a decay, and whether the backward pass is timed."""
    recurrent = ours.fused_recurrent_gated_delta_rule, gdn.fused_recurrent_gated_delta_rule
    whole = ours.chunk_gated_delta_rule, gdn.chunk_gated_delta_rule
    yield from (("step", sizes, recurrent, False, False) for sizes in STEPS)
    recurrent = ours.fused_recurrent_kda, kda.fused_recurrent_kda
    yield from (("step, a decay a channel", sizes, recurrent, True, False) for sizes in STEPS)
    by_channel = ours.chunk_kda, kda.chunk_kda
    for name, backward, of_heads in (("forward", False, FORWARD), ("backward", True, BACKWARD)):
        yield from ((name, sizes, whole, False, backward) for sizes in of_heads)
        yield from ((f"{name}, a decay a channel", sizes, by_channel, True, backward) for sizes in CHANNELS)


def call_peer(only):
    """The calls whose kernels are to be compiled."""
    for name, sizes, (_, peer), channels, backward in rows():
        if name.startswith(only):
            step = functools.partial(call, peer)
            with contextlib.suppress(RuntimeError), torch.set_grad_enabled(backward):
                tensors = inputs(sizes, channels)
                gradients(lambda step=step, **given: step(given)[0], tensors)() if backward else step(tensors)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose names begin so")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count(), 12), help="that compile the peer's kernels")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__)
    print("| | (batch, seqlen, heads, heads of values) | statescan | fla | ratio | errors |\n|---|---|---|---|---|---|")
    compile_kernels(call_peer, (options.only,), options.processes)
    for name, *rest in rows():
        if name.startswith(options.only):
            row(name, *rest)


if __name__ == "__main__":
    main()
