"""Operations that are built from ours beside their origins' Triton kernels, on a CUDA device, in one run.

Simple GLA beside `fla`'s, and Mamba-3's recurrence beside `mamba_ssm`'s: the same functions with the same arguments in bf16, a
forward pass, and a forward and backward pass with every gradient; ours as it is called, and under `torch.compile`, which makes
few kernels of what stands around the scan. Each row is verified before it is timed: the largest of the relative errors of y and
of all gradients, against ours in float64 on the CPU, for the first steps of the first row. Times are microseconds of the device
out of a CUDA graph, with nothing of the call in the caches; medians of turns.

The peers' files need no compiled extension; `--mamba-ssm` is the folder of a checkout that has Mamba-3.

    pip install flash-linear-attention && python benches/peers/derived.py --mamba-ssm mamba
"""

import argparse
import functools
import importlib
import os
import pathlib
import sys
import types

import torch
from device import call_times, compile_kernels

from statescan.compat.simple_gla import chunk_simple_gla
from statescan.derived import mamba3_siso_combined

VERIFIED_STEPS = 200
BF16 = torch.bfloat16


def real(*shape):
    return torch.randn(shape, device="cuda")


def of_gla(batch, seqlen, heads, width, values):
    steps = (batch, seqlen, heads)
    given = {"q": real(*steps, width).to(BF16), "k": real(*steps, width).to(BF16), "v": real(*steps, values).to(BF16)}
    return given | {"g": torch.nn.functional.logsigmoid(real(*steps)) / 16}


def of_mamba3(batch, seqlen, heads, groups, width, values, angles):
    maps, times = (batch, seqlen, groups, width), (batch, heads, seqlen)
    given = {"Q": real(*maps), "K": real(*maps), "V": real(batch, seqlen, heads, values), "Z": real(batch, seqlen, heads, values)}
    given |= {"Trap": real(*times), "Angles": real(batch, seqlen, heads, angles)}
    dt = torch.nn.functional.softplus(real(*times) - 3)
    own = {"ADT": -dt * (1 + 15 * torch.rand(heads, 1, device="cuda")), "DT": dt, "D": torch.ones(heads, device="cuda")}
    bias = {name: 1 + 0.1 * real(heads, width) for name in ("Q_bias", "K_bias")}
    return {name: t.to(BF16) for name, t in given.items()} | own | bias


# a name has our function, its arguments, their axes of time where that is not 1, and sizes
ROWS = {
    "Mamba-3": (
        mamba3_siso_combined,
        of_mamba3,
        {"ADT": 2, "DT": 2, "Trap": 2, "D": None, "Q_bias": None, "K_bias": None},
        [(8, 2048, 32, 1, 128, 64, 32), (1, 8192, 32, 1, 128, 64, 32), (1, 333, 32, 1, 128, 64, 32)],
    ),
    "simple GLA": (chunk_simple_gla, of_gla, {}, [(8, 2048, 80, 128, 64), (1, 8192, 80, 128, 64), (1, 333, 80, 128, 64)]),
}


def import_peer(name, folder):
    if name == "simple GLA":
        return importlib.import_module("fla.ops.simple_gla").chunk_simple_gla
    # the peer's own __init__ would import the compiled extension
    package = types.ModuleType("mamba_ssm")
    package.__path__ = [str(pathlib.Path(folder) / "mamba_ssm")]
    sys.modules["mamba_ssm"] = package
    return importlib.import_module("mamba_ssm.ops.triton.mamba3.mamba3_siso_combined").mamba3_siso_combined


def first_steps(tensors, axes):
    """Of the first row."""

    def cut(name, tensor):
        axis = axes.get(name, 1)
        return tensor if axis is None else tensor[:1].narrow(axis, 0, min(VERIFIED_STEPS, tensor.shape[axis])).contiguous()

    return {name: cut(name, tensor) for name, tensor in tensors.items()}


def forward(function, tensors):
    y = function(**tensors)
    return y[0] if isinstance(y, tuple) else y


def with_gradients(function, tensors):
    """y, and the gradients of a weighted sum of it."""
    leaves = {name: t.detach().requires_grad_() for name, t in tensors.items()}
    y = forward(function, leaves)
    weights = torch.linspace(-1, 1, y.shape[-1], dtype=y.dtype, device=y.device)
    return [y.detach(), *torch.autograd.grad(y, list(leaves.values()), weights.expand_as(y).contiguous())]


def has_gradients(function, tensors):
    """Whether a function has gradients here: fla refuses its own on Hopper with the Triton of PyTorch 2.8 to 2.11."""
    try:
        with_gradients(function, tensors)
    except RuntimeError as refusal:
        print(refusal)
        return False
    return True


def call_peer(name, folder):
    _, make, _, sizes = ROWS[name]
    for some in sizes:
        has_gradients(import_peer(name, folder), make(*some))


def errors(functions, tensors, call):
    """The largest relative error of what a call returns, of each function."""
    wide = {name: t.double().cpu() for name, t in tensors.items()}
    found = [call(function, tensors) for function in functions]
    return [max(((a.cpu() - b).norm() / b.norm()).item() for a, b in zip(some, call(functions[0], wide))) for some in found]


def measure(name, sizes, peer):
    ours, make, axes, _ = ROWS[name]
    tensors = make(*sizes)
    passes = {"forward": torch.no_grad()(lambda function, tensors: [forward(function, tensors)])}
    if has_gradients(peer, tensors):
        passes["with gradients"] = with_gradients
    for kind, call in passes.items():
        # peers are tuned at the size that is timed
        times = call_times([functools.partial(call, function, tensors) for function in (ours, torch.compile(ours), peer)])
        found = errors((ours, peer), first_steps(tensors, axes), call)
        columns = [*(f"{time:.0f}" for time in times), ", ".join(f"{error:.1e}" for error in found)]
        print(f"| {name} | {sizes} | {kind} |", " | ".join(columns), "|", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mamba-ssm", metavar="FOLDER", help="with mamba_ssm's files; without it Mamba-3 is left out")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count(), 12), help="that compile the peers' kernels")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__)
    print(
        "| | sizes | pass | statescan | compiled | peer | errors of ours, of the peer |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    for name, (_, _, _, rows) in ROWS.items():
        if name == "simple GLA" or options.mamba_ssm is not None:
            compile_kernels(call_peer, (name, options.mamba_ssm), options.processes)
            peer = import_peer(name, options.mamba_ssm)
            for sizes in rows:
                measure(name, sizes, peer)


if __name__ == "__main__":
    main()
