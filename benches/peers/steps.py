"""Steps and pools as servers use them, on a CUDA device, in one run: beside Triton's step (`mamba_ssm`), and beside the same
calls without a pool.

One step of Mamba-2 at (rows, 80, 64, 128) in bf16, with states in f32 and bf16: ours and Triton's `selective_state_update`,
the same arguments. Both are compared with the formula in float64 before they are timed. Then, at 64 rows, the forms of our
step: without indices, through an index, from slot to slot, and four tokens; and a packed prefill of `ssd` from and into a pool
beside gathered states, whose gathering is not counted.

Times are those of the device out of a CUDA graph of several calls, which rotate among states that no cache holds; medians.
`--peer` is the folder of `mamba_ssm`'s files, which need no compiled extension.
"""

import argparse
import functools
import importlib
import pathlib
import statistics
import sys
import types

import torch

import statescan

HEADS, WIDTH, DSTATE = 80, 64, 128
REPEATS = 30
# states that calls rotate among take so many bytes at least
ROTATED = 256 << 20


def import_peer(folder):
    """The peer's step, from its files in a folder."""
    package = types.ModuleType("mamba_ssm")
    package.__path__ = [str(pathlib.Path(folder) / "mamba_ssm")]
    sys.modules["mamba_ssm"] = package
    return importlib.import_module("mamba_ssm.ops.triton.selective_state_update").selective_state_update


def microseconds(calls):
    """The device's time for one of some calls."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
        times = []
        for _ in range(REPEATS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(1000 * begin.elapsed_time(end) / len(calls))
    return statistics.median(times)


def inputs(rows):
    """x, dt, A, B, C, D and dt_bias of a step."""
    x = torch.randn(rows, HEADS, WIDTH, device="cuda").bfloat16()
    dt = torch.randn(rows, HEADS, device="cuda").bfloat16()
    B, C = torch.randn(2, rows, 1, DSTATE, device="cuda").bfloat16()
    A, D, bias = (
        -torch.rand(HEADS, device="cuda") * 15 - 1,
        torch.ones(HEADS, device="cuda"),
        torch.rand(HEADS, device="cuda") - 5,
    )
    return x, dt, A, B, C, D, bias


def ours(state, given, **slots):
    x, dt, A, B, C, D, bias = given
    return statescan.ssd_update(state, x, dt, A, B, C, D, dt_bias=bias, dt_softplus=True, **slots)


def theirs(step, state, given):
    x, dt, A, B, C, D, bias = given
    dt, A = dt[..., None].expand(*dt.shape, WIDTH), A[:, None, None].expand(-1, WIDTH, DSTATE)
    D, bias = D[:, None].expand(-1, WIDTH), bias[:, None].expand(-1, WIDTH)
    return step(state, x, dt, A, B, C, D, dt_bias=bias, dt_softplus=True)


def exact(state, given):
    x, dt, A, B, C, D, bias = (tensor.double() for tensor in given)
    dt = torch.nn.functional.softplus(dt + bias)
    state = state.double() * (dt * A).exp()[..., None, None] + (dt[..., None] * x)[..., None] * B[:, :, None]
    return (state * C[:, :, None]).sum(-1) + D[:, None] * x, state


def off(got, expected):
    return float((got.double() - expected).norm() / expected.norm())


def compare(rows, dtype, peer):
    """Times of one step, and errors of y and of the state."""
    given, state = inputs(rows), torch.randn(rows, HEADS, WIDTH, DSTATE, device="cuda").to(dtype)
    wanted, times, errors = exact(state, given), [], []
    states = [state.clone() for _ in range(max(4, ROTATED // (state.numel() * state.element_size())))]
    for call in [ours] if peer is None else [ours, functools.partial(theirs, peer)]:
        own = state.clone()
        errors += [off(call(own, given), wanted[0]), off(own, wanted[1])]
        times.append(microseconds([functools.partial(call, own, given) for own in states]))
    print(rows, str(dtype)[6:], *(f"{time:.1f}" for time in times), *(f"{error:.1e}" for error in errors))


def forms(dtype, rows=64):
    """Times of the forms of our step."""
    pool = torch.randn(6 * rows, HEADS, WIDTH, DSTATE, device="cuda").to(dtype)
    own, to = torch.randperm(2 * rows, device="cuda").int().split(rows)
    given, many = inputs(rows), inputs(4 * rows)
    each = torch.arange(2 * rows, 6 * rows, device="cuda").int().view(rows, 4)
    calls = {
        "plain": lambda: ours(pool[:rows], given),
        "index": lambda: ours(pool, given, state_batch_indices=own),
        "slots": lambda: ours(pool, given, state_batch_indices=own, dst_state_batch_indices=to),
        "four": lambda: ours(pool, many, state_batch_indices=own, dst_state_batch_indices=own),
        "four each": lambda: ours(pool, many, state_batch_indices=own, dst_state_batch_indices=each),
    }
    times = {name: microseconds([call] * 4) for name, call in calls.items()}
    print(str(dtype)[6:], *(f"{name} {time:.1f} ({time / times['plain']:.2f})" for name, time in times.items()))


def prefill(sequences, steps=8192):
    """Times of a packed prefill beside gathered states and in a pool."""
    x, dt = torch.randn(1, steps, HEADS, WIDTH, device="cuda").bfloat16(), torch.rand(1, steps, HEADS, device="cuda").bfloat16()
    B, C = torch.randn(2, 1, steps, 1, DSTATE, device="cuda").bfloat16()
    A, bounds = -torch.rand(HEADS, device="cuda"), torch.linspace(0, steps, sequences + 1, device="cuda").int()
    pool = torch.randn(2 * sequences, HEADS, WIDTH, DSTATE, device="cuda")
    gathered, slots = pool[:sequences].clone(), torch.randperm(2 * sequences, device="cuda")[:sequences].int()
    apart, inside = (
        microseconds([functools.partial(statescan.ssd, x, dt, A, B, C, initial_state=state, cu_seqlens=bounds)] * 4)
        for state in (gathered, statescan.StatePool(pool, slots))
    )
    print(sequences, f"{apart:.1f} {inside:.1f} ({inside / apart:.3f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="the folder of mamba_ssm's files")
    peer = parser.parse_args().peer
    peer = import_peer(peer) if peer else None
    torch.manual_seed(0)
    print(torch.cuda.get_device_name())
    print("one step, us: rows, states, ours, Triton's, errors of y and of the state of each")
    for rows in (1, 64, 256):
        for dtype in (torch.float32, torch.bfloat16):
            compare(rows, dtype, peer)
    print("forms of a step of 64 rows, us, and their share of a plain one")
    for dtype in (torch.float32, torch.bfloat16):
        forms(dtype)
    print("packed prefill of ssd, us: sequences, gathered states, a pool, share")
    for sequences in (1, 8, 32):
        prefill(sequences)
